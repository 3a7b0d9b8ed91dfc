"""Where in a segment the messages of a queue are: a few places for each, so that reading begins near a position or a time.

    fresh      blocks as they were put: in order of positions, of times and of places; a mark for each `STRIDE` bytes of the segment
    carried    frames with blocks that were written again: the positions that they span

What it does not know: files, what stands at a place. Times are milliseconds since 1970.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

STRIDE = 64 << 10  # bytes of a segment


class Marks:
    """The marks of one queue in one segment. Blocks of the queue begin within `STRIDE` bytes after a mark, and nowhere else."""

    __slots__ = ("carried", "firsts", "offsets", "times")

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.times = array("Q")
        self.offsets = array("Q")
        self.carried: list[tuple[int, int, int]] = []  # low, high, offset

    def put(self, first: int, at: int, offset: int) -> None:
        """A block was put: its first position, when, and where its frame begins."""
        if not self.offsets or offset >= self.offsets[-1] + STRIDE:
            self.firsts.append(first)
            self.times.append(max(at, self.times[-1]) if self.times else at)
            self.offsets.append(offset)

    def carry(self, low: int, high: int, offset: int) -> None:
        """Blocks with these positions were written again, in the frame that begins here, or in the next one."""
        last = self.carried[-1] if self.carried else None
        if last is not None and last[2] == offset:
            self.carried[-1] = min(low, last[0]), max(high, last[1]), offset
        else:
            self.carried.append((low, high, offset))

    def places(self, position: int) -> list[tuple[int, int]]:
        """Where to read for blocks at a position or above it: (first position, offset), in order."""
        begin = max(0, bisect_right(self.firsts, position) - 1)
        return list(zip(self.firsts[begin:], self.offsets[begin:], strict=True))

    def before(self, at: int) -> int:
        """A position at or before the first message that was put at a time or later."""
        return self.firsts[max(0, bisect_left(self.times, at) - 1)]
