"""One timer of an event loop, set for the earliest of the times that it is asked for.

What it is for: rooms that hold many deadlines and need to wake up at the first.
What it knows: the time that its timer is set for. A timer of uvloop does not say it once it is due.
What it does not know: what is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """ring: called at the time that the alarm was set for, with that time: a loop that counts in milliseconds may call a little early."""

    __slots__ = ("_ring", "_timer", "at")

    def __init__(self, ring: Callable[[float], object]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self.at = 0.0  # when it rings, by the loop's clock, if it is set

    def set(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        """Ring at this time of the loop's clock, in seconds, or earlier if it is set for earlier."""
        if self._timer is not None:
            if self.at <= at:
                return
            self._timer.cancel()
        self._timer, self.at = loop.call_at(at, self._due), at

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Never ring again: what it rang is kept by it no more."""
        self.cancel()
        self._ring = _silence

    def _due(self) -> None:
        self._timer = None
        self._ring(self.at)


def _silence(_: float) -> None:
    pass
