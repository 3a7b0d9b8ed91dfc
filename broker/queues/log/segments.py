"""Segments of the log, and what is read of them.

    segment    32 bytes of header, then frames until it is full

A segment is only appended to. The last one may end in zeros, which were reserved: `scan` cuts them off. It may end in a frame that was
never whole: `scan` cuts it off and says so. In the others, and before the last whole frame, a frame that is not what was written is damage:
it is named and skipped.

What it does not know: queues, threads, where segments are (`port.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from operator import add, itemgetter
from typing import NamedTuple
from zlib import crc32

from ..core.blocks import Block, Place
from ..core.stock import Move
from .format import FRAME, MAGIC, Damaged, Header, Put, Record, Span, check_head, header_of, records
from .marks import Marks
from .port import Segments

HEADER = struct.Struct("<8sQQI4x")  # magic, number, created (ms since 1970), CRC of these
FILE_MAGIC = b"MQMESHQ1"
STEP = 1 << 20  # bytes read at once while looking for the next frame

_FIRST_OF, _LENGTH_OF = map(itemgetter, (0, 1))  # of a Move

Said = Callable[[str], None]


def silent(text: str) -> None:
    """For who reads what was read before: damage was told when the log was opened."""


class Segment:
    """A segment, as it is kept in memory.

    spans: number of a queue -> the positions that are put or moved here. open: messages in it that are not at an end, counted for each
    group. needed: their bytes, about. last_at: when the last one came to an end. stuck: what is needed of it cannot be read.
    marks: number of a queue -> where its messages are.
    """

    __slots__ = ("last_at", "marks", "needed", "number", "open", "size", "spans", "stuck")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = HEADER.size
        self.open = -1
        self.needed = 0
        self.last_at = 0
        self.stuck = False
        self.spans: dict[int, Span] = {}
        self.marks: dict[int, Marks] = {}

    def marks_of(self, queue: int) -> Marks:
        """Where the messages of a queue are, to be added to."""
        found = self.marks.get(queue)
        if found is None:
            found = self.marks[queue] = Marks()
        return found

    def note(self, queue: int, low: int, high: int) -> None:
        """Positions of a queue are told of here."""
        known = self.spans.get(queue)
        if known is None or low < known.low or known.high < high:
            self.spans[queue] = Span(low, high) if known is None else Span(min(low, known.low), max(high, known.high))

    def note_moves(self, queue: int, moves: list[Move]) -> None:
        """Moves of a queue are told of here; at least one."""
        self.note(queue, min(map(_FIRST_OF, moves)), max(map(add, map(_FIRST_OF, moves), map(_LENGTH_OF, moves))) - 1)

    def forget(self, queue: int) -> None:
        """What it tells of a queue counts for nothing."""
        self.spans.pop(queue, None)
        self.marks.pop(queue, None)

    def tells_of(self, queue: int, position: int) -> bool:
        """Whether it may have something of a message."""
        span = self.spans.get(queue)
        return span is not None and span.low <= position <= span.high


class Frame(NamedTuple):
    """A whole frame. offset: where it begins. bodies: where its bodies begin."""

    offset: int
    bodies: int
    header: Header
    records: list[Record]

    def block_of(self, put: Put, segment: int, names: Mapping[int, str]) -> Block:
        """A block that it has, with its groups by name and the place of its body. segment: its own. names: of members."""
        block = put.block
        block.key = block.key._replace(groups=tuple(frozenset(names[number] for number in group) for group in put.groups))
        block.place = Place(segment, self.bodies + put.offset, block.size, put.crc)
        return block


def header(number: int) -> bytes:
    """The first bytes of a segment."""
    fields = HEADER.pack(FILE_MAGIC, number, 0, 0)[:24]
    return fields + crc32(fields).to_bytes(4, "little") + bytes(4)


def scan(
    where: Segments,
    number: int,
    last: bool,
    say: Said,
    until: int | None = None,
    begin: int = HEADER.size,
    spans: Mapping[int, Span] | None = None,
    puts: bool = True,
) -> Iterator[Frame]:
    """The whole frames of a segment, in order.

    last: it is the newest segment: the bodies are checked too, and an end that is not whole is cut off. say: is told what is wrong.
    begin, until: only frames between these places are looked at.
    spans: only moves that begin within them are wanted. puts: whether blocks as they were put are wanted.
    """
    size = where.size(number) if until is None else until
    fields = where.read(number, 0, HEADER.size)
    if len(fields) < HEADER.size or fields[:8] != FILE_MAGIC or crc32(fields[:24]) != int.from_bytes(fields[24:28], "little"):
        written = _written(where, number, 0, size) if last else size
        if written > HEADER.size or not last:
            say(f"the first {HEADER.size} bytes are not those of a segment")
        if written <= HEADER.size:
            return
    at = begin
    while at < size:
        try:
            found = _frame_at(where, number, at, size, last, spans, puts)
        except Damaged as error:
            after = _next_frame(where, number, at + 1, size, last)
            if after is None and last:
                written = _written(where, number, at, size)
                if written:
                    say(f"cut off {written} bytes at {at} that were never confirmed: {error}")
                where.undo(number, at)
                return
            if after is None:
                say(f"{size - at} bytes from {at} on cannot be read: {error}")
                return
            say(f"{after - at} bytes at {at} cannot be read: {error}")
            at = after
            continue
        yield found
        at += found.header.size


def _frame_at(
    where: Segments, number: int, at: int, size: int, bodies: bool, spans: Mapping[int, Span] | None = None, puts: bool = True
) -> Frame:
    fields = where.read(number, at, FRAME.size)
    header = header_of(fields)
    if at + header.size > size:
        raise Damaged("it ends inside a frame")
    head = where.read(number, at + FRAME.size, header.head)
    check_head(fields, head)
    found = Frame(at, at + FRAME.size + header.head, header, list(records(head, spans, puts)))
    if bodies:
        for record in found.records:
            if isinstance(record, Put):
                body = where.read(number, found.bodies + record.offset, record.block.size)
                if len(body) != record.block.size or crc32(body) != record.crc:
                    raise Damaged("the checksum of a body is wrong")
    return found


def _written(where: Segments, number: int, at: int, size: int) -> int:
    """The bytes from a place on that are not the zeros of what was reserved."""
    while at < size:
        begin = max(at, size - STEP)
        found = len(where.read(number, begin, size - begin).rstrip(b"\0"))
        if found:
            return begin + found - at
        size = begin
    return 0


def _next_frame(where: Segments, number: int, at: int, size: int, bodies: bool) -> int | None:
    """Where the next whole frame begins; None: there is none."""
    while at < size:
        data = where.read(number, at, STEP)
        found = data.find(MAGIC)
        if found < 0:
            at += max(1, len(data) - len(MAGIC) + 1)
            continue
        try:
            _frame_at(where, number, at + found, size, bodies)
        except Damaged:
            at += found + 1
            continue
        return at + found
    return None


def read_body(where: Segments, place: Place) -> bytes:
    """The body of a block. Raises Damaged, OSError."""
    body = where.read(place.segment, place.offset, place.size)
    if len(body) != place.size or crc32(body) != place.crc:
        raise Damaged(f"segment {place.segment}: {place.size} bytes at {place.offset} are not what was written")
    return body
