"""What is done with messages on disk while nobody reads them: shared ones find other members, expired ones go.

Both walk through a session's rows page by page, read in a thread, a page for each turn of the loop:

- *Handing on.* When the members of a shared subscription that would have to read a message are away, and another one is there
  with room, it gets the message (MQTT 5: 4.8.2). What one session lets go and another takes is one change in the store, so that a
  crash finds it with one of them. When nobody has room it is tried again. A session that has ended gives up everything that
  was taken for shared subscriptions, but for QoS 2 in flight; nothing else of it stays.
- *Clearing.* The messages at the head of a queue whose lifetime is over go, when the queue is full and from time to time.

Invariants: what has been read is used only if the row is still there and no connection has taken the session up since.

What it does not know: how rows are written (`stored_delivery.py`), what is in memory.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from ...base.quoting import quoted
from ...mqtt.session import Delivery
from ...mqtt.topics import split_share
from ...store import Store, StoredDelivery, StoredRun, StoreError
from .stored_delivery import SENT, WAITING, Extra, PersistentDelivery
from .stored_session import PAGE_ROWS, Page, StoredSession, read_runs

if TYPE_CHECKING:
    from ..routing.shared import ShareGroup
    from .commits import Persistence

log = logging.getLogger("mqmesh.broker")

BUDGET = 4 * 2**20  # bytes of messages read at once
CLEAR_INTERVAL = 10.0  # seconds between two looks at the heads of queues


class Redistribution:
    """The rows of one recipient on their way to others. session: None when it has ended."""

    def __init__(self, maintenance: Maintenance, recipient: str, session: StoredSession | None) -> None:
        self._upkeep = maintenance
        self._persistence = maintenance.persistence
        self.recipient = recipient
        self.session = session
        self._after = session.reached if session is not None else 0

    def go(self) -> None:
        """Read on, once everything so far can be read."""
        self._persistence.when(self._persistence.mark(), self._read)

    def _read(self) -> None:
        if self._stopped():
            return
        state = WAITING if self.session is not None else None
        self._persistence.read(partial(read_shared, self._persistence.store, self.recipient, state, self._after), self._take)

    def _stopped(self) -> bool:
        session = self.session
        if session is None or not (session.ended or session.connection is not None):
            return False
        self._upkeep.done(self)
        return True

    def _take(self, page: Page | None, error: StoreError | None) -> None:
        if self._stopped():
            return
        if page is None:
            log.error("event=store-unreadable recipient=%s text=%s", quoted(self.recipient), error)
            self._upkeep.done(self, again=True)
            return
        rows, runs = page
        for row in rows:
            if not self._hand_on(row, runs):
                self._upkeep.done(self, again=True)
                break
            self._after = row.order
        else:
            if rows:
                self.go()
            else:
                self._end()
        self._persistence.context.flush()

    def _end(self) -> None:
        if self.session is None:
            self._persistence.writer.delete_recipient(self.recipient)
        self._upkeep.done(self)

    def _hand_on(self, row: StoredDelivery, runs: dict[int, StoredRun]) -> bool:
        """One row to the other members of its group. False: nobody has room."""
        persistence, session = self._persistence, self.session
        extra = Extra.decode(row.extra)
        if (
            not extra.share
            or not persistence.writer.has(self.recipient, row.order)
            or (session is not None and row.order <= session.reached)
        ):
            return True
        if row.state == SENT and row.qos == 2:
            return True
        share = split_share(extra.share)
        group = persistence.router.groups.get(share) if share is not None else None
        if group is None or (session is not None and not _has_room(group, session)):
            return group is None
        persistence.moving = True
        persistence.writer.delete_delivery(self.recipient, row.order)
        persistence.moving = False
        if session is not None:
            session.forgotten(row.count, extra.each * row.count)
        stored = runs.get(row.run)
        if stored is None:
            log.error("event=store-run-missing recipient=%s run=%d messages=%d", quoted(self.recipient), row.run, row.count)
            persistence.context.counters.dropped += row.count
            return True
        kept = PersistentDelivery.of_row(row, extra, group)
        kept.load(persistence.loaded(stored))
        plain = Delivery(kept.run, row.qos, extra.retain, b"", group, row.start, row.count)
        persistence.context.counters.dropped += group.give_away([plain])
        return True


class Maintenance:
    """The walks of one broker."""

    def __init__(self, persistence: Persistence) -> None:
        self.persistence = persistence
        self._walks: dict[str, Redistribution] = {}
        self._again: dict[str, StoredSession | None] = {}  # nobody had room
        self._clearing: set[StoredSession] = set()
        self._clear_at = 0.0

    def redistribute(self, recipient: str, session: StoredSession | None) -> None:
        """Hand on what a recipient has of shared subscriptions. session: None when it has ended."""
        self._again.pop(recipient, None)
        known = self._walks.get(recipient)
        if known is not None and (session is not None or known.session is None):
            return
        walk = self._walks[recipient] = Redistribution(self, recipient, session)
        walk.go()

    def done(self, walk: Redistribution, again: bool = False) -> None:
        """A walk has ended. again: not everything was handed on."""
        if self._walks.get(walk.recipient) is walk:
            del self._walks[walk.recipient]
            if again:
                self._again[walk.recipient] = walk.session

    def tick(self, now: float) -> None:
        """From time to time."""
        again, self._again = self._again, {}
        for recipient, session in again.items():
            if session is None or not (session.ended or session.connection is not None):
                self.redistribute(recipient, session)
        if now - self._clear_at >= CLEAR_INTERVAL:
            self._clear_at = now
            age = self.persistence.context.limits.session_queue_age
            for found in self.persistence.sessions:
                if isinstance(found, StoredSession) and found.spilled and (found.expiring or age is not None):
                    self.clear(found)

    def clear(self, session: StoredSession) -> None:
        """Drop what has expired at the head of what a session has on disk."""
        if session not in self._clearing and not session.ended:
            self._clearing.add(session)
            persistence = self.persistence
            persistence.read(partial(_read_rows, persistence.store, session.recipient, session.reached), partial(self._cleared, session))

    def _cleared(self, session: StoredSession, rows: list[StoredDelivery] | None, error: StoreError | None) -> None:
        self._clearing.discard(session)
        if not rows or session.ended:
            return
        persistence = self.persistence
        counters = persistence.context.counters
        now = persistence.wall(persistence.context.now)
        for row in rows:
            if row.order <= session.reached or not persistence.writer.has(session.recipient, row.order):
                continue
            extra = Extra.decode(row.extra)
            if not session.over(extra, now):
                break
            session.delete_row(row.order)
            session.forgotten(row.count, extra.each * row.count)
            counters.expired += row.count
        else:
            persistence.when(persistence.mark(), partial(self.clear, session))
        persistence.context.flush()


def _has_room(group: ShareGroup, giver: StoredSession) -> bool:
    """Whether a member is there that takes messages at once."""
    return any(
        member.session is not giver and member.session.connection is not None and not member.session.pressing for member in group.members
    )


def read_shared(store: Store, recipient: str, state: int | None, after: int) -> Page:
    """Rows behind one, and the runs of those that were taken for shared subscriptions; in a thread. Raises StoreError."""
    rows = []
    wanted = set()
    budget = BUDGET
    for row in store.deliveries(recipient, state, after, PAGE_ROWS):
        rows.append(row)
        extra = Extra.decode(row.extra)
        if extra.share:
            wanted.add(row.run)
            budget -= extra.each * row.count
            if budget <= 0:
                break
    return rows, read_runs(store, sorted(wanted))


def _read_rows(store: Store, recipient: str, after: int) -> list[StoredDelivery]:
    return list(store.deliveries(recipient, WAITING, after, PAGE_ROWS))
