"""The shell of `mesh.roaming`: sessions, connections and the store behind what the roamer decides.

A client that comes waits here, unread, while its session is looked for. A session that leaves is renamed, so that the client's
identifier is free for whatever comes next, and is taken by a `SessionDrain` whose target posts to the other broker. What is not a
client's yet to have (it must come behind what is still elsewhere) is put aside in a session of its own, and moved behind it
by another `SessionDrain`. A session that comes while another user has its client identifier here is *parked* until the
identifier is free, or until it goes on to where its owner is. All are ordinary sessions, kept in the store like any other, with names that
no client can have.

The roamer knows a client by its identifier and its owner together (`mesh.roaming.names`): that is what `client` means below, and
`client_id` is the identifier. `_session` finds the session of such a name, and never another owner's.

    table     key                       value
    roaming   "p" name of the client    a `Place`, if its session is kept or more may come for it
    roaming   "l" name of the session   a `Leave`
    roaming   "f" name of the client    what is passed on of the client: `Forward`s
    roaming   "k"                       what is known beside: `Known`

What it does not know: why anything moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.alarm import Alarm
from ...base.quoting import quoted
from ...mesh.node.actions import Deliver, Event
from ...mesh.roaming import wire
from ...mesh.roaming.names import ASIDE, LEAVING, PARKED, client_of, name_of, owner_of
from ...mesh.roaming.places import Forward, Known, Leave, Place, State, decode_forwards, decode_known, decode_leave, decode_place
from ...mesh.roaming.roamer import Roamer
from ...mesh.wire.control import Position
from ...mqtt.errors import UsageError
from ...mqtt.reasons import Reason
from ...mqtt.session import Delivery
from ...mqtt.topics import split_share
from ...store.base import Kind, StoreError
from ..persistence.table import Table
from ..session.session import Session
from .arrival import Arrival, Line, Waiting
from .drain import SessionDrain
from .drain_targets import LocalTarget, RemoteTarget
from .moving_session import MovingSession
from .posts import PeerMessages, Posts
from .session_codec import SessionState, decode_state, deliveries, encode_state

if TYPE_CHECKING:
    from ...mesh.node.node import Node
    from ..auth.guard import Guard
    from ..persistence.commits import Persistence
    from ..ports import Connection, Context
    from ..routing.router import Router
    from ..session.table import Sessions

log = logging.getLogger("mqmesh.mesh")

TABLE = "roaming"
PAUSE = 0.005  # seconds between two portions of a round (mesh/roaming/reach.py)
EARLY = 0.002  # seconds that a timer may fire too early
WAIT = 0.8  # part of `limits.connect_timeout` that a client waits for its session
UNBOUND = 1 << 62
ELSEWHERE = "this client is connected at another site now"
ANOTHERS = "the session of this client identifier belongs to another user"


class Roaming:
    """The roaming clients of one broker. It is the `Port` of its roamer."""

    def __init__(
        self,
        context: Context,
        router: Router,
        sessions: Sessions,
        guard: Guard,
        node: Node,
        messages: PeerMessages,
        deliver: Callable[[Deliver], None],
        wait: float,
    ) -> None:
        """deliver: delivers a run from elsewhere to local subscribers. wait: seconds that sites have to answer."""
        self.context = context
        self.router = router
        self.sessions = sessions
        self.guard = guard
        self.node = node
        self._table = Table(TABLE)
        self._messages = messages
        self._deliver = deliver
        self.number = node.identity.number
        self.roamer = Roamer(self.number, self, wait)
        self.origin = self.number  # whose messages are being delivered
        self._waiting: dict[str, Waiting] = {}  # by client identifier
        self.line = Line(self.roamer.places)
        self._gates: dict[str, MovingSession] = {}  # name of the session -> its gate
        self._aside: dict[str, Session] = {}  # client -> what was put aside for it
        self._sessions: dict[Leave, Session] = {}
        self._given: dict[Session, str] = {}  # sessions of nobody that are about to leave to the first user who claimed them
        self._drains: dict[Session, SessionDrain] = {}
        self._uuids: dict[int, bytes] = {}
        self._quiet = False
        self._waking = False
        self._next_portion = Alarm(self._go_on)
        self._alarm = Alarm(self._deadline)
        for kind in wire.KINDS:
            messages.register(kind, Posts(self, kind), ahead=kind != wire.MARKER)

    # ---- the start

    def recover(self, persistence: Persistence) -> None:
        """Go on where an earlier life was; sessions are there. Raises StoreError."""
        self._table.persistence = persistence
        places: list[Place] = []
        leaves: list[Leave] = []
        forwards: dict[str, list[Forward]] = {}
        known = Known(0, 0)
        self._tick()
        for key, value in self._table.values():
            try:
                if key[:1] == b"p":
                    place = decode_place(key[1:].decode(), value)
                    if place.state is not State.ASKING and self._kept(place.client) is None and not place.orphaned():
                        self._table.put(key, None)
                    else:
                        places.append(place)
                elif key[:1] == b"l":
                    leave = decode_leave(value)
                    session = self.sessions.get(key[1:].decode())
                    if session is None:
                        self._table.put(key, None)
                    else:
                        self._sessions[leave] = session
                        leaves.append(leave)
                elif key[:1] == b"f":
                    forwards[key[1:].decode()] = decode_forwards(value)
                else:
                    known = decode_known(value)
            except ValueError as error:
                raise StoreError(Kind.CORRUPT, TABLE, str(error)) from None
        for session in self.sessions:
            if session.client_id.startswith(ASIDE):
                self._aside[session.client_id[len(ASIDE) :]] = session
        self.roamer.restore(places, leaves, forwards, known)
        self._name_places(places)
        for session in self.sessions:
            name = self._name(session)
            if name is not None and name not in self.roamer.places:
                self.roamer.adopt(name)

    def _name_places(self, places: list[Place]) -> None:
        """Places that an earlier release has kept have no owners in their names; what still moves has to keep its name for now."""
        for place in places:
            session = self._session(place.client)
            owner = self.guard.owner_of(session) if session is not None else None
            if owner is not None and owner_of(place.client) is None:
                place.following = None  # nobody has proven that claim to be the owner's
                self.roamer.rename(place.client, name_of(place.client, owner))

    # ---- names

    def _kept(self, client: str) -> Session | None:
        """The session of a place that the store kept."""
        parked, session, owner = self.sessions.get(PARKED + client), self.sessions.get(client_of(client)), owner_of(client)
        if parked is not None or session is None or owner is None:
            return parked or session
        return session if self.guard.owner_of(session) == owner else None

    def _session(self, client: str) -> Session | None:
        """The session of a client, with its owner."""
        session = self.sessions.get(client_of(client))
        if session is not None and self._name(session) == client:
            return session
        return self.sessions.get(PARKED + client)

    def _name(self, session: Session) -> str | None:
        """Under which name the roamer knows a session; None: it is on its way."""
        client_id = session.client_id
        if session in self._given:
            return self._given[session]
        if client_id.startswith(PARKED):
            return client_id[len(PARKED) :]
        if client_id.startswith("\0"):
            return None
        name = name_of(client_id, self.guard.owner_of(session))
        return client_id if client_id in self.roamer.places and name not in self.roamer.places else name

    # ---- clients come and go

    def arrive(self, connection: Connection, client_id: str, clean: bool, go: Callable[[], None]) -> Arrival:
        """A client comes; its user is proven, and no other user has a session with this client identifier here."""
        self._tick()
        client = self._arriving(client_id, self.guard.owner(client_id, connection.user))
        if client is None:
            return Arrival.BUSY
        waiting = self._waiting.get(client_id)
        if waiting is not None and waiting.client != client and not waiting.connection.closing:
            return Arrival.TAKEN
        if waiting is not None:
            self._refuse(waiting.client, Reason.SERVER_BUSY, "another connection came with this client identifier")
        self.sessions.retire(client_id)  # a session that ends with its connection is no answer
        if self.roamer.connect(client, clean):
            self._unpark(client)
            return Arrival.OPEN
        limit = WAIT * self.context.limits.connect_timeout
        timer = self.context.loop.call_later(limit, self._too_long, client)
        self._waiting[client_id] = Waiting(client, connection, go, timer)
        connection.held = True
        connection.pause_reading_for(self)
        if self.roamer.places[client].waiting:
            self.line.asks(client, self.roamer.now)
        self._set_timer()
        return Arrival.WAITS

    @property
    def crowded(self) -> bool:
        """Whether a client that has no session here has to `stand`."""
        return self.line.full(self.context.loop.time())

    def stand(self, connection: Connection, arrive: Callable[[], None]) -> None:
        """Too many clients look for their sessions: this one arrives when others have theirs."""
        connection.held = True
        connection.pause_reading_for(self)
        self.line.stand(partial(self._arrive_now, connection, arrive))
        self._set_timer()

    def _arrive_now(self, connection: Connection, arrive: Callable[[], None]) -> None:
        if connection.closing:
            return
        arrive()
        waiting = self._waiting.get(connection.client_id)
        if not connection.closing and (waiting is None or waiting.connection is not connection):  # it was let in at once
            self.context.loop.call_soon(self._read_on, connection)

    def _arriving(self, client_id: str, owner: str | None) -> str | None:
        """The name of a client that comes; None: the session of nobody that it may have is still on its way."""
        name = name_of(client_id, owner)
        if owner is None or name in self.roamer.places or client_id not in self.roamer.places:
            return name
        session = self._session(client_id)
        if session is None or self.roamer.adopt_here(client_id, name):
            return name
        return client_id if self.guard.owner_of(session) == owner else None  # an earlier release has placed it, and it still moves

    def _unpark(self, client: str) -> None:
        """The client identifier of a session is free for it."""
        parked, client_id = self.sessions.get(PARKED + client), client_of(client)
        if parked is None or self.sessions.get(client_id) is not None:
            return
        gate = self._gates.pop(parked.client_id, None)
        expiry = parked.expiry
        self.sessions.rename(parked, client_id)
        parked.expiry = expiry
        self.sessions.rest(parked)
        if gate is not None:
            self._gates[client_id] = gate
        self.guard.review(parked, self.router.unsubscribe)

    def opened(self, session: Session) -> None:
        """The session of a client was opened for its connection."""
        name = self._name(session)
        assert name is not None
        self.roamer.saved(name)

    def ended(self, session: Session) -> None:
        """A session is no more."""
        gate = self._gates.pop(session.client_id, None)
        if gate is not None:
            session.face = session
        name = self._name(session)
        self._given.pop(session, None)
        if self._quiet or name is None:
            return
        self._end_aside(name)
        self._tick()
        self.roamer.ended(name)

    def _too_long(self, client: str) -> None:
        self.roamer.counts["refused"] += 1
        self._refuse(client, Reason.SERVER_BUSY, "its session is on its way from another site: try again")
        self.context.flush()

    def _waited(self, client: str) -> Waiting | None:
        """The connection that waits for a client's session waits no more."""
        waiting = self._waiting.get(client_of(client))
        return self._waiting.pop(client_of(client)) if waiting is not None and waiting.client == client else None

    def _refuse(self, client: str, reason: Reason, text: str) -> None:
        waiting = self._waited(client)
        if waiting is not None:
            waiting.timer.cancel()
            if not waiting.connection.closing:
                waiting.connection.refuse(reason, text, waiting.connection.version)

    # ---- what the shell tells

    @property
    def moving(self) -> bool:
        """Whether a session is on its way: only then it matters here whose message is delivered, and when."""
        return bool(self._gates or self._drains)

    def deliver(self, action: Deliver) -> None:
        """Deliver what another broker published; gates want to know whose it is."""
        self.origin = action.origin
        try:
            self._deliver(action)
        finally:
            self.origin = self.number

    def event(self, event: Event) -> None:
        """Members come and go."""
        self._tick()
        number: Any = event.fields.get("number")
        if event.name == "member_up":
            holder = self.node.holders().get(number)
            if holder is None:  # it is down again: that event follows
                return
            uuid = holder.uuid.bytes
            if self._uuids.setdefault(number, uuid) != uuid:
                self._uuids[number] = uuid
                self.roamer.member_gone(number)
            self.roamer.member_up(number)
            self._wake_soon()
        elif event.name == "member_down":
            self.roamer.member_down(number)
        elif event.name == "member_forgotten":
            self.roamer.member_gone(number)
        if self.roamer.reach:
            self._next_portion.set(self.context.loop, self.roamer.now)

    def received(self, origin: int, kind: str, body: bytes) -> None:
        """Another broker says something of a client."""
        self._tick()
        try:
            self.roamer.received(origin, kind, body)
        except ValueError as error:
            log.warning("event=roaming-refused origin=%d text=%s", origin, error)
        self.line.go_on(self.roamer.now)
        self._set_timer()

    def interest_changed(self) -> None:
        """Others' interest has changed."""
        self._tick()
        self.roamer.fences.interest_changed()

    def busy(self) -> None:
        """The node has done something: perhaps what was posted has arrived."""
        if self._drains:
            self._wake_soon()

    def settle(self) -> None:
        """The end of a piece of work: what movers gave on is theirs no more."""
        if self._drains:
            for drain in list(self._drains.values()):
                drain.settle()

    def _go_on(self, at: float) -> None:
        """Another portion of what a member in reach, or out of it, means for all clients."""
        self._tick()
        self.context.refresh()
        if self.roamer.reach.go_on(self.roamer.now):
            self._next_portion.set(self.context.loop, self.roamer.now + PAUSE)
        self.line.go_on(self.roamer.now)
        self._set_timer()
        self.context.flush()

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self.context.loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = False
        self.tick()
        self.context.flush()

    def tick(self) -> None:
        """From time to time, and when there is reason to: go on."""
        self._tick()
        self.context.refresh()
        self.roamer.tick()
        self.line.go_on(self.roamer.now)
        for drain in list(self._drains.values()):
            drain.wake()

    def _tick(self) -> None:
        self.roamer.now = self.context.loop.time()
        self.roamer.memory.wall = max(0, int(self.context.wall() * 1000))

    def _set_timer(self) -> None:
        """Wake up at the roamer's deadline at the latest; a call before it is harmless."""
        deadline = self.roamer.next_deadline()
        if deadline is not None:
            self._alarm.set(self.context.loop, deadline + EARLY)
        if self.line:
            self._alarm.set(self.context.loop, self.roamer.now + Line.PATIENCE)

    def _deadline(self, at: float) -> None:
        self._wake()
        self._set_timer()

    def values(self) -> dict[str, str]:
        """For `$SYS/broker/roaming/`."""
        counts = {f"roaming/{name}": str(value) for name, value in self.roamer.counts.items()}
        counts["roaming/leaving"] = str(sum(len(leaves) for leaves in self.roamer.leaves.of.values()))
        counts["roaming/coming"] = str(sum(1 for place in self.roamer.places.values() if place.state in (State.FETCHING, State.TAKING)))
        counts["roaming/waiting"] = str(len(self._waiting) + len(self.line))
        counts["roaming/asking"] = str(len(self.roamer.reach))
        return counts

    # ---- Port: brokers

    def known(self) -> int:
        return self.node.known()

    def live(self) -> int:
        return self.node.live()

    def interest_of(self, number: int) -> Position:
        return self.node.interest_of(number)

    def send_to_brokers(self, brokers: int, kind: str, body: bytes) -> None:
        try:
            self._messages.send(brokers, kind, body, must=True)
        except UsageError as error:  # it was given up in this moment
            log.warning("event=roaming-post-failed kind=%s text=%s", kind, error)

    # ---- Port: what is kept

    def keeps(self, client: str) -> bool:
        session = self._session(client)
        return session is None or session.stored

    def save_place(self, client: str, value: bytes | None) -> None:
        self._table.put(b"p" + client.encode(), value)

    def save_leave(self, leave: Leave, value: bytes | None) -> None:
        session = self._sessions.get(leave)
        if session is not None and session.stored:
            self._table.put(b"l" + session.client_id.encode(), value)

    def save_forwards(self, client: str, value: bytes | None) -> None:
        self._table.put(b"f" + client.encode(), value)

    def save_known(self, value: bytes) -> None:
        self._table.put(b"k", value)

    # ---- Port: clients

    def accept(self, client: str) -> bool:
        waiting = self._waited(client)
        if waiting is not None and not waiting.connection.closing:
            waiting.timer.cancel()
            self._unpark(client)
            waiting.go()
            if not waiting.connection.closing:
                self.context.loop.call_soon(self._read_on, waiting.connection)
        return self._session(client) is not None

    def _read_on(self, connection: Connection) -> None:
        connection.release()
        connection.resume_reading_after(self)

    def deny(self, client: str) -> None:
        self.context.counters.denied_connects += 1
        self._refuse(client, Reason.NOT_AUTHORIZED, ANOTHERS)

    def contested(self, client: str, broker: int) -> None:
        shown = quoted(client_of(client)), quoted(owner_of(client)), broker
        log.warning(
            "event=two-owners client=%s user=%s number=%d text=%s", *shown, "another user has a session with this client identifier there"
        )

    def renamed(self, client: str, name: str) -> None:
        session = self.sessions.get(client)
        if session is None or self.guard.owner_of(session) is not None:
            return
        if self.guard.authenticator is None:  # this site proves nobody's name; the session leaves now
            self._given[session] = name
            return
        self.sessions.own(session, owner_of(name))
        session.record()
        self.guard.review(session, self.router.unsubscribe)
        self.router.rules_changed([session])

    def may_have(self, client: str, owner: str | None) -> bool:
        session = self._session(client)
        return session is not None and self.guard.owner_of(session) in (None, owner)

    def turn_away(self, client: str) -> None:
        self._refuse(client, Reason.SERVER_BUSY, ELSEWHERE)
        session = self._session(client)
        if session is not None and session.connection is not None:
            log.info("event=roamed client=%s text=%s", quoted(client_of(client)), ELSEWHERE)
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, ELSEWHERE)

    def discard(self, client: str) -> None:
        self._quiet = True
        try:
            session = self._session(client)
            if session is not None and session.connection is not None:
                session.connection.disconnect(Reason.SESSION_TAKEN_OVER, ELSEWHERE)
                session = self._session(client)
            if session is not None:
                self.sessions.end(session)
        finally:
            self._quiet = False
        self._end_aside(client)

    # ---- Port: a session leaves

    def release(self, leave: Leave) -> bytes | None:
        client = leave.client
        self._quiet = True
        try:
            self.turn_away(client)
        finally:
            self._quiet = False
        session = self._session(client)
        if session is None:
            self._table.put(b"p" + client.encode(), None)
            return None
        if session.will is not None:
            session.will.cancel()
            session.keep_will(None)
        router = self.router
        released = session.outbound.released()
        held = [(subscription, router.identifier(session, full)) for full, subscription in session.subscriptions.items()]
        owner = self.guard.owner_of(session)
        state = SessionState(session.expiry, owner, held, sorted(session.inbound.open), released, session.listener)
        for first, count in released:
            session.outbound.complete(first, count)
        if len(session.inbound):
            session.inbound.open.clear()
            self._changed(session)
        gate = self._gates.pop(session.client_id, None)
        self.sessions.rename(session, f"{LEAVING}{leave.key[0]}.{leave.key[1]}.{client}")
        if gate is not None:
            self._gates[session.client_id] = gate
        self._sessions[leave] = session
        self._given.pop(session, None)
        messages = session.queued + session.outbound.in_flight
        log.info("event=session-leaves client=%s to=%d messages=%d", quoted(client_of(client)), leave.to, messages)
        return encode_state(state)

    def _changed(self, session: Session) -> None:
        persistence = self._table.persistence
        if persistence is not None:
            persistence.received(session)

    def begin(self, leave: Leave) -> None:
        session = self._sessions[leave]
        self._move(session, RemoteTarget(self, leave))

    def _move(self, session: Session, target: RemoteTarget | LocalTarget) -> None:
        drain = self._drains[session] = SessionDrain(self._table.persistence, session, target)
        drain.start()

    def sent(self, leave: Leave) -> bool:
        drain = self._drains.get(self._sessions[leave])
        return drain is not None and drain.done

    def forget(self, leave: Leave) -> None:
        session = self._sessions.pop(leave)
        log.info("event=session-left client=%s to=%d", quoted(client_of(leave.client)), leave.to)
        self._end(session)

    def _end(self, session: Session) -> None:
        """A session with a name of ours is no more."""
        drain = self._drains.pop(session, None)
        if drain is not None:
            drain.stop()
        self.sessions.end(session)

    def restore(self, leave: Leave, place: Place) -> None:
        session = self._sessions.pop(leave)
        drain = self._drains.pop(session, None)
        if drain is not None:
            drain.stop()
        there = self._session(place.client)
        if there is not None:
            self._move(session, LocalTarget(self, there, partial(self._end, session)))
            return
        gate = self._gates.pop(session.client_id, None)
        self.sessions.rename(session, self._free(place.client))
        if gate is not None:
            self._gates[session.client_id] = gate

    def _free(self, client: str) -> str:
        """Under which name a session of a client can be here: its client identifier, unless another owner has that."""
        client_id = client_of(client)
        return client_id if self.sessions.get(client_id) is None else PARKED + client

    # ---- Port: a session comes

    def install(self, place: Place, state: bytes, merge: bool) -> None:
        found = decode_state(state)
        client_id, owner = client_of(place.client), owner_of(place.client)
        session = self._session(place.client)
        if session is None:
            session, _ = self.sessions.open(self._free(place.client), False, found.expiry)
            self.sessions.own(session, found.user if owner is None else self.guard.user_named(owner))
            session.expiry = found.expiry
            waiting = self._waiting.get(client_id)
            if waiting is not None and waiting.client == place.client:
                session.listener = waiting.connection.listener
            else:  # who waited has gone, or was told to try again
                session.listener = found.listener
            session.account.move(None, self.guard.user_of(session))
            self.sessions.rest(session)
            session.inbound.open.update(found.received)
            for first, count in found.released:
                session.outbound.adopt_released(first, count)
            self._changed(session)
        self.gate(place)
        user = self.guard.user_of(session)
        for subscription, number in found.subscriptions:
            refusal = self.guard.subscription(user, client_id, session.listener, subscription.filter)
            if refusal is not None:  # the site that it comes from has other rules
                self.router.access.denied(client_id, user, subscription.filter, refusal)
            elif subscription.filter not in session.subscriptions:
                self.router.subscribe(session, subscription, number)
                session.subscribed(subscription, number)
        log.info("event=session-%s client=%s subscriptions=%d", "merges" if merge else "comes", quoted(client_id), len(found.subscriptions))

    def take(self, place: Place, flights: bool, items: bytes) -> None:
        session = self._session(place.client)
        if session is None:
            return
        for delivery in deliveries(items, self.context.now):
            first, delivery.first = delivery.first, 0
            if flights and first:
                delivery.first = first
                session.adopt(delivery)
            elif not delivery.run.expired(self.context.now):
                self.give(session, delivery)

    def give(self, session: Session, delivery: Delivery) -> None:
        """What was kept elsewhere is kept here, whatever the bounds of one session: it was somebody's to keep before."""
        if delivery.qos == 2 and self._table.persistence is not None:
            delivery.ticket = self._table.persistence.next_commit  # it comes again unless the window of what brought it is kept
        bounds = session.max_messages, session.max_bytes
        session.max_messages = session.max_bytes = UNBOUND
        lost = delivery.count - session.deliver(delivery)
        session.max_messages, session.max_bytes = bounds
        if lost:
            self.context.counters.dropped += lost
            log.error("event=roaming-no-room client=%s messages=%d text=limits.broker_bytes is reached", quoted(session.client_id), lost)

    def gate(self, at: Place | Leave) -> None:
        session = self._session(at.client) if isinstance(at, Place) else self._sessions.get(at)
        if session is None:
            return
        moving = isinstance(at, Place) and at.state in (State.FETCHING, State.TAKING)
        gate = self._gates.get(session.client_id)
        if at.cut.whole and not moving and isinstance(at, Place):
            if gate is not None:
                del self._gates[session.client_id]
                self.router.reface(session, session)
            return
        if gate is None:
            gate = self._gates[session.client_id] = MovingSession(session, at.cut, self._origin)
            self.router.reface(session, gate)
        gate.cut = at.cut
        gate.target = self._aside_for(at.client) if moving else session

    def _origin(self) -> int:
        return self.origin

    def _aside_for(self, client: str) -> Session:
        session = self._aside.get(client)
        if session is None:
            session, _ = self.sessions.open(ASIDE + client, False, None)
            session.left(None)
            self._aside[client] = session
        return session

    def drain(self, place: Place) -> None:
        session, aside = self._session(place.client), self._aside.get(place.client)
        if session is None or aside is None:
            self.roamer.drained(place.client)
        elif aside not in self._drains:
            self._move(aside, LocalTarget(self, session, partial(self._drained, place.client)))

    def _drained(self, client: str) -> None:
        self.roamer.drained(client)  # from here on the gate leads to the session itself
        self._end_aside(client)

    def _end_aside(self, client: str) -> None:
        aside = self._aside.pop(client, None)
        if aside is not None:
            self._end(aside)


__all__ = ["Roaming", "split_share"]
