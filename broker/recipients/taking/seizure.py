"""A seizure takes messages out of a session so that they fail over: all of them, all but the probe, or those that are too old.

Strategy: what is in memory is taken at once, in order: in flight, then the queue. What only the store has is read page by page in a thread,
after the commit that holds it, and taken if it is still there. Each piece is given away and leaves the session in one batch of the store.

A packet identifier on a live connection stays busy: the client may acknowledge it at any time. A `Gone` delivery stands for it until then.
One of QoS 2 is released before it stands for another message: the client may know it, and would take that message for a repeated one.

Invariants: nothing is taken that could not be given away (then the seizure waits for room); order is kept; what is kept is the first
message.

What it does not know: where messages go, and why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ....base.quoting import quoted
from ....mqtt.batch.run import Run
from ....mqtt.session import Delivery
from ...persistence.stored_delivery import Extra, PersistentDelivery
from ...persistence.stored_session import Page, StoredSession, read_page, read_runs
from .faces import Gone, Watch

if TYPE_CHECKING:
    from ....store import Store, StoreError
    from ....store.records import StoredDelivery, StoredRun
    from ...persistence.commits import Persistence
    from ...session.session import Session

log = logging.getLogger("mqmesh.broker")

BUDGET = 4 * 2**20  # bytes read at once


class Chooser(Protocol):
    """Whose messages are taken, and what becomes of them."""

    def owns(self, delivery: Delivery) -> bool:
        """Whether messages in this session are the recipient's."""

    def give(self, session: Session, delivery: Delivery, sent: bool) -> bool:
        """Have them. sent: the client may have them already. False: there is no room; they stay."""


class Seizure:
    """Takes messages out of one session.

    cutoff: only those that came until then, on the loop's clock; None: all. keep: how many of the first ones stay.
    done: called once nothing is left to be taken. stalled: there was no room; `go` tries again.
    """

    def __init__(
        self,
        session: Session,
        chooser: Chooser,
        persistence: Persistence | None,
        cutoff: float | None,
        keep: int,
        done: Callable[[Seizure], None],
    ) -> None:
        self.session = session
        self.cutoff = cutoff
        self.keep = keep
        self.stalled = False
        self.stopped = False
        self.taken = 0
        self._chooser = chooser
        self._persistence = persistence
        self._done = done
        self._reading = False
        self._kept = 0

    def go(self) -> None:
        """Take what can be taken now, and read on."""
        if self.stopped or self._reading:
            return
        self.stalled = False
        self._kept = 0
        if self._flights() and self._queue():
            session = self.session
            if isinstance(session, StoredSession) and not session.ended and (session.unloaded or session.spilled):
                self._read(session)
                return
            self.stopped = True
            self._done(self)
        else:
            self.stalled = True

    def stop(self) -> None:
        """Take nothing more."""
        self.stopped = True

    # In memory

    def _young(self, run_received: float) -> bool:
        return self.cutoff is not None and run_received > self.cutoff

    def _flights(self) -> bool:
        """What is in flight. False: there was no room."""
        session, outbound = self.session, self.session.outbound
        if not outbound.in_flight or session.resending:
            return True
        for flight in outbound.flights():
            if isinstance(flight, Gone) or flight.run is None or flight.retain or not self._chooser.owns(flight):
                continue
            if self._young(flight.run.received):
                break
            for piece in outbound.left_of(flight):
                part: Delivery | None = self._beyond_kept(piece)
                if part is None:
                    continue
                if not self._chooser.give(session, part, True):
                    return False
                self._release(part)
        return True

    def _beyond_kept(self, delivery: Delivery) -> Delivery | None:
        """A delivery without what is kept of it."""
        skip = min(delivery.count, self.keep - self._kept)
        self._kept += skip
        if not skip:
            return delivery
        return delivery.part(skip, delivery.count) if skip < delivery.count else None

    def _release(self, part: Delivery) -> None:
        """The session is done with messages in flight; on a live connection their identifiers stay busy."""
        session, outbound = self.session, self.session.outbound
        self.taken += part.count
        if session.connection is None and part.qos == 2 and isinstance(outbound.observer, Watch):
            self._quietly(lambda: outbound.release(part.first, part.count))
            return
        self._quietly(lambda: outbound.give_up(part.qos, part.first, part.count))
        if session.connection is not None:
            gone = Gone(Run(_topic(part), part.qos, False, [b""] * part.count), part.qos)
            gone.first = part.first
            outbound.adopt(gone)
            if part.qos == 2 and isinstance(session, StoredSession):
                session.abandons = True
                session.released_changed()

    def _quietly(self, change: Callable[[], object]) -> None:
        """Change the session's rows: the messages are somebody else's now, not settled."""
        watch, persistence = self.session.outbound.observer, self._persistence
        if isinstance(watch, Watch):
            watch.quiet = True
        if persistence is not None:
            persistence.moving = True
        change()
        if persistence is not None:
            persistence.moving = False
        if isinstance(watch, Watch):
            watch.quiet = False

    def _queue(self) -> bool:
        """What waits in memory. False: there was no room."""
        session = self.session
        if not session.queue:
            return True
        waiting = list(session.queue)
        left: list[Delivery] = []
        room = True
        for at, delivery in enumerate(waiting):
            if self._young(delivery.run.received):
                left += waiting[at:]
                break
            if not self._chooser.owns(delivery):
                left.append(delivery)
                continue
            part = self._beyond_kept(delivery)
            if part is None:
                left.append(delivery)
                continue
            if not self._chooser.give(session, part, False):
                room = False
                if part is not delivery:
                    self._kept -= delivery.count - part.count
                left += waiting[at:]
                break
            self.taken += part.count
            session._queued(delivery, -1)
            if part is not delivery:
                first = delivery.part(0, delivery.count - part.count)
                session._queued(first, 1)
                left.append(first)
            self._quietly(partial(self._drop_row, delivery, delivery.count - part.count))
        session.queue.clear()
        session.queue.extend(left)
        return room

    def _drop_row(self, delivery: Delivery, keep: int) -> None:
        session = self.session
        if isinstance(session, StoredSession) and isinstance(delivery, PersistentDelivery):
            if keep:
                session.put_row(delivery.row(session.recipient, delivery.order, 0, keep, 1))
                session.reread()
            else:
                session.delete_row(delivery.order)

    # In the store

    def _read(self, session: StoredSession) -> None:
        persistence = self._persistence
        assert persistence is not None
        self._reading = True
        persistence.when(persistence.mark(), partial(self._ask, session, session.generation))

    def _ask(self, session: StoredSession, generation: int) -> None:
        persistence = self._persistence
        assert persistence is not None
        flights = sorted({flight.stored for flight in session.flights() if not flight.loaded}) if session.unloaded else []
        ask = partial(_page, persistence.store, session.recipient, session.reached, flights)
        persistence.read(ask, partial(self._take, session, generation))

    def _take(self, session: StoredSession, generation: int, page: Page | None, error: StoreError | None) -> None:
        self._reading = False
        if self.stopped:
            return
        if page is None:
            log.error("event=store-unreadable client=%s text=%s", quoted(session.client_id), error)
            self.stalled = True
            return
        if session.ended:
            self.stopped = True
            self._done(self)
            return
        rows, runs = page
        before = self.taken
        if session.generation != generation:
            self.go()
            return
        done = self._unloaded(session, runs)
        if done is None:
            self.stalled = True
            return
        more = self._rows(session, rows, runs)
        if more is None:
            self.stalled = True
        elif more and self.taken > before and session.spilled:
            self.go()
        else:
            self.stopped = True
            self._done(self)
        assert self._persistence is not None
        self._persistence.context.flush()

    def _unloaded(self, session: StoredSession, runs: dict[int, StoredRun]) -> bool | None:
        """In flight when the connection ended, not in memory. None: there was no room."""
        persistence = self._persistence
        assert persistence is not None
        for piece in session.outbound.unfinished():
            stored = runs.get(piece.stored) if isinstance(piece, PersistentDelivery) and not piece.loaded else None
            if stored is None or not isinstance(piece, PersistentDelivery):
                continue
            flight = piece.part(0, piece.count)
            flight.load(persistence.loaded(stored))
            if piece.retain or not self._chooser.owns(flight):
                continue
            if self._young(flight.run.received):
                break
            part = self._beyond_kept(flight)
            if part is None:
                continue
            if not self._chooser.give(session, part, True):
                return None
            self._release(part)
        return True

    def _rows(self, session: StoredSession, rows: list[StoredDelivery], runs: dict[int, StoredRun]) -> bool | None:
        """What waits on the disk: whether there may be more. None: there was no room."""
        persistence = self._persistence
        assert persistence is not None
        for row in rows:
            stored = runs.get(row.run)
            if row.order <= session.reached or stored is None or not persistence.writer.has(session.recipient, row.order):
                continue
            extra = Extra.decode(row.extra)
            kept = session.delivery_of(row, extra)
            kept.load(persistence.loaded(stored))
            if self._young(kept.run.received):
                return False
            if not self._chooser.owns(kept):
                continue
            part = self._beyond_kept(kept)
            if part is None:
                continue
            if not self._chooser.give(session, part, False):
                return None
            self.taken += part.count
            self._quietly(partial(self._drop_row, kept, row.count - part.count))
            session.forgotten(part.count, extra.each * part.count)
        return bool(rows)


def _topic(delivery: Delivery) -> bytes:
    """The topic of its messages; of the first one where they differ."""
    run = delivery.run
    return bytes(run.topic) if run.uniform else run.topics[delivery.start]


def _page(store: Store, recipient: str, after: int, flights: list[int]) -> Page:
    rows, runs = read_page(store, recipient, after, BUDGET)
    missing = [run for run in flights if run not in runs]
    return rows, {**runs, **read_runs(store, missing)} if missing else runs
