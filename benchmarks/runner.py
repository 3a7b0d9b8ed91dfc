"""Runs scenarios: brokers in turn (A B C, A B C, ..), so that a ratio compares what ran side by side."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import PEERS, ROOT, Deployment, Peer, PeerError
from benchmarks.scenarios import Scenario
from benchmarks.spec import Result, Spec

TIMEOUT = 300.0  # seconds that one measurement may take before its process is ended


@dataclass(slots=True)
class Cell:
    """The measurements of one broker in one scenario. Results are the fields of `spec.Result`."""

    scenario: Scenario
    peer: str
    results: list[dict[str, Any]] = field(default_factory=list)

    def good(self) -> list[dict[str, Any]]:
        """The measurements that ended without an error."""
        return [result for result in self.results if not result["error"]]

    def median(self, key: str) -> float | None:
        """The median of a field, None when nothing was measured."""
        values = [float(result[key]) for result in self.good()]
        return statistics.median(values) if values else None

    @property
    def value(self) -> float | None:
        """What the row compares: deliveries per second, the median latency in seconds, or what of it is added to a single broker's."""
        if self.scenario.latency and self.scenario.gateway:
            return self.median("added")
        return self.median("p50" if self.scenario.latency else "rate")

    def per_message(self, key: str) -> float | None:
        """CPU seconds for each delivery: key is broker_cpu or generator_cpu."""
        values = [result[key] / result["deliveries"] for result in self.good() if result["deliveries"]]
        return statistics.median(values) if values else None

    def total(self, key: str) -> int:
        """The sum of a counter over the measurements."""
        return sum(int(result[key]) for result in self.results)

    @property
    def faults(self) -> int:
        """Messages lost, delivered twice, out of order or altered."""
        return sum(self.total(key) for key in ("lost", "duplicates", "disorder", "corrupt"))

    @property
    def errors(self) -> list[str]:
        """What went wrong, once each."""
        return list(dict.fromkeys(result["error"] for result in self.results if result["error"]))


@dataclass(slots=True)
class Settings:
    """How long and how often. seconds: of the measured part. warm_up: before it. scale: of what is counted and not timed."""

    seconds: float = 2.0
    warm_up: float = 0.5
    repeat: int = 3
    scale: float = 1.0


def measure(scenario: Scenario, peer: Peer, settings: Settings, folder: Path) -> dict[str, Any]:
    """Start the broker or the chain, load it from a process of its own, stop it; the fields of a Result."""
    try:
        fields = dict(scenario.spec)
        if scenario.gateway:
            deployment = peer.deploy_gateway(folder, scenario.gateway, fields.get("qos", 0), scenario.apart)
        else:
            deployment = peer.deploy(
                folder, scenario.brokers, fields.get("qos", 0), fields.get("tls", False), scenario.durable, fields.get("web", False)
            )
    except PeerError as error:
        return failed(str(error))
    if "messages" in fields:
        fields["messages"] = max(1, round(fields["messages"] * settings.scale))
    single: Deployment | None = None
    try:
        if scenario.gateway and scenario.latency:
            single = PEERS["mosquitto"].deploy(folder / "single", 1, fields.get("qos", 0))
        spec = Spec(
            deployment.entry,
            deployment.exit,
            seconds=settings.seconds,
            warm_up=settings.warm_up,
            pids=deployment.pids,
            patience=60.0,
            ca=str(deployment.tls / "ca.crt") if deployment.tls else "",
            gateway=scenario.gateway if deployment.remote else "",
            remote=deployment.remote or ("", 0),
            single=single.entry if single is not None else ("", 0),
            single_pids=single.pids if single is not None else [],
            **fields,
        )
        return generate(spec)
    except PeerError as error:
        return failed(str(error))
    finally:
        deployment.stop()
        if single is not None:
            single.stop()


def generate(spec: Spec) -> dict[str, Any]:
    """Run the load generator in its own process."""
    command = [sys.executable, "-m", "benchmarks.load_generator.generator"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asdict(spec)), capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return failed(f"the measurement took more than {TIMEOUT:.0f} s")
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        return failed(f"the load generator failed: {said[-1]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def failed(error: str) -> dict[str, Any]:
    """The Result of a measurement that could not be made."""
    return asdict(Result(error=error))


def run(scenarios: Sequence[Scenario], peers: Sequence[str], settings: Settings, progress: Callable[[str], None]) -> list[list[Cell]]:
    """All scenarios with all brokers that can do them; one list of cells for each scenario."""
    table = []
    both: dict[tuple[str, int], dict[str, Any]] = {}  # (peer, turn) -> the stored messages' way in and out, measured together
    with tempfile.TemporaryDirectory(prefix="mqmesh-bench-") as folder:
        for scenario in scenarios:
            cells = [Cell(scenario, name) for name in peers if scenario.fits(PEERS[name])]
            for turn in range(settings.repeat):
                for cell in cells:
                    progress(f"{scenario.name}: {cell.peer}")
                    place = Path(folder) / f"{scenario.name}-{cell.peer}-{turn}"
                    result = both.get((cell.peer, turn)) if scenario.spec.get("kind") == "stored" else None
                    if result is None:
                        result = measure(scenario, PEERS[cell.peer], settings, place)
                        shutil.rmtree(place, ignore_errors=True)
                    if scenario.spec.get("kind") == "stored":
                        both[cell.peer, turn] = result
                    cell.results.append((result["way_in"] or result) if scenario.way_in else result)
            table.append(cells)
    return table


def machine() -> dict[str, Any]:
    """Where the run took place."""
    model = next((line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor())
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
