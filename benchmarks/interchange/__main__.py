"""Requests and responses of two services, and of the same two clients with other means.

    python -m benchmarks.interchange --exchanges 5000 --at-once 64
    python -m benchmarks.interchange --only one,sites --repeat 3

    plain       no interchange: the request to a topic of the responder, the response to the Response Topic, both with QoS 1
    kept        the same with QoS 2: each message is on the disk before it is delivered, as in an inbox
    one         two services at one broker
    transit     a third service on the way
    sites       two services at two sites
    services    two services at one broker that has 10,000
    rabbitmq    RPC over quorum queues of RabbitMQ
    nats        a service of NATS, which keeps everything in memory

With MQTT all have sessions that are kept, and a store that is synced. A message of QoS 1 whose recipient acknowledges it at once is never
written: its publisher would send it again. Latency is from PUBLISH of the request until the response has
come, with one exchange at a time; the processor's time is that of the brokers or servers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.interchange import mqtt, nats, rabbitmq
from benchmarks.interchange.brokers import brokers
from benchmarks.queues.products import PRODUCTS

BODY = b"x" * 256
MANY = 10_000
Exchanges = Callable[[int, int], Coroutine[object, object, tuple[float, list[float]]]]  # how many, at once: seconds in all and of each


def over_interchange(options: argparse.Namespace, name: str, names: list[str], transit: bool = False, services: int = 0) -> None:
    with brokers(names, options.python, services) as (ports, processes):
        measure(name, partial(mqtt.over_interchange, ports[0], ports[-1], transit, BODY), processes, options)


def plain(options: argparse.Namespace, name: str, qos: int) -> None:
    with brokers(["porto"], options.python) as (ports, processes):
        measure(name, partial(mqtt.plain, ports[0], BODY, qos), processes, options)


def beside(options: argparse.Namespace, name: str, exchanges: Callable[..., Coroutine[object, object, tuple[float, list[float]]]]) -> None:
    """The same with another product."""
    with tempfile.TemporaryDirectory() as folder:
        server = PRODUCTS[name].deploy(Path(folder) / name)
        try:
            roots = [psutil.Process(one.pid) for one in server.processes]
            processes = roots + [child for one in roots for child in one.children(recursive=True)]
            measure(name, partial(exchanges, server.ports[0], BODY), processes, options)
        finally:
            server.stop()


ROWS: dict[str, Callable[[argparse.Namespace], None]] = {
    "plain": partial(plain, name="plain", qos=1),
    "kept": partial(plain, name="kept", qos=2),
    "one": partial(over_interchange, name="one", names=["porto"]),
    "transit": partial(over_interchange, name="transit", names=["porto"], transit=True),
    "sites": partial(over_interchange, name="sites", names=["porto", "lyon"]),
    "services": partial(over_interchange, name="services", names=["porto"], services=MANY),
    "rabbitmq": partial(beside, name="rabbitmq", exchanges=rabbitmq.exchanges),
    "nats": partial(beside, name="nats", exchanges=nats.exchanges),
}


def measure(name: str, made: Exchanges, processes: list[psutil.Process], options: argparse.Namespace) -> None:
    """Print what so many exchanges take. processes: those of the server."""
    count: int = options.exchanges
    one_each = asyncio.run(made(max(1, count // 10), 1))[1]
    before = spent(processes)
    seconds, _ = asyncio.run(made(count, options.at_once))
    each = (spent(processes) - before) / count
    print(
        f"{name:12} {count / seconds:8.0f} exchanges/s  processor {1e6 * each:5.0f} us each"
        f"  one at a time p50 {1000 * median(one_each):6.2f} ms",
        flush=True,
    )


def spent(processes: list[psutil.Process]) -> float:
    """Seconds of processor time."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def main() -> None:
    parser = argparse.ArgumentParser(description="exchanges over the interchange, and with other means")
    parser.add_argument("--exchanges", type=int, default=5000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas")
    parser.add_argument("--repeat", type=int, default=1, help="rounds of all rows")
    parser.add_argument("--profile", metavar="FILE", help="have cProfile count what a broker does; use it with one row")
    options = parser.parse_args()
    options.python = [sys.executable, *(["-m", "cProfile", "-o", options.profile] if options.profile else [])]
    for _ in range(options.repeat):
        for name in options.only.split(","):
            ROWS[name](options)


if __name__ == "__main__":
    main()
