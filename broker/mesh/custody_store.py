"""The mesh's part of the store: custody, windows, epochs; written with what they belong to, found again at the start.

A message in custody is a stored run, shared with the sessions here that it also waits for, and one delivery row for the recipient
`mesh/custody`; what else must survive is values of the table `mesh` (see `mesh/custody/journal.py`). Of sites that are away most of it
stands in pages (`mesh/custody/pages.py`): one value for what is known of a page, one for the messages. A thread reads them back.

What goes together. A publisher's message: custody and local queues are in one batch, and its acknowledgement waits for both as it
does for a session's row. A message from elsewhere: the deliveries to sessions here and the window that lets it in once are in
one batch, and its receipt follows the commit. Frames of QoS 1 leave before the commit, those of QoS 2 behind it.

What it does not know: what the records mean, who acknowledges what.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from ...mesh.custody.custody import OVERHEAD
from ...mesh.custody.journal import NODE, stored_node
from ...mesh.retained.replica import RECORDS, STATE, STATE_KEY, AnothersState, PutValue
from ...mqtt.batch.batch import Batch
from ...store.base import Kind, Store, StoreError
from ...store.records import DELIVERY_WEIGHT, RUN_WEIGHT, StoredDelivery
from ..persistence.codec import run_of
from .hold_back import HoldBack

if TYPE_CHECKING:
    from ...mesh.node.node import Node
    from ..persistence.commits import Persistence
    from ..ports import Connection
    from ..routing.retained import Retained

log = logging.getLogger("mqmesh.mesh")

RECIPIENT = "mesh/custody"
ENDED = b"ended"  # key of a value that is there while no life of the broker is under way that has not written all it said
TABLE = "mesh"
PAGES = "custody_pages"  # key: order of a page, 8 bytes; value: what is known of it
BODIES = "custody_bodies"  # the same key; value: its entries
RETRY = 1.0  # seconds until a store that could not be read is asked again
PAGE = 1000  # rows whose runs are read at once
ENTRY = RUN_WEIGHT + DELIVERY_WEIGHT  # bytes that the store counts for a run, beside what is in it


def stored_identity(store: Store) -> tuple[UUID, int] | None:
    """The UUID and the last epoch of the broker whose store this is, which is not open yet; None without any.

    A store of the release before this one is converted first. One that cannot be read says nothing here; it will say why when it is
    opened. Raises ValueError (one line) for another version's state.
    """
    try:
        try:
            store.attach()
        except StoreError as error:
            if error.kind is not Kind.SCHEMA:
                raise
            store.open()
            store.close()
            store.attach()
        value = store.value(TABLE, NODE)
    except StoreError:
        return None
    finally:
        store.close()
    found = stored_node(value)
    return None if found is None else (UUID(bytes=found[0]), found[1])


class Waiting:
    """What is said once a ticket is committed: the node's records up to mark, deliveries by their tokens."""

    __slots__ = ("mark", "ticket", "tokens")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.mark = 0
        self.tokens: list[int] = []


class Custody:
    """Writes down what one node says. wake: called when the node was told of a commit and may have more to do."""

    def __init__(self, persistence: Persistence, node: Node, wake: Callable[[], None]) -> None:
        self._persistence = persistence
        self._node = node
        self._wake = wake
        self._linger = node.receipt_delay
        self._urgent = False  # something here waits for the commit of what was carried out
        self._rows: dict[int, StoredDelivery] = {}  # order -> its row
        self._waiting: deque[Waiting] = deque()
        self._delivered: list[int] = []  # tokens of deliveries that were carried out and are not written
        self._timer: asyncio.TimerHandle | None = None  # at which these are written at the latest
        self._held = HoldBack()
        persistence.quota.custody = self.stored

    def stored(self) -> int:
        """About how many bytes of the store are for other sites."""
        messages, size, runs = self._node.custody_in_memory()
        return size - OVERHEAD * messages + ENTRY * runs + self._node.custody()[1] - size

    def recover_retained(self, view: Retained, now: float) -> None:
        """Give the node the retained messages of an earlier life, then the view what it makes of them. Before `recover`. Raises StoreError.

        What the view holds already is of a life without a mesh: it becomes this broker's own, as of when it was published.
        """
        store, node, persistence = self._persistence.store, self._node, self._persistence
        complete = store.value(STATE, ENDED) is not None
        persistence.writer.delete_value(STATE, ENDED)
        try:
            node.restore_retained(store.value(STATE, STATE_KEY), store.values(RECORDS), complete, now)
        except AnothersState as error:
            remedy = "give it the store of its own, or its number of before; for a copy: mqmesh identity new"
            raise StoreError(Kind.OTHER, RECORDS, f"{error}: {remedy}") from None
        except ValueError as error:
            raise StoreError(Kind.CORRUPT, RECORDS, f"{error}: restore a copy, or move the store away and start empty") from None
        for run in view.all():
            if not run.topic.startswith(b"$"):
                node.adopt_retained(run, now)
                persistence.forget_retained(run.topic)
        view.keeper = None
        for run in node.retained():
            view.restore(run)

    def ended(self) -> None:
        """All that was said is written: this life ends in order."""
        if self._timer is not None:
            self._timer.cancel()
        self.save()
        while self._node.remembering:
            self.save()
        self._persistence.writer.put_value(STATE, ENDED, b"1")

    def recover(self, now: float) -> int:
        """Give the node what the store has; how many messages it holds. Raises StoreError."""
        store = self._persistence.store
        values = dict(store.values(TABLE))
        try:
            self._node.restore(self._entries(store), values, now, self._pages(store))
        except ValueError as error:
            raise StoreError(Kind.CORRUPT, TABLE, str(error)) from None
        self.save()
        return self._node.custody()[0]

    def _entries(self, store: Store) -> Iterator[tuple[int, Batch, bytes]]:
        offset = self._persistence.offset
        after = 0
        while rows := list(store.deliveries(RECIPIENT, after=after, limit=PAGE)):
            runs = store.runs({row.run for row in rows})
            for row in rows:
                stored = runs.get(row.run)
                if stored is None:
                    raise StoreError(Kind.CORRUPT, TABLE, f"message {row.order} in custody has lost its run: restore a copy")
                run = run_of(stored, offset)
                self._rows[row.order] = row._replace(extra=b"")
                yield row.order, run.parts() if not run.uniform else run, row.extra
            after = rows[-1].order

    @staticmethod
    def _pages(store: Store) -> list[tuple[int, bytes]]:
        return [(int.from_bytes(key, "big"), value) for key, value in store.values(PAGES)]

    def read_page(self, order: int) -> None:
        """Read the body of a page, and give it to the node."""
        key = order.to_bytes(8, "big")
        self._persistence.read(partial(self._persistence.store.value, BODIES, key), partial(self._read, order))

    def _read(self, order: int, body: bytes | None, error: StoreError | None) -> None:
        persistence = self._persistence
        if error is not None and error.kind is not Kind.CORRUPT:
            log.error("event=store-unreadable page=%d kind=%s text=%s", order, error.kind.value, error)
            persistence.context.loop.call_later(RETRY, self.read_page, order)
            return
        self._node.page_read(order, body, persistence.context.now)
        self._wake()

    def carried_out(self, token: int) -> None:
        """A delivery is carried out: its receipt follows the commit of its window."""
        self._delivered.append(token)

    def hurry(self) -> None:
        """A subscriber waits for the commit of the delivery that is carried out now: `save_soon` must not wait."""
        self._urgent = True

    def save_soon(self) -> None:
        """Write what the node has to write, at once unless only receipts wait for it; these may be late by `MeshConfig.receipt_delay`.

        So one commit serves many small deliveries. A window that changes with anything else in the store, such as the rows of a stored
        session, is written with it.
        """
        persistence = self._persistence
        self._look_at_held()
        if self._urgent or not persistence.idle or not self._node.may_linger():
            self.save()
        elif self._timer is None:
            self._timer = persistence.context.loop.call_later(self._linger, self._end_linger)

    def _end_linger(self) -> None:
        loop, held = self._persistence.context.loop, self._held
        if held.order and loop.time() < held.until:  # what only receipts wait for must not end the hold
            self._timer = loop.call_at(held.until, self._end_linger)
            return
        self._timer = None
        self.save()
        self._wake()

    @property
    def may_hold_back(self) -> bool:
        """Whether a message that comes now may wait unwritten for its receipts: nobody waits for a commit, and nothing belongs into one."""
        persistence = self._persistence
        return self._held.may(persistence.context.now) and persistence.calm and not (self._delivered or self._node.retained_changed)

    def hold_back(self, order: int, connection: Connection, answer: bytes) -> None:
        """Leave a message unwritten while its receipts may come. order: of `SingleMessages.hold_back`. answer: to its publisher."""
        self._held.begin(order, self._persistence.context.now)
        self._persistence.hold_back(connection, answer, self._held.until, self.save)

    def _look_at_held(self) -> None:
        """Whether all receipts of the message that is held back have come."""
        held = self._held
        if held.order and not self._node.single.unwritten(held.order):
            held.settled(self._persistence.context.now)
            self._persistence.held_settled()

    def save(self, single: bool = False) -> None:
        """Write what the node has to write. single: it is one message of QoS 1 that only its publisher waits for."""
        self._urgent = False
        self._look_at_held()
        tokens, self._delivered = self._delivered, []
        records = self._node.records()
        persistence, rows = self._persistence, self._rows
        writer = persistence.writer
        changes = self._node.retained_changes(persistence.context.now)
        if changes:
            persistence.need_commit()
            for change in changes:
                if isinstance(change, PutValue):
                    writer.put_value(change.table, change.key, change.value)
                else:
                    writer.delete_value(change.table, change.key)
        if records is None and not tokens:
            return
        if records is not None:
            for order, run, extra in records.entries:
                row = StoredDelivery(RECIPIENT, order, persistence.store_run(run), 0, run.count, run.qos, 0, 0, b"")
                rows[order] = row
                writer.put_delivery(row._replace(extra=extra))
                if order == self._held.order:
                    self._held.written(persistence.context.now, company=len(records.entries) > 1)
                    persistence.held_written(row.run)
            for order, extra in records.changed:
                writer.put_delivery(rows[order]._replace(extra=extra))
            moving, persistence.moving = persistence.moving, bool(records.entries)  # what goes may have been picked again, as one of these
            for order in records.gone:
                del rows[order]
                writer.delete_delivery(RECIPIENT, order)
            persistence.moving = moving
            for order, description, body in records.pages:
                self._write_page(order.to_bytes(8, "big"), description, body)
            for key, value in records.values:
                if value is None:
                    writer.delete_value(TABLE, key)
                else:
                    writer.put_value(TABLE, key, value)
        waits = not single or bool(tokens or changes)
        ticket = persistence.mark(waits)
        last = self._waiting[-1] if self._waiting else None
        if last is None or last.ticket != ticket:
            last = Waiting(ticket)
            self._waiting.append(last)
            fresh = True
        else:
            fresh = False
        if records is not None:
            last.mark = records.mark
        if tokens:
            last.tokens += tokens
        if fresh:
            persistence.when(ticket, self._kept, waits)

    def _write_page(self, key: bytes, description: bytes | None, body: bytes | None) -> None:
        writer = self._persistence.writer
        if description is None:
            writer.delete_value(PAGES, key)
            writer.delete_value(BODIES, key)
            return
        writer.put_value(PAGES, key, description)
        if body is not None:
            writer.put_value(BODIES, key, body)

    def _kept(self) -> None:
        """A commit is done: tell the node of all that it holds."""
        reached, node, now = self._persistence.reached, self._node, self._persistence.context.now
        waiting = self._waiting
        while waiting and waiting[0].ticket <= reached:
            done = waiting.popleft()
            if done.mark:
                node.committed(done.mark, now)
            for token in done.tokens:
                node.delivered(token, now)
        if node.stirred:
            self._wake()
