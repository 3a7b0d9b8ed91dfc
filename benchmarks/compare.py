"""Whether a change made mqmesh slower: `python -m benchmarks.compare REV_OR_DIR`.

It runs the rows of `python -m benchmarks` with two checkouts in turn: `base`, a revision of this repository or a folder, and `here`, the
checkout that the command runs in. One pair is a measurement of each, side by side in time. The order changes from pair to pair, so that
a machine that becomes slower or faster favours nobody. Each pair gives a ratio, here to base. The mean of the ratios and its 95 %
interval come from Student's t-distribution over their logarithms.

Both checkouts run with the libraries of this environment. A revision is checked out into a temporary folder.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import report, runner
from benchmarks.__main__ import chosen
from benchmarks.peers import ROOT, Mqmesh
from benchmarks.scenarios import Scenario

ENOUGH = 0.97  # a row has not become slower when the interval of its ratio reaches this
# Student's t for 95 % of both sides, by degrees of freedom from 1 on; 1.96 beyond the table
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
SIDES = ("base", "here")
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Interval:
    """The mean of some ratios and its 95 % interval. low, high: None where there is one ratio only."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.low is None else f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def reaches(self, level: float) -> bool:
        """Whether the upper end is at that level or above; of one ratio, the ratio."""
        return (self.mean if self.high is None else self.high) >= level


def interval(ratios: list[float]) -> Interval | None:
    """Of ratios above 0; None where there is none."""
    if not ratios:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Interval(math.exp(mean), None, None)
    student = STUDENT[len(logs) - 2] if len(logs) - 2 < len(STUDENT) else 1.96
    half = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


class Checkout(Mqmesh):
    """The broker of a checkout. lookup: a folder in which `mqmesh` is a link to that checkout."""

    def __init__(self, name: str, folder: Path, lookup: Path) -> None:
        self.name = name
        lookup.mkdir()
        (lookup / "mqmesh").symlink_to(folder)
        self.python = lambda index: ["env", f"PYTHONPATH={lookup}", sys.executable]


@dataclass(slots=True)
class Comparison:
    """The pairs of one row. base, here: the fields of `spec.Result`, in the order of the pairs."""

    scenario: Scenario
    base: list[dict[str, Any]] = field(default_factory=list)
    here: list[dict[str, Any]] = field(default_factory=list)

    def ratios(self, key: str) -> list[float]:
        """Here to base of a figure, pair by pair; a pair without both figures is left out."""
        figures = [(self.figure(one, key), self.figure(other, key)) for one, other in zip(self.base, self.here, strict=True)]
        return [here / base for base, here in figures if base and here]

    def figure(self, result: dict[str, Any], key: str) -> float | None:
        """speed: deliveries a second, or of a latency one by its median in seconds. cpu: the brokers' seconds for a delivery."""
        if result["error"] or not result["deliveries"]:
            return None
        if key == "cpu":
            return float(result["broker_cpu"]) / int(result["deliveries"])
        if self.scenario.latency:
            seconds = float(result["added" if self.scenario.gateway else "p50"])
            return 1 / seconds if seconds > 0 else None
        return float(result["rate"])

    @property
    def speed(self) -> Interval | None:
        """Of the speed: above 1 where here is faster."""
        return interval(self.ratios("speed"))

    @property
    def cpu(self) -> Interval | None:
        """Of the brokers' processor time for a delivery: below 1 where here takes less."""
        return interval(self.ratios("cpu"))

    @property
    def slower(self) -> bool:
        """Whether the row has become slower, or could not be compared."""
        speed = self.speed
        return speed is None or not speed.reaches(ENOUGH)

    def cell(self, side: str) -> runner.Cell:
        """The measurements of a side as a cell of the ordinary table."""
        return runner.Cell(self.scenario, side, self.base if side == "base" else self.here)

    @property
    def trouble(self) -> str:
        """What went wrong: messages lost or repeated, errors."""
        found = []
        for side in SIDES:
            cell = self.cell(side)
            found += [f"{side}: {text}" for text in (report.trouble(cell), *cell.errors) if text]
        return "; ".join(found)

    def as_json(self) -> dict[str, Any]:
        """For later readers."""
        return {
            "name": self.scenario.name,
            "speed": asdict(self.speed) if self.speed else None,
            "cpu": asdict(self.cpu) if self.cpu else None,
            "slower": self.slower,
            "trouble": self.trouble,
            "speed_ratios": self.ratios("speed"),
            "cpu_ratios": self.ratios("cpu"),
            "base": self.base,
            "here": self.here,
        }


@contextmanager
def checkout(what: str, folder: Path) -> Iterator[Path]:
    """The folder of a checkout: `what` itself, or a worktree of that revision below `folder`, which is removed at the end."""
    place = Path(what).resolve()
    if place.is_dir():
        if not (place / "broker").is_dir():
            raise typer.BadParameter(f"{what} is no checkout of mqmesh: it has no folder `broker`")
        yield place
        return
    worktree = folder / "worktree"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(worktree), what], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["git says nothing"]
        raise typer.BadParameter(f"{what} is neither a folder nor a revision of {ROOT}: {said[-1]}")
    try:
        yield worktree
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(worktree)], check=False)


def compare(scenarios: list[Scenario], peers: list[Checkout], pairs: int, settings: runner.Settings, bar: Progress) -> list[Comparison]:
    """Measure all rows. peers: base and here."""
    found = []
    stored: dict[tuple[str, int], dict[str, Any]] = {}  # (side, pair) -> both ways of stored messages, measured together
    task = bar.add_task("", total=len(scenarios) * pairs * 2)
    with tempfile.TemporaryDirectory(prefix="mqmesh-compare-") as folder:
        for scenario in scenarios:
            row = Comparison(scenario)
            for pair in range(pairs):
                for peer in peers if pair % 2 == 0 else peers[::-1]:
                    bar.update(task, description=f"{scenario.name}: {peer.name}")
                    result = stored.get((peer.name, pair)) if scenario.spec.get("kind") == "stored" else None
                    if result is None:
                        place = Path(folder) / f"{scenario.name}-{peer.name}-{pair}"
                        result = runner.measure(scenario, peer, settings, place)
                        shutil.rmtree(place, ignore_errors=True)
                    if scenario.spec.get("kind") == "stored":
                        stored[peer.name, pair] = result
                    side = row.base if peer.name == "base" else row.here
                    side.append((result["way_in"] or result) if scenario.way_in else result)
                    bar.advance(task)
            found.append(row)
    return found


def table(rows: list[Comparison]) -> Table:
    """For people."""
    out = Table(title="Here to base: mean [95 % interval]", title_justify="left")
    for name in ("row", "base", "here", "speed", "CPU a delivery", ""):
        out.add_column(name, no_wrap=name in ("row", "speed", "CPU a delivery"))
    for row in rows:
        verdict = f"[red]below {ENOUGH:g}[/]" if row.slower else f"reaches {ENOUGH:g}"
        if row.trouble:
            verdict += f" [red]{escape(row.trouble)}[/]"
        figures = [report.figure(row.cell(side)) for side in SIDES]
        out.add_row(row.scenario.name, *figures, escape(str(row.speed or "–")), escape(str(row.cpu or "–")), verdict)
    return out


@app.command()
def main(
    base: Annotated[str, typer.Argument(metavar="REV_OR_DIR", help="A revision of this repository, or the folder of a checkout.")],
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of measurements of each row.")] = 9,
    only: Annotated[str, typer.Option(help="Rows whose names contain one of these parts, separated by commas.")] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the measured part.")] = 2.0,
    warm_up: Annotated[float, typer.Option(min=0.05, help="Seconds before it.")] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON on stdout, progress on stderr.")] = False,
) -> None:
    """Compare this checkout with another one, row by row.

    Exit status 1 if a row became slower, if messages were lost, repeated, disordered or altered, or if a row could not be measured.
    """
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 160
    ours = Mqmesh()
    scenarios = [scenario for scenario in chosen(only) if scenario.fits(ours)]
    settings = runner.Settings(seconds, warm_up, 1, min(1.0, seconds / 2.0))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="mqmesh-checkouts-") as name, checkout(base, Path(name)) as other:
        folder = Path(name)
        peers = [Checkout("base", other, folder / "base"), Checkout("here", ROOT, folder / "here")]
        with Progress(*columns, console=console, transient=True) as bar:
            rows = compare(scenarios, peers, pairs, settings, bar)
    if as_json:
        print(json.dumps({"base": base, "pairs": pairs, "machine": runner.machine(), "rows": [row.as_json() for row in rows]}))
    else:
        console.print(table(rows))
    if any(row.slower or row.trouble for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
