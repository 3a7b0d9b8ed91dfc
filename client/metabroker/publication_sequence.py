"""The numbered publications of a durable session: which have arrived, which are consumed, whether one is missing. Sans-IO.

Numbers start at 1 and have no gaps, except for expired publications: then the next one names its predecessor (`after`).
"""

from __future__ import annotations

from collections import deque


class PublicationSequence:
    """present: the session existed before this link, so publications may wait there."""

    def __init__(self, present: bool = False) -> None:
        self.resume = present  # whether to ask for the publications that follow
        self.resuming = False  # whether such a request is under way
        self.acknowledged = 0  # all publications up to this one are consumed
        self.reported = 0  # the last acknowledgement that the metabroker was sent
        self.sent_before = 0  # publications up to this one were sent to an earlier link
        self._last = 0  # the last one in order
        self._held: deque[int] = deque()  # those after `acknowledged`
        self._consumed: set[int] = set()  # of `_held`
        self._fresh = True  # nothing was asked for yet

    def connected(self, resumed: bool) -> None:
        """There is a new connection to the community broker. resumed: it has kept our messages."""
        self.resume = self.resume or self.resuming or not resumed
        self.resuming = False

    def resumed(self, last: object, waiting: object, sent: object) -> None:
        """The metabroker sends the `waiting` publications up to `last`. sent: the last one that was ever sent."""
        self.resuming = False
        if type(last) is int and type(waiting) is int and last - waiting > self._last:
            self._last = self.acknowledged = self.reported = last - waiting
            self._held.clear()
            self._consumed.clear()
        if self._fresh and type(sent) is int:
            self.sent_before = sent
        self._fresh = False

    def accept(self, number: int, after: object) -> bool:
        """Whether this is the next publication. If not, it is a repeat, or one is missing and all that follow must be asked for again."""
        if number <= self._last:
            return False
        if number != self._last + 1 and after != self._last:
            self.resume = True
            return False
        self._last = number
        self._held.append(number)
        return True

    def consume(self, number: int) -> None:
        """A publication is consumed. `acknowledged` moves up to the first that is not."""
        if number > self.acknowledged:
            self._consumed.add(number)
        while self._held and self._held[0] in self._consumed:
            self.acknowledged = self._held.popleft()
            self._consumed.discard(self.acknowledged)
