"""What the log of one store has of some queues, in pieces for the log of another one.

    look      reads on in the log, and makes a chunk: the records of these queues, and their bodies      in any thread
    take in   the chunk is a frame of a commit of the other store (`log/store.py`)                        in the loop

Records are copied as they are, in their order; so what is read from the other log is what would be read from this one. The copy counts
when that log says so (`Claim`).

What it does not know: when to copy, who works the queues meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ..core.blocks import Place
from ..log.format import CARRIED, FRAME, MOVES, NAME, Raw, frame, moved_positions, name_in, raw_records, readdress
from ..log.segments import HEADER, Segment, scan, silent

if TYPE_CHECKING:
    from ..core.queue import Queue
    from ..log.carry import End
    from ..log.port import Segments

CHUNK_BYTES = 256 << 10  # in one commit, about
LOOK_BYTES = 1 << 20  # of the log, that are read in a row


class Arriving(NamedTuple):
    """A queue on its way. number: in the log that it comes from. to: in the other one. epoch: of its claim there. begin: the first
    segment that has something of it.
    """

    queue: Queue
    number: int
    to: int
    epoch: int
    begin: int


class Copied(NamedTuple):
    """A block in a chunk. place: of its body, with the offset among the bodies of the chunk. carried: it is what was left of one."""

    to: int
    first: int
    length: int
    at: int
    place: Place
    carried: bool


class Chunk:
    """Records for one frame. blocks: those that it has. moved: positions that it tells of, by number of the queue. names: those that it
    gives, by queue and number. placed: where each block is, when it has a place in a commit. behind: where its frame begins there.
    """

    def __init__(self, arriving: list[Arriving], known: dict[tuple[int, int], str]) -> None:
        self.arriving = arriving
        self.known = known
        self.head: list[bytes] = []
        self.bodies: list[bytes] = []
        self.size = 0
        self.blocks: list[Copied] = []
        self.moved: list[tuple[int, int, int]] = []
        self.names: dict[tuple[int, int], str] = {}
        self.placed: dict[tuple[int, int], Place] = {}
        self.behind = 0

    def add(self, to: int, raw: Raw, body: bytes | None) -> None:
        """One more record. body: of its block."""
        if raw.block is not None and body is not None:
            block = raw.block.block
            place = Place(0, self.size, len(body), raw.block.crc)
            self.head.append(readdress(raw, to, self.size))
            self.blocks.append(Copied(to, block.first, block.count, block.at, place, raw.kind == CARRIED))
            self.bodies.append(body)
            self.size += len(body)
            return
        if raw.kind == NAME:
            number, text = name_in(raw)
            self.names[to, number] = text
        elif raw.kind == MOVES and (span := moved_positions(raw)) is not None:
            self.moved.append((to, *span))
        self.head.append(readdress(raw, to))

    def frame(self, commit: int, first: list[bytes], segment: int, offset: int) -> list[bytes]:
        """Its bytes at a place of the log. first: records that go before."""
        head = b"".join([*first, *self.head])
        begin = offset + FRAME.size + len(head)
        self.placed = {(one.to, one.first): one.place._replace(segment=segment, offset=begin + one.place.offset) for one in self.blocks}
        return [frame(commit, head, self.size), *self.bodies]

    def note_in(self, segment: Segment, offset: int) -> None:
        """It is on the disk, in a commit that begins at this offset of a segment."""
        for one in self.blocks:
            segment.note(one.to, one.first, one.first + one.length - 1)
            if one.carried:
                segment.marks_of(one.to).carry(one.first, one.first + one.length - 1, offset + self.behind)
            else:
                segment.marks_of(one.to).put(one.first, one.at, offset + self.behind)
        for to, low, high in self.moved:
            segment.note(to, low, high)


class Copy:
    """See the module. where: the segments. found: those that there are, by number; more may come. until: where to stop for now.

    places: of blocks that are copied and not at an end; what is damaged has none. read: bytes of the log so far.
    """

    def __init__(self, where: Segments, found: Mapping[int, Segment], arriving: list[Arriving], until: End) -> None:
        self._where = where
        self._found = found
        self._arriving = arriving
        self._at = max(min(one.begin for one in arriving), min(found))
        self._offset = HEADER.size
        self.until = until
        self.read = 0
        self.names: dict[tuple[int, int], str] = {}
        self.places: dict[tuple[int, int], Place] = {}

    @property
    def ended(self) -> bool:
        """Whether all up to `until` is read."""
        return self._at > self.until.segment or (self._at == self.until.segment and self._offset >= self.until.offset)

    def behind(self, end: End) -> int:
        """About how many bytes of the log are between `until` and another place."""
        if end.segment == self.until.segment:
            return end.offset - self.until.offset
        return sum(one.size for number, one in list(self._found.items()) if number > self.until.segment)

    def look(self) -> Chunk | None:
        """Read on for a bit: what is there for the other log. Raises OSError."""
        chunk = Chunk(self._arriving, dict(self.names))
        looked = 0
        while not self.ended and looked < LOOK_BYTES and chunk.size + sum(map(len, chunk.head)) < CHUNK_BYTES:
            segment = self._found.get(self._at)
            if segment is None or (self._at < self.until.segment and self._offset >= segment.size):
                self._at, self._offset = self._at + 1, HEADER.size
                continue
            until = self.until.offset if self._at == self.until.segment else segment.size
            step = self._frame(chunk, until)
            looked += step
            self.read += step
        return chunk if chunk.head else None

    def _frame(self, chunk: Chunk, until: int) -> int:
        """Copy the next frame: how far that goes."""
        begin = self._offset
        found = next(scan(self._where, self._at, False, silent, until=until, begin=begin, spans={}, puts=False), None)
        if found is None:
            self._offset = until
            return until - begin
        head = self._where.read(self._at, found.offset + FRAME.size, found.header.head)
        for one in self._arriving:
            for raw in raw_records(head, one.number) if one.begin <= self._at else ():
                body = self._body(raw, found.bodies) if raw.block is not None else None
                if body is not None or raw.block is None:
                    chunk.add(one.to, raw, body)
        self.names.update(chunk.names)
        self._offset = found.offset + found.header.size
        return self._offset - begin

    def _body(self, raw: Raw, bodies: int) -> bytes | None:
        """The body of a block; None: it is damaged."""
        assert raw.block is not None
        size = raw.block.block.size
        body = self._where.read(self._at, bodies + raw.block.offset, size)
        return body if len(body) == size and crc32(body) == raw.block.crc else None

    def written(self, chunk: Chunk) -> None:
        """A chunk is on the disk."""
        queues = {one.to: one.queue for one in self._arriving}
        for (to, first), place in chunk.placed.items():
            if first in queues[to].blocks or first in queues[to].kept:
                self.places[to, first] = place
