"""Beside others: what becomes of messages when their recipient hangs, `python -m benchmarks.recipients`.

Each system is measured as it comes, and set so that it notices a hang within about three seconds. A row takes half a minute to four
minutes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers import PeerError
from benchmarks.recipients.measure import Plan, Result, Run
from benchmarks.recipients.systems import SYSTEMS, system

app = typer.Typer(add_completion=False)
HEADS = ("system", "set to", "first message after", "longest wait", "waited for its return", "lost", "repeated", "marked", "sender hears")


def cells(result: Result) -> list[str]:
    """A row of the table."""
    worst = "until it returned" if result.worst is None else f"{result.worst:.2f} s"
    heard = "nothing" if result.told_after is None else f"{result.told} of 100, {result.told_after:.1f} s"
    first = "never" if result.first is None else f"{result.first:.2f} s"
    counts = (result.stranded, result.lost, result.repeated, result.marked)
    return [result.system, result.settings, first, worst, *(f"{count:,}" for count in counts), heard]


def markdown(results: list[Result], plan: Plan) -> str:
    """The table for the documents."""
    lines = [
        f"{plan.rate:,.0f} messages a second, {plan.hang:g} s of them after SIGSTOP.",
        "",
        "| " + " | ".join(HEADS) + " |",
        "|" + "---|" * len(HEADS),
        *["| " + " | ".join(cells(result)) + " |" for result in results],
    ]
    return "\n".join(lines)


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Names of systems, with commas between them: " + ", ".join(SYSTEMS))] = "",
    settings: Annotated[str, typer.Option(help="as-it-comes, tuned or both.")] = "both",
    rate: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 1000.0,
    hang: Annotated[float, typer.Option(min=1, help="Seconds of load after the recipient hangs.")] = 10.0,
    patience: Annotated[float, typer.Option(min=1, help="Seconds until it comes back, if messages wait for that.")] = 180.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for the documents.")] = False,
) -> None:
    """Measure each system."""
    names = [name for name in only.split(",") if name] or list(SYSTEMS)
    if unknown := [name for name in names if name not in SYSTEMS]:
        raise typer.BadParameter(f"--only: there is no {unknown[0]!r}, but {', '.join(SYSTEMS)}")
    if settings not in ("as-it-comes", "tuned", "both"):
        raise typer.BadParameter(f"--settings: {settings!r} is not as-it-comes, tuned or both")
    wanted = [False, True] if settings == "both" else [settings == "tuned"]
    plan = Plan(rate, hang=hang, patience=patience)
    console = Console(stderr=True)
    results: list[Result] = []
    for name in names:
        for tuned in wanted:
            try:
                results.append(measured(name, tuned, plan, console))
            except PeerError as error:
                print(f"{name}: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps({"plan": plan.__dict__, "results": [result.data() for result in results]}, indent=1))
    elif as_markdown:
        print(markdown(results, plan))
    else:
        table = Table(*HEADS, title=f"a recipient hangs under {rate:,.0f} messages/s")
        for result in results:
            table.add_row(*cells(result))
        Console().print(table)


def measured(name: str, tuned: bool, plan: Plan, console: Console) -> Result:
    """One row."""
    one = system(name, tuned)
    version = one.version()
    with tempfile.TemporaryDirectory(prefix="mqmesh-recipients-") as folder, console.status(version) as status:
        run = Run(name, one, plan, Path(folder), lambda text: status.update(f"{version}, {one.settings}: {text}"))
        return asyncio.run(run.measure())


if __name__ == "__main__":
    app()
