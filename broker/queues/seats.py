"""Who sits at a queue: a client's subscription to `$queue/NAME`, and how much its connection takes now.

What it does not know: commits, publishers.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from ...base.quoting import quoted
from ...base.selector.selector import Selector, SelectorError
from ...base.selector.values import lookup
from ...mqtt.errors import PeerError
from ...mqtt.properties import Property, properties_in
from .core.blocks import Meta
from .core.queue import Queue
from .core.selection import Fits
from .core.states import IllegalMove, Step, Subscriber
from .core.stock import Member
from .offers import Offer, Tap

if TYPE_CHECKING:
    from ..ports import Receiver
    from ..session.session import Session
    from .core.blocks import Part

log = logging.getLogger("mqmesh.broker")

PRIORITY_PREFETCH = 16  # messages that a plain MQTT client has at most of a queue with priorities: what is sent is not overtaken
TURN = 256  # messages that one member gets before the next one gets some
LONGEST_SELECTOR = 4096  # characters
MOST_JUDGED = 8192  # bytes of a message's properties; one that has more fits no selector


class Sitting(Protocol):
    """A client's subscription to a queue of this site or another one. What becomes of its messages is said to where the queue is.

    selector: which messages its client wants; "": any. reorders: its client works the highest priority first of what it has.
    """

    place: Place
    qos: int
    selector: str
    reorders: bool
    suffix: bytes

    @property
    def pulls(self) -> bool:
        """Whether its client asks for messages, and gets no others."""

    @property
    def name(self) -> str: ...

    def acknowledged(self, part: Any, start: int, count: int, now: int) -> None:
        """PUBACK has come."""

    def outcome(self, part: Any, start: int, count: int, outcome: Subscriber, now: int) -> None:
        """DONE, UNUSABLE or EXPIRED, whatever the queue's `acknowledge`."""

    def returned(self, part: Any, start: int, count: int, now: int) -> None:
        """The client refuses messages: others may have them."""


class Place:
    """A client with its seats, by the queue's name. tap: the observer of its session. spoken: places whose taps have heard something."""

    __slots__ = ("seats", "session", "tap")

    def __init__(self, session: Session, spoken: dict[Place, None]) -> None:
        self.session = session
        self.seats: dict[str, Sitting] = {}
        self.tap = Tap(session.outbound.observer, lambda: spoken.setdefault(self))
        session.outbound.observer = self.tap

    def leave(self) -> None:
        """The session is a member of nothing any more."""
        outbound = self.session.outbound
        if outbound.observer is self.tap:  # else the session has ended, and has another one
            outbound.observer = self.tap.inner
        self.tap.speaks = _nobody  # its tap and it hold each other no more

    def room(self, qos: int) -> int:
        """How many messages may be sent to the client now."""
        session = self.session
        connection = session.connection
        if connection is None or connection.closing or connection.congested:
            return 0
        if not qos:
            return TURN
        outbound = session.outbound
        if outbound.bytes >= session.window_bytes and outbound.in_flight:
            return 0
        return outbound.room


class Bench:
    """A member of a queue of this broker, wherever its client is: what it says of messages that it has.

    selector, reorders: see `Sitting`.
    """

    __slots__ = ("member", "queue", "reorders", "selector")

    def __init__(self, queue: Queue, member: Member, selector: str, reorders: bool = False) -> None:
        self.queue = queue
        self.member = member
        self.selector = selector
        self.reorders = reorders

    @property
    def name(self) -> str:
        """Of the queue."""
        return self.queue.name

    def most(self) -> int:
        """How many messages it may have at most, as the queue says."""
        if self.member.alone:
            return 1
        prefetch = self.queue.rules.prefetch
        return min(prefetch, PRIORITY_PREFETCH) if self.queue.mixed and not self.reorders else prefetch

    def acknowledged(self, part: Part, start: int, count: int, now: int) -> None:
        """See `Sitting`."""
        if not self.queue.rules.requests:
            self.outcome(part, start, count, Subscriber.DONE, now)
            return
        try:
            for at in range(start, start + count):
                if part.states[at] == Subscriber.GET:
                    self.queue.advance(self.member, part, at, 1, Step.FETCH, now)
        except IllegalMove as error:
            self._late(error)

    def outcome(self, part: Part, start: int, count: int, outcome: Subscriber, now: int) -> None:
        """See `Sitting`."""
        try:
            self.queue.settle(self.member, part, start, count, outcome, now)
        except IllegalMove as error:
            self._late(error)

    def returned(self, part: Part, start: int, count: int, now: int) -> None:
        """See `Sitting`."""
        try:
            self.queue.give_back(self.member, part, start, count, now)
        except IllegalMove as error:
            self._late(error)

    def _late(self, error: IllegalMove) -> None:
        """An administrator has taken it away meanwhile."""
        log.debug("event=queue-late queue=%s member=%s text=%s", quoted(self.queue.name), quoted(self.member.name), error)


class Seat(Bench):
    """A client of this broker at one of its queues. suffix: its subscription identifier, encoded. qos: 0: what is sent is done."""

    __slots__ = ("place", "qos", "suffix")
    pulls = False

    def __init__(self, place: Place, queue: Queue, member: Member, qos: int, suffix: bytes, selector: str, reorders: bool) -> None:
        super().__init__(queue, member, selector, reorders)
        self.place = place
        self.qos = qos
        self.suffix = suffix

    def room(self) -> int:
        """How many messages it may get now."""
        room = self.place.room(self.qos)
        return min(room, self.most() - self.member.held, TURN) if self.qos else room

    @property
    def alone(self) -> bool:
        """Whether it gets each message by itself."""
        connection = self.place.session.connection
        return connection is None or connection.special

    def send(self, offer: Offer, now: int) -> None:
        """Give it messages; it has room for them."""
        send(self, offer, now)


@lru_cache(256)
def fits(selector: str) -> Fits:
    """What says whether a message is wanted. Raises SelectorError."""
    if not selector:
        return lambda meta, priority: True
    if len(selector) > LONGEST_SELECTOR:
        raise SelectorError(f"selector: it has {len(selector):,} characters of {LONGEST_SELECTOR:,}")
    parsed = Selector(selector)

    def judge(meta: Meta, priority: int) -> bool:
        if len(meta.properties) > MOST_JUDGED:
            return False
        try:
            found = properties_in(meta.properties)
        except PeerError:  # another broker of the mesh has let it pass
            return False
        return parsed.matches(lookup(found.get(Property.USER_PROPERTY, ()), found.get(Property.CORRELATION_DATA), priority))

    return judge


def send(seat: Sitting, offer: Offer, now: int) -> None:
    """Send messages to a client that has room for them."""
    session = seat.place.session
    connection = session.connection
    if not seat.qos:
        sent = connection is not None and connection.send_qos0(offer.run, False, seat.suffix)
        seat.outcome(offer.part_of, offer.base, offer.count, Subscriber.DONE if sent else _unsent(connection, offer), now)
        return
    one: Any
    rest: Any = offer
    while rest is not None:
        one, rest = session.outbound.send(rest)
        if connection is None or not connection.send_delivery(one):
            seat.place.tap.quiet = True  # larger than the client takes, or expired
            session.outbound.give_up(1, one.first, one.count)
            seat.place.tap.quiet = False
            seat.outcome(one.part_of, one.base + one.start, one.count, _unsent(connection, one), now)


def _unsent(connection: Receiver | None, offer: Offer) -> Subscriber:
    """What becomes of messages that a connection did not take: they expired while they waited for room, or are too large for the client."""
    expired = connection is not None and offer.run.expired(connection.context.now)
    return Subscriber.EXPIRED if expired else Subscriber.UNUSABLE


def _nobody() -> None:
    """Who hears what the tap of a place says that is left."""
