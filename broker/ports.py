"""What the rooms of a broker hand to each other: a context of plain values, and protocols of what is called.

Nobody is handed the broker itself. How to use this module:

- `Context` holds what every room reads: clock, event loop, counters, limits. There is one for each broker. An object of the hot path
  keeps it in a slot (`self.context`), and reads `self.context.now`, `self.context.counters`: plain attributes, as fast as any.
- `Site` (`site.py`) holds the parts of one broker. Only rooms above all parts take it: `publish/`, `client/`, `monitoring/`.
  A room below takes the parts that it calls as arguments of its constructor.
- A protocol stands here when the one who calls is in a lower room than the class that is called. The class need not name the protocol.

Call `context.refresh()` when the event loop calls back into a room, before anything reads `context.now`. Call `context.flush()` at
the end of each piece of work: it writes what connections have been given.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, Protocol

from .counters import Counters
from .ledger import Account, Ledger
from .steady import Noted, SteadyClock
from .turns import Share, Turns

if TYPE_CHECKING:
    from ..base.refusals import Warnings
    from ..mesh.topology.settings import Limits
    from ..mqtt.batch.batch import Batch
    from ..mqtt.batch.run import Run
    from ..mqtt.packets import Connect, Subscription
    from ..mqtt.reasons import Reason
    from ..mqtt.session import Delivery, Outbound
    from .applications import ApplicationDirectory
    from .hooks import HookCalls
    from .journal.recorder import Recorder


def _no_flush() -> None:
    """Stands for `Context.flush` until the broker starts."""


HELD = "held"  # why a socket is not read: what came last waits for room, or for who its client is
AWAY = -1  # instead of a reason code: a site that is away has all that may wait for it, so that a batch is taken for nobody


def _nothing_unsaved() -> bool:
    """Stands for `Context.unsaved` of a broker without a store."""
    return False


class Context:
    """Clock, event loop, counters and limits of one broker.

    limits: the configured limits.
    counters: totals since the start.
    account: bytes of all messages that the broker holds.
    warnings: log of what peers do wrong.
    loop: the event loop; set at the start.
    now: the loop's time, as of the last `refresh`.
    started: the loop's time at the start.
    clock: the wall clock without its jumps. common: seconds from `time.monotonic` to a clock that it shares with other brokers, and that
    takes the place of the wall clock there; None: there is none.
    stopping: the broker is stopping.
    draining: an operator has it take no new clients.
    workers: how many processes the broker has.
    touched: connections that have something to be written by the next `flush`.
    flush: writes what connections have been given, and begins to commit. To be called at the end of each piece of work.
    write: writes what connections have been given and need not wait for anything.
    unsaved: whether something was changed that the next `flush` hands to the store.
    turns: shares the loop's time.
    say: publishes a value at a `$SYS` topic, retained, if it has changed.
    hooks: calls the extension points of an embedding program; None while there are none.
    journal: writes down what becomes of messages; None without one.
    event: tells listeners of a change: its kind and values (`management/events.py`). events: how many there were. life: when this life of
    the broker began, in ms since 1970: their numbers are of this life.
    """

    __slots__ = (
        "clock",
        "common",
        "counters",
        "draining",
        "event",
        "events",
        "flush",
        "hooks",
        "journal",
        "ledger",
        "life",
        "limits",
        "loop",
        "now",
        "say",
        "started",
        "stopping",
        "touched",
        "turns",
        "unsaved",
        "warnings",
        "workers",
        "write",
    )

    def __init__(self, limits: Limits, warnings: Warnings) -> None:
        self.limits = limits
        self.counters = Counters()
        self.ledger = Ledger(limits.broker_bytes)
        self.warnings = warnings
        self.turns = Turns(self.counters, warnings)
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.common: float | None = None
        self.clock = SteadyClock(time.monotonic(), self.wall())
        self.now = 0.0
        self.started = 0.0
        self.stopping = False
        self.draining = False
        self.workers = 1
        self.touched: list[Any] = []
        self.flush: Callable[[], None] = _no_flush
        self.unsaved: Callable[[], bool] = _nothing_unsaved
        self.write: Callable[[], None] = _no_flush
        self.say: Callable[[str, str], None] = lambda topic, value: None
        self.hooks: HookCalls | None = None
        self.journal: Recorder | None = None
        self.event: Callable[[str, dict[str, Any]], None] = lambda kind, values: None
        self.events = 0
        self.life = int(self.wall() * 1000)

    def refresh(self) -> float:
        """Read the loop's clock into `now`."""
        now = self.now = self.loop.time()
        return now

    def wall(self) -> float:
        """The wall clock, in seconds since 1970."""
        return time.time()

    def reference(self) -> float:
        """What the steady clock follows, in seconds since 1970: the wall clock, or the clock that brokers share."""
        return self.wall() if self.common is None else time.monotonic() + self.common

    def steady(self) -> float:
        """The time that is stored to be compared later, in seconds since 1970: see `SteadyClock`."""
        return self.clock.time(self.loop.time())

    def noted(self) -> Noted:
        """How the clocks stand, for the next life."""
        return self.clock.noted(self.loop.time(), self.reference())


class Receiver(Protocol):
    """A connection that messages are sent on, as routes and sessions see it.

    version: the client's version of MQTT, 4 or 5.
    share: of its address in the loop's time.
    special: it limits the size of packets or takes topic aliases, so that shared bytes do not fit it.
    congested: it has more unsent bytes than it may.
    sent: PUBLISH packets so far.
    pauses: why its socket is not read.
    sends: packets that wait for a commit, with the commits.
    """

    version: int
    share: Share
    sent: int
    sends: deque[tuple[int, bytes | bytearray]] | None

    @property
    def context(self) -> Context: ...

    @property
    def special(self) -> bool: ...

    @property
    def congested(self) -> bool: ...

    @property
    def closing(self) -> bool: ...

    @property
    def pauses(self) -> Set[object]: ...

    def send(self, data: bytes | bytearray) -> None:
        """Append to what the next flush writes."""

    def send_after(self, ticket: int, data: bytes | bytearray) -> None:
        """Send bytes once a commit is done. ticket: the commit's; 0: at once."""

    def send_delivery(self, delivery: Delivery, duplicate: bool = False) -> bool:
        """Send QoS 1 or 2. False: it was not sent, and its identifiers are free again."""

    def send_qos0(self, batch: Batch, retain: bool, suffix: bytes) -> bool:
        """Send a batch at QoS 0. suffix: encoded subscription identifiers. False: it was not sent, and counted."""

    def drop(self, count: int) -> None:
        """Count messages that it does not get."""

    def flush(self) -> None:
        """Write what it has been given, now."""

    def disconnect(self, reason: Reason, text: str = "") -> None:
        """Close it. text: what a client of MQTT 5 is told."""


class Recipient(Protocol):
    """A session, or what stands for it while it moves to another site, as routes see it.

    main: the session.
    known: routes made now know the session by this face; False once it has ended.
    stored: a store keeps it.
    queued: messages that wait.
    idle: it sends a message at once.
    pressing: its queue is half full.
    full: its queue takes no more.
    """

    @property
    def main(self) -> Subscriber: ...

    @property
    def known(self) -> bool: ...

    def __hash__(self) -> int: ...

    @property
    def client_id(self) -> str: ...

    @property
    def connection(self) -> Receiver | None: ...

    @property
    def stored(self) -> bool: ...

    @property
    def queued(self) -> int: ...

    @property
    def idle(self) -> bool: ...

    @property
    def pressing(self) -> bool: ...

    @property
    def full(self) -> bool: ...

    def deliver(self, delivery: Delivery) -> int:
        """Send the messages, or queue them: how many of the first ones were taken."""

    def withdraw(self, share: object, queued_only: bool) -> list[Delivery]:
        """Take back what waits for a shared subscription."""


class Subscriber(Recipient, Protocol):
    """A session as the router and the rules of access see it.

    account: what is held for it.
    face: what routes deliver to: itself, or what stands for it while it moves.
    user: the name that its client has proven or given.
    listener: the name of the listener by which its client came last, "" if that has none or is not known.
    moved: when its queue last moved, on the loop's clock.
    paused: publishers that are not read until its queue is shorter.
    """

    user: str | None
    listener: str
    moved: float
    paused: set[Publisher]
    account: Account
    face: Recipient
    subscriptions: dict[str, Subscription]

    @property
    def outbound(self) -> Outbound: ...

    def unsubscribed(self, topic_filter: str) -> None:
        """It has one subscription less."""

    def relax(self) -> None:
        """Read again from the publishers that were slowed for it."""


class Publisher(Protocol):
    """A connection that messages come from, as those see it that slow it down."""

    version: int

    @property
    def pauses(self) -> Set[object]: ...

    def pause_reading_for(self, cause: object) -> None:
        """Stop reading its socket until `resume_reading_after` is called with the same cause."""

    def resume_reading_after(self, cause: object) -> None:
        """A cause is gone; its socket is read when no other is left."""

    def release(self, refuse: bool = False) -> None:
        """Take again what found no room. refuse: what still finds none is refused."""


class Connection(Receiver, Publisher, Protocol):
    """The connection of a client, as the rooms below `client/` see it.

    clean_end: the client has said goodbye, so that its will is not published.
    received: PUBLISH packets so far.
    receive_maximum: how many unacknowledged messages the client may send; 0: all identifiers.
    max_packet: the largest packet that the client takes; 0: any.
    request_problem: the client wants reasons in words.
    tracker: acknowledgements that wait for receipts; None while there never was one.
    address: the peer's address, or "unix".
    client_id: empty until CONNECT is taken.
    user: the name that the client has proven.
    listener: the name of the listener by which it came, "" if that has none.
    proof: what it has shown for that (`auth/service.py`); None where nobody is asked.
    ends: when that ends, on the loop's clock; None: it does not.
    denied: messages that it was not permitted to publish.
    held: what came last waits: for room, or for who the client is.
    allowed: topics that the rules of access let it publish to, as far as they were asked; None: there are no rules.
    session: None until CONNECT is taken.
    answers: acknowledgements that wait for a commit, with the commits.
    """

    closing: bool
    clean_end: bool
    received: int
    receive_maximum: int
    max_packet: int
    request_problem: bool
    tracker: Any
    address: str
    account: Account
    client_id: str
    user: str | None
    listener: str
    proof: Any
    ends: float | None
    inside: bool
    denied: int
    held: bool
    allowed: set[bytes] | None
    answers: deque[Any] | None
    transport: asyncio.Transport

    @property
    def session(self) -> Subscriber | None: ...

    def set_rules(self, apply: bool) -> None:
        """Ask anew for each topic what the client may publish, if the rules of access apply to it."""

    def answer(self, data: bytes | bytearray) -> None:
        """Send an acknowledgement, once what it promises is kept and after those before it."""

    def admit(self, packet: Connect) -> None:
        """Answer a CONNECT that was held."""

    def refuse(self, reason: Reason, text: str, version: int) -> None:
        """Answer CONNECT with a refusal, in the form of a version of MQTT, and close."""


class DirectLane(Protocol):
    """Takes single messages to a client in this process."""

    def request(self, connection: Any, topic: bytes, data: bytes, start: int, end: int) -> bool:
        """Take a PUBLISH. False: nothing was done."""


class Backpressure(Protocol):
    """Who is slowed, for whom."""

    check_at: int

    def press(self, publisher: Any, recipients: Any) -> None:
        """A publisher has just given messages of QoS 1 or 2 to the sessions of these recipients."""

    def check(self, connections: Any) -> None:
        """Measure what is unsent, in flight and half received, and enforce the bound."""

    def evict(self, connection: Any) -> None:
        """Close a connection that holds too much that is unfinished."""

    def forget(self, connection: Any) -> None:
        """A connection is gone."""


class PendingLink(Protocol):
    """A link between brokers in its handshake."""

    def close(self, reason: Reason, text: str) -> None:
        """End it from this side."""

    def __hash__(self) -> int: ...


class Admission(Protocol):
    """Bounds on connections."""

    def refusal(self, connection: object, packet: Connect) -> tuple[Reason, str] | None:
        """Why a client may not come in; None: there is room."""

    def begin(self, protocol: object, address: str) -> None:
        """A connection has not shown who it is."""

    def end(self, protocol: object) -> None:
        """It is gone, or it is known who it is."""

    def begin_link(self, link: PendingLink, address: str) -> None:
        """A link has not proved the key. If there are too many, one of them is closed."""

    def end_link(self, link: PendingLink) -> None:
        """It is gone, or it has proved the key."""


class Attached(Protocol):
    """Attached brokers."""

    def opening(self, session: Any) -> None:
        """A client of this process takes up its session."""

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value."""


class Neighbours(Protocol):
    """A directory, as a broker of a mesh sees it.

    applications: whose queues brokers hold.
    """

    @property
    def applications(self) -> ApplicationDirectory: ...

    def where(self, name: str) -> list[str]:
        """The addresses of a neighbour, the preferred first; empty while none is known."""

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value."""


class SessionStore(Protocol):
    """What keeps sessions, as the table of sessions sees it.

    next_commit: the ticket of the commit that holds what is changed now.
    """

    @property
    def next_commit(self) -> int: ...

    def new_session(self, client_id: str) -> Any:
        """A session that is kept."""

    def keep_will(self, run: Run) -> bytes:
        """Keep a will that is due and finds no room: the key for `forget_will`."""

    def forget_will(self, key: bytes) -> None:
        """A will is published."""


class RetainedStore(Protocol):
    """What keeps retained messages."""

    def retain(self, run: Batch) -> None:
        """Keep a topic's retained message."""

    def forget_retained(self, topic: bytes) -> None:
        """Delete it."""


class Posts(Protocol):
    """Carries messages between brokers, in custody (`mesh/peer_message.py`)."""

    def send(
        self,
        brokers: int,
        kind: str,
        body: bytes,
        must: bool = False,
        room: Callable[[], None] | None = None,
        expiry: int | None = None,
        together: bool = False,
    ) -> bool:
        """Post to brokers, bit n for broker n. False: no room; `room` is called when there is some. together: with those of this piece of
        work that follow and are alike. Raises UsageError."""

    def register(self, kind: str, handler: Any, ahead: bool = False) -> None:
        """Have posts of a kind handled."""


class DeliveryRules(Protocol):
    """What decides at delivery where the rules of access allow a subscription in part."""

    def filters(self, session: Subscriber, full: str) -> bool:
        """Whether a subscription is allowed in part only."""

    def reads(self, session: Subscriber, topic: str) -> bool:
        """Whether a session with such a subscription may have messages of a topic."""


class Mesh(Protocol):
    """The mesh as routes, sessions and the store see it."""

    def subscribe(self, topic_filter: str, group: str | None, weight: int) -> None:
        """The first local subscription of a filter, or a shared one whose weight has changed."""

    def unsubscribe(self, topic_filter: str, group: str | None) -> None:
        """The last local subscription of a filter is gone."""

    def route(self, topic: bytes) -> Any:
        """Who wants a topic elsewhere; None: nobody."""

    def mask(self, route: Any) -> int | None:
        """The brokers elsewhere that messages of a topic can go to together with those of other topics; None: they go singly."""

    def reaches(self, route: Any) -> bool:
        """Whether all brokers that want a topic can be reached."""

    def store_changed(self, full: bool, on_its_way: int) -> None:
        """The store keeps nothing more, or takes again. on_its_way: bytes that may be on their way to each site; 0: no bound."""

    def store_has_room(self) -> None:
        """Go on with what has come and waits for room in the store."""
