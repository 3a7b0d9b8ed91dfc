"""Read messages of a queue from the log by position, those that are at an end too. It changes nothing.

    fresh      segments are in order of positions: the first one is found by bisection, and the place in it by its marks
    carried    what was written again stands in frames of its own, which say what positions they span

One call does a bounded piece of work, and says where the next one goes on.

What it does not know: members, states.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..core.blocks import Block
from .format import Put
from .marks import STRIDE
from .port import Segments
from .segments import Segment, scan, silent

MOST_PLACES = 8  # of `STRIDE` bytes, and as many frames of what was written again, that one call looks at


class Found(NamedTuple):
    """Messages `start` to `stop` - 1 of a block that the log has."""

    block: Block
    start: int
    stop: int

    @property
    def low(self) -> int:
        """The position of the first one."""
        return self.block.first + self.start


class Page(NamedTuple):
    """Messages in order of positions. more: the position to go on with; None: there are no others."""

    found: list[Found]
    more: int | None


class Reader:
    """Reads one queue. number: of the queue. names: of its members. found: the segments of the log, by number. where: they are."""

    def __init__(self, number: int, names: Mapping[int, str], found: Mapping[int, Segment], where: Segments) -> None:
        self._where = where
        self._number = number
        self._names = names
        self._segments = [found[one] for one in sorted(found) if number in found[one].marks]
        self._fresh = [one for one in self._segments if one.marks[number].firsts]

    def since(self, at: int) -> int:
        """A position at or before the first message that was put at this time or later."""
        times = [one.marks[self._number].times[0] for one in self._fresh]
        segment = bisect_left(times, at) - 1
        return self._fresh[segment].marks[self._number].before(at) if segment >= 0 else 0

    def page(self, begin: int, most: int, end: int) -> Page:
        """At most so many messages from a position on, below `end`."""
        spans, covered = self._read_fresh(begin, most, end)
        carried, covered = self._read_carried(begin, covered)
        found: list[Found] = []
        at, left = begin, most
        for block, start, stop in sorted(spans + carried, key=_low):
            low = max(start, at - block.first)
            high = min(stop, covered - block.first, low + left)
            if low < high:
                found.append(Found(block, low, high))
                at, left = block.first + high, left - (high - low)
        more = at if not left else covered
        return Page(found, more if more < end else None)

    def _read_fresh(self, begin: int, most: int, end: int) -> tuple[list[Found], int]:
        """Blocks as they were put, and the position up to which there are no others."""
        firsts = [one.marks[self._number].firsts[0] for one in self._fresh]
        found: list[Found] = []
        count = looked = 0
        for segment in self._fresh[max(0, bisect_right(firsts, begin) - 1) :]:
            for first, offset in segment.marks[self._number].places(begin):
                if first >= end:
                    return found, end
                if looked == MOST_PLACES or count >= most:
                    return found, max(begin, first)
                looked += 1
                for put in self._puts(segment, offset, offset + STRIDE):
                    block = put.block
                    if put.runs is None and block.first + block.count > begin:
                        found.append(Found(block, 0, block.count))
                        count += block.first + block.count - max(begin, block.first)
        return found, end

    def _read_carried(self, begin: int, end: int) -> tuple[list[Found], int]:
        """What was written again of positions from `begin` on, and the position up to which there is nothing else of it."""
        frames = [
            (low, offset, segment)
            for segment in self._segments
            for low, high, offset in segment.marks[self._number].carried
            if low < end and begin <= high
        ]
        frames.sort(key=lambda one: one[:2])
        found: list[Found] = []
        for number, (low, offset, segment) in enumerate(frames):
            if number >= MOST_PLACES and low > begin:
                return found, low
            for put in self._puts(segment, offset, offset + 1, 2):
                found += [Found(put.block, start, start + count) for start, count in put.runs or ()]
        return found, end

    def _puts(self, segment: Segment, begin: int, until: int, least: int = 1) -> Iterator[Put]:
        """Blocks of the queue in frames that begin between two places of a segment; at least in so many frames."""
        for number, frame in enumerate(scan(self._where, segment.number, False, silent, until=segment.size, begin=begin)):
            if frame.offset >= until and number >= least:
                return
            for record in frame.records:
                if isinstance(record, Put) and record.queue == self._number:
                    frame.block_of(record, segment.number, self._names)
                    yield record


def _low(found: Found) -> int:
    return found.low
