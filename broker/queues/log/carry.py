"""Carry forward: what is still needed of the oldest segment is written again at the end of the log, so that the segment can go.

    plan      the blocks that wait in the segment                                              in the loop
    look      their moves so far, about 1 MiB of the log a call                                in the committer's thread
    choose    some of them, with the messages that are not at an end now                       in the loop, by `gather`
    frame     what was said since `look`, and the bytes of a frame: bodies, and all moves      in the committer's thread, by `write`

The frame follows, in the same commit, everything that was written before. So a reader who still has the old segment finds each block
as it already knows it, at another place; a reader who has not finds all there is to know. At most `CARRY_BYTES` are written in one commit.

What it does not know: when to do so, names, who waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from ..core.blocks import Block, Place
from ..core.queue import Queue
from ..core.stock import Move
from . import segments
from .format import FRAME, Damaged, Moves, Put, Span, carried_record, frame, name_record
from .port import Away, Segments
from .segments import HEADER, Segment
from .sparse import Runs, bytes_of, clipped

CARRY_BYTES = 256 << 10  # in one commit, about
MESSAGE_BYTES = 64  # of records, for a message that is written again, about
LOOK_BYTES = 1 << 20  # of the log, that are read in a row
BLOCK_BYTES = 200  # of records, for its block


class Piece:
    """A block. moves: of it, so far. runs: the messages of it that are written again."""

    __slots__ = ("block", "moves", "place", "queue", "runs")

    def __init__(self, queue: Queue, block: Block) -> None:
        self.queue = queue
        self.block = block
        self.moves: list[Move] = []
        self.runs: Runs = []
        self.place: Place | None = None


class End(NamedTuple):
    """A place in the log."""

    segment: int
    offset: int


class Carry:
    """The blocks of one segment on their way. looked: all that was in the log at the plan is read. number: of the segment.
    written: bytes of its frames.

    blocks: those that wait there. found: the segments of the log by number.
    """

    def __init__(self, where: Segments, number: int, blocks: list[tuple[Queue, Block]], found: Mapping[int, Segment], end: End) -> None:
        self.number = number
        self._where = where
        self.looked = False
        self.written = 0
        self._found = dict(found)
        self._read_to = End(number, HEADER.size)
        self._end = end
        self._blocks = blocks
        self._left: list[Piece] = []
        self._firsts: dict[int, list[int]] = {}
        self._pieces: dict[int, list[Piece]] = {}
        self._spans: dict[int, Span] = {}

    def _sort(self) -> None:
        for queue, block in sorted(self._blocks, key=lambda one: one[1].first):
            piece = Piece(queue, block)
            self._left.append(piece)
            self._firsts.setdefault(queue.number, []).append(block.first)
            self._pieces.setdefault(queue.number, []).append(piece)
        for number, pieces in self._pieces.items():
            last = pieces[-1].block
            self._spans[number] = Span(pieces[0].block.first, last.first + last.count - 1)
        self._blocks = []

    def know(self, segment: Segment) -> None:
        """The log has one more segment. It may be told in any thread."""
        self._found = {**self._found, segment.number: segment}

    @property
    def left(self) -> bool:
        """Whether there are blocks that are not chosen yet."""
        return bool(self._left)

    # ---- the moves so far

    def look(self) -> None:
        """Read a bit more of the segments that may have moves of the blocks: a commit may wait for it. Raises OSError."""
        if self._blocks:
            self._sort()
        number = self._read_to.segment
        while number < self._end.segment and not self._concerned(number):
            number = min(one for one in self._found if one > number)
        begin = self._read_to.offset if number == self._read_to.segment else HEADER.size
        last = number == self._end.segment
        until = self._end.offset if last else self._found[number].size
        stop = self._read(number, begin, until, LOOK_BYTES)
        if stop < until:
            self._read_to = End(number, stop)
        elif last:
            self._read_to, self.looked = self._end, True
        else:
            self._read_to = End(min(one for one in self._found if one > number), HEADER.size)

    def _concerned(self, number: int) -> bool:
        spans = self._found[number].spans
        return number == self.number or any(
            spans[queue].low <= wanted.high and wanted.low <= spans[queue].high for queue, wanted in self._spans.items() if queue in spans
        )

    def _read(self, number: int, begin: int, until: int, most: int) -> int:
        """Read the frames between two places of a segment, about so many bytes of them: where to go on."""
        for one in segments.scan(self._where, number, False, segments.silent, until=until, begin=begin, spans=self._spans, puts=False):
            for record in one.records:
                if isinstance(record, Put):  # what is left of a block: the first one of a block is left out
                    piece = self._piece(record.queue, record.block.first)
                    if piece is not None:  # it says all that was said before
                        piece.moves = list(record.moves)
                elif isinstance(record, Moves) and record.queue in self._firsts:
                    for move in record.moves:
                        piece = self._piece(record.queue, move.first)
                        if piece is not None:
                            piece.moves.append(move)
            after = one.offset + one.header.size
            if after - begin >= most:
                return after
        return until

    def _piece(self, queue: int, position: int) -> Piece | None:
        firsts = self._firsts.get(queue, [])
        at = bisect_right(firsts, position) - 1
        piece = self._pieces[queue][at] if at >= 0 else None
        return piece if piece is not None and piece.block.holds(position) else None

    # ---- the frame

    def choose(self) -> list[Piece]:
        """What is written in this commit: blocks with messages that are not at an end now."""
        chosen: list[Piece] = []
        size = 0
        while self._left and size < CARRY_BYTES:
            piece = self._left.pop()
            block = piece.block
            if block.left and block.place is not None and block.place.segment == self.number:
                piece.runs = piece.queue.open_runs(block)
                piece.queue.drop_unusable(block, piece.runs)
                size += BLOCK_BYTES + sum(sum(block.lengths[start : start + count]) + MESSAGE_BYTES * count for start, count in piece.runs)
                chosen.append(piece)
        return chosen

    def frame(self, pieces: list[Piece], at: End, commit: int, named: set[tuple[int, int]]) -> tuple[list[bytes], list[tuple[Queue, int]]]:
        """The bytes of a frame that begins at a place of the log, and the members that it names. Raises OSError.

        Everything before is on the disk, or given to it. named: members that the segment names already.
        """
        for number in sorted(self._found):
            if self._read_to.segment <= number <= at.segment:
                begin = self._read_to.offset if number == self._read_to.segment else HEADER.size
                until = at.offset if number == at.segment else self._found[number].size
                self._read(number, begin, until, until)
        self._read_to = at
        head: list[bytes] = []
        bodies: list[bytes] = []
        names: dict[tuple[int, int], Queue] = {}
        size = 0
        for piece in pieces:
            block, queue = piece.block, piece.queue
            assert block.place is not None
            try:
                body = bytes_of(block, segments.read_body(self._where, block.place), piece.runs)
            except Away:
                raise
            except (Damaged, OSError):
                continue  # it stays where it is, and its segment with it
            crc = crc32(body)
            moves = clipped(piece.moves, block.first, piece.runs)
            numbers = {move.member for move in moves} | {queue.members[name].number for group in block.key.groups for name in group}
            names.update(dict.fromkeys([(queue.number, one) for one in numbers if one], queue))
            head.append(carried_record(queue.number, block, piece.runs, moves, size, crc, queue.members))
            piece.place = Place(at.segment, size, len(body), crc)
            size += len(body)
            bodies.append(body)
        new = [(queue, number) for (_, number), queue in names.items() if (queue.number, number) not in named]
        whole = b"".join([*[name_record(queue.number, number, queue.names[number]) for queue, number in new], *head])
        for piece in pieces:
            if piece.place is not None:
                piece.place = piece.place._replace(offset=at.offset + FRAME.size + len(whole) + piece.place.offset)
        return [frame(commit, whole, size), *bodies], new
