"""A queue that keeps millions of journalled messages: `python -m benchmarks.queues.large`.

The engine alone, as in `python -m benchmarks.queues`, with a retention of a week: what is worked stays in the log. At ten thousand
messages and at the end of all others it says how fast messages are put and worked, what memory the process has, how long it takes to
trace a message by its position, and how long to read a page. Then pages are read while messages are worked: nothing else may be in the
queue than without that.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.stock import Member
from mqmesh.broker.queues.log.locations import LOG
from mqmesh.broker.queues.log.store import LogStore

from benchmarks.queues.__main__ import MEMBERS, commit, payloads_of, run

RULES = Rules(retention=7 * 86400.0)
TRACES = 50
PAGE = 100
app = typer.Typer(add_completion=False)


def traced(store: LogStore, queue: Queue, position: int) -> int:
    """Trace one message: how many states it had."""
    steps = store.history(queue, position)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return len(end.value[1])


def milliseconds(times: list[float]) -> dict[str, float]:
    """Median and worst."""
    return {"p50": 1e3 * statistics.median(times), "worst": 1e3 * max(times)}


def looked(store: LogStore, queue: Queue, rng: random.Random) -> dict[str, Any]:
    """How long it takes to trace messages and to read pages, anywhere in the queue."""
    traces, pages = [], []
    for _ in range(TRACES):
        position = rng.randrange(1, queue.next)
        begin = time.perf_counter()
        assert traced(store, queue, position) == 2, position  # GET, DONE
        traces.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        assert store.reader(queue).page(position, PAGE, queue.next).found
        pages.append(time.perf_counter() - begin)
    return {"trace": milliseconds(traces), "page": milliseconds(pages)}


def measured(store: LogStore, queue: Queue, members: list[Member], count: int, payloads: list[bytes], rng: random.Random) -> dict[str, Any]:
    """Put and work so many messages: figures of that, and of looking."""
    begin, processor = time.perf_counter(), time.process_time()
    done, _ = run(store, queue, members, count, 250, payloads, rng, False)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    found = {"messages": queue.next - 1, "rate": done / seconds, "processor": 1e6 * processor / done}
    found["memory"] = psutil.Process().memory_info().rss / (1 << 20)
    return found | looked(store, queue, rng)


@app.command()
def main(
    count: Annotated[int, typer.Option("--count", min=200_000, help="Messages of the queue.")] = 10_000_000,
    durability: Annotated[str, typer.Option("--durability", help="fsync or os.")] = "fsync",
    store: Annotated[str, typer.Option("--store", help="log, sqlite, lmdb or postgresql://USER@HOST/DATABASE.")] = LOG,
) -> None:
    """Measure a queue that keeps what is worked; one JSON object a line."""
    rng = random.Random(1)
    payloads = payloads_of(rng, False)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        kept = LogStore(Path(folder), durability, kind=store)
        kept.open(lambda name: RULES, 1)
        queue = kept.queue("orders", RULES)
        members = [queue.join(f"member-{number}") for number in range(MEMBERS)]
        for size in sorted({10_000, 100_000, *(one for one in (1_000_000, 5_000_000) if one < count), count - 100_000, count}):
            print(json.dumps(measured(kept, queue, members, size - (queue.next - 1), payloads, rng)), flush=True)
        begin = queue.next
        for at in range(1, queue.next, queue.next // 20):
            kept.reader(queue).page(at, PAGE, queue.next)
            run(kept, queue, members, 10_000, 250, payloads, rng, False)
        assert queue.next - begin == 200_000
        assert not queue.waiting
        assert not queue.held
        kept.trim(int(time.time() * 1000))
        commit(kept)
        print(json.dumps(looked(kept, queue, rng) | {"read while it is worked": "nothing else is in the queue"}))
        kept.close()


if __name__ == "__main__":
    app()
