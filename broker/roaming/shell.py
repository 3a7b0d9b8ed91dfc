"""The shell of `mesh.roaming`: sessions, connections and the store behind what the roamer decides.

A client that comes waits here, unread, while its session is looked for. A session that leaves is renamed, so that the client's
identifier is free for whatever comes next, and is taken by a `SessionDrain` whose target posts to the other broker. What is not a
client's yet to have (it must come behind what is still elsewhere) is put aside in a session of its own, and moved behind it
by another `SessionDrain`. Both are ordinary sessions, kept in the store like any other, with names that no client can have.

    table     key                       value
    roaming   "p" client identifier     a `Place`, if its session is kept
    roaming   "l" name of the session   a `Leave`
    roaming   "f" client identifier     what is passed on of the client: `Forward`s
    roaming   "k"                       what is known beside: `Known`

What it does not know: why anything moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...base.quoting import quoted
from ...mesh.node.actions import Deliver, Event
from ...mesh.roaming import wire
from ...mesh.roaming.places import Forward, Known, Leave, Place, State, decode_forwards, decode_known, decode_leave, decode_place
from ...mesh.roaming.roamer import Roamer
from ...mesh.wire.control import Position
from ...mqtt.errors import UsageError
from ...mqtt.reasons import Reason
from ...mqtt.session import Delivery
from ...mqtt.topics import split_share
from ...store.base import Kind, StoreError
from ..session.session import Session
from .drain import SessionDrain
from .drain_targets import LocalTarget, RemoteTarget
from .moving_session import MovingSession
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
EARLY = 0.002  # seconds that a timer may fire too early
WAIT = 0.8  # part of `limits.connect_timeout` that a client waits for its session
UNBOUND = 1 << 62
ELSEWHERE = "this client is connected at another site now"


class Waiting:
    """A connection whose session is looked for. go: lets it in."""

    def __init__(self, connection: Connection, go: Callable[[], None], timer: Any) -> None:
        self.connection = connection
        self.go = go
        self.timer = timer


class Handler(Protocol):
    """Takes the messages of one kind that other brokers send to this one."""

    def received(self, origin: int, body: bytes) -> None:
        """A message has come from a broker."""

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        """A message did not reach a broker."""


class PeerMessages(Protocol):
    """Carries messages between the brokers themselves."""

    def send(self, brokers: int, kind: str, body: bytes, must: bool = False) -> Any:
        """Send to brokers, bit n for broker n. Raises UsageError."""

    def register(self, kind: str, handler: Handler, ahead: bool = False) -> None:
        """Have messages of a kind handled. ahead: they go before messages of clients that wait for room."""


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
        self.persistence: Persistence | None = None
        self._messages = messages
        self._deliver = deliver
        self.number = node.identity.number
        self.roamer = Roamer(self.number, self, wait)
        self.origin = self.number  # whose messages are being delivered
        self._waiting: dict[str, Waiting] = {}
        self._gates: dict[str, MovingSession] = {}  # name of the session -> its gate
        self._aside: dict[str, Session] = {}  # client -> what was put aside for it
        self._sessions: dict[Leave, Session] = {}
        self._drains: dict[Session, SessionDrain] = {}
        self._uuids: dict[int, bytes] = {}
        self._quiet = False
        self._waking = False
        self._timer: asyncio.TimerHandle | None = None
        for kind in wire.KINDS:
            messages.register(kind, Posts(self, kind), ahead=kind != wire.MARKER)

    # ---- the start

    def recover(self, persistence: Persistence) -> None:
        """Go on where an earlier life was; sessions are there. Raises StoreError."""
        self.persistence = persistence
        places: list[Place] = []
        leaves: list[Leave] = []
        forwards: dict[str, list[Forward]] = {}
        known = Known(0, 0)
        self._tick()
        for key, value in list(persistence.store.values(TABLE)):
            try:
                if key[:1] == b"p":
                    place = decode_place(key[1:].decode(), value)
                    if place.state is not State.ASKING and self.sessions.get(place.client) is None:
                        persistence.writer.delete_value(TABLE, key)
                    else:
                        places.append(place)
                elif key[:1] == b"l":
                    leave = decode_leave(value)
                    session = self.sessions.get(key[1:].decode())
                    if session is None:
                        persistence.writer.delete_value(TABLE, key)
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
        placed = {place.client for place in places}
        for session in self.sessions:
            if session.client_id not in placed and "\0" not in session.client_id:
                self.roamer.adopt(session.client_id)

    # ---- clients come and go

    def arrive(self, connection: Connection, client: str, clean: bool, go: Callable[[], None]) -> bool:
        """A client comes. True: let it in now; False: `go` is called when its session is here, or the connection is refused."""
        self._tick()
        self._refuse(client, "another connection came with this client identifier")
        self.sessions.retire(client)  # a session that ends with its connection is no answer
        if self.roamer.connect(client, clean):
            return True
        limit = WAIT * self.context.limits.connect_timeout
        timer = self.context.loop.call_later(limit, self._too_long, client)
        self._waiting[client] = Waiting(connection, go, timer)
        connection.held = True
        connection.pause_reading_for(self)
        self._set_timer()
        return False

    def opened(self, client: str) -> None:
        """The session of a client was opened for its connection."""
        self.roamer.saved(client)

    def ended(self, session: Session) -> None:
        """A session is no more."""
        gate = self._gates.pop(session.client_id, None)
        if gate is not None:
            session.face = session
        if self._quiet or "\0" in session.client_id:
            return
        self._end_aside(session.client_id)
        self._tick()
        self.roamer.ended(session.client_id)

    def _too_long(self, client: str) -> None:
        self.roamer.counts["refused"] += 1
        self._refuse(client, "its session is on its way from another site: try again")
        self.context.flush()

    def _refuse(self, client: str, text: str) -> None:
        waiting = self._waiting.pop(client, None)
        if waiting is not None:
            waiting.timer.cancel()
            if not waiting.connection.closing:
                waiting.connection.refuse(Reason.SERVER_BUSY, text, waiting.connection.version)

    # ---- what the shell tells

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
            uuid = self.node.holders()[number].uuid.bytes
            if self._uuids.setdefault(number, uuid) != uuid:
                self._uuids[number] = uuid
                self.roamer.member_gone(number)
            self.roamer.member_up(number)
            self._wake_soon()
        elif event.name == "member_down":
            self.roamer.member_down(number)
        elif event.name == "member_forgotten":
            self.roamer.member_gone(number)

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
        for drain in list(self._drains.values()):
            drain.settle()

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
        for drain in list(self._drains.values()):
            drain.wake()

    def _tick(self) -> None:
        self.roamer.now = self.context.loop.time()
        self.roamer.memory.wall = max(0, int(self.context.wall() * 1000))

    def _set_timer(self) -> None:
        """Wake up at the roamer's deadline at the latest; a timer that is set for earlier stays, its call is harmless."""
        deadline = self.roamer.next_deadline()
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline + EARLY):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.context.loop.call_at(deadline + EARLY, self._deadline)

    def _deadline(self) -> None:
        self._timer = None
        self._wake()
        self._set_timer()

    def values(self) -> dict[str, str]:
        """For `$SYS/broker/roaming/`."""
        counts = {f"roaming/{name}": str(value) for name, value in self.roamer.counts.items()}
        counts["roaming/leaving"] = str(sum(len(leaves) for leaves in self.roamer.leaves.of.values()))
        counts["roaming/coming"] = str(sum(1 for place in self.roamer.places.values() if place.state in (State.FETCHING, State.TAKING)))
        counts["roaming/waiting"] = str(len(self._waiting))
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

    def _put(self, key: bytes, value: bytes | None) -> None:
        persistence = self.persistence
        if persistence is None:
            return
        if value is None:
            persistence.writer.delete_value(TABLE, key)
        else:
            persistence.writer.put_value(TABLE, key, value)

    def save_place(self, client: str, value: bytes | None) -> None:
        session = self.sessions.get(client)
        if value is None or session is None or session.stored:
            self._put(b"p" + client.encode(), value)

    def save_leave(self, leave: Leave, value: bytes | None) -> None:
        session = self._sessions.get(leave)
        if session is not None and session.stored:
            self._put(b"l" + session.client_id.encode(), value)

    def save_forwards(self, client: str, value: bytes | None) -> None:
        self._put(b"f" + client.encode(), value)

    def save_known(self, value: bytes) -> None:
        self._put(b"k", value)

    # ---- Port: clients

    def accept(self, client: str) -> bool:
        waiting = self._waiting.pop(client, None)
        if waiting is not None and not waiting.connection.closing:
            waiting.timer.cancel()
            waiting.go()
            if not waiting.connection.closing:
                self.context.loop.call_soon(self._read_on, waiting.connection)
        return self.sessions.get(client) is not None

    def _read_on(self, connection: Connection) -> None:
        connection.release()
        connection.resume_reading_after(self)

    def turn_away(self, client: str) -> None:
        self._refuse(client, ELSEWHERE)
        session = self.sessions.get(client)
        if session is not None and session.connection is not None:
            log.info("event=roamed client=%s text=%s", quoted(client), ELSEWHERE)
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, ELSEWHERE)

    def discard(self, client: str) -> None:
        self._quiet = True
        try:
            session = self.sessions.get(client)
            if session is not None and session.connection is not None:
                session.connection.disconnect(Reason.SESSION_TAKEN_OVER, ELSEWHERE)
                session = self.sessions.get(client)
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
        session = self.sessions.get(client)
        if session is None:
            self._put(b"p" + client.encode(), None)
            return None
        if session.will is not None:
            session.will.cancel()
            session.will = None
        router = self.router
        released = session.outbound.released()
        held = [(subscription, router.identifier(session, full)) for full, subscription in session.subscriptions.items()]
        state = SessionState(session.expiry, session.user, held, sorted(session.inbound.open), released)
        for first, count in released:
            session.outbound.complete(first, count)
        if session.inbound.open:
            session.inbound.open.clear()
            self._changed(session)
        gate = self._gates.pop(client, None)
        self.sessions.rename(session, f"{LEAVING}{leave.key[0]}.{leave.key[1]}.{client}")
        if gate is not None:
            self._gates[session.client_id] = gate
        self._sessions[leave] = session
        log.info("event=session-leaves client=%s to=%d messages=%d", quoted(client), leave.to, session.queued + session.outbound.in_flight)
        return encode_state(state)

    def _changed(self, session: Session) -> None:
        persistence = self.persistence
        if persistence is not None:
            persistence.received(session)

    def begin(self, leave: Leave) -> None:
        session = self._sessions[leave]
        self._move(session, RemoteTarget(self, leave))

    def _move(self, session: Session, target: RemoteTarget | LocalTarget) -> None:
        drain = self._drains[session] = SessionDrain(self.persistence, session, target)
        drain.start()

    def sent(self, leave: Leave) -> bool:
        drain = self._drains.get(self._sessions[leave])
        return drain is not None and drain.done

    def forget(self, leave: Leave) -> None:
        session = self._sessions.pop(leave)
        log.info("event=session-left client=%s to=%d", quoted(leave.client), leave.to)
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
        there = self.sessions.get(place.client)
        if there is not None:
            self._move(session, LocalTarget(self, there, partial(self._end, session)))
            return
        gate = self._gates.pop(session.client_id, None)
        self.sessions.rename(session, place.client)
        if gate is not None:
            self._gates[place.client] = gate

    # ---- Port: a session comes

    def install(self, place: Place, state: bytes, merge: bool) -> None:
        found = decode_state(state)
        session = self.sessions.get(place.client)
        if session is None:
            session, _ = self.sessions.open(place.client, False, found.expiry)
            session.user, session.expiry = found.user, found.expiry
            self.sessions.rest(session)
            session.inbound.open.update(found.received)
            for first, count in found.released:
                session.outbound.adopt_released(first, count)
            self._changed(session)
        self.gate(place)
        for subscription, number in found.subscriptions:
            refusal = self.guard.subscription(self.guard.user_of(session), place.client, subscription.filter)
            if refusal is not None:  # the site that it comes from has other rules
                self.router.access.denied(place.client, self.guard.user_of(session), subscription.filter, refusal)
            elif subscription.filter not in session.subscriptions:
                self.router.subscribe(session, subscription, number)
                session.subscribed(subscription, number)
        log.info(
            "event=session-%s client=%s subscriptions=%d", "merges" if merge else "comes", quoted(place.client), len(found.subscriptions)
        )

    def take(self, place: Place, flights: bool, items: bytes) -> None:
        session = self.sessions.get(place.client)
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
        if delivery.qos == 2 and self.persistence is not None:
            delivery.ticket = self.persistence.next_commit  # it comes again unless the window of what brought it is kept
        bounds = session.max_messages, session.max_bytes
        session.max_messages = session.max_bytes = UNBOUND
        lost = delivery.count - session.deliver(delivery)
        session.max_messages, session.max_bytes = bounds
        if lost:
            self.context.counters.dropped += lost
            log.error("event=roaming-no-room client=%s messages=%d text=limits.broker_bytes is reached", quoted(session.client_id), lost)

    def gate(self, at: Place | Leave) -> None:
        session = self.sessions.get(at.client) if isinstance(at, Place) else self._sessions.get(at)
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
        session, aside = self.sessions.get(place.client), self._aside.get(place.client)
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


class Posts:
    """What takes the posts of one kind."""

    def __init__(self, roaming: Roaming, kind: str) -> None:
        self._roaming = roaming
        self._kind = kind

    def received(self, origin: int, body: bytes) -> None:
        self._roaming._tick()
        try:
            self._roaming.roamer.received(origin, self._kind, body)
        except ValueError as error:
            log.warning("event=roaming-refused origin=%d text=%s", origin, error)
        self._roaming._set_timer()

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        log.warning("event=roaming-returned kind=%s destination=%d reason=%s", self._kind, destination, reason)
        self._roaming.roamer.returned(destination, self._kind, body)


ASIDE = "\0aside."
LEAVING = "\0leaving."

__all__ = ["Roaming", "split_share"]
