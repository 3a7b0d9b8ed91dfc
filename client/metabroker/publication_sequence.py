"""The publications of a durable session of the metabroker: which have come, which are done with, and whether one is missing.

They are numbered from 1 without gaps, but for what has expired: then the next one names the one before it (`after`). Sans-IO.
"""

from __future__ import annotations

from collections import deque


class Numbers:
    """present: the session was there before this link, so that what waits there is to be asked for."""

    def __init__(self, present: bool = False) -> None:
        self.resume, self.resuming = present, False  # whether to ask for what follows, and whether that is under way
        self.acked = self.told = 0  # the last of those that are done with, and the last one that the metabroker was told
        self.sent = 0  # those up to this one were sent to an earlier link
        self._last = 0  # the last one in order
        self._held: deque[int] = deque()  # those behind `acked`
        self._finished: set[int] = set()  # those of them that are done with
        self._fresh = True  # nothing was asked for yet

    def connected(self, resumed: bool) -> None:
        """A new connection to the community broker. resumed: it has kept what was for us."""
        self.resume = self.resume or self.resuming or not resumed
        self.resuming = False

    def resumed(self, last: object, waiting: object, sent: object) -> None:
        """The metabroker sends what follows: `waiting` publications up to `last`. sent: the last one that was ever sent."""
        self.resuming = False
        if type(last) is int and type(waiting) is int and last - waiting > self._last:
            self._last = self.acked = self.told = last - waiting
            self._held.clear()
            self._finished.clear()
        if self._fresh and type(sent) is int:
            self.sent = sent
        self._fresh = False

    def next(self, number: int, after: object) -> bool:
        """Whether this is the next publication; if not it is a repeat, or one is missing and everything is to be asked for again."""
        if number <= self._last:
            return False
        if number != self._last + 1 and after != self._last:
            self.resume = True
            return False
        self._last = number
        self._held.append(number)
        return True

    def done(self, number: int) -> None:
        """One is done with; acknowledged are all before the first that is not."""
        if number > self.acked:
            self._finished.add(number)
        while self._held and self._held[0] in self._finished:
            self.acked = self._held.popleft()
            self._finished.discard(self.acked)
