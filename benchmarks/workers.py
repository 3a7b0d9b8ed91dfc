"""What the workers of one broker cost: the same load at one process, within a worker and across two workers.

`python -m benchmarks.workers` prints a table: deliveries a second or latency, microseconds of processor time for a message, and
the ratio of that to one process. Both ends of a link between workers count. The workers are linked as `mqmesh broker --workers 2` links
them; each has a port of its own too, so that the generator knows which worker a client is at.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import Deployment, Mqmesh, says_ready
from benchmarks.runner import Settings, measure
from benchmarks.scenarios import ACKNOWLEDGED, Scenario

SCENARIOS = (
    Scenario("qos0", "QoS 0, 1:1"),
    Scenario("qos0-topics", "QoS 0, 1:1, 1,000 topics in turn", {"topics": 1000}),
    Scenario("qos1", "QoS 1, 1:1", {"qos": 1, "window": ACKNOWLEDGED}),
    Scenario("fanout", "QoS 0, fan-out to 10", {"subscribers": 10}),
    Scenario("lone-qos0", "QoS 0, one at a time", {"kind": "latency"}),
    Scenario("lone-qos1", "QoS 1, one at a time", {"kind": "latency", "qos": 1}),
)


class Workers(Mqmesh):
    """Two workers; `across`: subscribers are at the other one."""

    def __init__(self, across: bool) -> None:
        super().__init__()
        self.across = across

    def deploy(self, folder: Path, brokers: int, qos: int, tls: bool = False, durable: bool = False, web: bool = False) -> Deployment:
        deployment = super().deploy(folder, 2, qos, tls, durable, web)
        if not self.across:
            deployment.ports[1] = deployment.ports[0]
        return deployment

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        socket = deployment.folder / f"{index}.sock"
        lines = [
            f'name = "bench.{index}"',
            f"number = {index}",
            f'listen = ["mqtt://127.0.0.1:{deployment.ports[index]}", {{ address = "unix://{socket}", serves = "links" }}]',
        ]
        if deployment.durable:
            lines.append(f'data = "data{index}"')
        lines += ["[mesh]", 'name = "workers"', 'key = "a key that both know"', 'clients = "roam"']
        if index == 0:
            lines += ["[[mesh.peer]]", f'address = "unix://{deployment.folder / "1.sock"}"', "number = 1"]
        file = deployment.folder / f"{index}.toml"
        file.write_text("\n".join(lines) + "\n")
        deployment.start(f"worker{index}", [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(file)], says_ready)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of rows, with commas")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    settings = Settings(given.seconds, 0.3, given.repeat)
    wanted = set(given.only.split(",")) if given.only else {one.name for one in SCENARIOS}
    ways = {"one process": Mqmesh(), "within": Workers(False), "across": Workers(True)}
    with tempfile.TemporaryDirectory(prefix="mqmesh-workers-") as folder:
        for scenario in SCENARIOS:
            if scenario.name in wanted:
                print(scenario.title)
                _row(scenario, ways, settings, Path(folder))


def _row(scenario: Scenario, ways: dict[str, Mqmesh], settings: Settings, folder: Path) -> None:
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for turn in range(settings.repeat):
        for number, (way, peer) in enumerate(ways.items()):
            found[way].append(measure(scenario, peer, settings, folder / f"{scenario.name}{number}-{turn}"))
    base = None
    for way, results in found.items():
        error = next((one["error"] for one in results if one["error"]), "")
        if error:
            print(f"  {way:12} {error}")
            continue
        cpu = statistics.median(1e6 * one["broker_cpu"] / one["deliveries"] for one in results)
        base = base or cpu
        faults = sum(one[key] for one in results for key in ("lost", "duplicates", "disorder", "corrupt"))
        figure = f"{statistics.median(one['rate'] for one in results):12,.0f}/s"
        if scenario.latency:
            figure = f"{1e6 * statistics.median(one['p50'] for one in results):9.0f} us p50"
        print(f"  {way:12} {figure}  {cpu:8.2f} us of processor time, {cpu / base:4.2f} x; faults {faults}", flush=True)


if __name__ == "__main__":
    main()
