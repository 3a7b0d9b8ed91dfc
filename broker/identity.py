"""Who this broker is, over its lives: the data folder's UUID and the epoch that grows with each start."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

from ..mesh.identity import Identity

FILE = "identity.json"


def own_identity(data: Path | None, mesh: str, name: str, number: int, stored: tuple[uuid.UUID, int] | None = None) -> Identity:
    """Read or make the identity in the data folder and begin a new epoch: max(stored + 1, the clock in milliseconds).

    data: None for a broker without a folder: what its store says, without a store a fresh UUID for each start. stored: UUID and
    epoch as the store knows them. Raises OSError when the folder cannot be written, ValueError (one line) when the file is not
    an identity, or that of another broker than the store's.
    """
    epoch = int(time.time() * 1000)
    own = uuid.uuid4()
    if stored is not None:
        own, epoch = stored[0], max(stored[1] + 1, epoch)
    if data is None:
        return Identity(mesh, name, number, own, epoch)
    data.mkdir(parents=True, exist_ok=True)
    path = data / FILE
    if path.exists():
        try:
            found = json.loads(path.read_text())
            own = uuid.UUID(found["uuid"])
            epoch = max(int(found["epoch"]) + 1, epoch)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a broker's identity ({error}); restore it, or remove it to begin as another broker") from None
        if stored is not None and own != stored[0]:
            raise ValueError(f"{path} says broker {own}, the store holds messages of {stored[0]}; restore one of them, or empty the store")
    identity = Identity(mesh, name, number, own, epoch)
    keep_identity(data, identity)
    return identity


def keep_identity(data: Path, identity: Identity) -> None:
    """Write down who this broker is in this life. Raises OSError."""
    table = {"uuid": str(identity.uuid), "epoch": identity.epoch, "name": identity.name, "number": identity.number, "mesh": identity.mesh}
    replace_file(data / FILE, json.dumps(table) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Replace the file so that a crash leaves the old one or the new one."""
    fresh = path.with_suffix(".new")
    with open(fresh, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
