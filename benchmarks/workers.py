"""What the workers of one broker cost and bring: the same load at one process, within a worker and across two workers.

`python -m benchmarks.workers` prints for each row deliveries a second or latency, the processor time of all the broker's processes for a
delivery, and the ratio of that to one process. `within`: publishers and subscribers are at one of two workers; `across`: at different ones.
There each worker, started as a broker starts it, has a port of its own, so that the generator knows where a client is. `shared`:
`mqmesh broker --workers 2` as it is, with clients wherever the kernel puts them. Processor time is what to compare: workers and generator
share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from mqmesh.broker.settings.workers import Worker

from benchmarks.load_generator import wire
from benchmarks.load_generator.load import broker_cpu
from benchmarks.peers import Deployment, Mqmesh, says_ready
from benchmarks.runner import Settings, measure
from benchmarks.scenarios import ACKNOWLEDGED, Scenario

SCENARIOS = (
    Scenario("qos0", "QoS 0, 1:1"),
    Scenario("qos0-topics", "QoS 0, 1:1, 1,000 topics in turn", {"topics": 1000}),
    Scenario("qos1", "QoS 1, 1:1", {"qos": 1, "window": ACKNOWLEDGED}),
    Scenario("fanout", "QoS 0, fan-out to 10", {"subscribers": 10}),
    Scenario("pairs", "QoS 0, 10 pairs", {"publishers": 10, "subscribers": 10, "pairs": True}),
    Scenario("lone-qos0", "QoS 0, one at a time", {"kind": "latency"}),
    Scenario("lone-qos1", "QoS 1, one at a time", {"kind": "latency", "qos": 1}),
)
CONNECTIONS, AT_ONCE = 2000, 50
KEY = "a key that both workers know"


class Placed(Mqmesh):
    """Two workers, each with a port of its own. across: subscribers are at the second one."""

    def __init__(self, across: bool) -> None:
        super().__init__()
        self.across = across

    def deploy(self, folder: Path, brokers: int, qos: int, tls: bool = False, durable: bool = False, web: bool = False) -> Deployment:
        deployment = super().deploy(folder, 2, qos, tls, durable, web)
        if not self.across:
            deployment.ports[1] = deployment.ports[0]
        return deployment

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        listen = f"mqtt://127.0.0.1:{deployment.ports[index]}"
        Worker("bench", index, 2, 2, deployment.folder, KEY, (listen,)).write()  # a worker reads it when it starts
        options = ["--name", "bench", "--listen", listen, "--workers", "2", "--worker", str(deployment.folder / str(index))]
        options += [f"--{name}={value}" for name, value in _data(deployment).items()]
        deployment.start(f"worker{index}", [sys.executable, "-m", "mqmesh.cli.main", "broker", *options], says_ready)


class Shared(Mqmesh):
    """`mqmesh broker --workers 2`."""

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        options = ["--listen", f"mqtt://127.0.0.1:{deployment.ports[index]}", "--workers", "2"]
        options += [f"--{name}={value}" for name, value in _data(deployment).items()]
        deployment.start("workers", [sys.executable, "-m", "mqmesh.cli.main", "broker", *options], says_ready)


def _data(deployment: Deployment) -> dict[str, str]:
    return {"data": str(deployment.folder / "data")} if deployment.durable else {}


WAYS: dict[str, Mqmesh] = {"one process": Mqmesh(), "within": Placed(False), "across": Placed(True), "shared": Shared()}


def connections(peer: Mqmesh, folder: Path) -> Iterator[tuple[str, float, float]]:
    """(what, seconds, processor time of the broker) of clients that connect for the first time, and of the same that come back."""
    deployment = peer.deploy(folder, 1, 0)
    try:
        processes = [psutil.Process(pid) for pid in deployment.pids]
        for what in ("connect", "come back"):
            cpu, begun = broker_cpu(processes), time.perf_counter()
            asyncio.run(_connected(deployment.entry))
            yield what, time.perf_counter() - begun, broker_cpu(processes) - cpu
    finally:
        deployment.stop()


async def _connected(where: tuple[str, int]) -> None:
    """Have all clients connect, with sessions that are kept, and leave."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> asyncio.StreamWriter:
        async with slots:
            reader, writer = await asyncio.open_connection(*where)
            writer.write(wire.connect(f"client-{number}", 4, True))
            assert (await reader.readexactly(4))[3] == 0
            return writer

    for writer in await asyncio.gather(*(one(number) for number in range(CONNECTIONS))):
        writer.close()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [one.name for one in SCENARIOS] + ["connections"]
    parser.add_argument("--only", default=",".join(names), help="names of rows, with commas")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    wanted = set(given.only.split(","))
    with tempfile.TemporaryDirectory(prefix="mqmesh-workers-") as folder:
        for scenario in SCENARIOS:
            if scenario.name in wanted:
                _row(scenario, Settings(given.seconds, 0.3, given.repeat), Path(folder))
        if "connections" in wanted:
            _connections(given.repeat, Path(folder))


def _row(scenario: Scenario, settings: Settings, folder: Path) -> None:
    print(scenario.title)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for turn in range(settings.repeat):
        for number, (way, peer) in enumerate(WAYS.items()):
            found[way].append(measure(scenario, peer, settings, folder / f"{scenario.name}{number}-{turn}"))
    base = 0.0
    for way, results in found.items():
        error = next((one["error"] for one in results if one["error"]), "")
        if error:
            print(f"  {way:12} {error}", flush=True)
            continue
        cpu = statistics.median(1e6 * one["broker_cpu"] / one["deliveries"] for one in results)
        base = base or cpu
        faults = sum(one[key] for one in results for key in ("lost", "duplicates", "disorder", "corrupt"))
        figure = f"{statistics.median(one['rate'] for one in results):12,.0f}/s"
        if scenario.latency:
            figure = f"{1e6 * statistics.median(one['p50'] for one in results):9.0f} us p50"
        print(f"  {way:12} {figure}  {cpu:8.2f} us of processor time, {cpu / base:4.2f} x; faults {faults}", flush=True)


def _connections(repeat: int, folder: Path) -> None:
    print(f"{CONNECTIONS:,} connections with sessions, {AT_ONCE} at once")
    base: dict[str, float] = {}
    for way in ("one process", "shared"):
        found = [list(connections(WAYS[way], folder / f"connections-{way}-{turn}")) for turn in range(repeat)]
        for row in zip(*found, strict=True):
            what = row[0][0]
            seconds, cpu = (statistics.median(one[part] for one in row) for part in (1, 2))
            base.setdefault(what, cpu)
            print(f"  {way:12} {what:9} {CONNECTIONS / seconds:8,.0f}/s  {1e6 * cpu / CONNECTIONS:6.0f} us, {cpu / base[what]:4.2f} x")


if __name__ == "__main__":
    main()
