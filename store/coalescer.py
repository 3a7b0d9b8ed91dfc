"""What the event loop does to the next batch: changes that cancel each other are never written.

A message that all its recipients acknowledge before it was committed leaves nothing to write: its delivery is put and deleted
in the same batch, and with its last delivery its run goes too. That is the common case of a fast subscriber, so it decides the
broker's speed.

Strategy: one open batch, changed in place by the loop, so that no lock is taken for a change. To know when a run has lost its
last delivery, and whether a deletion concerns anything that a store may hold, the coalescer knows the run of each stored
delivery and counts the deliveries of each run (about 150 bytes of memory for each delivery; bounded by the queues' bounds).

It also keeps the sum of what the store holds, `stored`, from the same changes: a run counts once, however many deliveries it has. The
weight of a run stands in one number with the count of its deliveries, so that counting costs an addition for each change. Each batch
carries the counts of rows that there are once it is committed.

Invariants
- `_stored`, `stored` and `_references` describe the store as it is once the open batch is committed;
- a key in the open batch's `deliveries` that is not in `replaced` is unknown to the store, unless the batch was `tried`;
- `open.size` is 0 exactly when nothing needs to be written.

What it does not know: threads, stores, time. The caller holds the one thread that changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .records import DELIVERY_WEIGHT, EXTRA, GONE_WEIGHT, RUN_WEIGHT, VALUE_WEIGHT, Batch, Counts, StoredDelivery, StoredRun

ROW = DELIVERY_WEIGHT + EXTRA  # what a stored delivery counts, but for what is longer than usual
SHIFT = 40  # bits: a run's weight stands above the count of its deliveries
COUNT = (1 << SHIFT) - 1


class Coalescer:
    """The open batch and the counts behind it.

    on_settled: called with the id of each run whose last delivery went before the run was known to be committed: what
    was promised to its publisher is kept without a commit.
    stored: the weight of all that a store holds once the open batch is committed: runs, deliveries and values. runs, deliveries, values:
    how many.
    """

    __slots__ = ("_longer", "_on_settled", "_references", "_stored", "_values", "deliveries", "open", "runs", "sealed", "stored", "values")

    def __init__(self, on_settled: Callable[[int], None]) -> None:
        self._on_settled = on_settled
        self._stored: dict[str, dict[int, int]] = {}  # recipient -> order -> run
        self._references: dict[int, int] = {}  # run -> its weight << SHIFT, and the number of deliveries
        self._longer: dict[str, dict[int, int]] = {}  # recipient -> order -> bytes of `extra` beyond EXTRA
        self._values: dict[str, dict[bytes, int]] = {}  # table -> key -> bytes of its value
        self.stored = 0
        self.runs = self.deliveries = self.values = 0
        self.open = Batch(1)
        self.sealed: Batch | None = None

    def load(
        self, deliveries: Iterable[StoredDelivery], runs: Iterable[tuple[int, int]] = (), values: Iterable[tuple[str, bytes, int]] = ()
    ) -> None:
        """Learn what a store holds, before anything is changed. runs, values: as `Store.run_sizes` and `Store.value_sizes` say."""
        stored, references = self._stored, self._references
        for recipient, order, run, *_, extra in deliveries:
            stored.setdefault(recipient, {})[order] = run
            references[run] = references.get(run, 0) + 1
            self.stored += ROW
            self.deliveries += 1
            if len(extra) > EXTRA:
                self._lengthen(recipient, order, len(extra))
        for run, size in runs:
            if run in references:
                self.runs += 1
                references[run] += (RUN_WEIGHT + size) << SHIFT
                self.stored += RUN_WEIGHT + size
        for table, key, size in values:
            self._values.setdefault(table, {})[key] = size
            self.values += 1
            self.stored += VALUE_WEIGHT + len(key) + size

    def holds(self, run: int) -> bool:
        """Whether a run is stored, or put."""
        return run in self._references

    def has(self, recipient: str, order: int) -> bool:
        """Whether a delivery is stored, or put."""
        orders = self._stored.get(recipient)
        return orders is not None and order in orders

    # Changes.

    def put_run(self, run: StoredRun) -> None:
        """Store a run. Its deliveries follow in the same group (see `Writer.ticket`); it goes by itself with the last of them."""
        if run.id in self._references:
            raise ValueError(f"run {run.id} is stored already")
        weight = RUN_WEIGHT + len(run[1]) + len(run[4]) + len(run[9])  # run.weight, without a call
        self._references[run.id] = weight << SHIFT
        self.stored += weight
        self.runs += 1
        batch = self.open
        batch.runs[run.id] = run
        batch.size += weight

    def put_delivery(self, delivery: StoredDelivery) -> None:
        """Store a delivery, or replace the one of its recipient and order. Its run must be stored; KeyError else."""
        recipient, order, run, _, _, _, _, _, extra = delivery
        batch = self.open
        references = self._references
        references[run] += 1
        orders = self._stored.get(recipient)
        if orders is None:
            orders = self._stored[recipient] = {}
        puts = batch.deliveries.get(recipient)
        if puts is None:
            puts = batch.deliveries[recipient] = {}
        known = orders.get(order)
        orders[order] = run
        if len(extra) > EXTRA or self._longer:
            self._lengthen(recipient, order, len(extra))
        if known is not None:
            self._replace(puts, recipient, order)
            self._release(known)
            self.stored -= ROW
            self.deliveries -= 1
        elif batch.gone and order in batch.gone.get(recipient, ()):
            batch.gone[recipient].remove(order)
            batch.size -= GONE_WEIGHT
            batch.replaced.setdefault(recipient, set()).add(order)
        puts[order] = delivery
        self.stored += ROW
        self.deliveries += 1
        batch.size += DELIVERY_WEIGHT + len(extra)

    def delete_delivery(self, recipient: str, order: int) -> bool:
        """Delete a delivery; False if there was none."""
        orders = self._stored.get(recipient)
        run = orders.pop(order, None) if orders else None
        if run is None:
            return False
        if not orders:
            del self._stored[recipient]
        self.stored -= ROW
        self.deliveries -= 1
        if self._longer:
            self._lengthen(recipient, order, 0)
        batch = self.open
        puts = batch.deliveries.get(recipient)
        put = puts.pop(order, None) if puts else None
        if put is not None:
            batch.size -= DELIVERY_WEIGHT + len(put[8])
        if put is None or batch.tried or self._taken_back(recipient, order):
            batch.gone.setdefault(recipient, set()).add(order)
            batch.size += GONE_WEIGHT
        self._release(run)
        return True

    def delete_recipient(self, recipient: str) -> None:
        """Delete all deliveries of a recipient."""
        batch = self.open
        orders = self._stored.pop(recipient, {})
        self.deliveries -= len(orders)
        self.stored -= ROW * len(orders) + sum(self._longer.pop(recipient, {}).values())
        puts = batch.deliveries.get(recipient, {})
        written = batch.tried or recipient in batch.gone or recipient in batch.replaced or any(order not in puts for order in orders)
        if written:
            batch.delete_recipient(recipient)
        else:
            batch.forget_recipient(recipient)
        for run in orders.values():
            self._release(run)

    def put_value(self, table: str, key: bytes, value: bytes) -> None:
        """Set a value, see `Batch.put_value`; what that does is done here, without calls."""
        batch = self.open
        changes = batch.values.get(table)
        if changes is None:
            changes = batch.values[table] = {}
        elif key in changes:
            batch.size -= VALUE_WEIGHT + len(key) + len(changes[key] or b"")
        changes[key] = value
        batch.size += VALUE_WEIGHT + len(key) + len(value)
        self.note_value(table, key, value)

    def note_value(self, table: str, key: bytes, value: bytes) -> None:
        """The store has a value once the open batch is committed, which the batch does not hold: the store gets it by itself."""
        sizes = self._values.get(table)
        if sizes is None:
            sizes = self._values[table] = {}
        known = sizes.get(key)
        if known is None:
            self.values += 1
            self.stored += len(value) + VALUE_WEIGHT + len(key)
        else:
            self.stored += len(value) - known
        sizes[key] = len(value)

    def delete_value(self, table: str, key: bytes) -> None:
        """Delete a value."""
        self.open.delete_value(table, key)
        known = self._values.get(table, {}).pop(key, None)
        if known is not None:
            self.values -= 1
            self.stored -= VALUE_WEIGHT + len(key) + known

    # Batches.

    def seal(self) -> Batch:
        """The open batch, to be committed; a new one is open. Only one is sealed at a time."""
        assert self.sealed is None
        batch = self.sealed = self.open
        batch.counts = Counts(self.runs, self.deliveries, self.values)
        self.open = Batch(batch.number + 1)
        return batch

    def committed(self) -> int:
        """The sealed batch is committed: the highest number up to which nothing is left to write."""
        assert self.sealed is not None
        self.sealed = None
        return self.skip_empty()

    def skip_empty(self) -> int:
        """The highest number up to which nothing is left to write, while no batch is sealed; what vanished counts as written."""
        if not self.open.size:
            self.open = Batch(self.open.number + 1)
        return self.open.first - 1

    def failed(self) -> None:
        """The sealed batch may be committed or not: it is open again, together with what came since."""
        assert self.sealed is not None
        batch, later = self.sealed, self.open
        batch.tried = True
        batch.merge(later)
        self.open, self.sealed = batch, None

    # Inside.

    def _replace(self, puts: dict[int, StoredDelivery], recipient: str, order: int) -> None:
        """A known delivery is put again."""
        batch = self.open
        put = puts.get(order)
        if put is None:
            batch.replaced.setdefault(recipient, set()).add(order)
        else:
            batch.size -= DELIVERY_WEIGHT + len(put[8])

    def _taken_back(self, recipient: str, order: int) -> bool:
        """Whether a put delivery replaced one that a store may hold; it does so no longer."""
        replaced = self.open.replaced.get(recipient)
        if replaced and order in replaced:
            replaced.remove(order)
            return True
        return False

    def _lengthen(self, recipient: str, order: int, size: int) -> None:
        """A delivery has so many bytes of `extra` now, 0 when it goes: count those beyond EXTRA."""
        orders = self._longer.get(recipient)
        if orders is not None:
            self.stored -= orders.pop(order, 0)
        if size > EXTRA:
            self.stored += size - EXTRA
            if orders is None:
                orders = self._longer[recipient] = {}
            orders[order] = size - EXTRA
        elif orders is not None and not orders:
            del self._longer[recipient]

    def _release(self, run: int) -> None:
        """One delivery less; with the last one the run goes."""
        references = self._references
        left = references[run] - 1
        if left & COUNT:
            references[run] = left
            return
        del references[run]
        if left >> SHIFT:  # a lost run has deliveries only
            self.runs -= 1
        self.stored -= left >> SHIFT
        batch = self.open
        put = batch.runs.pop(run, None)
        if put is not None:
            batch.size -= RUN_WEIGHT + len(put[1]) + len(put[4]) + len(put[9])
        if put is None or batch.tried:
            batch.runs_gone.add(run)
            batch.size += GONE_WEIGHT
        if put is not None or (self.sealed is not None and run in self.sealed.runs):
            self._on_settled(run)
