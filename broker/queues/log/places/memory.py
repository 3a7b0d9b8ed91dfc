"""Segments in memory: for queues that end with this broker's life anyway. Nothing survives a crash, and nothing waits for the disk.

What it does not know: what is in a segment.
"""

from __future__ import annotations

import errno

MEMORY = "memory"  # what the store is called; no queue that is declared has it
SEGMENT_BYTES = 4 << 20


class MemorySegments:
    """See `Segments`."""

    def __init__(self) -> None:
        self._of: dict[int, bytearray] = {}

    @property
    def held(self) -> int:
        """Bytes of all of them."""
        return sum(map(len, self._of.values()))

    def open(self) -> list[int]:
        """There is nothing."""
        return sorted(self._of)

    def name_of(self, number: int) -> str:
        """The segment."""
        return f"memory: segment {number}"

    def size(self, number: int) -> int:
        """Its bytes."""
        return len(self._segment(number))

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Some of them."""
        return bytes(self._segment(number)[offset : offset + size])

    def begin(self, number: int) -> None:
        """An empty one."""
        self._of[number] = bytearray()

    def append(self, number: int, offset: int, data: list[bytes]) -> int:
        """More bytes."""
        segment = self._segment(number)
        segment += b"".join(data)
        return len(segment)

    def commit(self) -> None:
        """What is appended is there."""

    def undo(self, number: int, offset: int) -> None:
        """Cut off what was appended."""
        if number in self._of:
            del self._of[number][offset:]

    def drop(self, number: int) -> None:
        """Let go of it."""
        self._of.pop(number, None)

    def set_aside(self) -> bool:
        """States need no room of their own."""
        return True

    def give_up(self) -> None:
        """There is nothing to give up."""

    def close(self) -> None:
        """Let go of all."""
        self._of.clear()

    def _segment(self, number: int) -> bytearray:
        found = self._of.get(number)
        if found is None:
            raise OSError(errno.ENOENT, f"segment {number} is gone")
        return found
