"""What a store keeps: runs, deliveries and values; and the batch, which is what it is given.

A message is stored once, as part of its *run* (see `mqmesh.mqtt.batch.run`): one record for all messages that came together, so
that the cost of storing is paid per run and not per message. Who waits for it is a *delivery*: one row for each recipient,
naming the run, which of its messages, and a state. Everything else that must survive (sessions, retained messages, windows,
epochs, QoS 2 identifiers) is a *value*: bytes under a key in a named table.

A `Batch` is a set of changes that is applied as a whole or not at all. It is kept in normal form: at most one change for each
run, delivery and value, so that its parts can be applied in a fixed order and a store handles each kind in bulk. The order:

1. all deliveries of each of `recipients` go,
2. `runs` are inserted (a run never changes: one that is there already is the same),
3. the deliveries in `gone` go, those in `deliveries` are inserted or replace what is there,
4. the runs in `runs_gone` go,
5. `values` are set, or deleted where the value is None.

Deleting what is not there is no error, and applying a batch twice is the same as once: after a failure nobody knows whether it
was applied (a server may have committed and died before it said so), and the batch is simply given again.

What it does not know: disks, threads, who the recipients are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple


class StoredRun(NamedTuple):
    """`count` messages of one topic and one payload length.

    id: 1 or above, never used again while the store holds anything of it. topic: UTF-8, at most 65,535 bytes. qos: the
    publisher's. properties: as in `Run.properties`. expires_at, published_at: seconds of the wall clock; None: never.
    length: bytes of each payload. payloads: all of them in order, `count * length` bytes.
    """

    id: int
    topic: bytes
    qos: int
    retain: bool
    properties: bytes
    expires_at: float | None
    published_at: float
    length: int
    count: int  # type: ignore[assignment]
    payloads: bytes

    @property
    def weight(self) -> int:
        """About how many bytes it takes in memory and on disk."""
        return RUN_WEIGHT + len(self.topic) + len(self.properties) + len(self.payloads)


class StoredDelivery(NamedTuple):
    """The messages `start` to `start + count - 1` of a run, for one recipient.

    recipient: not empty, without U+0000, of any length. order: 1 or above; a recipient's deliveries are told apart and
    sorted by it. run: the id of a stored run. start, count: 32 bits. qos: 0 to 2. state: the recipient's own
    meaning, 0 to 65,535. packet_id: of its first message, 0 without. extra: whatever else the recipient keeps with it.
    """

    recipient: str
    order: int
    run: int
    start: int
    count: int  # type: ignore[assignment]
    qos: int
    state: int
    packet_id: int
    extra: bytes


class StoredValue(NamedTuple):
    """A value with its table and key."""

    table: str
    key: bytes
    value: bytes


class Counts(NamedTuple):
    """How many rows a store holds: what is missing at the next start is known by them."""

    runs: int
    deliveries: int
    values: int


# What a change is taken to weigh beside its bytes: rows, indexes, Python objects. Nothing depends on its being exact.
RUN_WEIGHT = 160
DELIVERY_WEIGHT = 96
GONE_WEIGHT = 48
VALUE_WEIGHT = 96
COUNTED = 16 << 10  # bytes of a batch that carries counts
EXTRA = 32  # bytes of `extra` that the weight of a stored delivery includes, used or not: what is longer is counted by itself


class Batch:
    """Changes that are committed together, in normal form (the module's text says how they are applied).

    number: the writer's ticket for it; first: that of the first batch that was merged into it, else the same. recipients, runs,
    gone, deliveries, runs_gone, values: the changes. replaced: the keys in `deliveries` that a store may hold already. tried:
    it failed once, so that a store may hold any of it.
    size: the weight of all changes in bytes; 0 exactly when it is empty. counts: what a store holds once it is committed; None: not known.
    """

    __slots__ = (
        "counts",
        "deliveries",
        "first",
        "gone",
        "number",
        "recipients",
        "replaced",
        "runs",
        "runs_gone",
        "size",
        "tried",
        "values",
    )

    def __init__(self, number: int = 0) -> None:
        self.number = self.first = number
        self.recipients: set[str] = set()
        self.runs: dict[int, StoredRun] = {}
        self.gone: dict[str, set[int]] = {}
        self.deliveries: dict[str, dict[int, StoredDelivery]] = {}
        self.runs_gone: set[int] = set()
        self.values: dict[str, dict[bytes, bytes | None]] = {}
        self.replaced: dict[str, set[int]] = {}
        self.tried = False
        self.size = 0
        self.counts: Counts | None = None

    # What a store reads.

    @property
    def worth_counting(self) -> bool:
        """Whether writing `counts` too costs little beside the rest: a small batch leaves it out, and what a store had is void then."""
        return not 0 < self.size < COUNTED

    def puts(self) -> Iterator[StoredDelivery]:
        """The deliveries to insert or replace."""
        return chain.from_iterable(orders.values() for orders in self.deliveries.values())

    def value_changes(self) -> Iterator[tuple[str, bytes, bytes | None]]:
        """(table, key, value or None) for each value to set or delete."""
        for table, changes in self.values.items():
            for key, value in changes.items():
                yield table, key, value

    # Changes made without knowing what a store holds. The writer makes its own, which leave out more (see `coalescer.py`).

    def put_run(self, run: StoredRun) -> None:
        """Insert a run."""
        self._forget_run(run.id)
        self.runs[run.id] = run
        self.size += run.weight

    def delete_run(self, run: int) -> None:
        """Delete a run by its id."""
        self._forget_run(run)
        self.runs_gone.add(run)
        self.size += GONE_WEIGHT

    def put_delivery(self, delivery: StoredDelivery) -> None:
        """Insert a delivery, or replace the one with its recipient and order."""
        self._forget_delivery(delivery.recipient, delivery.order)
        self.deliveries.setdefault(delivery.recipient, {})[delivery.order] = delivery
        self.size += DELIVERY_WEIGHT + len(delivery.extra)

    def delete_delivery(self, recipient: str, order: int) -> None:
        """Delete one delivery."""
        self._forget_delivery(recipient, order)
        self.gone.setdefault(recipient, set()).add(order)
        self.size += GONE_WEIGHT

    def delete_recipient(self, recipient: str) -> None:
        """Delete all deliveries of one recipient."""
        self.forget_recipient(recipient)
        if recipient not in self.recipients:
            self.recipients.add(recipient)
            self.size += GONE_WEIGHT

    def put_value(self, table: str, key: bytes, value: bytes) -> None:
        """Set a value. table: at most 32 ASCII letters, digits, '_'. key: not empty, at most 65,535 bytes."""
        self._change_value(table, key, value)

    def delete_value(self, table: str, key: bytes) -> None:
        """Delete a value."""
        self._change_value(table, key, None)

    def forget_recipient(self, recipient: str) -> None:
        """Take back what this batch does to single deliveries of a recipient."""
        for delivery in self.deliveries.pop(recipient, {}).values():
            self.size -= DELIVERY_WEIGHT + len(delivery.extra)
        self.size -= GONE_WEIGHT * len(self.gone.pop(recipient, ()))
        self.replaced.pop(recipient, None)

    def merge(self, later: Batch) -> None:
        """Add the changes of a batch that comes after this one, and take its number."""
        self.number = later.number
        for recipient in later.recipients:
            self.delete_recipient(recipient)
        for run in later.runs.values():
            self.put_run(run)
        for recipient, orders in later.gone.items():
            for order in orders:
                self.delete_delivery(recipient, order)
        for delivery in later.puts():
            self.put_delivery(delivery)
        for gone in later.runs_gone:
            self.delete_run(gone)
        for table, key, value in later.value_changes():
            self._change_value(table, key, value)

    def _forget_run(self, run: int) -> None:
        known = self.runs.pop(run, None)
        if known is not None:
            self.size -= known.weight
        elif run in self.runs_gone:
            self.runs_gone.remove(run)
            self.size -= GONE_WEIGHT

    def _forget_delivery(self, recipient: str, order: int) -> None:
        known = self.deliveries.get(recipient, {}).pop(order, None)
        if known is not None:
            self.size -= DELIVERY_WEIGHT + len(known.extra)
        elif order in self.gone.get(recipient, ()):
            self.gone[recipient].remove(order)
            self.size -= GONE_WEIGHT

    def _change_value(self, table: str, key: bytes, value: bytes | None) -> None:
        changes = self.values.setdefault(table, {})
        if key in changes:
            self.size -= VALUE_WEIGHT + len(key) + len(changes[key] or b"")
        changes[key] = value
        self.size += VALUE_WEIGHT + len(key) + len(value or b"")
