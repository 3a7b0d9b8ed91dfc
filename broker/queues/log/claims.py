"""Which log a queue is in, when it has gone from one to another: each log says what it claims, and the highest claim that is whole counts.

    claim 3, not whole    what follows is a copy of the queue; whatever was said before is of an earlier time. It does not count yet
    claim 3, whole        the queue is in this log

A queue that has always been in its log has no claim, which is as 0. Each segment says the claims of its queues anew.

What it does not know: queues, segments, other logs.
"""

from __future__ import annotations

from .format import Claim


class Claims:
    """Of one log. highest: of all that were ever read or made here. new: numbers of queues whose claim is to be written."""

    def __init__(self) -> None:
        self.highest = 0
        self.new: set[int] = set()
        self._of: dict[int, Claim] = {}
        self._begin: dict[int, int] = {}

    def read(self, claim: Claim, segment: int) -> bool:
        """A claim that a segment says: whether it is another one than before."""
        known = self._of.get(claim.queue)
        self.highest = max(self.highest, claim.epoch)
        self._of[claim.queue] = claim
        if known is not None and known.epoch == claim.epoch:
            return False
        self._begin[claim.queue] = segment
        return True

    def not_whole(self) -> list[int]:
        """Queues of which there is a part of a copy only."""
        return [number for number, claim in self._of.items() if not claim.whole]

    def make(self, number: int, epoch: int, segment: int) -> None:
        """The queue is in this log from the next commit on. segment: the first one that has something of it."""
        self.highest = max(self.highest, epoch)
        self._of[number], self._begin[number] = Claim(number, epoch, True), segment
        self.new.add(number)

    def drop(self, number: int) -> None:
        """The queue is in another log."""
        self._of.pop(number, None)
        self._begin.pop(number, None)
        self.new.discard(number)

    def epoch(self, number: int) -> int:
        """The claim of a queue; 0: it has none."""
        found = self._of.get(number)
        return found.epoch if found is not None else 0

    def begin(self, number: int) -> int:
        """The first segment that has something of a queue."""
        return self._begin.get(number, 0)
