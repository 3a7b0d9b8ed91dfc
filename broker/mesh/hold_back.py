"""Single messages of QoS 1 that a publisher's broker does not commit at once.

Strategy. A message for other brokers that is the only one to be written, and was sent to all of them, is left out of the store for `HOLD`.
If all receipts come meanwhile it is acknowledged, and never written; else it is committed as any other. A chain of brokers so costs a
publisher the way there and back, and no disk. More to be written ends the hold: all of it is one commit. After a message whose receipts
were late no other one is held back for a while, twice as long each time.

What is acknowledged is therefore either on this broker's disk, or each broker that wanted it has said that it will not lose it: the
answer waits for no ticket of the store until the message is in a batch (`Persistence.hold_back`). What stands here only says how long.

It does not know stores, messages or receipts.
"""

from __future__ import annotations

from ...base.backoff import Backoff

HOLD = 0.002  # seconds
PAUSE, LONGEST_PAUSE = 0.02, 60.0  # seconds without another one after one that was late


class HoldBack:
    """The message that is held back, if there is one, and whether another one may be.

    order: its order in the mesh's journal; 0: there is none.
    until: when it is committed, by the loop's clock, in seconds.
    """

    __slots__ = ("_after", "_pause", "order", "until")

    def __init__(self) -> None:
        self.order = 0
        self.until = 0.0
        self._after = 0.0  # when the pause is over
        self._pause = Backoff(PAUSE, LONGEST_PAUSE)

    def may(self, now: float) -> bool:
        """Whether a message may be held back: the pause is over."""
        return now >= self._after

    def begin(self, order: int, now: float) -> None:
        """A message is held back."""
        self.order, self.until = order, now + HOLD

    def settled(self, now: float) -> None:
        """All receipts of the message have come."""
        if now > self.until:
            self.late(now)
            return
        self.order, self._after = 0, 0.0
        self._pause.reset()

    def written(self, now: float, company: bool) -> None:
        """The message goes into a commit: it is time, or something else has to be committed. company: other messages are."""
        if company or now >= self.until:
            self.late(now)
        else:
            self.order = 0

    def late(self, now: float) -> None:
        """The message has to be committed, and others will have to."""
        self.order = 0
        self._after = now + self._pause.next()
