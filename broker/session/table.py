"""All sessions of one broker: found, taken over, left, ended; and the wills of their clients.

A session ends when its expiry after the connection is over, or at once when a client asks for a clean start. With it go its
subscriptions; what it still had for shared subscriptions goes to other members (MQTT 5: 4.8.2); a will that was still delayed is
published (MQTT-3.1.3-9 and 3.1.3.2.2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ...base.metabroker import gone_topic, response_topic
from ...base.pieces import pieces
from ...base.quoting import quoted
from ...mqtt.batch.run import Run
from ...mqtt.reasons import Reason
from ..journal.kinds import Kind
from ..ledger import SESSIONS, WILL, WILLS, weight_of_text
from ..routing.shared import ShareGroup
from .session import FACELESS, Session
from .will import Will

if TYPE_CHECKING:
    from ..auth.guard import Guard
    from ..ledger import Account
    from ..ports import Context, SessionStore
    from ..routing.route import Route
    from ..routing.router import Router

log = logging.getLogger("mqmesh.broker")

AT_ONCE = 32  # subscriptions of a session that ends that are removed at once; more are removed in turns
LATE = 512  # wills that found no room that are tried again at once
MESH_WAIT = 5.0  # seconds that wills found at the start wait for another broker of the mesh


class Sessions:
    """The sessions by client identifier; iterating gives the sessions.

    accept: takes a will for its subscribers. False: there is no room.
    store: keeps sessions that outlive their connections; None: nothing does.
    in_mesh: the broker is a member of a mesh.
    ended: called with each session that has ended.
    parted: called with each session whose client has left it for good: it ends, or goes on under another name.
    keeps: whether the store keeps a client's session though it ends with its connection; None: it does for nobody.
    stamps: a client's will as it goes out; None: as it is. enters: the route of a will for a recipient; None of it: nobody takes it.
    outlives: the name under which what a session has goes on when it ends; None: it ends.
    """

    def __init__(self, context: Context, router: Router, guard: Guard, accept: Callable[[Run, Route, Account | None], bool]) -> None:
        self._context = context
        self._router = router
        self._guard = guard
        self._accept = accept
        self.store: SessionStore | None = None
        self.in_mesh = False
        self.ended: Callable[[Session], None] | None = None
        self.parted: Callable[[Session], None] | None = None
        self.keeps: Callable[[str], bool] | None = None
        self.stamps: Callable[[Session, Run], Run] | None = None
        self.enters: Callable[[Run, Route], Route | None] | None = None
        self.outlives: Callable[[Session], str | None] | None = None
        self._sessions: dict[str, Session] = {}
        self._removed = 0  # entries of it so far
        self._owned: dict[str, int] = {}  # user -> sessions
        guard.owned = lambda user: self._owned.get(user, 0)
        self._late: list[tuple[Run, bytes | None]] = []  # wills that found no room, with their keys in the store
        self._joined = True  # whether what was found at the start may end and be published now
        self._found: list[Callable[[], None]] = []  # what waits for that

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def pieces(self, size: int) -> Iterator[list[Session]]:
        """All sessions in lists of at most `size`, while they come and go (`base/pieces.py`)."""
        return pieces(self._sessions, size, lambda: self._removed)

    def get(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def own(self, session: Session, user: str | None) -> None:
        """A session is this user's from now on. user: None: nobody's."""
        self._count(session.user, -1)
        session.account.charge(SESSIONS, weight_of_text(user or "") - weight_of_text(session.user or ""))
        session.user = user
        self._count(user, 1)

    def _count(self, user: str | None, more: int) -> None:
        if user is not None:
            count = self._owned[user] = self._owned.get(user, 0) + more
            if not count:
                del self._owned[user]

    # A client comes

    def open(self, client_id: str, clean: bool, expiry: float | None = 0.0) -> tuple[Session, bool]:
        """The session for a CONNECT and whether it was there (MQTT-3.1.2-4, -5, -6); an older connection is closed (MQTT-3.1.4-3).

        expiry: of a new one: one that outlives its connection is kept in the store, if there is one.
        """
        session = self.retire(client_id)
        if session is not None and clean:
            self.end(session)
            session = None
        if session is not None:
            session.ends_at = None
            session.vanished = False
            if session.timer is not None:
                session.timer.cancel()
                session.timer = None
            if session.will is not None:
                session.will.cancel()
                session.keep_will(None)
            return session, True
        store = self.store
        volatile = store is None or (expiry == 0 and (self.keeps is None or not self.keeps(client_id)))
        session = Session(client_id, self._context) if store is None or volatile else store.new_session(client_id)
        session.expiry = expiry
        self._sessions[client_id] = session
        return session, False

    def retire(self, client_id: str) -> Session | None:
        """Close an older connection of a client that comes, and end its session if its time is over: what is left of it."""
        session = self._sessions.get(client_id)
        if session is not None and session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "another connection came with this client identifier")
            session = self._sessions.get(client_id)
        if session is not None and self._over(session):
            self.end(session)
            return None
        return session

    def add(self, session: Session, ends_in: float | None, will_in: float | None) -> None:
        """A session that the store kept. ends_in, will_in: seconds until it ends and its will is due, None for never.

        In a mesh neither happens before another broker is reached, or `MESH_WAIT` is over: a will that is published while nobody knows who
        wants it elsewhere would be lost to them.
        """
        self._sessions[session.client_id] = session
        self._count(session.user, 1)
        loop = self._context.loop
        self._wait_for_mesh()
        if session.will is not None and will_in is not None:
            session.will.timer = loop.call_later(max(0.0, will_in), self._once_joined, partial(self._will_due, session, session.will))
        if ends_in is not None:
            session.ends_at = loop.time() + ends_in
            session.timer = loop.call_later(max(0.0, ends_in), self._once_joined, partial(self._end_due, session, session.ends_at))

    def add_late(self, will: Run, key: bytes) -> None:
        """A will that the store kept since there was no room for it. key: of its row."""
        self._wait_for_mesh()
        self._put_off(will, key)

    def _wait_for_mesh(self) -> None:
        if self._joined and self.in_mesh:
            self._joined = False
            self._context.loop.call_later(MESH_WAIT, self.joined)

    def _once_joined(self, what: Callable[[], None]) -> None:
        if self._joined:
            what()
        else:
            self._found.append(what)

    def joined(self) -> None:
        """Another broker of the mesh is reached, and what it knows is known here: what was found at the start is as any other."""
        if not self._joined:
            self._joined = True
            found, self._found = self._found, []
            for what in found:
                what()

    # A client goes

    def leave(self, session: Session, clean: bool) -> None:
        """The session's connection is closed: its will is published or delayed, its expiry begins. clean: without its will."""
        session.pause()
        session.vanished = not clean
        will = session.will
        if clean:
            will = None
            session.keep_will(None)
        delay = None
        if will is not None:
            delay = float(will.delay) if session.expiry is None else min(float(will.delay), session.expiry)
        session.left(delay)
        if will is not None and delay is not None:
            if delay > 0:
                will.timer = self._context.loop.call_later(delay, self._will_due, session, will)
            else:
                self._fire(session)
        for group in self._router.shares_of(session):
            self._router.stirred.add(group)
            if any(member.session.connection is not None for member in group.members):
                self._hand_on(session.withdraw(group, queued_only=True), session)
        if session.expiry is not None and session.expiry <= 0:
            self.end(session)
            return
        self._tell_closed(session, kept=True)
        self._begin_expiry(session)

    def _begin_expiry(self, session: Session) -> None:
        if session.expiry is not None:
            ends_at = session.ends_at = self._context.loop.time() + session.expiry
            session.timer = self._context.loop.call_later(session.expiry, self._end_due, session, ends_at)

    def _over(self, session: Session) -> bool:
        return session.connection is None and session.ends_at is not None and self._context.loop.time() >= session.ends_at

    def _in_turn(self, session: Session, what: Callable[[], object]) -> None:
        """Do what a timer of a session asks for. Those of very many may ask at one moment, so each has a turn."""
        turns = self._context.turns
        turns.run(turns.ends, (what() for _ in range(1)), f"client={quoted(session.client_id)} work=session-timer")

    def _end_due(self, session: Session, ends_at: float) -> None:
        self._in_turn(session, partial(self._expire, session, ends_at))

    def _expire(self, session: Session, ends_at: float) -> None:
        if session.connection is None and session.ends_at == ends_at:  # its client has not come, nor gone again, meanwhile
            session.timer = None
            self._context.refresh()
            self._context.counters.clients_expired += 1
            log.info("event=session-expired client=%s", quoted(session.client_id))
            self.end(session)

    def end(self, session: Session) -> None:
        """Forget a session: its will goes out, its subscriptions go, what it had of shared subscriptions goes to other members."""
        if self._sessions.get(session.client_id) is not session:
            return
        del self._sessions[session.client_id]
        self._removed += 1
        self._count(session.user, -1)
        session.ends_at = None
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        if session.will is not None:
            session.will.cancel()
            self._fire(session)
        if session.vanished:
            self._tell_metabroker(session)
        self._forget_subscriptions(session)
        if self.parted is not None:
            self.parted(session)
        name = self.outlives(session) if self.outlives is not None else None
        if name is not None:
            session.expiry = None
            session.renamed(name)
            self._sessions[name] = session
            self._tell_closed(session, kept=False)
            return
        shared = session.withdraw(None, queued_only=False)
        session.discard()
        self._hand_on(shared, session)
        if self.ended is not None:
            self.ended(session)
        self._tell_closed(session, kept=False)
        if not session.gone:
            session.face = FACELESS

    def _forget_subscriptions(self, session: Session) -> None:
        """Remove a session's subscriptions, in turns where there are many: nothing is delivered to it meanwhile."""
        filters = list(session.subscriptions)
        if len(filters) > AT_ONCE:
            session.gone = True
            turns = self._context.turns
            turns.run(turns.current, self._forgotten(session, filters), f"client={quoted(session.client_id)} work=session-end")
            filters = [one for one in filters if one.startswith("$share/")]  # other members, here and elsewhere, take their part at once
        for topic_filter in filters:
            self._router.unsubscribe(session, topic_filter)

    def _forgotten(self, session: Session, filters: list[str]) -> Iterator[None]:
        while filters:  # each leaves the list, which else would hold what its account no longer pays for
            self._router.unsubscribe(session, filters.pop())
            yield
        session.account.close()
        session.face = FACELESS

    def _tell_closed(self, session: Session, kept: bool) -> None:
        hooks, journal = self._context.hooks, self._context.journal
        if not kept and not session.client_id.startswith("\0"):
            self._context.event("sessions", {"event": "ended", "client": session.client_id, "user": session.user})
        if journal is not None and not session.client_id.startswith("\0"):
            journal.event(Kind.DISCONNECTED, client=session.client_id, user=session.user or "", value=int(kept))
        if hooks is not None and not session.client_id.startswith("\0"):  # else it moves to another site
            hooks.session_closed(session.client_id, kept)

    def rename(self, session: Session, name: str) -> None:
        """A session without a connection has another name from now on, and does not expire under it unless that was begun anew."""
        self._stop_timer(session)
        session.expiry = None
        del self._sessions[session.client_id]
        self._removed += 1
        session.renamed(name)
        self._sessions[name] = session

    def rest(self, session: Session) -> None:
        """A session that was made without a connection: its expiry begins."""
        session.left(None)
        self._stop_timer(session)
        self._begin_expiry(session)

    def _stop_timer(self, session: Session) -> None:
        session.ends_at = None
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None

    def _hand_on(self, deliveries: list, session: Session) -> None:  # type: ignore[type-arg]
        """Messages of shared subscriptions to the other members of each."""
        counters = self._context.counters
        for delivery in deliveries:
            group = delivery.share
            assert isinstance(group, ShareGroup)
            refused = group.give_away([delivery], self.store.next_commit if self.store is not None else 0)
            counters.dropped += refused

    # Wills

    def _will_due(self, session: Session, will: Will) -> None:
        self._in_turn(session, partial(self._delayed, session, will))

    def _delayed(self, session: Session, will: Will) -> None:
        if session.will is will:
            self._context.refresh()
            self._fire(session)

    def _fire(self, session: Session) -> None:
        """Publish the session's will (MQTT-3.1.2-8)."""
        will = session.will
        session.keep_will(None)
        context, router, guard = self._context, self._router, self._guard
        if will is None or context.stopping:
            return
        session.record()
        log.info("event=will client=%s topic=%s", quoted(session.client_id), quoted(will.topic.decode()))
        rights = router.rights(will.topic.decode())
        user, client_id = guard.user_of(session), session.client_id
        refused = (
            router.access.will(client_id, rights, will.retain)
            or guard.will(user, client_id, session.listener, will.topic.decode())
            or guard.owes(user, client_id)
        )
        if refused is not None:
            log.warning("event=will-refused client=%s topic=%s", quoted(session.client_id), quoted(will.topic.decode()))
            context.counters.dropped += 1
            return
        run = will.run(context.loop.time())
        if self.stamps is not None:
            run = self.stamps(session, run)
        if not self._publish_will(run, session.account):
            # its session's record is without it from now on
            self._put_off(run, self.store.keep_will(run) if session.stored and self.store is not None else None)

    def _tell_metabroker(self, session: Session) -> None:
        """A client that listened to the metabroker has vanished: end what it has there, as a will of its own for this topic would."""
        answers = response_topic(session.client_id, "")
        listened = any(topic_filter.startswith(answers) for topic_filter in session.subscriptions)
        if listened and self._router.access.reserved and not self._context.stopping:
            topic = gone_topic(session.client_id).encode()
            self._publish_will(Run(topic, 1, False, [b""], b"", None, self._context.loop.time()), session.account)

    def _put_off(self, run: Run, key: bytes | None) -> None:
        """Keep a will that is due until there is room for it. key: of its row in the store."""
        self._late.append((run, key))
        self._context.ledger.own.charge(WILLS, _weight(run))

    def _publish_will(self, run: Run, account: Account | None = None) -> bool:
        """One batch with what says that it is published. account: of its session. False: there is no room."""
        found = self._router.routes.get(run.topic) or self._router.route(run.topic)
        route = found if self.enters is None else self.enters(run, found)
        if route is None or not (route.writable or route.queue):
            self._context.counters.dropped += 1
            return True
        return self._accept(run, route, account)

    def publish_late_wills(self) -> None:
        """Those that found no room, once more: some of them, if they are many."""
        if not self._joined:
            return
        late, self._late = self._late[:LATE], self._late[LATE:]
        for run, key in late:
            self._context.ledger.own.charge(WILLS, -_weight(run))
            if not self._publish_will(run):
                self._put_off(run, key)
            elif key is not None and self.store is not None:
                self.store.forget_will(key)

    def stop(self) -> None:
        """No timer fires any more."""
        for session in self:
            if session.timer is not None:
                session.timer.cancel()
            if session.will is not None:
                session.will.cancel()


def _weight(run: Run) -> int:
    return WILL + run.length + len(run.topic) + len(run.properties)
