"""The bytes of the log: frames of records (docs/queues.md, "The log").

A frame is one commit. It is whole or it is not there, so what stands in one frame happens together, in several queues too.

    frame    magic "MQF1" | head size u32 | body size u32 | commit u64 | CRC-32 of these and the head u32 | head | bodies
    head     records: NAME, NEXT, PUT, MOVES, SUBSCRIBER, CARRIED, CLAIM; little endian
    bodies   the payloads of its PUTs, one after the other; each PUT has their CRC-32

CARRIED is what is left of a block that was put long ago, with all moves of it so far: it is written again, so that old files can go.
CLAIM says which log a queue is in, when several have something of it: the one with the highest claim that is whole.

A reader that wants states only skips the bodies.

What it does not know: files. Times are milliseconds since 1970.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from ..core.blocks import Block, Key, Meta
from ..core.stock import Member, Move
from .sparse import Runs, rest_of, spread

MAGIC = b"MQF1"
FRAME = struct.Struct("<4sIIQI")  # magic, head size, body size, commit, CRC
NAME, PUT, MOVES, SUBSCRIBER, NEXT, CARRIED, CLAIM = 1, 2, 3, 4, 5, 6, 7
ORDERED, REVEALED, UNIFORM, VARIOUS = 1, 2, 4, 8
_NAME = struct.Struct("<BHIH")  # kind, queue, number, length of the text; number 0: the queue's own name
_PUT = struct.Struct("<BHQIQBBQQIIIHHI")
_MOVES = struct.Struct("<BHI")
_MOVE = struct.Struct("<QIBIBQ")
_SUBSCRIBER = struct.Struct("<BHIB")
_NEXT = struct.Struct("<BHQ")
_CARRIED = struct.Struct("<BHIII")  # kind, queue, messages of the block, runs, moves; a PUT of what is left follows them
_CLAIM = struct.Struct("<BHQB")
_META = struct.Struct("<HIHHB")
_GROUP = struct.Struct("<H")  # how many members; their numbers follow
_OFFSET_AT = struct.calcsize("<BHQIQBBQQ")  # in a PUT
LITTLE = sys.byteorder == "little"


class Damaged(ValueError):
    """These bytes are no frame, or a changed one."""


class Name(NamedTuple):
    """A number stands for a name from now on. number: of a member, 0: of the queue itself."""

    queue: int
    number: int
    text: str


class Next(NamedTuple):
    """The queue's next position is at least this one."""

    queue: int
    position: int


class Subscribed(NamedTuple):
    """A member is a subscriber of the queue, or no more. how: `ON`, `OFF`, or `ENDS`, which earlier versions take for `ON`."""

    queue: int
    number: int
    how: int


class Claim(NamedTuple):
    """The queue is in this log. epoch: counts each time that a queue goes to another log. whole: False: a copy of it goes on here that
    does not count yet.
    """

    queue: int
    epoch: int
    whole: bool


class Put(NamedTuple):
    """A block as it was put. groups: numbers of members. offset: of its body among the bodies.

    runs: what is left of it, written again; None: it is all there. moves: of these messages until then.
    """

    queue: int
    block: Block
    groups: list[list[int]]
    offset: int
    crc: int
    runs: Runs | None = None
    moves: Sequence[Move] = ()

    def has(self, position: int) -> bool:
        """Whether a message is in it."""
        at = position - self.block.first
        if self.runs is None:
            return 0 <= at < self.block.count
        return any(start <= at < start + count for start, count in self.runs)


class Moves(NamedTuple):
    """Moves of one queue, in order."""

    queue: int
    moves: list[Move]


Record = Name | Next | Subscribed | Claim | Put | Moves


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def name_record(queue: int, number: int, text: str) -> bytes:
    data = _text(text)
    return _NAME.pack(NAME, queue, number, len(data)) + data


def subscriber_record(queue: int, number: int, how: int) -> bytes:
    return _SUBSCRIBER.pack(SUBSCRIBER, queue, number, how)


def next_record(queue: int, position: int) -> bytes:
    return _NEXT.pack(NEXT, queue, position)


def claim_record(queue: int, epoch: int, whole: bool) -> bytes:
    return _CLAIM.pack(CLAIM, queue, epoch, whole)


def moves_record(queue: int, moves: list[Move]) -> bytes:
    pack = _MOVE.pack
    return _MOVES.pack(MOVES, queue, len(moves)) + b"".join([pack(*move) for move in moves])


def put_record(queue: int, block: Block, offset: int, crc: int, members: Mapping[str, Member]) -> bytes:
    """A block. offset: of its body among the frame's bodies. members: of the queue, by name."""
    key, lengths = block.key, block.lengths
    uniform = bool(lengths) and lengths == lengths[:1] * len(lengths)
    flags = key.ordered * ORDERED | key.revealed * REVEALED | uniform * UNIFORM | (block.which is not None) * VARIOUS
    out = [
        _PUT.pack(
            PUT,
            queue,
            block.first,
            block.count,
            block.at,
            key.priority,
            flags,
            key.due,
            key.expires,
            offset,
            block.size,
            crc,
            len(key.topic),
            len(key.groups),
            len(block.metas),
        ),
        key.topic,
        _numbers(lengths[:1] if uniform else lengths),
    ]
    if block.which is not None:
        out.append(_numbers(block.which))
    for group in key.groups:
        numbers = _numbers(array("I", [members[name].number for name in sorted(group)])) if group else b""
        out.append(_GROUP.pack(len(group)) + numbers)
    for meta in block.metas:
        texts = _text(meta.publisher), meta.properties, _text(meta.handle), _text(meta.group), meta.parcel
        out.append(_META.pack(*map(len, texts)) + b"".join(texts))
    return b"".join(out)


def carried_record(queue: int, block: Block, runs: Runs, moves: list[Move], offset: int, crc: int, members: Mapping[str, Member]) -> bytes:
    """What is left of a block. moves: of these messages so far. offset, crc: of its body."""
    fields = _CARRIED.pack(CARRIED, queue, block.count, len(runs), len(moves))
    numbers = _numbers(array("I", [number for run in runs for number in run]))
    packed = b"".join([_MOVE.pack(*move) for move in moves])
    return b"".join((fields, numbers, packed, put_record(queue, rest_of(block, runs), offset, crc, members)))


def _numbers(values: array[int]) -> bytes:
    if not LITTLE:
        values = values[:]
        values.byteswap()
    return values.tobytes()


def frame(commit: int, head: bytes, body_size: int) -> bytes:
    """The beginning of a frame with its head; the bodies follow."""
    fields = FRAME.pack(MAGIC, len(head), body_size, commit, 0)[:-4]
    return b"".join((fields, crc32(head, crc32(fields)).to_bytes(4, "little"), head))


class Header(NamedTuple):
    """The beginning of a frame. size: of all of it."""

    head: int
    body: int
    commit: int
    crc: int

    @property
    def size(self) -> int:
        return FRAME.size + self.head + self.body


def header_of(data: bytes) -> Header:
    """Read the first bytes of a frame. Raises Damaged."""
    if len(data) < FRAME.size:
        raise Damaged("it ends inside the beginning of a frame")
    magic, *rest = FRAME.unpack_from(data)
    if magic != MAGIC:
        raise Damaged("no frame begins here")
    return Header(*rest)


def check_head(fields: bytes, head: bytes) -> None:
    """Raise Damaged if the head is not what was written. fields: the frame's first bytes."""
    if crc32(head, crc32(fields[: FRAME.size - 4])) != int.from_bytes(fields[FRAME.size - 4 : FRAME.size], "little"):
        raise Damaged("the checksum of a frame is wrong")


class Span(NamedTuple):
    """Positions of one queue, with both ends."""

    low: int
    high: int


def records(head: bytes, spans: Mapping[int, Span] | None = None, puts: bool = True) -> Iterator[Record]:
    """What stands in a frame's head. Raises Damaged.

    spans: of moves only those that begin within their queue's span are wanted. puts: whether blocks as they were put are wanted.
    """
    at = 0
    try:
        while at < len(head):
            kind = head[at]
            if kind == MOVES:
                _, queue, count = _MOVES.unpack_from(head, at)
                at += _MOVES.size
                end = at + count * _MOVE.size
                found: Iterable[tuple[int, ...]] = _MOVE.iter_unpack(head[at:end])
                if spans is not None:
                    low, high = spans.get(queue, (1, 0))
                    found = [one for one in found if low <= one[0] <= high] if low <= high else ()
                yield Moves(queue, [Move(*one) for one in found])
                at = end
            elif kind == PUT and not puts:
                at = _after_put(head, at)
            elif kind == PUT:
                put, at = _read_put(head, at)
                yield put
            elif kind == CARRIED:
                put, at = _read_carried(head, at)
                yield put
            elif kind == NAME:
                _, queue, number, size = _NAME.unpack_from(head, at)
                at += _NAME.size
                yield Name(queue, number, head[at : at + size].decode("utf-8", "surrogatepass"))
                at += size
            elif kind == SUBSCRIBER:
                _, queue, number, how = _SUBSCRIBER.unpack_from(head, at)
                at += _SUBSCRIBER.size
                yield Subscribed(queue, number, how)
            elif kind == NEXT:
                yield Next(*_NEXT.unpack_from(head, at)[1:])
                at += _NEXT.size
            elif kind == CLAIM:
                _, queue, epoch, whole = _CLAIM.unpack_from(head, at)
                yield Claim(queue, epoch, bool(whole))
                at += _CLAIM.size
            else:
                raise Damaged(f"a record of kind {kind}")
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise Damaged(f"a record cannot be read: {error}") from error


def _read_put(head: bytes, at: int) -> tuple[Put, int]:
    fields = _PUT.unpack_from(head, at)
    _, queue, first, count, put_at, priority, flags, due, expires, offset, size, crc, topic_size, groups_count, metas_count = fields
    at += _PUT.size
    topic = head[at : at + topic_size]
    at += topic_size
    lengths, at = _array(head, at, 1 if flags & UNIFORM else count)
    which = None
    if flags & VARIOUS:
        which, at = _array(head, at, count)
    groups: list[list[int]] = []
    for _ in range(groups_count):
        (size_of,) = struct.unpack_from("<H", head, at)
        groups.append(list(struct.unpack_from(f"<{size_of}I", head, at + 2)))
        at += 2 + 4 * size_of
    key = Key((), bool(flags & ORDERED), bool(flags & REVEALED), priority, due, expires, topic)
    block = Block(key, put_at)
    block.first, block.count, block.size, block.payloads = first, count, size, None
    block.lengths = lengths * count if flags & UNIFORM else lengths
    block.which = which
    for _ in range(metas_count):
        sizes = _META.unpack_from(head, at)
        at += _META.size
        texts = []
        for length in sizes:
            texts.append(head[at : at + length])
            at += length
        publisher, properties, handle, group, parcel = texts
        block.metas.append(
            Meta(
                publisher.decode("utf-8", "surrogatepass"),
                properties,
                handle.decode("utf-8", "surrogatepass"),
                group.decode("utf-8", "surrogatepass"),
                parcel,
            )
        )
    block.grouped = any(meta.group for meta in block.metas)
    return Put(queue, block, groups, offset, crc), at


def _after_put(head: bytes, at: int) -> int:
    """Where a block ends, without reading it."""
    fields = _PUT.unpack_from(head, at)
    count, flags, topic_size, groups_count, metas_count = fields[3], fields[6], *fields[12:]
    at += _PUT.size + topic_size + 4 * (1 if flags & UNIFORM else count) + (4 * count if flags & VARIOUS else 0)
    for _ in range(groups_count):
        at += 2 + 4 * int.from_bytes(head[at : at + 2], "little")
    for _ in range(metas_count):
        at += _META.size + sum(_META.unpack_from(head, at))
    return at


def _read_carried(head: bytes, at: int) -> tuple[Put, int]:
    _, _, count, runs_count, moves_count = _CARRIED.unpack_from(head, at)
    numbers, at = _array(head, at + _CARRIED.size, 2 * runs_count)
    runs = list(zip(numbers[::2], numbers[1::2], strict=True))
    end = at + moves_count * _MOVE.size
    moves = [Move(*one) for one in _MOVE.iter_unpack(head[at:end])]
    put, at = _read_put(head, end)
    return put._replace(block=spread(put.block, count, runs), runs=runs, moves=moves), at


def _array(head: bytes, at: int, count: int) -> tuple[array[int], int]:
    values: array[int] = array("I")
    values.frombytes(head[at : at + 4 * count])
    if len(values) != count:
        raise Damaged("a record ends too early")
    if not LITTLE:
        values.byteswap()
    return values, at + 4 * count


# ---- records as bytes, for who copies them


class Raw(NamedTuple):
    """One record as it stands in a head. put: where its PUT begins, -1: it has none. block: its block, for PUT and CARRIED."""

    kind: int
    data: bytearray
    put: int = -1
    block: Put | None = None


def raw_records(head: bytes, queue: int) -> Iterator[Raw]:
    """The records of one queue, but those that each segment says anew: its name, next position and claim. Raises Damaged."""
    at = 0
    try:
        while at < len(head):
            kind, whose = head[at], int.from_bytes(head[at + 1 : at + 3], "little")
            wanted, begin, put, block = whose == queue and kind not in (NEXT, CLAIM), at, -1, None
            if kind in (PUT, CARRIED):
                put = at if kind == PUT else _put_of_carried(head, at)
                if wanted:
                    block, at = _read_put(head, at) if kind == PUT else _read_carried(head, at)
                else:
                    at = _after_put(head, put)
            elif kind == MOVES:
                at += _MOVES.size + _MOVE.size * _MOVES.unpack_from(head, at)[2]
            elif kind == NAME:
                wanted = wanted and head[at + 3 : at + 7] != bytes(4)
                at += _NAME.size + _NAME.unpack_from(head, at)[3]
            elif kind in (SUBSCRIBER, NEXT, CLAIM):
                at += {SUBSCRIBER: _SUBSCRIBER, NEXT: _NEXT, CLAIM: _CLAIM}[kind].size
            else:
                raise Damaged(f"a record of kind {kind}")
            if wanted:
                yield Raw(kind, bytearray(head[begin:at]), put - begin if put >= 0 else -1, block)
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise Damaged(f"a record cannot be read: {error}") from error


def _put_of_carried(head: bytes, at: int) -> int:
    runs, moves = struct.unpack_from("<II", head, at + _CARRIED.size - 8)
    return int(at + _CARRIED.size + 8 * runs + _MOVE.size * moves)


def readdress(raw: Raw, queue: int, offset: int = 0) -> bytes:
    """A record of a queue with another number. offset: of the body of its PUT among those of its new frame."""
    number = queue.to_bytes(2, "little")
    raw.data[1:3] = number
    if raw.put >= 0:
        raw.data[raw.put + 1 : raw.put + 3] = number
        raw.data[raw.put + _OFFSET_AT : raw.put + _OFFSET_AT + 4] = offset.to_bytes(4, "little")
    return bytes(raw.data)


def name_in(raw: Raw) -> tuple[int, str]:
    """The number and the text of a NAME."""
    return _NAME.unpack_from(raw.data)[2], raw.data[_NAME.size :].decode("utf-8", "surrogatepass")


def moved_positions(raw: Raw) -> tuple[int, int] | None:
    """The first and the last position that MOVES tell of; None: they tell of none."""
    found = [(first, first + length - 1) for first, length, *_ in _MOVE.iter_unpack(raw.data[_MOVES.size :])]
    return (min(found)[0], max(last for _, last in found)) if found else None
