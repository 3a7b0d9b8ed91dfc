"""What is due when, and what is no more: an entry that nobody needs any longer is taken out, and holds nothing in memory.

What it does not know: what is due, clocks.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Item = TypeVar("Item")
SPARE = 1024  # times in the heap at which nothing is due any more, before it is built anew


class Timers(Generic[Item]):
    """Items by the time at which they are due, a whole number."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._due: dict[int, dict[Item, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    @property
    def next(self) -> int:
        """When the first is due; 0: nothing is."""
        times = self._times
        while times and times[0] not in self._due:
            heapq.heappop(times)
        return times[0] if times else 0

    def add(self, when: int, item: Item) -> None:
        """It is due then."""
        found = self._due.get(when)
        if found is None:
            found = self._due[when] = {}
            heapq.heappush(self._times, when)
        found[item] = None

    def remove(self, when: int, item: Item) -> None:
        """It is not due then; it need not have been."""
        found = self._due.get(when)
        if found is None or item not in found:
            return
        del found[item]
        if not found:
            del self._due[when]
            if len(self._times) > 2 * len(self._due) + SPARE:
                self._times = list(self._due)
                heapq.heapify(self._times)

    def pop(self) -> tuple[int, Item]:
        """One of the first that are due."""
        when = self.next
        found = self._due[when]
        item, _ = found.popitem()
        if not found:
            del self._due[when]
        return when, item
