"""What routes and session machines see of a recipient: its faces and a watch.

    queue face      stands for app/NAME/# among subscriptions: the recipient decides where a message waits, or that it fails over
    topic face      stands for it in the route of one topic: at QoS 0 who is subscribed gets a message, and may read it, or nobody does
    session face    stands in the routes of a session's own subscriptions: while the recipient takes messages it passes them on
    watch           is told by the session what is acknowledged: that is the only thing that counts as a success

A session that serves no recipient has its own face and no watch, so that nothing of this costs it anything.

What it does not know: states, alternatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ....mqtt.session import Delivery, Observer

if TYPE_CHECKING:
    from ...ports import Receiver
    from ...session.session import Session


class Owner(Protocol):
    """A recipient, as its faces use it."""

    @property
    def holder(self) -> Session:
        """The session in which messages for it wait now."""

    @property
    def passing(self) -> bool:
        """Whether messages are delivered to it."""

    def take(self, delivery: Delivery) -> int:
        """Have addressed messages: how many of the first ones were taken."""

    def take_own(self, session: Session, delivery: Delivery) -> int:
        """Have messages of a subscription that one of its sessions holds."""

    def live_connection(self, topic: bytes) -> Receiver | None:
        """For messages of QoS 0 of a topic."""


class QueueFace:
    """Stands for a recipient in the routes of its addressed messages."""

    stored = True  # no short path goes around it
    idle = False

    def __init__(self, owner: Owner, queue: Session) -> None:
        self.owner = owner
        self.queue = queue

    @property
    def main(self) -> Session:
        return self.owner.holder

    @property
    def known(self) -> bool:
        return self.queue.face is self

    @property
    def client_id(self) -> str:
        return self.queue.client_id

    @property
    def connection(self) -> Receiver | None:
        return None

    @property
    def queued(self) -> int:
        return self.owner.holder.queued

    @property
    def pressing(self) -> bool:
        holder = self.owner.holder
        return self.owner.passing and holder.connection is not None and holder.pressing

    @property
    def full(self) -> bool:
        return self.owner.passing and self.owner.holder.full

    def deliver(self, delivery: Delivery) -> int:
        """As `Session.deliver`."""
        return self.owner.take(delivery)

    def withdraw(self, share: object, queued_only: bool) -> list[Delivery]:
        """It is a member of no group."""
        return []


class TopicFace(QueueFace):
    """Stands for a recipient in the route of one topic. face: the recipient's."""

    def __init__(self, face: QueueFace, topic: bytes) -> None:
        super().__init__(face.owner, face.queue)
        self._face = face
        self._topic = topic

    @property
    def known(self) -> bool:
        return self._face.known

    @property
    def connection(self) -> Receiver | None:
        return self.owner.live_connection(self._topic)


class SessionFace:
    """Stands for a session that serves a recipient, in the routes of its own subscriptions."""

    stored = True

    def __init__(self, owner: Owner, session: Session) -> None:
        self.owner = owner
        self.session = session

    @property
    def main(self) -> Session:
        return self.session

    @property
    def known(self) -> bool:
        return self.session.face is self

    @property
    def client_id(self) -> str:
        return self.session.client_id

    @property
    def connection(self) -> Receiver | None:
        """None while the recipient is dead: a group prefers its live members."""
        return self.session.connection if self.owner.passing else None

    @property
    def queued(self) -> int:
        return self.session.queued

    @property
    def idle(self) -> bool:
        return self.owner.passing and self.session.idle

    @property
    def pressing(self) -> bool:
        return self.owner.passing and self.session.pressing

    @property
    def full(self) -> bool:
        return self.owner.passing and self.session.full

    def deliver(self, delivery: Delivery) -> int:
        """As `Session.deliver`."""
        return self.owner.take_own(self.session, delivery)

    def withdraw(self, share: object, queued_only: bool) -> list[Delivery]:
        """As `Session.withdraw`."""
        return self.session.withdraw(share, queued_only)


class Gone(Delivery):
    """Messages in flight that have gone elsewhere: their packet identifiers are busy until the client acknowledges them or leaves."""

    __slots__ = ()


class Listener(Protocol):
    """Who is told of successes."""

    def acknowledged(self, session: Session, delivery: Delivery, count: int) -> None:
        """A client has acknowledged messages: PUBACK, or PUBREC."""


class Watch:
    """The observer of a session that serves recipients. quiet: messages are taken away, which is no success."""

    def __init__(self, session: Session, listener: Listener) -> None:
        self.session = session
        self.inner: Observer | None = session.outbound.observer
        self.quiet = False
        self._listener = listener

    def sent(self, delivery: Delivery, rest: Delivery | None) -> None:
        """See `Observer`. What a client has is in the store first, as sent: if the broker dies it comes again with a mark."""
        if self.inner is not None:
            self.inner.sent(delivery, rest)
            delivery.ticket = self.session.mark()

    def settled(self, delivery: Delivery, begin: int, end: int) -> None:
        """See `Observer`."""
        if self.inner is not None and not isinstance(delivery, Gone):
            self.inner.settled(delivery, begin, end)
        if not self.quiet:
            self._listener.acknowledged(self.session, delivery, end - begin)

    def released_changed(self) -> None:
        """See `Observer`."""
        if self.inner is not None:
            self.inner.released_changed()
