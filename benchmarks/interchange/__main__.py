"""Requests and responses of two services, and of the same two clients with other means.

    python -m benchmarks.interchange --exchanges 5000 --at-once 64
    python -m benchmarks.interchange --only one,sites --repeat 3

    plain       no interchange: the request to a topic of the responder, the response to the Response Topic
    one         two services at one broker
    transit     a third service on the way
    sites       two services at two sites
    services    two services at one broker that has 10,000
    rabbitmq    RPC over quorum queues of RabbitMQ
    nats        a service of NATS, which keeps everything in memory

With MQTT all have QoS 1, sessions that are kept, and a store that is synced. Latency is from PUBLISH of the request until the response has
come, with one exchange at a time; the processor's time is that of the brokers or servers.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.interchange import mqtt, nats, rabbitmq
from benchmarks.peers import free_port
from benchmarks.queues.products import PRODUCTS

BODY = b"x" * 256
MANY = 10_000
Exchanges = Callable[[int, int], Coroutine[object, object, tuple[float, list[float]]]]  # how many, at once: seconds in all and of each
BROKER = """name = "{name}"
number = {number}
listen = ["mqtt://127.0.0.1:{port}"]
data = "{name}"
[interchange]
services = "services.toml"
"""
MESH = """[mesh]
name = "bench"
key = "a secret of 16 bytes or more"
start_wait = 0
[[mesh.peer]]
address = "mqtt://127.0.0.1:{peer}"
"""


@contextmanager
def brokers(names: list[str], python: list[str], services: int = 0) -> Iterator[tuple[list[int], list[psutil.Process]]]:
    """Brokers of one mesh, with the services of the measurements, the shop at the first and the others at the last one: ports, processes.

    python: the interpreter, or a profiler. services: so many more, which nobody uses.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        records = [f'[services."other/service-{number}"]\nusers = ["other-{number}"]\n' for number in range(services)]
        records += [f'[services."{mqtt.SHOP}"]\nusers = ["*"]\nsite = "{names[0]}"\n']
        records += [f'[services."{name}"]\nusers = ["*"]\nsite = "{names[-1]}"\n' for name in (mqtt.BANK, mqtt.MAP)]
        (Path(folder) / "services.toml").write_text("".join(records))
        ports, processes = [free_port() for _ in names], []
        for number, (name, port) in enumerate(zip(names, ports, strict=True), 1):
            text = BROKER.format(name=name, number=number, port=port)
            if len(names) > 1:
                text += MESH.format(peer=ports[number % len(names)])
            (config := Path(folder) / f"{name}.toml").write_text(text)
            words = [*python, "-m", "mqmesh.cli.main", "broker", "-c", str(config), "--stop-with-stdin"]
            broker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            stack.callback(lambda one: (one.communicate(), one.wait()), broker)
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("ready")
            processes.append(psutil.Process(broker.pid))
        yield ports, processes


def over_interchange(options: argparse.Namespace, name: str, names: list[str], transit: bool = False, services: int = 0) -> None:
    with brokers(names, options.python, services) as (ports, processes):
        measure(name, partial(mqtt.over_interchange, ports[0], ports[-1], transit, BODY), processes, options)


def plain(options: argparse.Namespace) -> None:
    with brokers(["porto"], options.python) as (ports, processes):
        measure("plain", partial(mqtt.plain, ports[0], BODY), processes, options)


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
    "plain": plain,
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
