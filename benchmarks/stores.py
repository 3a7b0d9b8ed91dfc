"""How many messages each store takes in a second: `python -m benchmarks.stores`.

Each figure is for messages of 64 bytes that one durable recipient waits for: one delivery for each run.

- commit: the store alone, batches of 1,000 runs (50 where a run has 200 messages), one after the other;
- writer: through `Writer` from a busy event loop, which makes the runs, waits when 8 MiB are pending, and ends when all is
  committed; this is what a broker gets at best;
- queue: the same, and each run's delivery is deleted 1,000 runs later, as a subscriber behind the publisher does;
- read: deliveries and their runs read back in order;
- one: the median time of a commit of one message.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from mqmesh.store import Batch, Store, StoredDelivery, StoredRun, StoreError, Writer
from mqmesh.store.locations import Durability, store_at
from rich.console import Console
from rich.table import Table

LENGTH = 64
PENDING = 8 << 20
CHUNK = 65536  # bytes of one chunk of an event loop's work
BEHIND = 1000  # runs
app = typer.Typer(add_completion=False)


def change(number: int, count: int) -> tuple[StoredRun, StoredDelivery]:
    """A run and its delivery."""
    payloads = bytes(LENGTH * count)
    run = StoredRun(number, b"site/17/temperature", 1, False, b"", None, 1.7e9, LENGTH, count, payloads)
    return run, StoredDelivery("session/porto-17", number, number, 0, count, 1, 0, 0, b"")


def committed(store: Store, count: int, seconds: float) -> tuple[int, float]:
    """(runs, seconds) of commits, one after the other."""
    size = 1000 if count == 1 else 50
    number, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        batch = Batch()
        for _ in range(size):
            number += 1
            run, delivery = change(number, count)
            batch.put_run(run)
            batch.put_delivery(delivery)
        store.commit(batch)
    return number, time.perf_counter() - begin


def read(store: Store, runs: int) -> float:
    """Runs a second, read back in order."""
    begin, found, last = time.perf_counter(), 0, 0
    while deliveries := list(store.deliveries("session/porto-17", after=last, limit=1000)):
        found += len(store.runs([delivery.run for delivery in deliveries]))
        last = deliveries[-1].order
    assert found == runs, (found, runs)
    return found / (time.perf_counter() - begin)


def one_by_one(store: Store, first: int) -> float:
    """The median time of a commit of one message, in seconds."""
    times = []
    for number in range(first, first + 200):
        batch = Batch()
        run, delivery = change(number, 1)
        batch.put_run(run)
        batch.put_delivery(delivery)
        begin = time.perf_counter()
        store.commit(batch)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


async def written(store: Store, count: int, seconds: float, behind: int | None) -> float:
    """Runs a second through a writer; `behind`: each delivery is deleted so many runs later."""
    loop = asyncio.get_running_loop()
    moved = asyncio.Event()

    def failed(error: StoreError) -> None:
        raise error

    writer = Writer(store, loop.call_soon_threadsafe, lambda _: moved.set(), failed)
    writer.start()
    each = max(1, CHUNK // (count * (LENGTH + 30)))
    number, begin, ticket = 0, time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(each):
            number += 1
            run, delivery = change(number, count)
            writer.put_run(run)
            writer.put_delivery(delivery)
            if behind is not None and number > behind:
                writer.delete_delivery("session/porto-17", number - behind)
        ticket = writer.ticket()
        await asyncio.sleep(0)
        while writer.bytes_pending > PENDING:
            moved.clear()
            await moved.wait()
    while writer.committed < ticket:
        moved.clear()
        await moved.wait()
    taken = time.perf_counter() - begin
    writer.close(10)
    return number / taken


def makers(folder: Path, postgresql: str | None, durability: Durability) -> dict[str, Callable[[str], Store]]:
    """Name -> makes an empty store; the argument keeps them apart."""
    found: dict[str, Callable[[str], Store]] = {
        "memory": lambda _: store_at("memory:"),
        "sqlite": lambda name: store_at(f"sqlite://{folder}/{name}/store.db", durability),
        "lmdb": lambda name: store_at(f"lmdb://{folder}/{name}-lmdb", durability),
    }
    if postgresql:
        mark = "&" if "?" in postgresql else "?"
        unique = f"{time.time_ns():x}"
        found["postgresql"] = lambda name: store_at(f"{postgresql}{mark}schema=bench_{unique}_{name}", durability)
    return found


@app.command()
def main(
    postgresql: Annotated[str | None, typer.Option(help="postgresql://user@host/database: measure this server too.")] = None,
    durability: Annotated[str, typer.Option(help="fsync or os.")] = "fsync",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement.")] = 2.0,
    folder: Annotated[Path | None, typer.Option(help="Where to put the data; a temporary folder without.")] = None,
) -> None:
    """Measure each store."""
    if durability not in ("fsync", "os"):
        raise typer.BadParameter("durability is fsync or os")
    sync: Durability = "fsync" if durability == "fsync" else "os"
    table = Table("store", "messages a run", "commit", "writer", "queue", "read", "one", title=f"messages/s, durability {durability}")
    console = Console()
    with tempfile.TemporaryDirectory(dir=folder) as base:
        for name, make in makers(Path(base), postgresql, sync).items():
            for count in (1, 200):
                with console.status(f"{name}, runs of {count}"):
                    row = measured(make, count, seconds)
                table.add_row(name, str(count), *row)
    console.print(table)


def measured(make: Callable[[str], Store], count: int, seconds: float) -> list[str]:
    """One row: figures as text."""
    store = make(f"commit_{count}")
    store.open()
    runs, taken = committed(store, count, seconds)
    reading = read(store, runs)
    single = one_by_one(store, runs + 1)
    store.close()
    writing = asyncio.run(written(make(f"writer_{count}"), count, seconds, None))
    queueing = asyncio.run(written(make(f"queue_{count}"), count, seconds, BEHIND))
    return [*(f"{figure * count:,.0f}" for figure in (runs / taken, writing, queueing, reading)), f"{single * 1e6:,.0f} us"]


if __name__ == "__main__":
    app()
