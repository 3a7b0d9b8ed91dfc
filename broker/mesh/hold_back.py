"""Single messages of QoS 1 that a publisher's broker does not commit at once.

Strategy. A message for other brokers that is the only one to be written, and was sent to all of them, stays in the store's open batch for
`HOLD`. If all receipts come meanwhile, its rows are taken back and it is acknowledged without a commit; else it is committed as any
other. A chain of brokers so costs a publisher the way there and back, and no disk. More to be written ends the hold: all of it is
one commit. After a message whose receipts were late no other one is held back for a while, twice as long each time.

What is acknowledged is therefore either on this broker's disk, or each broker that wanted it has said that it will not lose it. The
store's open batch sees to that (`store/coalescer.py`); what stands here only says when its commit may wait.

It does not know stores, messages or receipts.
"""

from __future__ import annotations

from ...base.backoff import Backoff

HOLD = 0.002  # seconds
PAUSE, LONGEST_PAUSE = 0.02, 60.0  # seconds without another one after one that was late


class HoldBack:
    """The message that is held back, if there is one, and whether another one may be.

    run: its run in the store; 0: there is none.
    until: when it is committed, by the loop's clock, in seconds.
    """

    __slots__ = ("_after", "_pause", "run", "until")

    def __init__(self) -> None:
        self.run = 0
        self.until = 0.0
        self._after = 0.0  # when the pause is over
        self._pause = Backoff(PAUSE, LONGEST_PAUSE)

    def may(self, now: float) -> bool:
        """Whether a message may be held back: the pause is over."""
        return now >= self._after

    def begin(self, run: int, now: float) -> None:
        """A message is held back."""
        self.run, self.until = run, now + HOLD

    def settled(self, now: float) -> None:
        """All receipts of the message have come."""
        if now > self.until:
            self.late(now)
            return
        self.run, self._after = 0, 0.0
        self._pause.reset()

    def late(self, now: float) -> None:
        """The message has to be committed."""
        self.run = 0
        self._after = now + self._pause.next()
