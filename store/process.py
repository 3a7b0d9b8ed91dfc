"""A store in a process of its own: the broker's interpreter lock is no longer shared with the database.

A commit from a thread of the broker costs the event loop more than its own time: while the thread fills statements the loop
waits, and the thread waits for the loop each time it comes back from the disk. Here the broker's thread only packs the batch
and waits; the child does the work on another core. Queries do not go through the child: the broker opens the store beside
it, for reading (`attach`).

    broker -> child:  length:4 msgpack(batch)        child -> broker:  length:4 msgpack(None or [kind, store, text])

The child ends when its broker closes the pipe, by intention or by dying; a commit that had reached it by then is still done, as
after any failure whose outcome nobody knows. Until it has ended it holds the store's lock, for which the next broker waits.

What it does not know: which store it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from struct import Struct
from typing import Any

import msgpack

from .base import Kind, Store, StoreError
from .locations import Durability, shown, store_at
from .records import Batch, Counts, StoredDelivery, StoredRun, StoredValue

STOP_TIMEOUT = 10.0  # seconds
_LENGTH = Struct(">I")


class ProcessStore:
    """The store at an address, written by a child process.

    address, durability: as for `store_at`; a store in memory cannot be shared with a child.
    """

    counted = True

    def __init__(self, address: str, durability: Durability = "fsync") -> None:
        self._address, self._durability = address, durability
        self.name = shown(address)
        self._reader: Store | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._opened = False
        if durability == "memory" or address.startswith("memory"):
            raise ValueError("a store in memory cannot be written by another process")

    def open(self) -> None:
        """Start the child, which opens the store, and attach to it."""
        reader = store_at(self._address, self._durability)
        self._start()
        try:
            reader.attach()
        except StoreError:
            self.close()
            raise
        self._reader = reader
        self._opened = True

    def attach(self) -> None:
        """Open for queries only; no child is needed."""
        reader = store_at(self._address, self._durability)
        reader.attach()
        self._reader = reader

    def close(self) -> None:
        """Close the store and end the child."""
        self._opened = False
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self._stop()

    def commit(self, batch: Batch) -> None:
        """Have the child apply a batch; a child that died is started again first."""
        if not self._opened:
            raise StoreError(Kind.OTHER, self.name, "is not open")
        if self._child is None:
            self._start()
        self._ask(pack(batch))

    def run(self, run: int) -> StoredRun | None:
        """The run of this id, or None."""
        return self._open_reader().run(run)

    def runs(self, ids: Iterable[int]) -> dict[int, StoredRun]:
        """The runs of these ids that are there."""
        return self._open_reader().runs(ids)

    def deliveries(
        self, recipient: str | None = None, state: int | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[StoredDelivery]:
        """Deliveries in their order, see `Store.deliveries`."""
        return self._open_reader().deliveries(recipient, state, after, limit)

    def count(self, recipient: str, state: int | None = None) -> int:
        """How many messages are stored for a recipient."""
        return self._open_reader().count(recipient, state)

    def value(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""
        return self._open_reader().value(table, key)

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table."""
        return self._open_reader().values(table)

    def highest_run(self) -> int:
        """The highest id of a stored run, 0 without any."""
        return self._open_reader().highest_run()

    def highest_order(self, recipient: str) -> int:
        """The highest order among a recipient's deliveries, 0 without any."""
        return self._open_reader().highest_order(recipient)

    def run_sizes(self) -> Iterator[tuple[int, int]]:
        """(id, bytes) of each run."""
        return self._open_reader().run_sizes()

    def value_sizes(self) -> Iterator[tuple[str, bytes, int]]:
        """(table, key, bytes) of each value."""
        return self._open_reader().value_sizes()

    def counts(self) -> Counts | None:
        """How many rows there are."""
        return self._open_reader().counts()

    def remains(self, say: Callable[[str], object]) -> Iterator[StoredDelivery | StoredValue]:
        """All deliveries and values that are whole."""
        return self._open_reader().remains(say)

    def snapshot(self) -> AbstractContextManager[None]:
        """One state for some queries, see `Store.snapshot`."""
        return self._open_reader().snapshot()

    def check_pages(self) -> None:
        """Walk through all pages."""
        self._open_reader().check_pages()

    def space(self) -> int | None:
        """What it takes and what is free."""
        return self._open_reader().space()

    # Inside.

    def _open_reader(self) -> Store:
        if self._reader is None:
            raise StoreError(Kind.OTHER, self.name, "is not open")
        return self._reader

    def _start(self) -> None:
        command = [sys.executable, "-m", __name__, self._durability]
        environment = {**os.environ, "MQMESH_STORE": self._address}  # not an argument: it may hold a password
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)
        self._ask(None)  # the child answers once the store is open

    def _ask(self, request: bytes | None) -> None:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            if request is not None:
                child.stdin.write(_LENGTH.pack(len(request)) + request)
                child.stdin.flush()
            answer = msgpack.unpackb(_receive(child.stdout.fileno()))
        except (OSError, EOFError) as error:
            self._stop()
            status = child.returncode
            raise StoreError(Kind.OTHER, self.name, f"its process ended (status {status}); it is started again") from error
        if answer is not None:
            if request is None:
                self._stop()
            raise StoreError(Kind(answer[0]), answer[1], answer[2])

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            child.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:  # a disk that does not answer; what it was given is kept or not, but whole
            child.kill()
            child.wait()


def pack(batch: Batch) -> bytes:
    """A batch as bytes."""
    gone = {recipient: list(orders) for recipient, orders in batch.gone.items() if orders}
    replaced = {recipient: list(orders) for recipient, orders in batch.replaced.items() if orders}
    runs, deliveries = list(batch.runs.values()), list(batch.puts())
    parts = (
        batch.number,
        list(batch.recipients),
        runs,
        gone,
        deliveries,
        list(batch.runs_gone),
        batch.values,
        replaced,
        batch.tried,
        batch.counts,
        batch.size,
    )
    return bytes(msgpack.packb(parts))


def unpack(data: bytes) -> Batch:
    """The batch that `pack` made bytes of, for a store to read."""
    number, recipients, runs, gone, deliveries, runs_gone, values, replaced, tried, counts, size = msgpack.unpackb(
        data, strict_map_key=False, use_list=False
    )
    batch = Batch(number)
    batch.recipients = set(recipients)
    batch.runs = {run[0]: StoredRun._make(run) for run in runs}
    batch.gone = {recipient: set(orders) for recipient, orders in gone.items()}
    for delivery in map(StoredDelivery._make, deliveries):
        batch.deliveries.setdefault(delivery.recipient, {})[delivery.order] = delivery
    batch.runs_gone = set(runs_gone)
    batch.values = values
    batch.replaced = {recipient: set(orders) for recipient, orders in replaced.items()}
    batch.tried = tried
    batch.counts = None if counts is None else Counts(*counts)
    batch.size = size
    return batch


def _receive(file: int) -> bytes:
    """One message from a pipe; EOFError at its end."""
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
    return _exactly(file, length)


def _exactly(file: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(file, min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _answer(error: StoreError | None) -> None:
    data: Any = None if error is None else (error.kind.value, error.store, error.text)
    packed = msgpack.packb(data)
    sys.stdout.buffer.write(_LENGTH.pack(len(packed)) + packed)
    sys.stdout.buffer.flush()


def main(durability: Durability) -> None:
    """The child: open, then commit whatever comes, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the broker decides when it is over
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store = store_at(os.environ["MQMESH_STORE"], durability)
    with contextlib.suppress(BrokenPipeError):
        try:
            store.open()
        except StoreError as error:
            _answer(error)
            return
        _answer(None)
        try:
            _serve(store)
        finally:
            store.close()


def _serve(store: Store) -> None:
    while True:
        try:
            data = _receive(sys.stdin.fileno())
        except EOFError:
            return
        try:
            store.commit(unpack(data))
        except StoreError as error:
            _answer(error)
        else:
            _answer(None)


if __name__ == "__main__":
    main(sys.argv[1])  # type: ignore[arg-type]
