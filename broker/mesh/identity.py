"""Who this broker is, over its lives: the data folder's UUID, the epoch that grows with each start, and its key pair."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from ...base.process.files import replace_file
from ...base.quoting import quoted
from ...mesh.view.lives import Former
from ...mesh.wire.control import ALL
from ...mesh.wire.identity import CAPABILITIES, LIFE_BYTES, Identity
from ...mesh.wire.keys import KEY_BYTES, Signer, shown

log = logging.getLogger("mqmesh.mesh")

FILE = "identity.json"
SPREAD = 1 << 16  # milliseconds by which an epoch is moved at random, so that two copies of a folder never begin the same one
KEY_FILE = "identity.key"  # the private key: 64 hexadecimal digits, for nobody else to read
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)  # what reading a damaged file raises


class Fenced(NamedTuple):
    """Why a broker is stopped: a broker with the same identity was alive. twin: the life of that one. common: see `Former`."""

    twin: str
    at: float
    common: tuple[tuple[int, int], ...]


class Standing(NamedTuple):
    """What operators and other lives have said of this identity (docs/copies.md). claim, former: see mesh/view/lives.py."""

    claim: int = 0
    former: Former | None = None
    fenced: Fenced | None = None


NOTHING = Standing()


def own_identity(
    data: Path | None,
    mesh: str,
    name: str,
    number: int,
    stored: tuple[uuid.UUID, int] | None = None,
    key: bytes = b"",
    standing: Standing = NOTHING,
) -> Identity:
    """Read or make the identity in the data folder and begin a new epoch: at least max(stored + 1, the clock in milliseconds).

    data: None for a broker without a folder: what its store says, without a store a fresh UUID for each start. stored: UUID and
    epoch as the store knows them. key: the public one (`own_signer`). The life is random. Raises OSError when the folder cannot be written,
    ValueError (one line) when the file is not an identity, or that of another broker than the store's.
    """
    epoch = int(time.time() * 1000)
    own = uuid.uuid4()
    if stored is not None:
        own, epoch = stored[0], max(stored[1] + 1, epoch)
    if data is None:
        return Identity(mesh, name, number, own, epoch + secrets.randbelow(SPREAD), key, os.urandom(LIFE_BYTES), CAPABILITIES)
    data.mkdir(0o700, parents=True, exist_ok=True)
    path = data / FILE
    if path.exists():
        try:
            found = json.loads(path.read_text())
            own = uuid.UUID(found["uuid"])
            epoch = max(int(found["epoch"]) + 1, epoch)
            was = found.get("key")
        except DAMAGED as error:
            raise ValueError(f"{path} is not a broker's identity ({error}); restore it, or remove it to begin as another broker") from None
        former = None if standing.former is None else standing.former.uuid
        if stored is not None and own != stored[0] and former != stored[0].bytes:
            raise ValueError(f"{path} says broker {own}, the store holds messages of {stored[0]}; restore one of them, or empty the store")
        if was is not None and key and was != shown(key):
            text = "others know this broker by the former key, and refuse it: restore the file, or give them the new one (mesh.keys)"
            log.warning("event=identity-key-changed file=%s former=%s now=%s text=%s", data / KEY_FILE, quoted(str(was)), shown(key), text)
    epoch += secrets.randbelow(SPREAD)
    identity = Identity(mesh, name, number, own, epoch, key, os.urandom(LIFE_BYTES), CAPABILITIES)
    keep_identity(data, identity, standing)
    return identity


def keep_identity(data: Path, identity: Identity, standing: Standing = NOTHING) -> None:
    """Write down who this broker is in this life. Raises OSError."""
    table = {"uuid": str(identity.uuid), "epoch": identity.epoch, "name": identity.name, "number": identity.number, "mesh": identity.mesh}
    if identity.key:
        table["key"] = shown(identity.key)  # the public one, for `mesh.keys` at other brokers
    replace_file(data / FILE, json.dumps(table | _written(standing)) + "\n")


def _written(standing: Standing) -> dict[str, object]:
    table: dict[str, object] = {}
    if standing.claim:
        table["claim"] = standing.claim
    if standing.former is not None:
        number, raw, common = standing.former
        table["former"] = {"number": number, "uuid": str(uuid.UUID(bytes=raw)), "common": common}
    if standing.fenced is not None:
        table["fenced"] = standing.fenced._asdict()
    return table


def read_identity(data: Path) -> tuple[dict[str, Any], Standing]:
    """What the identity file says, ({}, nothing) without one. Raises ValueError (one line) for a file that is no identity, OSError."""
    path = data / FILE
    if not path.exists():
        return {}, NOTHING
    try:
        table = json.loads(path.read_text())
        former, fenced = table.get("former"), table.get("fenced")
        was = None if former is None else Former(int(former["number"]), uuid.UUID(former["uuid"]).bytes, _pairs(former["common"]))
        stopped = None if fenced is None else Fenced(str(fenced["twin"]), float(fenced["at"]), _pairs(fenced["common"]))
        uuid.UUID(table["uuid"]), int(table["epoch"]), int(table["number"]), str(table["mesh"]), str(table["name"])
        return table, Standing(int(table.get("claim", 0)), was, stopped)
    except DAMAGED as error:
        raise ValueError(f"{path} is not a broker's identity ({error}); restore it, or remove it to begin as another broker") from None


def _pairs(found: Any) -> tuple[tuple[int, int], ...]:
    return tuple([(int(epoch), int(last)) for epoch, last in found])


# What an operator decides about a copy of a data folder (mqmesh identity)


def renew(data: Path, number: int) -> Identity:
    """Give a data folder a new identity: a new UUID, and with the next start a new key pair. What the folder holds in custody that the
    former identity has not goes out under the new one.

    number: the one that the broker's file has now. Raises ValueError (one line) when there is no identity to replace, or the number is
    still the former one; OSError.
    """
    table, standing = read_identity(data)
    if not table:
        raise ValueError(f"{data / FILE} does not exist: the folder has no identity yet, start the broker")
    if standing.former is not None and "key" not in table:  # no start has used the identity of the file: a start writes its key
        former = standing.former
    else:
        common = standing.fenced.common if standing.fenced is not None else ((int(table["epoch"]), ALL),)
        former = Former(int(table["number"]), uuid.UUID(table["uuid"]).bytes, common)
    if number == former.number:
        raise ValueError(
            f"number is {number}, as before: give the copy a number and a name of its own in the broker's file, then call this again"
        )
    identity = Identity(str(table["mesh"]), str(table["name"]), number, uuid.uuid4(), int(table["epoch"]))
    (data / KEY_FILE).unlink(missing_ok=True)
    keep_identity(data, identity, Standing(0, former))
    return identity


def claim(data: Path, at: float) -> None:
    """Let the broker of a data folder hold its identity against all copies; the later claim counts. at: now, in seconds since 1970.

    Raises ValueError (one line) when there is no identity; OSError.
    """
    table, standing = read_identity(data)
    if not table:
        raise ValueError(f"{data / FILE} does not exist: the folder has no identity yet, start the broker")
    table = {key: value for key, value in table.items() if key not in ("claim", "former", "fenced")}
    claimed = standing._replace(claim=max(standing.claim + 1, int(at)), fenced=None)
    replace_file(data / FILE, json.dumps(table | _written(claimed)) + "\n")


def own_signer(data: Path | None) -> Signer:
    """Read or make the key pair in the data folder; without a folder a fresh one for each start, which does not last.

    Raises OSError when the folder cannot be read or written, ValueError (one line) when the file is not a key.
    """
    if data is None:
        return Signer(os.urandom(KEY_BYTES), lasting=False)
    data.mkdir(0o700, parents=True, exist_ok=True)
    path = data / KEY_FILE
    if not path.exists():
        replace_file(path, os.urandom(KEY_BYTES).hex() + "\n")
    try:
        return Signer(bytes.fromhex(path.read_text()))
    except ValueError:
        remedy = "restore it, or remove it for a new key, which the other brokers have to be told (mesh.keys)"
        raise ValueError(f"{path} is not a broker's key, {2 * KEY_BYTES} hexadecimal digits; {remedy}") from None
