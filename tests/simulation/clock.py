"""Virtual time: things to do, in order of time, then of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    """`now` moves only when `run` takes the next thing to do."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Do something at a time; a time that is past means now."""
        self._asked += 1
        heapq.heappush(self._heap, (max(time, self.now), self._asked, what))

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Do something later."""
        self.at(self.now + delay, what)

    def run(self, until: float, steps: int) -> int:
        """Do all up to a time; returns the number of things done. AssertionError past so many steps: something never ends."""
        done = 0
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, what = heapq.heappop(heap)
            what()
            done += 1
            assert done <= steps, f"still busy after {steps} steps, at {self.now:.3f} s"
        self.now = max(self.now, until) if until != float("inf") else self.now
        return done
