"""Back-off: pauses between attempts that double up to a longest one."""

from __future__ import annotations

import random


class Backoff:
    """The pauses of one series of attempts.

    first, longest: seconds.
    spread: each pause is multiplied by a random number between these two, so that many who began together do not stay together.
    """

    __slots__ = ("_next", "_spread", "first", "longest")

    def __init__(self, first: float, longest: float, spread: tuple[float, float] = (1.0, 1.0)) -> None:
        self.first = self._next = first
        self.longest = longest
        self._spread = spread

    def next(self) -> float:
        """The pause before the next attempt, seconds."""
        pause, self._next = self._next, min(2 * self._next, self.longest)
        low, high = self._spread
        return pause if low == high == 1.0 else pause * random.uniform(low, high)

    def bound(self, first: float, longest: float) -> None:
        """Other pauses from now on; the series begins anew if they differ."""
        if (first, longest) != (self.first, self.longest):
            self.first = self._next = first
            self.longest = longest

    def reset(self) -> None:
        """An attempt has succeeded: begin with the first pause again."""
        self._next = self.first
