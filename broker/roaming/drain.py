"""A drain: takes a session's messages as a connection would, and gives them to another session, here or at another broker.

A session that moves is *resumed* on it. So reading back from the store, order and bounds are the session's own, as for any
client: first what is in flight, as repeated messages, then the queue, then what comes. Each delivery is given on, and acknowledged
when this piece of work is done (`settle`), in one batch of the store: a crash finds it with the other one, or still with this one.

What it does not know: where it goes (`DrainTarget`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...mqtt.session import Delivery

if TYPE_CHECKING:
    from ..persistence.commits import Persistence
    from ..session.session import Session

IDENTIFIERS = 1000  # messages taken at once; they are given on at once, so it bounds a step


class DrainTarget(Protocol):
    """Where messages go."""

    def room(self) -> bool:
        """Whether it takes more now; the drain's `wake` is to be called when it does again."""

    def take(self, delivery: Delivery, first: int) -> None:
        """Have a delivery. first: its identifier, if it was in flight when the move began; 0: it waited."""

    def flush(self) -> None:
        """What it has belongs into the batch that is open now."""

    def flown(self) -> None:
        """All that was in flight has been given; called once, before anything that waited."""

    def empty(self) -> None:
        """Nothing waits now. May come again and again."""


class SessionDrain:
    """What a session takes for its connection. The attributes are those that sessions and routes look at."""

    version = 5
    address = "moving"
    user: str | None = None  # rules that ask for a user have none here
    special = True  # routes give QoS 0 to `send_qos0`
    closing = False
    pauses: frozenset[object] = frozenset()
    sent = 0

    def __init__(self, persistence: Persistence | None, session: Session, target: DrainTarget) -> None:
        self._persistence = persistence
        self.session = session
        self._target = target
        self._flying = True
        self._stopped = False
        self._given: list[tuple[int, int, int]] = []  # QoS, first identifier, count

    def start(self) -> None:
        """Begin to move."""
        self.session.outbound.limit = max(self.session.outbound.limit, self.session.outbound.in_flight + IDENTIFIERS)
        self.session.resume(self)  # type: ignore[arg-type]
        self.settle()

    def stop(self) -> None:
        """Move no more; what is left stays with the session, and what was given on and is not settled."""
        if not self._stopped:
            self._stopped = True
            self._given.clear()
            self.session.pause()

    @property
    def congested(self) -> bool:
        return not self._target.room()

    def wake(self) -> None:
        """The target may take more."""
        session = self.session
        if not self._stopped and (session.queued or session.resending) and self._target.room():
            session.pump()
        self.settle()

    @property
    def done(self) -> bool:
        """Whether nothing waits."""
        session = self.session
        return not (
            session.queued or session.resending or session.outbound.in_flight or session.waiting.value == "being read from the store"
        )

    def look(self) -> None:
        """Say what there is to say."""
        if self._stopped:
            return
        session = self.session
        if self._flying and not session.resending and not getattr(session, "unloaded", False):
            self._flying = False
            self._target.flown()
        if self.done:
            self._target.empty()

    # What a session does with a connection

    def send_delivery(self, delivery: Delivery, duplicate: bool = False) -> bool:
        """Give it on; it is acknowledged with the next `settle`."""
        if not duplicate and self._flying:
            self._flying = False
            self._target.flown()
        self._target.take(delivery, delivery.first if duplicate else 0)
        self._given.append((delivery.qos, delivery.first, delivery.count))
        return True

    def settle(self) -> None:
        """Be done with what was given on: to be called before the batch ends that it was given on in."""
        persistence = self._persistence
        while self._given:
            self._target.flush()
            given, self._given = self._given, []
            if persistence is not None:
                persistence.moving = True  # it is not settled, only with somebody else
            for qos, first, count in given:
                self.session.outbound.give_up(qos, first, count)
            if persistence is not None:
                persistence.moving = False
            if not self._stopped:
                self.session.pump()
        self.look()

    def send_after(self, ticket: int, data: object) -> None:
        """PUBRELs to be repeated: they are part of the session's state."""

    def send_qos0(self, run: object, retain: bool, suffix: bytes) -> None:
        """Not kept."""

    def drop(self, count: int) -> None:
        """Not kept."""
