"""The deadlines of all calls in one structure: the earliest is at the top, a moved or dropped one costs nothing until it is found there."""

from __future__ import annotations

import heapq

SLACK = 64  # entries that do not count any more, beside as many as do


class Deadlines:
    """Holds one deadline for each key. Times are milliseconds."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: str, time: int) -> None:
        """The deadline of a key, instead of one that it had."""
        if self._times.get(key) == time:
            return
        self._times[key] = time
        heapq.heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + SLACK:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapq.heapify(self._heap)

    def drop(self, key: str) -> None:
        """A key has no deadline any more."""
        self._times.pop(key, None)

    def next(self) -> int | None:
        """The earliest deadline; None: there is none."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> str | None:
        """A key whose deadline is over; it has none any more. None: there is none."""
        time = self.next()
        if time is None or time > now:
            return None
        key = heapq.heappop(self._heap)[1]
        del self._times[key]
        return key
