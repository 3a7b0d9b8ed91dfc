"""What two neighbours say to each other about retained messages: arrays in msgpack, the first value says which.

    kind      from      values behind kind and session
    BEGIN     asker     form, root, line, vector, floors
    STATE     server    root, line, vector, floors
    ASK       asker     level, indexes                        (2 bytes each)
    NODES     server    level, indexes, hashes                (16 of 8 bytes for each index)
    LIST      asker     [[bucket, after, up to, entries], ..] (an entry: identifier 12, key 14)
    ANSWER    server    wanted, gone                          (identifiers)
    DATA      both      a piece of a stream of records
    MORE      both      -                                     (one DATA has been worked off)
    FINISH    asker     -
    FINISHED  server    -
    NUDGE     server    -                                     (session 0: something has changed here, ask soon)

vector: [[number, born, time], ..], floors: [[number, born, at, time], ..] as in `coverage.py`. line: up to which time the sender
has forgotten what is buried; 0 for none. A LIST speaks of the identifiers of one bucket above `after` (empty: from the first) up to `up to`
(empty: to the last). DATA pieces of one sender, put together, are records one after another.

This file knows forms, not meanings.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from .coverage import Floor, Heard
from .record import ID_SIZE, KEY_SIZE, integer, octets, refusing
from .tree import BUCKETS, DEPTH, FAN_OUT

FORM = 1
PIECE = 60 * 1024  # bytes of records in one DATA
NODES_MAX = 256  # nodes in one ASK
LISTED_MAX = 1024  # entries in one LIST
RANGES_MAX = 256  # ranges in one LIST
ENTRY_SIZE = ID_SIZE + KEY_SIZE


class Say(IntEnum):
    """Kinds of messages."""

    BEGIN = 0
    STATE = 1
    ASK = 2
    NODES = 3
    LIST = 4
    ANSWER = 5
    DATA = 6
    MORE = 7
    FINISH = 8
    FINISHED = 9
    NUDGE = 10


class State(NamedTuple):
    """Where a site stands."""

    root: int
    line: int
    vector: list[Heard]
    floors: list[Floor]


class Range(NamedTuple):
    """Entries of a bucket, all that its sender has above `after` up to `upto`."""

    bucket: int
    after: bytes
    upto: bytes
    entries: bytes


class Message(NamedTuple):
    """One message; which values it has follows from its kind."""

    say: Say
    session: int
    values: tuple[Any, ...] = ()


def encode(say: Say, session: int, *values: Any) -> bytes:
    """A message. values: as in the table, a state as four values."""
    return msgpack.packb([int(say), session, *values])  # type: ignore[no-any-return]


def encode_indexes(indexes: list[int]) -> bytes:
    """Two bytes each."""
    return b"".join([index.to_bytes(2, "big") for index in indexes])


def decode(data: bytes) -> Message:
    """Read and check a message. Raises `PeerError`."""
    return refusing(lambda: _decode(data))


def _decode(data: bytes) -> Message:
    value = msgpack.unpackb(data)
    if type(value) is not list or len(value) < 2:
        raise ValueError("no message")
    say = Say(integer(value[0], 8))
    checks = _FORMS[say]
    if len(value) != 2 + len(checks):
        raise ValueError(f"{say.name} has {len(value) - 2} values, not {len(checks)}")
    values = tuple([check(item) for check, item in zip(checks, value[2:], strict=True)])
    if say is Say.NODES and len(values[2]) != FAN_OUT * len(values[1]):
        raise ValueError("NODES has hashes for other nodes than it names")
    if say is Say.BEGIN and values[0] != FORM:
        raise ValueError(f"form {values[0]}, this broker speaks {FORM}")
    return Message(say, integer(value[1], 32), values)


def _int(bits: int) -> Callable[[Any], Any]:
    return lambda value: integer(value, bits)


def _rows(make: Callable[..., Any], *bits: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError("no list")
        found = []
        for row in value:
            if type(row) is not list or len(row) != len(bits):
                raise ValueError(f"{str(row)[:40]!r} is not a list of {len(bits)} values")
            found.append(make(*[integer(item, size) for item, size in zip(row, bits, strict=True)]))
        return found

    return check


def _words(size: int, most: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        octets(value, size * most)
        if len(value) % size:
            raise ValueError(f"{len(value)} bytes are not in groups of {size}")
        return [value[i : i + size] for i in range(0, len(value), size)]

    return check


def _integers(size: int, most: int) -> Callable[[Any], Any]:
    words = _words(size, most)
    return lambda value: [int.from_bytes(word, "big") for word in words(value)]


def _level(value: Any) -> int:
    if integer(value, 8) >= DEPTH:
        raise ValueError(f"level {value}")
    return value  # type: ignore[no-any-return]


def _ranges(value: Any) -> list[Range]:
    if type(value) is not list or len(value) > RANGES_MAX:
        raise ValueError("no short list of ranges")
    found = []
    for item in value:
        if type(item) is not list or len(item) != 4:
            raise ValueError("no range")
        bucket, after, upto, entries = item
        if integer(bucket, 16) >= BUCKETS or len(octets(after, ID_SIZE)) % ID_SIZE or len(octets(upto, ID_SIZE)) % ID_SIZE:
            raise ValueError("a range of no bucket")
        if len(octets(entries, ENTRY_SIZE * LISTED_MAX)) % ENTRY_SIZE:
            raise ValueError("a cut entry")
        found.append(Range(bucket, after, upto, entries))
    if sum(len(item.entries) for item in found) > ENTRY_SIZE * LISTED_MAX:
        raise ValueError("a list of too many entries")
    return found


_STATE = (_int(64), _int(48), _rows(Heard, 16, 48, 48), _rows(Floor, 16, 48, 48, 48))
_INDEXES = _integers(2, NODES_MAX)
_IDENTIFIERS = _words(ID_SIZE, LISTED_MAX)

_FORMS: dict[Say, tuple[Callable[[Any], Any], ...]] = {
    Say.BEGIN: (_int(8), *_STATE),
    Say.STATE: _STATE,
    Say.ASK: (_level, _INDEXES),
    Say.NODES: (_level, _INDEXES, _integers(8, NODES_MAX * FAN_OUT)),
    Say.LIST: (_ranges,),
    Say.ANSWER: (_IDENTIFIERS, _IDENTIFIERS),
    Say.DATA: (lambda value: octets(value, PIECE),),
    Say.MORE: (),
    Say.FINISH: (),
    Say.FINISHED: (),
    Say.NUDGE: (),
}
