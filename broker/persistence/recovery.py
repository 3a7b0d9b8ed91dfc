"""What a broker finds of its earlier life: sessions, subscriptions, queues, identifiers, retained messages.

One pass over the deliveries serves the writer, which learns what is stored, and this module, which learns what each session has
in flight and how much waits for it. Payloads stay in the store: a queue is read when its client comes. Everything is in place
before the broker listens, so that no message misses a subscription that was promised.

A session that had a connection when the broker died counts as left at the last time the broker noted (`Persistence.tick`), so that
its expiry goes on. One that ended with its connection, or whose expiry is over, ends now, and its will is published.

A recipient without a session record is one whose end was not finished: what it had for shared subscriptions goes to their
members, the rest goes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...mesh.retained import Kind as RecordKind
from ...mesh.retained.record import read_row
from ...mesh.retained.replica import RECORDS, STATE, STATE_KEY
from ...store import Kind, Store, StoredDelivery, StoreError
from ..steady import Noted
from .codec import SessionRecord, identifiers_of, kept_run, retained_of, session_of, subscription_of, unpack, will_of_value
from .commits import Persistence
from .stored_delivery import SENT, Extra
from .stored_session import StoredSession, key_of, recipient_of

if TYPE_CHECKING:
    from ..auth.guard import Guard

log = logging.getLogger("mqmesh.broker")

QUIET = 2.0  # seconds that finding it again may take before a line says how far it is
PREFIX = recipient_of(0)[:-1]


@dataclass(slots=True)
class Rows:
    """What the store has for one session. sent: rows in flight. count, weight: messages that wait, and their bytes of memory."""

    sent: list[StoredDelivery] = field(default_factory=list)
    count: int = 0
    weight: int = 0
    next_order: int = 1
    shared: bool = False
    expiring: bool = False


class Progress:
    """A line on stderr when it takes long, then one every other second."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._due = time.monotonic() + QUIET
        self._said = False

    def at(self, what: str, count: int) -> None:
        """To be called often."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + QUIET
            self._said = True
            print(f"broker {self._name}: reading the store: {count:,} {what}", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._said:
            print(f"broker {self._name}: the store is read", file=sys.stderr, flush=True)


def stored_clock(store: Store) -> Noted | None:
    """How the clock stood in the life before this one. store: not yet open; one that cannot be read says why when it is opened."""
    try:
        store.attach()
        value = store.value("broker", b"alive")
        if value is None:
            return None
        steady, *more = unpack("broker", b"alive", value, 1)
        return Noted(steady, more[0] if more else 0.0)
    except StoreError:
        return None
    finally:
        store.close()


def recover(persistence: Persistence, guard: Guard, name: str, in_mesh: bool) -> None:
    """Open the store and put what it holds into the broker, which does not listen yet. Blocks. Raises StoreError.

    name: the broker's, for its messages.
    in_mesh: the broker is a member of a mesh, which keeps the retained messages.
    """
    store = persistence.store
    progress = Progress(name)
    found: dict[str, Rows] = {}
    persistence.writer.start(lambda deliveries: _seen(deliveries, found, progress))
    try:
        persistence.quota.set(persistence.context.limits, store, persistence.context.workers)
        sessions = _sessions(persistence, guard, progress)
        highest = max([session.number for session in sessions.values()], default=0)
        others = [int(name[len(PREFIX) :]) for name in found if name.startswith(PREFIX)]
        persistence.numbers_from(store.highest_run() + 1, max([highest, *others]) + 1)
        _identifiers(store, sessions)
        for name, rows in found.items():
            if name in sessions:
                _fill(sessions[name], rows)
            elif name.startswith(PREFIX):
                persistence.leftover(name, rows.shared)
        _retained(persistence, in_mesh, progress)
        for key, value in store.values("wills"):
            persistence.sessions.add_late(will_of_value(key, value, persistence.offset), key)
        persistence.begin()
        persistence.look()
    except BaseException:
        persistence.writer.close(0)
        raise
    progress.done()
    persistence.retained.keeper = persistence
    if sessions or len(persistence.retained):
        queued = sum([session.queued for session in sessions.values()])
        log.info("event=recovered sessions=%d messages=%d retained=%d", len(sessions), queued, len(persistence.retained))


def _seen(deliveries: Iterable[StoredDelivery], found: dict[str, Rows], progress: Progress) -> Iterator[StoredDelivery]:
    """Pass the deliveries on, and learn from those of sessions."""
    for number, row in enumerate(deliveries):
        if not number & 0xFFF:
            progress.at("deliveries", number)
        if row.recipient.startswith(PREFIX):
            rows = found.get(row.recipient)
            if rows is None:
                rows = found[row.recipient] = Rows()
            rows.next_order = max(rows.next_order, row.order + row.count)
            extra = Extra.decode(row.extra)
            rows.shared = rows.shared or bool(extra.share)
            rows.expiring = rows.expiring or extra.until > 0
            if row.state == SENT:
                rows.sent.append(row)
            else:
                rows.count += row.count
                rows.weight += extra.each * row.count
        yield row


def _sessions(persistence: Persistence, guard: Guard, progress: Progress) -> dict[str, StoredSession]:
    """All sessions with their subscriptions, by their names as recipients."""
    store = persistence.store
    alive = store.value("broker", b"alive")
    now = persistence.wall(persistence.context.loop.time())
    died_at = min(now, unpack("broker", b"alive", alive, 1)[0]) if alive is not None else now
    sessions = {}
    for number, (key, value) in enumerate(store.values("sessions")):
        progress.at("sessions", number)
        session = _session(persistence, key.decode(), session_of(key, value), died_at)
        sessions[session.recipient] = session
        session.account.move(None, guard.user_of(session))
    for number, (key, value) in enumerate(store.values("subscriptions")):
        progress.at("subscriptions", number)
        owner, subscription, identifier = subscription_of(key, value)
        holder = sessions.get(recipient_of(owner))
        if holder is not None:
            holder.filters.add(subscription.filter)
            refusal = persistence.router.refusal(holder.client_id, subscription.filter) or guard.subscription(
                guard.user_of(holder), holder.client_id, holder.listener, subscription.filter
            )
            if refusal is not None and not holder.client_id.startswith("\0"):  # else it leaves, and had it under its own name
                persistence.router.access.denied(holder.client_id, guard.user_of(holder), subscription.filter, refusal)
                continue
            persistence.router.subscribe(holder, subscription, identifier)
    return sessions


def _session(persistence: Persistence, client_id: str, record: SessionRecord, died_at: float) -> StoredSession:
    session = StoredSession(client_id, persistence, record.number)
    session.user, session.expiry, session.listener = record.user, record.expiry, record.listener
    session.keep_will(record.will)
    left_at, will_at = record.left_at, record.will_at
    if left_at is None:
        left_at = died_at
        if session.will is not None:
            delay = float(session.will.delay)
            will_at = left_at + (delay if session.expiry is None else min(delay, session.expiry))
    session.left_at, session.will_at = left_at, will_at
    now = persistence.wall(persistence.context.loop.time())
    ends_in = None if session.expiry is None else left_at + session.expiry - now
    persistence.sessions.add(session, ends_in, None if will_at is None else will_at - now)
    if record.left_at is None:
        session.record()
    return session


def _identifiers(store: Store, sessions: dict[str, StoredSession]) -> None:
    """QoS 2: what was received and not released, and the other way."""
    by_key = {key_of(session.number): session for session in sessions.values()}
    for key, value in store.values("inbound"):
        if key in by_key:
            by_key[key].inbound.open.update(identifiers_of(value))
            by_key[key].has_inbound = True
    for key, value in store.values("released"):
        if key in by_key:
            by_key[key].restore_released(value)


def _fill(session: StoredSession, rows: Rows) -> None:
    session.next_order = rows.next_order
    session.shared, session.expiring = rows.shared, rows.expiring
    for row in rows.sent:
        session.restore_flight(row)
    session.spilled = session.queued = rows.count
    session.spilled_bytes = session.queued_bytes = rows.weight
    session.read_back()


def _retained(persistence: Persistence, in_mesh: bool, progress: Progress) -> None:
    for number, (key, value) in enumerate(persistence.store.values("retained")):
        progress.at("retained messages", number)
        persistence.retained.restore(kept_run(key, True, retained_of(key, value), persistence.offset))
    if not in_mesh:
        _left_mesh(persistence)


def _left_mesh(persistence: Persistence) -> None:
    """The broker was in a mesh and is no more: what it retained there is its own now."""
    store = persistence.store
    if store.value(STATE, STATE_KEY) is None:
        return
    now = persistence.context.loop.time()
    for topic, row in list(store.values(RECORDS)):
        try:
            record = read_row(topic, row)
        except ValueError as error:
            raise StoreError(Kind.CORRUPT, RECORDS, f"{error}: restore a copy, or move the store away and start empty") from None
        if record.kind is RecordKind.VALUE:
            run = record.run(persistence.offset, now)
            persistence.retained.restore(run)
            persistence.retain(run)
        persistence.writer.delete_value(RECORDS, topic)
    for key, _ in list(store.values(STATE)):
        persistence.writer.delete_value(STATE, key)
