"""A store in memory: for tests, and for brokers that keep nothing. The other stores are held against it.

It survives `close` and another `open` of the same object, as a file would, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from threading import Lock

from .records import RUN_WEIGHT, Batch, Counts, StoredDelivery, StoredRun, StoredValue


class MemoryStore:
    """Dictionaries under a lock."""

    counted = False
    name = "memory:"

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: dict[int, StoredRun] = {}
        self._deliveries: dict[str, dict[int, StoredDelivery]] = {}
        self._values: dict[str, dict[bytes, bytes]] = {}

    def open(self) -> None:
        """Delete runs that no delivery names."""
        with self._lock:
            named = {delivery.run for orders in self._deliveries.values() for delivery in orders.values()}
            self._runs = {run: stored for run, stored in self._runs.items() if run in named}

    def attach(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def commit(self, batch: Batch) -> None:
        """Apply a batch."""
        with self._lock:
            for recipient in batch.recipients:
                self._deliveries.pop(recipient, None)
            for run in batch.runs.values():
                self._runs.setdefault(run.id, run)
            for recipient, gone in batch.gone.items():
                for order in gone:
                    self._deliveries.get(recipient, {}).pop(order, None)
            for recipient, orders in batch.deliveries.items():
                self._deliveries.setdefault(recipient, {}).update(orders)
            for gone_run in batch.runs_gone:
                self._runs.pop(gone_run, None)
            for table, key, value in batch.value_changes():
                if value is None:
                    self._values.get(table, {}).pop(key, None)
                else:
                    self._values.setdefault(table, {})[key] = value
            for recipient in (*batch.gone, *batch.deliveries):
                if not self._deliveries.get(recipient, True):
                    del self._deliveries[recipient]

    def run(self, run: int) -> StoredRun | None:
        """The run of this id, or None."""
        return self._runs.get(run)

    def runs(self, ids: Iterable[int]) -> dict[int, StoredRun]:
        """The runs of these ids that are there."""
        with self._lock:
            return {run: self._runs[run] for run in ids if run in self._runs}

    def deliveries(
        self, recipient: str | None = None, state: int | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[StoredDelivery]:
        """Deliveries in their order, see `Store.deliveries`."""
        with self._lock:
            recipients = list(self._deliveries) if recipient is None else [recipient]
            found = [
                delivery
                for name in recipients
                for delivery in _in_order(self._deliveries.get(name, {}), after)
                if state in (None, delivery.state)
            ]
        return islice(found, limit)

    def count(self, recipient: str, state: int | None = None) -> int:
        """How many messages are stored for a recipient."""
        return sum(delivery.count for delivery in self.deliveries(recipient, state))

    def value(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""
        with self._lock:
            return self._values.get(table, {}).get(key)

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table."""
        with self._lock:
            return iter(list(self._values.get(table, {}).items()))

    def highest_run(self) -> int:
        """The highest id of a stored run, 0 without any."""
        with self._lock:
            return max(self._runs, default=0)

    def highest_order(self, recipient: str) -> int:
        """The highest order among a recipient's deliveries, 0 without any."""
        with self._lock:
            return max(self._deliveries.get(recipient, ()), default=0)

    def run_sizes(self) -> Iterator[tuple[int, int]]:
        """(id, bytes) of each run."""
        with self._lock:
            return iter([(run.id, run.weight - RUN_WEIGHT) for run in self._runs.values()])

    def value_sizes(self) -> Iterator[tuple[str, bytes, int]]:
        """(table, key, bytes) of each value."""
        with self._lock:
            return iter([(table, key, len(value)) for table, values in self._values.items() for key, value in values.items()])

    def counts(self) -> Counts | None:
        """How many rows there are."""
        with self._lock:
            rows = sum([len(orders) for orders in self._deliveries.values()])
            return Counts(len(self._runs), rows, sum([len(values) for values in self._values.values()]))

    def remains(self, say: Callable[[str], object]) -> Iterator[StoredDelivery | StoredValue]:
        """All deliveries and values."""
        yield from self.deliveries()
        for table, values in self._values.items():
            for key, value in values.items():
                yield StoredValue(table, key, value)

    def snapshot(self) -> AbstractContextManager[None]:
        """Nothing to do: nobody else has it."""
        return nullcontext()

    def check_pages(self) -> None:
        """Nothing to do."""

    def space(self) -> int | None:
        """Not known."""
        return None


def _in_order(orders: dict[int, StoredDelivery], after: int) -> Iterator[StoredDelivery]:
    return (orders[order] for order in sorted(order for order in orders if order > after))
