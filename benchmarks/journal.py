"""What the journal costs: `python -m benchmarks.journal`, rows of `python -m benchmarks` without a journal and with one, in turn.

One pair is a measurement of each, as in `benchmarks.compare`. With `--mode full` all topics have events; with `counted` they are counted
only.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import runner
from benchmarks.__main__ import chosen
from benchmarks.compare import Comparison, compare, table
from benchmarks.peers import Deployment, Mqmesh, says_ready

app = typer.Typer(add_completion=False)
SPEED = {"full": 0.85, "counted": 0.98}  # what the interval of the closed loop's ratio has to reach
CPU = {"full": 1.15, "counted": 1.02}  # what the interval of the processor time's ratio has to reach from above


class Side(Mqmesh):
    """Our broker with a journal, or without. mode: of all topics; "" for no journal."""

    def __init__(self, name: str, mode: str) -> None:
        super().__init__()
        self.name = name
        self.mode = mode

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        config = deployment.folder / f"broker{index}.toml"
        lines = [f'listen = ["mqtt://127.0.0.1:{deployment.ports[index]}"]', f'name = "bench{index + 1}"', f"number = {index + 1}"]
        if deployment.durable:
            lines.append(f'data = "data{index}"')
        if len(deployment.ports) > 1:
            lines += ["[mesh]", 'name = "bench"', 'key = "a key that all three know"']
            if index + 1 < len(deployment.ports):
                lines += ["[[mesh.peer]]", f'address = "mqtt://127.0.0.1:{deployment.ports[index + 1]}"']
        if self.mode:
            lines += ["[journal]", 'folder = "journal"', f'topics = [{{ filter = "#", mode = "{self.mode}" }}]']
        config.write_text("\n".join(lines) + "\n")
        command = [*self.python(index), "-m", "mqmesh.cli.main", "broker", "--config", str(config)]
        deployment.start(f"mqmesh{index}", command, says_ready)


def kept(row: Comparison, mode: str) -> bool:
    """Whether a row costs no more than it may."""
    speed, cpu = row.speed, row.cpu
    low = None if cpu is None else cpu.mean if cpu.low is None else cpu.low
    return speed is not None and speed.reaches(SPEED[mode]) and low is not None and low <= CPU[mode]


@app.command()
def main(
    mode: Annotated[str, typer.Option(help="full: events of all topics; counted: none.")] = "full",
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of measurements of each row.")] = 9,
    only: Annotated[str, typer.Option(help="Rows whose names contain one of these parts, separated by commas.")] = "qos1",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the measured part.")] = 2.0,
    warm_up: Annotated[float, typer.Option(min=0.05, help="Seconds before it.")] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON on stdout, progress on stderr.")] = False,
) -> None:
    """Compare a broker with a journal with one without, row by row. Exit status 1 if a row costs more than it may."""
    if mode not in SPEED:
        raise typer.BadParameter(f"--mode {mode}: give full or counted")
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 160
    sides = [Side("base", ""), Side("here", mode)]
    scenarios = [scenario for scenario in chosen(only) if scenario.fits(sides[0])]
    settings = runner.Settings(seconds, warm_up, 1, min(1.0, seconds / 2.0))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        rows = compare(scenarios, sides, pairs, settings, bar)  # type: ignore[arg-type]
    if as_json:
        found = [row.as_json() | {"kept": kept(row, mode)} for row in rows]
        print(json.dumps({"mode": mode, "pairs": pairs, "machine": runner.machine(), "rows": found}))
    else:
        console.print(table(rows))
        for row in rows:
            print(f"{row.scenario.name}: {'kept' if kept(row, mode) else 'costs more than it may'}")
    if not all(kept(row, mode) and not row.trouble for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    app()
