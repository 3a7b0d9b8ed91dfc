"""A session that the store keeps: it survives its connection, the broker, and `kill -9`.

Strategy: a message for this session gets a row in the store when the session takes it. While the client is connected and keeps
up, its messages pass through memory as for any session, and their rows mostly go before they were ever written. What the
client does not take within `Limits.session_memory_bytes` is *spilled*: only the store has it, memory holds a count. Spilled
messages are read back in a thread, page by page, before the client needs them. A session that is away has nothing in memory
but counts, and the identifiers in flight.

Order: in flight, then the queue in memory, then what is spilled. `reached` divides the last two: a row that waits and has a
higher number is on disk only. So a page read from the store is simply put behind the queue. A row that is read was committed;
what is not committed yet follows, because batches are committed in order.

Invariants: `queued` counts memory and disk; while something is spilled, everything new is spilled too; what a thread has read is
used only if the session has not changed hands since (`generation`) and the row is still there.

What it does not know: when commits happen, other sessions.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ...base.quoting import quoted
from ...mqtt.session import Delivery, Outbound
from ...mqtt.topics import split_share
from ...store.base import Kind, Store, StoreError
from ...store.records import StoredDelivery, StoredRun
from ..empty import EMPTY_QUEUE
from ..ledger import IN_FLIGHT, QUEUED
from ..routing.shared import ShareGroup
from ..session.session import ENDED, Session, Waiting
from .codec import SessionRecord, identifiers_value, released_of, released_value, session_value
from .stored_delivery import SENT, WAITING, Extra, PersistentDelivery

if TYPE_CHECKING:
    from ...mqtt.packets import Subscription
    from ..ports import Receiver
    from .commits import Persistence

log = logging.getLogger("mqmesh.broker")

PAGE_ROWS = 1000  # rows read from the store at once
RETRY = 1.0  # seconds until a store that could not be read is asked again

Page = tuple[list[StoredDelivery], dict[int, StoredRun]]


class StoredSession(Session):
    """State of one client identifier that the store keeps.

    number: names it in the store, never used again. recipient: its name as a recipient. next_order: number of the next message.
    memory: bytes of messages it may hold in memory. loaded_bytes: of the queue's part in memory. spilled, spilled_bytes: of the part
    that only the store has. reached: the highest number among the rows that wait and were in memory. load_after: the ticket to wait
    for before reading. loading: a page is on its way. unloaded: deliveries in flight are not in memory. shared: messages that
    were taken for shared subscriptions may wait here. abandons: messages of QoS 2 in flight are somebody else's now, though the client may
    know their identifiers: after a restart these are released. expiring: some may expire. left_at: wall clock when its connection ended,
    None while it has one. will_at: wall clock when its will is due. filters: of the subscriptions that are written down.
    """

    __slots__ = (
        "abandons",
        "ended",
        "expiring",
        "filters",
        "generation",
        "has_inbound",
        "has_released",
        "left_at",
        "load_after",
        "loaded_bytes",
        "loading",
        "memory",
        "next_order",
        "number",
        "persistence",
        "reached",
        "recipient",
        "shared",
        "spilled",
        "spilled_bytes",
        "unloaded",
        "will_at",
    )

    stored = True

    def __init__(self, client_id: str, persistence: Persistence, number: int) -> None:
        super().__init__(client_id, persistence.context)
        limits = self.context.limits
        self.max_messages, self.max_bytes = limits.queue(on_disk=True)
        self.memory = self.window_bytes = limits.session_memory_bytes
        self.persistence = persistence
        self.number = number
        self.recipient = recipient_of(number)
        self.outbound = self.tapped(Outbound(1, self))
        self.next_order = 1
        self.loaded_bytes = 0
        self.spilled = 0
        self.spilled_bytes = 0
        self.reached = 0
        self.load_after = 0
        self.loading = False
        self.generation = 0
        self.unloaded = False
        self.ended = False
        self.abandons = False
        self.shared = False
        self.expiring = False
        self.filters: set[str] = set()
        self.left_at: float | None = None
        self.will_at: float | None = None
        self.has_inbound = False
        self.has_released = False
        persistence.quota.count(1)

    @property
    def key(self) -> bytes:
        """Its key in tables of values."""
        return key_of(self.number)

    # What it writes

    def keep(self, delivery: Delivery) -> PersistentDelivery:
        """A delivery that may have rows: its run is in the store from now on."""
        order = self.next_order
        self.next_order += delivery.count
        share = ""
        if isinstance(delivery.share, ShareGroup):
            share = f"$share/{delivery.share.name}/{delivery.share.filter}"
            self.shared = True
        persistence = self.persistence
        run = delivery.run
        since = int(persistence.wall(run.received))
        until = 0
        if run.expiry is not None:
            until = since + run.expiry + 1
            self.expiring = True
        extra = Extra(delivery.retain, delivery.each, since, until, delivery.suffix, share)
        return PersistentDelivery(delivery, persistence.store_run(run), order, extra.encode())

    def put_row(self, row: StoredDelivery) -> None:
        self.persistence.writer.put_delivery(row)

    def delete_row(self, number: int) -> None:
        self.persistence.writer.delete_delivery(self.recipient, number)

    def mark(self) -> int:
        return self.persistence.mark()

    # What it is told by `outbound`, whose observer it is

    def sent(self, delivery: Delivery, rest: Delivery | None) -> None:
        """See `Observer`: the row is in state SENT; a rest that had a row keeps one."""
        assert isinstance(delivery, PersistentDelivery)
        if delivery.waiting and isinstance(rest, PersistentDelivery):
            self.reached = max(self.reached, rest.order)
            self.put_row(rest.row(self.recipient, rest.order, 0, rest.count, WAITING))
        delivery.waiting = False
        delivery.segments = [(delivery.order, 0, delivery.count)]
        self.put_row(delivery.row(self.recipient, delivery.order, 0, delivery.count, SENT))
        if delivery.qos == 2:
            delivery.ticket = self.mark()

    def settled(self, delivery: Delivery, begin: int, end: int) -> None:
        """See `Observer`: the row shrinks, is split, or goes."""
        assert isinstance(delivery, PersistentDelivery)
        number, left = delivery.shrink(begin, end)
        for part in left:
            self.put_row(delivery.row(self.recipient, *part, SENT))
        if not left:
            self.delete_row(number)

    def released_changed(self) -> None:
        """See `Observer`: the identifiers are written down at the end of this piece of work."""
        self.persistence.dirty[self] = None

    def flights(self) -> list[PersistentDelivery]:
        """All deliveries in flight."""
        return [flight for flight in self.outbound.flights() if isinstance(flight, PersistentDelivery)]

    def write_state(self) -> None:
        """Write down the identifiers received and released."""
        if self.ended:
            return
        writer = self.persistence.writer
        if len(self.inbound):
            self.has_inbound = True
            writer.put_value("inbound", self.key, identifiers_value(self.inbound.open))
        elif self.has_inbound:
            self.has_inbound = False
            writer.delete_value("inbound", self.key)
        released = self.outbound.released()
        if self.abandons:
            released += self._abandoned()
        if released:
            self.has_released = True
            writer.put_value("released", self.key, released_value(released))
        elif self.has_released:
            self.has_released = False
            writer.delete_value("released", self.key)

    def _abandoned(self) -> list[tuple[int, int]]:
        """The identifiers of what is somebody else's: it has no rows."""
        outbound = self.outbound
        gone = [flight for flight in outbound.flights() if flight.qos == 2 and not isinstance(flight, PersistentDelivery)]
        return [(piece.first, piece.count) for flight in gone for piece in outbound.left_of(flight)]

    def record(self) -> None:
        """Write down what is known of the session itself."""
        if not self.ended:
            self.persistence.writer.put_value("sessions", self.client_id.encode(), session_value(self._described()))

    def _described(self) -> SessionRecord:
        return SessionRecord(self.number, self.expiry, self.left_at, self.user, self.will, self.will_at, self.listener)

    def renamed(self, client_id: str) -> None:
        self.persistence.writer.delete_value("sessions", self.client_id.encode())
        super().renamed(client_id)
        self.record()

    def subscribed(self, subscription: Subscription, identifier: int) -> None:
        self.persistence.put_subscription(self, subscription, identifier)

    def unsubscribed(self, topic_filter: str) -> None:
        if not self.ended:
            self.persistence.delete_subscription(self, topic_filter)

    # Deliveries

    @property
    def idle(self) -> bool:
        return not self.spilled and super().idle

    def bound_window(self, most: int | None) -> None:
        self.window_bytes = self.memory if most is None else min(most, self.memory)

    def deliver(self, delivery: Delivery) -> int:
        return self._enqueue(delivery) if self.spilled else super().deliver(delivery)

    def prepared(self, delivery: Delivery) -> PersistentDelivery:
        return delivery if isinstance(delivery, PersistentDelivery) else self.keep(delivery)

    def _send(self, connection: Receiver, delivery: Delivery) -> int:
        return super()._send(connection, self.prepared(delivery))

    def _enqueue(self, delivery: Delivery) -> int:
        if self.gone:
            return delivery.count
        if self.full:
            self._drop_expired()
            if self.spilled:
                self.persistence.maintenance.clear(self)
        if self.account.full:
            return 0
        room = min(self.max_messages - self.queued, -(-(self.max_bytes - self.queued_bytes) // delivery.each))
        if room <= 0:
            return 0
        kept = self.prepared(delivery)
        if room < kept.count:
            kept = kept.part(0, room)
        self.put_row(kept.row(self.recipient, kept.order, 0, kept.count, WAITING))
        kept.waiting = True
        if not self.queued:
            self.moved = self.context.now
        if self.connection is not None and not self.spilled and (not self.queue or self.loaded_bytes + kept.weight <= self.memory):
            if kept.count < kept.run.count:
                kept.cut_out()
            self._put(kept)
            self._queued(kept, 1)
            self.reached = kept.order
        else:
            self._spilled(kept.count, kept.weight)
            self.queued += kept.count
            self.queued_bytes += kept.weight
        return kept.count

    def _queued(self, delivery: Delivery, sign: int) -> None:
        super()._queued(delivery, sign)
        self.loaded_bytes += sign * delivery.weight

    def _spilled(self, count: int, weight: int) -> None:
        self.spilled += count
        self.spilled_bytes += weight

    def forgotten(self, count: int, weight: int) -> None:
        """A spilled row has gone."""
        self._spilled(-count, -weight)
        self.queued -= count
        self.queued_bytes -= weight

    def _drop_expired(self) -> None:
        while self.queue and self._over(self.queue[0]):
            kept = self.queue.popleft()
            assert isinstance(kept, PersistentDelivery)
            self.delete_row(kept.order)
            self._queued(kept, -1)
            self.counters.expired += kept.count
            self.note_dropped([kept], "expired", expired=True)

    def _over(self, delivery: Delivery) -> bool:
        """Whether a message that waits has waited for too long."""
        now = self.context.now
        age = self.context.limits.session_queue_age
        return delivery.run.expired(now) or (age is not None and now - delivery.run.received > age)

    def over(self, extra: Extra, wall: float) -> bool:
        """Whether a message that waits on disk has waited for too long. wall: the wall clock."""
        age = self.context.limits.session_queue_age
        return 0 < extra.until < wall or (age is not None and wall - extra.since > age)

    def pump(self) -> None:
        super().pump()
        if self.spilled:
            self._load()

    def _drain(self, connection: Receiver) -> None:
        if self.queue and self.context.limits.session_queue_age is not None:
            self._drop_expired()
        super()._drain(connection)
        if self.spilled and not self.queue:
            self.waiting = Waiting.LOADING

    # Reading back

    def _load(self) -> None:
        """Read on from the store when there is room in memory."""
        if self.loading or self.connection is None or 2 * self.loaded_bytes > self.memory:
            return
        self.loading = True
        self.persistence.when(self.load_after, partial(self._read, self.generation))

    def _read(self, generation: int) -> None:
        if generation != self.generation:
            return
        persistence = self.persistence
        budget = max(1, self.memory - self.loaded_bytes)
        ask = partial(read_page, persistence.store, self.recipient, self.reached, budget)
        persistence.read(ask, partial(self._take, generation, self.mark()))

    def _take(self, generation: int, mark: int, page: Page | None, error: StoreError | None) -> None:
        """A page has come. mark: what was not committed when it was asked for."""
        if generation != self.generation:
            return
        self.loading = False
        if page is None:
            assert error is not None
            self.persistence.unreadable(self, error)
            self.context.loop.call_later(RETRY, self._again, generation)
            return
        rows, runs = page
        if not rows and self.spilled:
            self._nothing_read(mark)
            return
        for row in rows:
            if row.order > self.reached:  # else it is the rest of a row that was in memory already
                self.reached = row.order
                self._take_row(row, runs)
        self.pump()
        self.context.flush()

    def reread(self) -> None:
        """A row that waits has changed: a page that is on its way is out of date, and the next one comes after the commit."""
        self.load_after = self.mark()
        if self.loading:
            self.generation += 1
            self.loading = False
            self._load()

    def _again(self, generation: int) -> None:
        if generation == self.generation and self.spilled:
            self._load()

    def _nothing_read(self, mark: int) -> None:
        """Nothing that waits was committed when the page was read."""
        if mark:
            self.load_after = mark
            self._load()
            return
        log.error("event=store-rows-missing client=%s messages=%d", quoted(self.client_id), self.spilled)
        self.counters.dropped += self.spilled
        self.forgotten(self.spilled, self.spilled_bytes)
        self.pump()

    def _take_row(self, row: StoredDelivery, runs: dict[int, StoredRun]) -> None:
        persistence = self.persistence
        if not persistence.writer.has(self.recipient, row.order):
            return  # it went while the page was read
        extra = Extra.decode(row.extra)
        weight = extra.each * row.count
        stored = runs.get(row.run)
        if stored is None:
            self.lost(row)
            self.forgotten(row.count, weight)
            return
        kept = self.delivery_of(row, extra)
        kept.waiting = True
        kept.load(persistence.loaded(stored))
        self._spilled(-row.count, -weight)
        self.loaded_bytes += weight
        self.account.charge(QUEUED, weight)
        self._put(kept)

    def delivery_of(self, row: StoredDelivery, extra: Extra) -> PersistentDelivery:
        """The delivery that a row stands for, its messages not in memory."""
        share = split_share(extra.share) if extra.share else None
        group = self.persistence.router.groups.get(share) if share is not None else None
        return PersistentDelivery.of_row(row, extra, group)

    def lost(self, row: StoredDelivery) -> None:
        """The store has a row, and not what it stands for."""
        log.error("event=store-run-missing client=%s run=%d messages=%d", quoted(self.client_id), row.run, row.count)
        self.counters.dropped += row.count
        self.delete_row(row.order)

    # In flight

    def _resend(self, connection: Receiver) -> None:
        if self.unloaded:
            self.waiting = Waiting.LOADING
            if not self.loading:
                self._load_flights()
            return
        super()._resend(connection)

    def _load_flights(self) -> None:
        self.loading = True
        wanted = sorted({flight.stored for flight in self.flights() if not flight.loaded})
        self.persistence.read(partial(_read_runs, self.persistence.store, wanted), partial(self._take_flights, self.generation))

    def _take_flights(self, generation: int, page: Page | None, error: StoreError | None) -> None:
        if generation != self.generation:
            return
        self.loading = False
        if page is None:
            assert error is not None
            self.persistence.unreadable(self, error)
            self.context.loop.call_later(RETRY, self._flights_again, generation)
            return
        _, runs = page
        self.unloaded = False
        outbound = self.outbound
        for flight in self.flights():
            if flight.loaded:
                continue
            stored = runs.get(flight.stored)
            if stored is None:
                self.lost(flight.row(self.recipient, flight.order, 0, flight.count, SENT))
                outbound.give_up(flight.qos, flight.first, flight.count)
                continue
            flight.load(self.persistence.loaded(stored))
            outbound.bytes += flight.weight
        for piece in self.resending:
            assert isinstance(piece, PersistentDelivery)
            origin = outbound.flight(piece.serial)
            if origin is not None and not piece.loaded:
                piece.load(origin.run)
        pieces = [piece for piece in self.resending if piece.run is not None]
        self.resending = deque(pieces) if pieces else EMPTY_QUEUE
        self.unsent = sum([piece.count for piece in self.resending])
        self.pump()
        self.context.flush()

    def _flights_again(self, generation: int) -> None:
        if generation == self.generation and self.unloaded:
            self._load_flights()

    def _unload(self, generation: int) -> None:
        """The store has all that is in flight, and nobody reads it now."""
        if generation != self.generation or self.ended:
            return
        outbound = self.outbound
        for flight in self.flights():
            if flight.loaded:
                outbound.bytes -= flight.weight
                self.account.charge(IN_FLIGHT, -flight.weight)
                flight.unload()
                self.unloaded = True

    # Connections come and go

    def restore_flight(self, row: StoredDelivery) -> None:
        """A row in state SENT that was read back, in the order of sending; its messages are not in memory."""
        self.outbound.adopt(self.delivery_of(row, Extra.decode(row.extra)))
        self.unloaded = True

    def restore_released(self, value: bytes) -> None:
        """The released identifiers that were read back."""
        for first, count in released_of(value):
            self.outbound.adopt_released(first, count)
        self.has_released = True

    def unfinished(self) -> list[Delivery]:
        """As `Session.unfinished`; QoS 2 goes once the identifiers are committed."""
        found = super().unfinished()
        mark = self.mark()
        for piece in found:
            piece.ticket = mark if piece.qos == 2 else 0
        return found

    def adopt(self, delivery: Delivery) -> None:
        kept = self.keep(delivery)
        kept.first = delivery.first
        super().adopt(kept)
        self.sent(kept, None)

    def read_back(self) -> None:
        """All of it was read back from the store; no connection has it yet."""
        self.waiting = Waiting.AWAY if self.queued else Waiting.NOTHING

    def resume(self, connection: Receiver) -> None:
        self.generation += 1
        self.loading = False
        self.left_at = self.will_at = None
        self.record()
        super().resume(connection)

    def left(self, will_delay: float | None) -> None:
        self.left_at = self.persistence.wall(self.context.now)
        self.will_at = self.left_at + will_delay if will_delay is not None else None
        self.record()

    def pause(self) -> None:
        self.generation += 1
        self.loading = False
        if self.queue:
            first = self.queue[0]
            assert isinstance(first, PersistentDelivery)
            self.reached = first.order - 1
            self._spilled(sum([kept.count for kept in self.queue]), self.loaded_bytes)
            self.account.charge(QUEUED, -self.loaded_bytes)
            self.loaded_bytes = 0
            self.queue.clear()
        elif not self.spilled:
            self.reached = self.next_order - 1
        super().pause()
        if self.spilled:
            self.waiting = Waiting.AWAY
        self.load_after = self.mark()
        self.persistence.when(self.load_after, partial(self._unload, self.generation))

    # The end

    def withdraw(self, share: object, queued_only: bool) -> list[Delivery]:
        """Nothing at once: what the store has of shared subscriptions is handed on as it is read."""
        if self.shared and queued_only and isinstance(share, ShareGroup):
            self.persistence.maintenance.redistribute(self.recipient, self)
        return []

    def discard(self) -> None:
        self.generation += 1
        self.give_back()
        if self.context.journal is not None:
            left = [*(flight for flight in self.outbound.unfinished() if flight.run is not None), *self.queue]
            self.note_dropped([one for one in left if one.share is None or one.qos == 2], ENDED)
        self.loaded_bytes = 0
        self.queue.clear()
        self.resending.clear()
        self.queued = self.queued_bytes = 0
        self.spilled = self.spilled_bytes = 0
        self.outbound = Outbound(1)  # the old one and its observers, of which this is one, hold each other
        self.table = 0
        self.persistence.forget(self)
        if not self.ended:
            self.ended = True
            self.persistence.quota.count(-1)
        self.relax()


def recipient_of(number: int) -> str:
    """The name of a session as a recipient in the store."""
    return f"session/{number}"


def key_of(number: int) -> bytes:
    """The key of a session in tables of values."""
    return number.to_bytes(8, "big")


def read_page(store: Store, recipient: str, after: int, budget: int) -> Page:
    """The rows that wait behind one, and their runs, up to about so many bytes; in a thread. Raises StoreError."""
    rows = []
    for row in store.deliveries(recipient, WAITING, after, PAGE_ROWS):
        rows.append(row)
        budget -= Extra.decode(row.extra).each * row.count
        if budget <= 0:
            break
    return rows, read_runs(store, sorted({row.run for row in rows}))


def read_runs(store: Store, wanted: list[int]) -> dict[int, StoredRun]:
    """Runs by id; those that are damaged are left out. Raises StoreError."""
    try:
        return store.runs(wanted)
    except StoreError as error:
        if error.kind is not Kind.CORRUPT:
            raise
        if len(wanted) == 1:
            log.error("event=store-damaged run=%d text=%s", wanted[0], error)
            return {}
        return {run: stored for one in wanted for run, stored in read_runs(store, [one]).items()}


def _read_runs(store: Store, wanted: list[int]) -> Page:
    return [], read_runs(store, wanted)
