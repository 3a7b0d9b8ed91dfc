"""One recipient at its home: its sessions and its queue, what is given to it, and what becomes of it when it takes nothing.

Strategy: messages wait in the session of a client that serves the recipient, and without one in a stored *queue* of the recipient's own, an
internal session that is subscribed to app/NAME/#. The machine says what to do with them; `Port` does what needs other recipients.

Times: messages are watched by when they came. `_times` notes arrivals, `GRAIN` apart, and each is looked at once, a message interval later:
what came until then and is still here has used up its attempt (row F1). So nothing is done for single messages.

What it does not know: alternatives, other brokers, timers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...base.cache import LONGEST
from ...mqtt.batch.run import Run
from ...mqtt.reasons import Reason
from ...mqtt.session import Delivery
from ...mqtt.topics import matches, overlaps, split_share
from ..persistence.stored_session import StoredSession
from ..routing.shared import ShareGroup
from .handover.parcels import failed_over, unmarked
from .machine import Action, Change, Input, Machine, State
from .taking.faces import Gone, QueueFace, SessionFace, Watch
from .taking.removal import Removal

if TYPE_CHECKING:
    from ..ports import Context, Receiver
    from ..routing.router import Router
    from ..session.session import Session
    from .settings import Application
    from .taking.seizure import Seizure

GRAIN = 0.02  # seconds between two noted arrivals
UNBOUND = 1 << 62
QUEUE = "\0recipient.queue."
PAST = "\0recipient.past."
MESSAGE_INTERVAL = "message-interval"
REJECTED = "rejected"
MARK = b"mqmesh-"  # how the names of our user properties begin


Server = tuple["Session", int, bytes]  # a session that takes messages, the QoS granted to it, its subscription identifiers


class Port(Protocol):
    """What a recipient asks of its broker's fail-over."""

    context: Context
    router: Router

    @property
    def next_commit(self) -> int:
        """The ticket of the commit that holds what is changed now; 0 without a store."""

    def reads(self, session: Session, topic: str) -> bool:
        """Whether the rules of access let a session have messages of a topic."""

    def promise(self) -> None:
        """Messages that are being published go elsewhere: they are acknowledged after the commit, as a post is written at the end of this
        piece of work."""

    def fail_over(self, recipient: Recipient, delivery: Delivery, sent: bool, reason: str, must: bool = False) -> bool:
        """Give messages to somebody else. sent: the recipient may have them. False: there is no room now. must: whether there is or not."""

    def seize(self, recipient: Recipient, session: Session, cutoff: float | None, keep: int, done: Callable[[Seizure], None]) -> Seizure:
        """Make a seizure of the recipient's messages in a session; it has not begun."""

    def changed(self, recipient: Recipient) -> None:
        """Its state has changed, or what others should know of it: keep it, and tell them."""

    def hungry(self, recipient: Recipient) -> None:
        """Its queue has messages: feed whoever serves it."""

    def set_deadline(self, recipient: Recipient) -> None:
        """Call `Recipient.due` at its `deadline`."""


class Counts:
    """What has happened to a recipient's messages since the broker started. succeeded: as an alternative's, as its broker said."""

    __slots__ = ("acknowledged", "failed_over", "repeated", "returned", "succeeded")

    def __init__(self) -> None:
        self.acknowledged = self.failed_over = self.repeated = self.returned = self.succeeded = 0


class Recipient:
    """A recipient at its home.

    application: how it was declared. machine: its state. declared: not by the broker's file, so that it is forgotten in the end. by_client:
    a client has declared it, and no directory has a record of it.
    queue: where its addressed messages wait without a session. sessions: of the clients that serve it, in the order of coming. pasts:
    sessions that have ended, whose messages move into the queue. held: an operator holds it: messages wait, nobody is watched.
    probing: a probe is out, or waits. primary: what its sessions have beside addressed messages is its own.
    """

    def __init__(self, application: Application, port: Port, prefix: str, declared: bool = False) -> None:
        self.application = application
        self.name = application.name
        self.declared = declared
        self.by_client = False
        self.port = port
        self.prefix = f"{prefix}/{application.name}".encode()
        self.machine = Machine(port.context.now, application.intervals)
        self.queue: Session = None  # type: ignore[assignment]  # set when it is registered
        self.sessions: list[Session] = []
        self.pasts: list[Session] = []
        self.held = False
        self.probing = False
        self.primary = True
        self.counts = Counts()
        self.told: Change | None = None  # the last change that was said
        self.deadline: float | None = None  # as the port has it
        self._times: deque[float] = deque()
        self._turn = 0
        self._emptied: list[Callable[[], object]] = []  # told when nothing is being taken away
        self._removal = Removal(self._holders, self._left_in, self._make_seizure, self._removed)
        self._serving: dict[bytes, tuple[int, list[Server]]] = {}  # topic -> (router's changes, who takes it)
        self._near: tuple[int, list[Session]] | None = None  # (router's changes, who takes anything that is addressed to it)

    # Looking

    @property
    def state(self) -> State:
        return self.machine.state

    @property
    def passing(self) -> bool:
        """Whether messages are delivered to it."""
        return self.machine.state is State.OPERATIONAL

    @property
    def connected(self) -> bool:
        return any(session.connection is not None for session in self.sessions)

    @property
    def holders(self) -> list[Session]:
        """The sessions that may have messages of it."""
        return [*self.sessions, self.queue]

    @property
    def holder(self) -> Session:
        """The session in which messages for it wait now."""
        return next((session for session in self.sessions if session.connection is not None), self.queue)

    @property
    def waiting(self) -> int:
        """Messages that wait: of its queue and of sessions that serve nobody else."""
        return sum([session.queued for session in (*self.holders, *self.pasts)])

    @property
    def in_flight(self) -> int:
        """Messages whose acknowledgement is awaited."""
        return sum([_flying(session) for session in self.sessions])

    def addressed(self, topic: bytes) -> bool:
        """Whether a topic is app/NAME or below it, with its own name."""
        return topic.startswith(self.prefix) and topic[len(self.prefix) : len(self.prefix) + 1] in (b"/", b"")

    def owns(self, delivery: Delivery) -> bool:
        """Whether messages in its sessions are its own: addressed to it, failed over to it, or of a subscription that fails over."""
        topic = _topic(delivery)
        if self.addressed(topic):
            return True
        if not self.primary:
            return False
        if failed_over(delivery.run.properties):
            return True
        return self._own_topic(topic)

    def _own_topic(self, topic: bytes) -> bool:
        """Whether messages of a topic that it is subscribed to fail over."""
        application = self.application
        if application.topics:
            text = topic.decode()
            return any(matches(one, text) for one in application.topics)
        return bool(application.alternatives) and not self._reserved(topic)

    def _reserved(self, topic: bytes) -> bool:
        """Whether a topic addresses a recipient, this one or another."""
        return topic.startswith(self.prefix[: -len(self.name.encode())])

    def live_connection(self, topic: bytes) -> Receiver | None:
        """For addressed messages of QoS 0."""
        if not self.passing or self.held:
            return None
        serving = self.serving(topic)
        return serving[0][0].connection if serving else None

    # Sessions

    def join(self, session: Session) -> None:
        """A client that serves it has a session."""
        if self.deserted and not self._left(None):
            self.machine.feed(Input.CLEARED, self.port.context.now)
        if session not in self.sessions:
            self.sessions.append(session)
        self._forget_serving()

    def part(self, session: Session) -> None:
        """A session of it has ended."""
        if session in self.sessions:
            self.sessions.remove(session)
        self._forget_serving()
        self._removal.leave_out(session)
        self.look_for_sessions()

    @property
    def deserted(self) -> bool:
        """Whether the client that declared it is gone, with its session: nobody takes anything, if ever something comes."""
        return self.by_client and not self.sessions

    def look_for_sessions(self) -> None:
        """If it is deserted, the fault interval begins, with or without messages: what a client declared goes in the end."""
        if self.deserted:
            self.machine.feed(Input.DESERTED, self.port.context.now)
            self.port.set_deadline(self)

    def _forget_serving(self) -> None:
        self._serving.clear()
        self._near = None

    def connected_now(self, now: float, why: str = "its client has connected") -> None:
        """A client that serves it has connected (row F11)."""
        self._carry_out(self.machine.feed(Input.CONNECTED, now, self.waiting > 0, why), now)

    def serving(self, topic: bytes) -> list[Server]:
        """Who takes messages of a topic now: connected, and subscribed to it; else connected and subscribed to anything below app/NAME.

        A message that failed over to it is taken by whoever is connected and subscribed to anything. Nobody takes what it may not read.
        """
        changes = self.port.router.edits
        known = self._serving.get(topic)
        if known is None or known[0] != changes:
            known = (changes, self._subscribed(topic.decode(), self.addressed(topic)))
            if len(topic) <= LONGEST:
                if len(self._serving) > 1000:
                    self._serving.clear()
                self._serving[topic] = known
        return [one for one in known[1] if one[0].connection is not None]

    def _subscribed(self, topic: str, addressed: bool) -> list[Server]:
        found: list[Server] = []
        others: list[Server] = []
        below = self.prefix.decode() + "/#"
        for session in self.sessions:
            if not self.port.reads(session, topic):
                continue
            fitting, near = [], False
            for full, subscription in session.subscriptions.items():
                share = split_share(full)
                topic_filter = full if share is None else share[1]
                if addressed and matches(topic_filter, topic):
                    fitting.append(subscription)
                near = near or not addressed or overlaps(topic_filter, below)
            if fitting:
                suffix = b"".join([self.port.router._entry(session, one.filter).identifier for one in fitting])
                found.append((session, max([one.qos for one in fitting]), suffix))
            elif near:
                others.append((session, 2, b""))
        return found or others

    def at_hand(self) -> list[Session]:
        """Who is connected and subscribed to anything below app/NAME, whatever it may read of that."""
        changes, below = self.port.router.edits, self.prefix.decode() + "/#"
        if self._near is None or self._near[0] != changes:
            found = [(one, split_share(full) or ("", full)) for one in self.sessions for full in one.subscriptions]
            near = [session for session, (_, topic_filter) in found if overlaps(topic_filter, below)]
            self._near = (changes, list(dict.fromkeys(near)))
        return [one for one in self._near[1] if one.connection is not None]

    # Messages come

    def take(self, delivery: Delivery) -> int:
        """Addressed messages: to who serves it, or into its queue, or elsewhere. How many of the first ones were taken."""
        if self.pasts:
            return self.pasts[-1].deliver(delivery)
        if self.held:
            return self._wait(delivery)
        if self.passing:
            if not (self.queue.queued or self.queue.connection is not None or self.busy) and self._reject(delivery, False):
                return delivery.count
            self.attempted()
            return self.deliver(delivery)
        return self._in_fault(delivery, None)

    def _reject(self, delivery: Delivery, must: bool) -> bool:
        """Have messages go elsewhere at once that none may read of those who are connected. False: somebody may, or there is no room."""
        if not self.at_hand() or self.serving(_topic(delivery)):
            return False
        self.port.promise()
        return self.port.fail_over(self, delivery, False, REJECTED, must)

    def take_over(self, delivery: Delivery) -> int:
        """Messages that another recipient did not take: to who serves it, or into its queue. How many of the first ones were taken."""
        if self.pasts:
            return self.pasts[-1].deliver(delivery)
        self.attempted()
        return self.deliver(delivery)

    def take_back(self, delivery: Delivery) -> None:
        """Messages of a session that has ended: behind what waits already, before what comes."""
        if self.held or self.queue.queued or self.queue.connection is not None:
            self.port.hungry(self)
            self._unbounded(self.queue, delivery)
        else:
            self.feed(delivery)

    def past_over(self, session: Session) -> None:
        """All that a session that has ended had for it is in its queue, or delivered."""
        self.pasts.remove(session)
        if not self.passing:
            self._take_away(1 if self.state is State.FAULT else 0)
        elif self._left(None):
            self.attempted()

    @staticmethod
    def _unbounded(session: Session, delivery: Delivery) -> None:
        """Whatever the bounds: it was taken before."""
        bounds = session.max_messages, session.max_bytes
        session.max_messages = session.max_bytes = UNBOUND
        session.deliver(delivery)
        session.max_messages, session.max_bytes = bounds

    def recovered(self, now: float) -> None:
        """The broker has started again: attempts begin anew; what was in FAULT stays so (row F19)."""
        if self.passing:
            if self._left(None):
                self.attempted()
        else:
            self._take_away(1 if self.state is State.FAULT else 0)
            self.probing = self.state is State.FAULT and self._left(None)

    def take_own(self, session: Session, delivery: Delivery) -> int:
        """Messages of a subscription that one of its sessions holds. How many of the first ones were taken."""
        taken = 0
        for piece in self._own_pieces(delivery):
            found = self._take_own(session, piece)
            taken += found
            if found < piece.count:
                break
        return taken

    def _take_own(self, session: Session, delivery: Delivery) -> int:
        if self.passing or self.held or delivery.retain or not self.owns(delivery):
            if self.passing and not self.held:
                self.attempted()
            return session.deliver(delivery)
        return self._in_fault(delivery, session)

    def _own_pieces(self, delivery: Delivery) -> list[Delivery]:
        """The same messages without what only brokers may say of them; in pieces, if some fail over and others do not."""
        batch, start, stop = delivery.run, delivery.start, delivery.start + delivery.count
        if batch.uniform:
            runs = [_run(delivery)] if MARK in batch.properties else []
        elif MARK in batch.written()[0] or len({self._own_topic(topic) for topic in set(batch.topics[start:stop])}) > 1:
            runs = [batch.single(index) for index in range(start, stop)]  # type: ignore[misc]
        else:
            runs = []
        runs = [run if self._reserved(run.topic) else unmarked(run) for run in runs]
        return [Delivery(run, delivery.qos, delivery.retain, delivery.suffix, delivery.share, ticket=delivery.ticket) for run in runs] or [
            delivery
        ]

    def attempted(self) -> None:
        """An attempt begins: note when."""
        now = self.port.context.now
        times = self._times
        if not times or now - times[-1] >= GRAIN:
            times.append(now)
        machine = self.machine
        if machine.failing is None:
            self.machine.feed(Input.ATTEMPT, now)
        if self.deadline is None or self.deadline > now + self.application.intervals.message:
            self.port.set_deadline(self)

    def deliver(self, delivery: Delivery) -> int:
        """To somebody who serves it, else into the queue. Behind what waits there already."""
        if not (self.queue.queued or self.queue.connection is not None):
            serving = self.serving(_topic(delivery))
            if serving:
                return self._deliver_to(serving[self._turn % len(serving)], delivery)
        return self._wait(delivery)

    def _wait(self, delivery: Delivery) -> int:
        """Into the queue."""
        self.port.hungry(self)
        return self.queue.deliver(delivery)

    def _deliver_to(self, who: Server, delivery: Delivery) -> int:
        session, qos, suffix = who
        self._turn += 1
        if not qos:
            connection = session.connection
            assert connection is not None
            connection.send_qos0(_run(delivery), False, suffix)
            self.succeeded(delivery.count)
            return delivery.count
        plain = Delivery(
            delivery.run, min(qos, delivery.qos), delivery.retain, suffix, None, delivery.start, delivery.count, delivery.ticket
        )
        return session.deliver(plain)

    def has_room(self) -> bool:
        """Whether somebody takes messages of the queue now."""
        return self.passing and not self.held and any(not one.full for one in self.at_hand())

    def feed(self, delivery: Delivery) -> None:
        """A message of the queue to who serves it, or back into the queue: whatever the bounds, it was taken before."""
        serving = self.serving(_topic(delivery))
        if not (self.passing and serving):
            if self.passing and self._reject(delivery, True):
                return
            self.port.hungry(self)
            self._unbounded(self.queue, delivery)
            return
        who = serving[self._turn % len(serving)]
        bounds = who[0].max_messages, who[0].max_bytes
        who[0].max_messages = who[0].max_bytes = UNBOUND
        self._deliver_to(who, delivery)
        who[0].max_messages, who[0].max_bytes = bounds

    def _in_fault(self, delivery: Delivery, session: Session | None) -> int:
        """It takes nothing (rows F4, F6): the next message is the probe if there is none, the others go elsewhere."""
        now = self.port.context.now
        count = delivery.count
        if self.state is State.FAULT and not self.probing:
            self.probing = True
            self._removal.keep_anew()
            if delivery.count > 1:
                first, rest = delivery.part(0, 1), delivery.part(1, count)
                taken = session.deliver(first) if session is not None else self.deliver(first)
                return taken + (self._in_fault(rest, session) if taken else 0)
            return session.deliver(delivery) if session is not None else self.deliver(delivery)
        self.machine.feed(Input.ATTEMPT, now)
        self.port.promise()
        if not self.busy and self.port.fail_over(self, delivery, False, self.state.value):
            return count
        return self.follow(delivery, session)

    def follow(self, delivery: Delivery, session: Session | None = None) -> int:
        """Have messages behind those that are being taken away; they are taken too. How many of the first ones were taken."""
        taken = session.deliver(delivery) if session is not None else self._wait(delivery)
        self._take_away(int(self.state is State.FAULT))
        return taken

    # Messages are acknowledged

    def succeeded(self, count: int) -> None:
        """Messages were acknowledged (rows F3, F11)."""
        now = self.port.context.now
        self.counts.acknowledged += count
        if self.passing:
            self.machine.succeeded = now
            if self.machine.failing is not None:
                self.machine.feed(Input.SUCCESS, now, True)
        else:
            self._carry_out(self.machine.feed(Input.SUCCESS, now, True, "a message was acknowledged"), now)

    # Time

    def next_deadline(self) -> float | None:
        """When `due` has something to do; None: never, as it is."""
        if self.held:
            return None
        deadline = self.machine.deadline
        if self._times and self.passing:
            first = self._times[0] + self.application.intervals.message
            deadline = first if deadline is None else min(first, deadline)
        return deadline

    def due(self, now: float) -> None:
        """Time has passed: see which messages and which intervals are over."""
        if self.held:
            return
        event = self.machine.due(now)
        if event is Input.FAULT_OVER and not (self._lost_any or self.deserted or self._left(None)):
            self.machine.feed(Input.CLEARED, now)
        elif event is not None:
            self._carry_out(self.machine.feed(event, now), now)
        while self._times and self._times[0] + self.application.intervals.message <= now:
            cutoff = self._times.popleft() + GRAIN / 2
            if self.passing and self._left(cutoff):
                self.machine.feed(Input.FAILED, now)
                self._removal.want(cutoff, 0)

    @property
    def _lost_any(self) -> bool:
        return self.machine._lost

    def _left(self, cutoff: float | None) -> bool:
        """Whether messages are here that came until then. None: any. What is on the disk counts as old."""
        return any(self._left_in(session, cutoff) for session in (*self.holders, *self.pasts))

    def _left_in(self, session: Session, cutoff: float | None) -> bool:
        for flight in session.outbound.flights():
            if isinstance(flight, Gone) or (flight.run is not None and (flight.retain or not self.owns(flight))):
                continue
            if flight.run is None or cutoff is None or flight.run.received <= cutoff:
                return True
            break
        for delivery in session.queue:
            if self.owns(delivery):
                return cutoff is None or delivery.run.received <= cutoff
        return isinstance(session, StoredSession) and session.spilled > 0

    # What the machine says

    def _carry_out(self, actions: tuple[Action, ...], now: float) -> None:
        for action in actions:
            if action is Action.FAIL_OVER:
                self._take_away(1)
                self.probing = self._left(None)
                self._probe()
            elif action is Action.CLOSE:
                self._take_away(0)
                self._close()
            elif action is Action.RESTORE:
                self.probing = False
                self._removal.stop()
                if self._left(None):
                    self._times.clear()
                    self.attempted()
        if actions:
            self.port.changed(self)

    def _probe(self) -> None:
        """Nothing is left to be a probe: an empty message, for a client that has said that it takes one (row F5)."""
        if self.probing or not self.application.probe:
            return
        for session in self.sessions:
            if session.connection is not None:
                run = Run(self.prefix + b"/probe", 1, False, [b""], received=self.port.context.now)
                self.probing = session.deliver(Delivery(run, 1)) > 0
                return

    def look_for_probe(self) -> None:
        """From time to time: a probe that has expired or was taken by nobody makes room for the next message."""
        if self.state is State.FAULT and self.probing and not self.busy and not self._left(None):
            self.probing = False

    def _close(self) -> None:
        text = f"recipient {self.name} is defunct: it has acknowledged nothing for {self.application.intervals.defunct:g} s"
        for session in list(self.sessions):
            if session.connection is not None:
                session.connection.disconnect(Reason.ADMINISTRATIVE_ACTION, text)

    def _holders(self) -> list[Session]:
        """Its sessions in the order in which messages are taken away: what is in flight is the oldest, the queue has what came last."""
        return [*sorted(self.sessions, key=lambda one: not _flying(one)), self.queue]

    def _take_away(self, keep: int) -> None:
        """Have all messages but the probe taken away. keep: how many stay."""
        self._removal.want(None, keep)

    def _make_seizure(self, session: Session, cutoff: float | None, keep: int, done: Callable[[Seizure], None]) -> Seizure:
        return self.port.seize(self, session, cutoff, keep, done)

    def _removed(self) -> None:
        """Nothing is being taken away any more."""
        emptied, self._emptied = self._emptied, []
        for call in emptied:
            call()

    def when_removed(self, call: Callable[[], object]) -> None:
        """Call once what is being taken away is taken; at once if nothing is."""
        if self.busy:
            self._emptied.append(call)
        else:
            call()

    def go_on(self) -> None:
        """There may be room again."""
        self._removal.go_on()

    # For a seizure

    def give(self, session: Session, delivery: Delivery, sent: bool) -> bool:
        """See `Chooser`."""
        reason = self.state.value if not self.passing else MESSAGE_INTERVAL
        group = delivery.share
        if isinstance(group, ShareGroup) and any(member.session.connection is not None for member in group.members):
            if group.give_away([Delivery(_run(delivery), delivery.qos, delivery.retain, b"", group)]):
                return False
            self.counts.failed_over += delivery.count
            return True
        return self.port.fail_over(self, delivery, sent, reason)

    # Operators

    def hold(self, on: bool) -> None:
        """Messages wait, and nobody is watched; or all goes on."""
        now = self.port.context.now
        self.held = on
        self._times.clear()
        if not on:
            self.machine.failing = None
            if self._left(None):
                self.attempted()
            if not self.passing:
                self._take_away(int(self.state is State.FAULT))
        self.machine.since = now if self.state is State.FAULT else self.machine.since
        self.port.set_deadline(self)
        self.port.changed(self)

    def declare_defunct(self) -> None:
        """An operator knows that it is dead."""
        now = self.port.context.now
        self._carry_out(self.machine.feed(Input.DECLARED, now, why="an operator has said so"), now)

    def empty(self, done: Callable[[], object]) -> None:
        """Have all its messages taken away, whatever its state. done: called when they are."""
        self._emptied.append(done)
        self._take_away(0)

    @property
    def busy(self) -> bool:
        """Whether messages are being taken away."""
        return self._removal.busy


def adopt_faces(recipient: Recipient, router: Router, queue: Session) -> None:
    """Have routes know the recipient's queue by its face."""
    recipient.queue = queue
    face = QueueFace(recipient, queue)
    router.reface(queue, face)
    queue.face = face


def face_of(recipient: Recipient, session: Session) -> SessionFace:
    """What routes know a session by that serves a recipient."""
    return SessionFace(recipient, session)


def watch(session: Session, listener: object) -> None:
    """Have successes of a session told to a listener."""
    if not isinstance(session.outbound.observer, Watch):
        session.outbound.observer = Watch(session, listener)  # type: ignore[arg-type]


def forget_gone(session: Session) -> None:
    """A new connection comes: what has gone elsewhere holds no packet identifier any more, but for QoS 2 until PUBCOMP comes."""
    outbound = session.outbound
    observer, outbound.observer = outbound.observer, None
    for flight in outbound.flights():
        if isinstance(flight, Gone):
            for piece in outbound.left_of(flight):
                if piece.qos == 2:
                    outbound.release(piece.first, piece.count)
                else:
                    outbound.give_up(piece.qos, piece.first, piece.count)
    outbound.observer = observer
    if isinstance(session, StoredSession):
        session.abandons = False


def forget_identifiers(session: Session) -> None:
    """A session has ended, and its client's with it: only what was not delivered is left."""
    forget_gone(session)
    outbound = session.outbound
    for first, count in outbound.released():
        outbound.complete(first, count)


def _flying(session: Session) -> int:
    gone = sum([flight.left for flight in session.outbound.flights() if isinstance(flight, Gone)])
    return session.outbound.in_flight - gone


def _topic(delivery: Delivery) -> bytes:
    run = delivery.run
    return bytes(run.topic) if run.uniform else run.topics[delivery.start]


def _run(delivery: Delivery) -> Run:
    run = delivery.run
    if delivery.start or delivery.count < run.count:
        run = run.part(delivery.start, delivery.start + delivery.count)
    return run  # type: ignore[return-value]
