"""Clients that wait for what other members say of their sessions, by the time until which they wait.

When a member is out of reach, each client that is new waits, and thousands may come at once: whoever comes costs a place in a heap, and
the next deadline nothing but a look at its top.

Invariant: a place that waits has an entry at its deadline or earlier. An entry may be stale: the place is found to wait no longer, or
until later, when the entry's time has come.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from .names import Places
from .places import NEVER, Place


class Asking:
    """Those of `places` whose deadlines count."""

    __slots__ = ("_heap", "_numbers", "_places")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._heap: list[tuple[float, int, Place]] = []
        self._numbers = itertools.count()  # of equal times the first comes first

    def __iter__(self) -> Iterator[Place]:
        """Those that wait, some of them more than once."""
        return (place for _, _, place in sorted(self._heap) if self._waits(place))

    def add(self, place: Place) -> None:
        """Have it found at `place.until`, if there is such a time."""
        if place.until == NEVER:
            return
        heapq.heappush(self._heap, (place.until, next(self._numbers), place))

    def next(self) -> float | None:
        """When the first of them waits no longer, or a little earlier; None: none of them waits."""
        while self._heap and not self._waits(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float, most: int) -> Iterator[Place]:
        """Those that have waited long enough, each once, looked at when its turn comes; `most` at once. Who waits all the same afterwards
        stays in it."""
        found: dict[int, Place] = {}
        while self._heap and self._heap[0][0] <= now and len(found) < most:
            place = heapq.heappop(self._heap)[2]
            found[id(place)] = place
        for place in found.values():
            if self._waits(place) and place.until <= now:
                yield place
            if self._waits(place):
                self.add(place)

    def _waits(self, place: Place) -> bool:
        return place.waits and self._places.get(place.client) is place
