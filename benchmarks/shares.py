"""Which process is the limit of a measurement: `python -m benchmarks.shares mb-out-qos0`.

For each broker it prints messages a second, and how much of a processor each process had meanwhile. A process with nearly a whole one is
the limit; where all together have all processors, everybody's cost for a message counts.
"""

from __future__ import annotations

import os
import statistics
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import runner
from benchmarks.scenarios import SCENARIOS

app = typer.Typer(add_completion=False)


@app.command()
def main(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario of `python -m benchmarks --list`.")] = "mb-out-qos0",
    peers: Annotated[str, typer.Option(help="Brokers, separated by commas.")] = "mqmesh,mosquitto",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the measured part.")] = 3.0,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each; the medians count.")] = 5,
) -> None:
    """Measure one scenario with some brokers in turn, and show what each process took."""
    scenario = next((one for one in SCENARIOS if one.name == name), None)
    if scenario is None:
        raise typer.BadParameter(f"no scenario is called '{name}'; there are {', '.join(one.name for one in SCENARIOS)}")
    [cells] = runner.run([scenario], peers.split(","), runner.Settings(seconds, 0.5, repeat), lambda _: None)
    table = Table("broker", "process", "messages/s", "processor", "us a message", box=None)
    rates: dict[str, list[float]] = {}
    for cell in cells:
        good = [one for one in cell.results if one["deliveries"] and not one["error"]]
        if not good:
            table.add_row(cell.peer, "; ".join(cell.errors), "", "", "")
            continue
        rates[cell.peer] = [one["rate"] for one in good]
        parts = [("load generator", [one["generator_cpu"] for one in good])]
        parts += [(what, [one["processes"][at][1] for one in good]) for at, (what, _) in enumerate(good[0]["processes"])]
        for at, (what, taken) in enumerate(parts):
            share = statistics.median(cpu / one["seconds"] for cpu, one in zip(taken, good, strict=True))
            cost = statistics.median(cpu / one["deliveries"] for cpu, one in zip(taken, good, strict=True))
            rate = f"{statistics.median(rates[cell.peer]):,.0f}" if not at else ""
            table.add_row(cell.peer if not at else "", what, rate, f"{share:.0%}", f"{cost * 1e6:.2f}")
    console = Console(width=120)
    console.print(table)
    if len(rates) == 2:
        one, other = rates.values()
        ratios = sorted(mine / theirs for mine, theirs in zip(one, other, strict=False))
        console.print(f"{cells[0].peer} / {cells[1].peer}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; {os.cpu_count()} processors")


if __name__ == "__main__":
    app()
