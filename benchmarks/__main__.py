"""The command line of the benchmarks: `python -m benchmarks`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import docs, report, runner
from benchmarks.peers import DEFAULT_PEERS, PEERS, ROOT, PeerError
from benchmarks.scenarios import SCENARIOS, Scenario

OUT = ROOT / "out" / "bench.json"
app = typer.Typer(add_completion=False)


def chosen(only: str) -> list[Scenario]:
    """The scenarios whose names contain one of the given parts."""
    parts = [part.strip() for part in only.split(",") if part.strip()]
    for part in parts:
        if not any(part in scenario.name for scenario in SCENARIOS):
            raise typer.BadParameter(f"no scenario contains '{part}'; there are {', '.join(s.name for s in SCENARIOS)}")
    return [s for s in SCENARIOS if not parts or any(part in s.name for part in parts)]


def installed(peers: str, console: Console) -> dict[str, str]:
    """Peer -> version of those that can run; the others are named and left out."""
    versions = {}
    for name in [peer.strip() for peer in peers.split(",") if peer.strip()]:
        if name not in PEERS:
            raise typer.BadParameter(f"no peer is called '{name}'; there are {', '.join(PEERS)}")
        try:
            versions[name] = PEERS[name].version()
        except PeerError as error:
            console.print(f"[yellow]left out[/] {name}: {error}")
    return versions


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Scenarios whose names contain one of these parts, separated by commas.")] = "",
    peers: Annotated[str, typer.Option(help=f"Brokers, separated by commas: {', '.join(PEERS)}.")] = ",".join(DEFAULT_PEERS),
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each broker in each scenario; the median counts.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the measured part.")] = 2.0,
    quick: Annotated[bool, typer.Option("--quick", help="One short measurement of each: to see that all works.")] = False,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Put the table and the plot into docs/ and benchmarks/last.json (whole runs only).")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the scenarios and stop.")] = False,
) -> None:
    """Compare mqmesh with other MQTT brokers, in turn, on this machine.

    Exit status 1 if mqmesh lost, repeated, disordered or altered a message or could not be measured; a missed ratio is shown.
    """
    console = Console()
    if not console.is_terminal:
        console.width = 140
    if listing:
        for scenario in SCENARIOS:
            console.print(f"{scenario.name:22} {scenario.title}", highlight=False)
        return
    settings = runner.Settings(0.5, 0.2, 1, 0.05) if quick else runner.Settings(seconds, 0.5, repeat)
    if write_docs and (only or quick or peers != ",".join(DEFAULT_PEERS)):
        raise typer.BadParameter("--write-docs documents a whole run: leave out --only, --peers and --quick")
    versions = installed(peers, console)
    if write_docs and (missing := set(DEFAULT_PEERS) - set(versions)):
        raise typer.BadParameter(f"--write-docs documents a whole run, and {', '.join(sorted(missing))} cannot run here")
    scenarios = chosen(only)
    table = report.rows(measured(scenarios, list(versions), settings, console))
    for name, version in versions.items():
        console.print(f"[bold]{name}[/]: {version}", highlight=False)
    console.print(report.terminal(table, list(versions)))
    console.print(report.cpu(table, list(versions)))
    for peer, error, names in report.errors(table):
        console.print(f"[red]{peer}[/]: {escape(error)} [dim]({', '.join(names)})[/]", highlight=False)
    data = report.as_json(table, runner.machine(), versions, settings)
    report.write_json(OUT, data)
    console.print(f"written: {OUT.relative_to(ROOT)}")
    if write_docs:
        for path in docs.write(table, data):
            console.print(f"written: {path.relative_to(ROOT)}")
    if any(row.faults() or (report.OURS in row.cells and row.cells[report.OURS].errors) for row in table):
        raise typer.Exit(1)


def measured(scenarios: list[Scenario], peers: list[str], settings: runner.Settings, console: Console) -> list[list[runner.Cell]]:
    """Run with a progress bar."""
    total = sum(scenario.fits(PEERS[peer]) for scenario in scenarios for peer in peers) * settings.repeat
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)

        def progress(text: str) -> None:
            bar.update(task, description=text, advance=1)

        return runner.run(scenarios, peers, settings, progress)


if __name__ == "__main__":
    app()
