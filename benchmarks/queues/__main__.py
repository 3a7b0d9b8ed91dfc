"""How many messages a queue takes and gives in a second: `python -m benchmarks.queues`.

The engine alone, in this process, without MQTT: publishers put `--chunk` messages at a time, four members of a pool take them, and each
message is DONE. Every commit is one write and one fdatasync; puts and states share it. Payloads are mixed, 64 to 256 bytes, or of
160 bytes (`--uniform`).

- in order: acknowledgements come as they were sent;
- at random: each member's acknowledgements come in any order, one by one, as spans of one message;
- commit: the median time of one message alone, put until it is on the disk.

The figures are those of the engine. What a broker does besides (sockets, packets, sessions) is not in them.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.queue import Queue, Slice
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.core.stock import Member
from mqmesh.broker.queues.log.locations import KINDS, LOG, RIGHT, wrong
from mqmesh.broker.queues.log.store import LogStore
from mqmesh.broker.queues.offers import merged
from rich.console import Console
from rich.table import Table

MEMBERS = 4
PREFETCH = 1000
PUTS = 8  # chunks in one commit
LATENCIES = 200
META = Meta("publisher")
app = typer.Typer(add_completion=False)


def payloads_of(rng: random.Random, uniform: bool) -> list[bytes]:
    """Payloads to choose from."""
    return [rng.randbytes(160 if uniform else rng.randint(64, 256)) for _ in range(4000)]


def commit(store: LogStore) -> None:
    """One commit."""
    now = int(time.time() * 1000)
    batch = store.gather(now)
    if batch is not None:
        store.write(batch)
        store.applied(batch, now)


def finish(queue: Queue, member: Member, taken: list[Slice], rng: random.Random | None) -> int:
    """A member acknowledges what it has: how many messages."""
    now = int(time.time() * 1000)
    done = 0
    for one in taken:
        spans = [(one.start, one.start + one.length)]
        if rng is not None:
            spans = [(at, at + 1) for at in range(one.start, one.start + one.length)]
            rng.shuffle(spans)
        for start, stop in merged(spans):
            queue.settle(member, one.part, start, stop - start, Subscriber.DONE, now)
            done += stop - start
    return done


def run(
    store: LogStore, queue: Queue, members: list[Member], count: int, chunk: int, payloads: list[bytes], rng: random.Random, at_random: bool
) -> tuple[int, int]:
    """Put and work so many messages: how many those were, and in how many commits."""
    held: dict[Member, list[Slice]] = {member: [] for member in members}
    put = done = commits = 0
    while done < count:
        for _ in range(PUTS):
            if put < count:
                at = rng.randrange(len(payloads) - chunk)
                queue.put(payloads[at : at + chunk], META, int(time.time() * 1000))
                put += chunk
        for member in members:
            done += finish(queue, member, held[member], rng if at_random else None)
        commit(store)
        commits += 1
        for member in members:
            held[member] = queue.take(member, PREFETCH, int(time.time() * 1000))
            for one in held[member]:
                assert len(store.bodies.payloads(one.part.block)[one.start : one.start + one.length]) == one.length
                store.bodies.served(one.part.block)
    return done, commits


def worked(folder: Path, kind: str, durability: str, count: int, chunk: int, uniform: bool, at_random: bool) -> dict[str, Any]:
    """Put and work so many messages in a new store: figures."""
    rng = random.Random(1)
    payloads = payloads_of(rng, uniform)
    store = LogStore(folder, durability, kind=kind)
    store.open(lambda name: Rules(), 1)
    queue = store.queue("orders", Rules())
    members = [queue.join(f"member-{number}") for number in range(MEMBERS)]
    begin, processor = time.perf_counter(), time.process_time()
    done, commits = run(store, queue, members, count, chunk, payloads, rng, at_random)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    store.close()
    return {"messages": done, "seconds": seconds, "rate": done / seconds, "processor": processor / done, "commits": commits}


def alone(folder: Path, kind: str, durability: str) -> float:
    """The median time from a put to the end of its commit, in seconds."""
    store = LogStore(folder, durability, kind=kind)
    store.open(lambda name: Rules(), 1)
    queue = store.queue("orders", Rules())
    times = []
    for _ in range(LATENCIES):
        begin = time.perf_counter()
        queue.put([b"x" * 160], META, int(time.time() * 1000))
        commit(store)
        times.append(time.perf_counter() - begin)
    store.close()
    return statistics.median(times)


def schema(store: str, name: str) -> str:
    """A store that nothing is in: of a server a schema or a log of its own."""
    key = "schema" if store.startswith("postgres") else "name"
    return f"{store}?{key}=bench_{name.replace(' ', '_')}_{time.time_ns()}" if "://" in store else store


@app.command()
def main(
    count: Annotated[int, typer.Option("--count", min=1000, help="Messages of each run.")] = 400_000,
    chunk: Annotated[int, typer.Option("--chunk", min=1, max=4000, help="Messages that a publisher puts at a time.")] = 250,
    uniform: Annotated[bool, typer.Option("--uniform", help="Payloads of 160 bytes.")] = False,
    durability: Annotated[str, typer.Option("--durability", help="fsync or os.")] = "fsync",
    store: Annotated[str, typer.Option("--store", help=f"One of {', '.join(KINDS)}, {RIGHT}.")] = LOG,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure the engine of the queues."""
    if wrong(store) is not None:
        raise typer.BadParameter(f"{store!r}: {wrong(store)}", param_hint="--store")
    found: dict[str, Any] = {"store": store, "durability": durability, "uniform": uniform, "chunk": chunk}
    for name, at_random in (("in order", False), ("at random", True)):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            found[name] = worked(Path(folder), schema(store, name), durability, count, chunk, uniform, at_random)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        found["commit"] = alone(Path(folder), schema(store, "alone"), durability)
    if as_json:
        print(json.dumps(found))
        return
    table = Table(
        "acknowledgements", "messages/s", "processor time a message", "commits", title=f"pool of {MEMBERS}, {store}, {durability}"
    )
    for name in ("in order", "at random"):
        one = found[name]
        table.add_row(name, f"{one['rate']:,.0f}", f"{1e6 * one['processor']:.2f} us", f"{one['commits']:,}")
    Console().print(table)
    print(f"one message alone: {1e6 * found['commit']:.0f} us")


if __name__ == "__main__":
    app()
