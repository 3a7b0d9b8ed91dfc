"""Where the broker spends its time: `python -m benchmarks.profile SCENARIO`.

py-spy samples the broker from outside where it is installed (out/profile-N.svg, a flame graph); else cProfile counts
inside (out/profile-N.pstats), which makes small functions look dearer than they are.
"""

from __future__ import annotations

import pstats
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import report, runner
from benchmarks.peers import ROOT, Mqmesh
from benchmarks.scenarios import SCENARIOS

OUT = ROOT / "out"
app = typer.Typer(add_completion=False)


def sampled(index: int) -> list[str]:
    """The interpreter under py-spy."""
    return ["py-spy", "record", "--rate", "500", "--output", str(OUT / f"profile-{index}.svg"), "--", sys.executable]


def counted(index: int) -> list[str]:
    """The interpreter under cProfile."""
    return [sys.executable, "-m", "cProfile", "-o", str(OUT / f"profile-{index}.pstats")]


@app.command()
def main(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario of `python -m benchmarks --list`.")] = "qos0-1to1",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the measured part.")] = 3.0,
    lines: Annotated[int, typer.Option(min=1, help="Functions to list.")] = 25,
    cprofile: Annotated[bool, typer.Option("--cprofile", help="Use cProfile even where py-spy is installed.")] = False,
) -> None:
    """Run one scenario against mqmesh under a profiler."""
    console = Console()
    scenario = next((s for s in SCENARIOS if s.name == name), None)
    if scenario is None:
        raise typer.BadParameter(f"no scenario is called '{name}'; there are {', '.join(s.name for s in SCENARIOS)}")
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("profile-*"):
        old.unlink()
    peer = Mqmesh()
    peer.python = counted if cprofile or not shutil.which("py-spy") else sampled
    with tempfile.TemporaryDirectory() as folder:
        result = runner.measure(scenario, peer, runner.Settings(seconds, 0.5, 1), Path(folder) / "broker")
    cell = runner.Cell(scenario, peer.name, [result])
    console.print(f"{scenario.name}: {report.figure(cell)} {report.trouble(cell)} {result['error']} (under the profiler)", highlight=False)
    for path in sorted(OUT.glob("profile-*")):
        console.print(f"written: {path.relative_to(ROOT)}")
        if path.suffix == ".pstats":
            pstats.Stats(str(path)).strip_dirs().sort_stats("tottime").print_stats(lines)
    if result["error"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
