"""Applications hang, one after the other, in a mesh of broker processes under load: `python -m benchmarks.trials.recipients`.

With `--kill`, brokers are killed with SIGKILL at random meanwhile: the recipients', the origin's, the alternatives'.

Exit status 1 if a confirmed message is lost or came twice without being marked.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from mqmesh.broker.recipients.settings import Intervals
from rich.console import Console
from rich.table import Table

from benchmarks.trials.recipients import hang, kill
from benchmarks.trials.recipients.scene import Scene

app = typer.Typer(add_completion=False)


@app.command()
def main(
    rate: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 1000.0,
    intervals: Annotated[str, typer.Option(help="Message, fault and defunct interval in seconds.")] = "1,3,10",
    killing: Annotated[bool, typer.Option("--kill", help="Kill brokers at random instead.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How many brokers are killed.")] = 10,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 1,
    folder: Annotated[Path | None, typer.Option(help="Where to keep configurations, data and logs; a temporary folder without.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let applications hang, and count."""
    numbers = [float(text) for text in intervals.split(",")]
    if len(numbers) != 3 or Intervals(*numbers).wrong():
        raise typer.BadParameter("--intervals: give three numbers that rise, as 1,3,10")
    console = Console(stderr=as_json)
    with (
        tempfile.TemporaryDirectory(prefix="mqmesh-trial-") as temporary,
        Scene(folder or Path(temporary), Intervals(*numbers), lambda text: console.print(text, highlight=False)) as scene,
    ):
        report: hang.Report | kill.Report = kill.run(scene, rounds, seed, rate) if killing else hang.run(scene, rate)
    if as_json:
        print(json.dumps({**report.data(), "timeline": scene.timeline}, indent=1))
    else:
        show(report, console)
    if not report.good:
        raise typer.Exit(1)


def show(report: hang.Report | kill.Report, console: Console) -> None:
    """The tables."""
    ended = ", ".join(f"{count:,} {who}" for who, count in report.ended.items())
    console.print(
        f"{report.confirmed:,} of {report.sent:,} messages confirmed, {report.refused} refused; they ended at: {ended}; "
        f"{report.lost} lost, {report.repeated} repeated without a mark, {report.marked} with one",
        highlight=False,
    )
    if isinstance(report, kill.Report):
        console.print(f"{report.rounds} rounds, killed: {report.killed}", highlight=False)
        return
    table = Table("who hangs", "noticed after", "beyond the interval", "later messages", "median", "99 %", "most")
    for one in report.hangs:
        figures = (one.moved_p50, one.moved_p99, one.moved_most)
        moved = [f"{figure:.1f} ms" for figure in figures]
        table.add_row(one.name, f"{one.noticed:.3f} s", f"{one.late * 1000:.0f} ms", f"{one.messages:,}", *moved)
    console.print(table)
    for name, seconds in report.woke.items():
        console.print(f"{name} was served {seconds:.3f} s after SIGCONT; {report.disordered} messages out of order", highlight=False)


if __name__ == "__main__":
    app()
