"""Who this broker is, over its lives: the data folder's UUID, the epoch that grows with each start, and its key pair."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

from ...mesh.wire.identity import CAPABILITIES, LIFE_BYTES, Identity
from ...mesh.wire.keys import KEY_BYTES, Signer, shown

FILE = "identity.json"
KEY_FILE = "identity.key"  # the private key: 64 hexadecimal digits, for nobody else to read


def own_identity(
    data: Path | None, mesh: str, name: str, number: int, stored: tuple[uuid.UUID, int] | None = None, key: bytes = b""
) -> Identity:
    """Read or make the identity in the data folder and begin a new epoch: max(stored + 1, the clock in milliseconds).

    data: None for a broker without a folder: what its store says, without a store a fresh UUID for each start. stored: UUID and
    epoch as the store knows them. key: the public one (`own_signer`). The life is random. Raises OSError when the folder cannot be written,
    ValueError (one line) when the file is not an identity, or that of another broker than the store's.
    """
    epoch = int(time.time() * 1000)
    own = uuid.uuid4()
    if stored is not None:
        own, epoch = stored[0], max(stored[1] + 1, epoch)
    if data is None:
        return Identity(mesh, name, number, own, epoch, key, os.urandom(LIFE_BYTES), CAPABILITIES)
    data.mkdir(0o700, parents=True, exist_ok=True)
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
    identity = Identity(mesh, name, number, own, epoch, key, os.urandom(LIFE_BYTES), CAPABILITIES)
    keep_identity(data, identity)
    return identity


def keep_identity(data: Path, identity: Identity) -> None:
    """Write down who this broker is in this life. Raises OSError."""
    table = {"uuid": str(identity.uuid), "epoch": identity.epoch, "name": identity.name, "number": identity.number, "mesh": identity.mesh}
    if identity.key:
        table["key"] = shown(identity.key)  # the public one, for `mesh.keys` at other brokers
    replace_file(data / FILE, json.dumps(table) + "\n")


def own_signer(data: Path | None) -> Signer:
    """Read or make the key pair in the data folder; without a folder a fresh one for each start, which does not last.

    Raises OSError when the folder cannot be read or written, ValueError (one line) when the file is not a key.
    """
    if data is None:
        return Signer(os.urandom(KEY_BYTES), lasting=False)
    data.mkdir(0o700, parents=True, exist_ok=True)
    path = data / KEY_FILE
    if not path.exists():
        replace_file(path, os.urandom(KEY_BYTES).hex() + "\n", 0o600)
    try:
        return Signer(bytes.fromhex(path.read_text()))
    except ValueError:
        remedy = "restore it, or remove it for a new key, which the other brokers have to be told (mesh.keys)"
        raise ValueError(f"{path} is not a broker's key, {2 * KEY_BYTES} hexadecimal digits; {remedy}") from None


def replace_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace the file so that a crash leaves the old one or the new one. mode: of a new file, less what the process masks."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)  # a mode is given to new files alone
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
