"""JOINs of destinations that were never sent anything, which wait for each other.

Strategy. What waits for many destinations goes to those that have joined in one frame a link. JOINs come one by one, as each destination is
nearer or further. So they are held until all have come, none came for a while (`pause`), or the first has waited for long (`wait`): near
destinations hardly wait for one that stands still.

It does not know trees, custody or what a JOIN says.
"""

from __future__ import annotations

from ..wire.control import Receipt


class Joins:
    """Those of one tree.

    due: when they need not wait any longer, None where none waits.
    """

    def __init__(self, pause: float, wait: float, missing: int = 0) -> None:
        """missing: the destinations that are waited for."""
        self._pause = pause
        self._wait = wait
        self._missing = missing
        self._waiting: dict[int, Receipt] = {}
        self._last = 0.0  # when the first has waited for long
        self.due: float | None = None

    def came(self, receipt: Receipt, now: float) -> bool:
        """A JOIN; whether all have come."""
        self._missing &= ~(1 << receipt.destination)
        if not self._waiting:
            self._last = now + self._wait
        self._waiting[receipt.destination] = receipt
        self.due = min(now + self._pause, self._last)
        return not self._missing

    def only(self, reach: int) -> None:
        """Others than these are not reached any more."""
        self._missing &= reach
        self._waiting = {number: receipt for number, receipt in self._waiting.items() if reach >> number & 1}
        if not self._waiting:
            self.due = None

    def take(self) -> list[Receipt]:
        """Those that wait, which do not any more."""
        found = list(self._waiting.values())
        self._waiting.clear()
        self.due = None
        return found
