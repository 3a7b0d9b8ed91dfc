"""A disk for the log of queues: segments in memory that outlive a broker, a full or a failing disk, and writes that a crash cuts in two.

It is one more store of the log (`broker/queues/log/port.py`). While `room` is not None, the disk is full: so many bytes are left, which is
what was set aside. What a crash leaves of a write that was under way: `torn`.
"""

from __future__ import annotations

import errno
from random import Random

RESERVE = 1 << 20  # bytes that are set aside


class PowerOff(Exception):
    """The broker is dead in the middle of a write."""


class Disk:
    """The segments of one log. failing: it takes nothing. confirmed: of each segment, bytes that survive everything."""

    def __init__(self) -> None:
        self.segments: dict[int, bytearray] = {}
        self.confirmed: dict[int, int] = {}
        self.failing = False
        self.full = False
        self._reserved = False
        self._left = 0  # bytes of what was set aside that are used while the disk is full
        self._cut: int | None = None

    def open(self) -> list[int]:
        self._cut = None
        return sorted(self.segments)

    def name_of(self, number: int) -> str:
        return f"segment {number}"

    def size(self, number: int) -> int:
        return len(self.segments[number])

    def read(self, number: int, offset: int, size: int) -> bytes:
        return bytes(self.segments[number][offset : offset + size])

    def begin(self, number: int) -> None:
        assert not self.confirmed.get(number), f"segment {number} is begun again, and had confirmed bytes"
        self._take(0)
        self.segments[number] = bytearray()

    def _take(self, size: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, "Input/output error")
        if self.full:
            if size > self._left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._left -= size

    def append(self, number: int, offset: int, data: list[bytes]) -> int:
        whole = b"".join(data)
        self._take(len(whole))
        segment = self.segments[number]
        assert len(segment) == offset, f"segment {number} ends at {len(segment)}, and is written at {offset}"
        if self._cut is not None and len(whole) > self._cut:
            segment += whole[: self._cut]
            raise PowerOff
        if self._cut is not None:
            self._cut -= len(whole)
        segment += whole
        return len(segment)

    def commit(self) -> None:
        if self._cut is not None:
            raise PowerOff
        self.confirmed = {number: len(segment) for number, segment in self.segments.items()}

    def undo(self, number: int, offset: int) -> None:
        assert offset >= self.confirmed.get(number, 0), f"segment {number} is cut at {offset}, and {self.confirmed[number]} were confirmed"
        if number in self.segments:
            del self.segments[number][offset:]

    def drop(self, number: int) -> None:
        self.segments.pop(number, None)
        self.confirmed.pop(number, None)

    def set_aside(self) -> bool:
        if not self.full and not self.failing:
            self._reserved = True
        return self._reserved and not self.failing

    def give_up(self) -> None:
        if self._reserved:
            self._reserved, self._left = False, RESERVE

    def close(self) -> None:
        """What is on the disk stays."""

    # ---- what happens to it

    def cut(self, chance: Random) -> None:
        """The write that comes is the last one: the disk has the first bytes of it only, or all of them."""
        self._cut = chance.choice((chance.randint(0, 100), chance.randint(0, 5000), 1 << 30))

    def hole(self, chance: Random) -> None:
        """Of bytes that were not confirmed some are not what was written."""
        for number, segment in self.segments.items():
            begin = self.confirmed.get(number, 0)
            if len(segment) > begin:
                at = chance.randrange(begin, len(segment))
                segment[at : at + 16] = bytes(len(segment[at : at + 16]))
