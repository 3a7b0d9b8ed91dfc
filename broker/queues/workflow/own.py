"""Members of a queue that are the broker itself: what each of them gets, it works in turns with everybody else.

    it gets a message                        -> it waits for a turn
    its turn has come                        -> `work`, in the order in which they were given
    there is no room for what comes of it    -> it goes back with all that wait after it, until the next tick
    the member is none any more (`end`)      -> nothing of what waits is worked

What it does not know: what is done with a message.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ....base.quoting import quoted
from ..core.states import IllegalMove
from ..seats import TURN, Bench

if TYPE_CHECKING:
    from ..core.queue import Queue
    from ..offers import Offer

log = logging.getLogger("mqmesh.broker")

MOST = 256  # messages that wait for their turns, or for commits of what came of them


class Home(Protocol):
    """What is needed of the queues of the broker."""

    context: Any

    def stir(self, name: str) -> None: ...

    def now(self) -> int: ...


class OwnBench(Bench):
    """One such member. held_up: there was no room for what came of a message."""

    __slots__ = ("_home", "_pending", "held_up")
    alone = True
    suffix = b""

    def __init__(self, home: Home, queue: Queue, name: str) -> None:
        super().__init__(queue, queue.member(name), "")
        self._home = home
        self._pending: deque[Offer] = deque()
        self.held_up = False

    @property
    def who(self) -> str:
        """Whose turn it is, for the log."""
        return f"queue={quoted(self.name)} member={quoted(self.member.name)} work=queue-own"

    def work(self, offer: Offer, now: int) -> None:
        """Do what is done with a message that it has."""
        raise NotImplementedError

    def end(self) -> None:
        """It is no member any more: what it has goes back."""
        self._pending.clear()

    def room(self) -> int:
        """How many messages it may get now."""
        return 0 if self.held_up else min(self.most(), MOST, TURN) - self.member.held

    def send(self, offer: Offer, now: int) -> None:
        """A message waits for its turn."""
        if not self._pending:
            turns = self._home.context.turns
            turns.wait(turns.broker, self)
        self._pending.append(offer)

    def turn(self) -> bool:
        """Work what waits, until the slice is over: whether there is more."""
        home = self._home
        turns, now = home.context.turns, home.now()
        home.context.refresh()
        while self._pending:
            offer = self._pending.popleft()
            part, at = offer.part_of, offer.base
            if not part.has(at, 1, self.member.number):
                continue  # an administrator has taken it away meanwhile
            if self.held_up:
                self.queue.untake(self.member, part, at, 1, now)
                continue
            try:
                self.work(offer, now)
            except Exception:
                log.exception("event=internal-error %s position=%d", self.who, part.block.first + at)
            if turns.over() and not self.held_up:
                break
        home.stir(self.name)
        return bool(self._pending)

    def back(self, offer: Offer) -> None:
        """There is no room for what comes of a message."""
        self.held_up = True
        self.queue.untake(self.member, offer.part_of, offer.base, 1, self._home.now())

    def _late(self, error: IllegalMove) -> None:
        """An administrator has taken it away meanwhile."""
