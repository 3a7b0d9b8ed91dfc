"""Break a ring of five under load, round after round: `python -m benchmarks.trials.faults`.

Each round cuts a link or kills a broker with SIGKILL, both drawn by the seed, lets the rest run on, repairs it, and then waits
until everything has arrived. The killed broker relays for others and has clients of its own; these are counted as far as it can be
held to them (see `load.py`): a subscriber without a session on disk misses what passes while its broker is gone, and may get
again what it got at QoS 1 shortly before (a column of its own); what its broker acknowledged is lost with `--durability memory`
only. The other four sites are counted without any excuse.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from mqmesh.broker.config import DURABILITIES
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import FleetError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load_generator.wire import WireError
from benchmarks.trials.scene import Fault, Round, Scene

WANTED = 1.0  # seconds in which traffic shall flow again
app = typer.Typer(add_completion=False)


class Traffic(NamedTuple):
    """rate: messages a second of all sites together. size: of a payload, in bytes."""

    rate: float
    qos: int
    size: int
    durability: str


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many faults.")] = 10,
    seed: Annotated[int, typer.Option(help="What breaks follows from it.")] = 1,
    rate: Annotated[float, typer.Option(min=10, help="Messages a second, of all sites together.")] = 5000.0,
    qos: Annotated[int, typer.Option(min=1, max=2, help="Of publishers and subscribers.")] = 1,
    size: Annotated[int, typer.Option(min=18, help="Bytes of a payload.")] = 64,
    durability: Annotated[str, typer.Option(help="What acknowledgements wait for: fsync, os or memory.")] = "fsync",
    fault: Annotated[float, typer.Option(min=0.2, help="Seconds that a fault lasts.")] = 2.0,
    after: Annotated[float, typer.Option(min=0.2, help="Seconds of traffic that are looked at behind each repair.")] = 1.5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of the table.")] = False,
) -> None:
    """Cut links and kill brokers of a ring of five under load, and account for every message.

    Exit status 1 if anything was lost, doubled or out of order, or a broker or client ended by itself; a longer gap is shown.
    """
    if durability not in DURABILITIES:
        raise typer.BadParameter(f"'{durability}': there are {', '.join(DURABILITIES)}", param_hint="--durability")
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 140
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-faults-"))
    try:
        done = run(folder, rounds, random.Random(seed), Traffic(rate, qos, size, durability), (fault, after), console)
    except (FleetError, WireError, OSError) as error:
        console.print(f"[red]{escape(str(error))}[/]; the brokers' logs are in {folder}", highlight=False)
        raise typer.Exit(1) from None
    ok = all(one.ok for one in done)
    if as_json:
        settings = {"rounds": rounds, "seed": seed, "rate": rate, "qos": qos, "size": size, "durability": durability}
        print(json.dumps(as_dict(done, settings), indent=1))
    else:
        load = f"QoS {qos}, durability {durability}, {rate:,.0f} messages/s of {size} bytes to each of five sites"
        console.print(table(done, f"ring of five, {load}, seed {seed}"))
    for one in done:
        for problem in one.problems:
            console.print(f"[red]{escape(one.what)}[/]: {escape(problem)}", highlight=False)
    if not ok:
        console.print(f"the brokers' logs are in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder, ignore_errors=True)


def run(folder: Path, rounds: int, rng: random.Random, load: Traffic, seconds: tuple[float, float], console: Console) -> list[Round]:
    """All rounds on one mesh, with a progress bar; stops behind the first that fails. Raises FleetError."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done: list[Round] = []
    with Progress(*columns, console=console, transient=True) as bar, Scene(ring(), folder, load.durability) as scene:
        task = bar.add_task("start", total=rounds)
        scene.subscribe(qos=load.qos)
        scene.publish(load.rate, load.qos, sizes=(load.size,))
        scene.start()
        for number in range(rounds):
            text = f"round {number + 1}: "
            done.append(
                scene.round(draw(scene, rng), *seconds, step=lambda what, text=text: bar.update(task, description=text + what))  # type: ignore[misc]
            )
            bar.advance(task)
            if not done[-1].ok:
                break
    return done


def draw(scene: Scene, rng: random.Random) -> Fault:
    """The next fault: a link or a broker, as likely as not."""
    return scene.cut(rng.choice(scene.links)) if rng.random() < 0.5 else scene.kill(rng.choice(scene.sites))


def table(rounds: list[Round], title: str) -> Table:
    """One row for each round: how long each surviving site waited for traffic, what was lost."""
    sites = list(dict.fromkeys(site for one in rounds for site in one.mended | one.gaps))
    made = Table(
        title=title,
        title_justify="left",
        caption="gap: the longest time without a message from any one publisher that has a path, in seconds\n"
        "again: QoS 1 messages that a client of the killed broker got shortly before it died, and once more behind its restart",
        caption_justify="left",
    )
    made.add_column("round", justify="right")
    made.add_column("what", no_wrap=True)
    for site in sites:
        made.add_column(f"gap at\n{site}", justify="right")
    for heading in ("behind\nrepair", "published", "received", "again", "lost", "twice", "out of\norder"):
        made.add_column(heading, justify="right", no_wrap=True)
    for number, one in enumerate(rounds, 1):
        gaps = [_gap(one.gaps[site]) if site in one.gaps else "-" for site in sites]
        count = one.count
        wrong = [f"[red]{value:,}[/]" if value else "0" for value in (count.lost, count.duplicates, count.disorder)]
        counts = [f"{value:,}" for value in (one.messages, count.received, count.again)]
        made.add_row(str(number), one.what, *gaps, _gap(one.worst_mended), *counts, *wrong)
    made.add_section()
    totals = [sum(getattr(one.count, name) for one in rounds) for name in ("received", "again", "lost", "duplicates", "disorder")]
    worst = [_gap(max((one.gaps.get(site, 0.0) for one in rounds), default=0.0)) for site in sites]
    behind = _gap(max((one.worst_mended for one in rounds), default=0.0))
    made.add_row("", "worst and sum", *worst, behind, f"{sum(one.messages for one in rounds):,}", *(f"{total:,}" for total in totals))
    return made


def _gap(seconds: float) -> str:
    return f"[yellow]{seconds:.2f}[/]" if seconds > WANTED else f"{seconds:.2f}"


def as_dict(rounds: list[Round], settings: dict[str, Any]) -> dict[str, Any]:
    """Fit for JSON; times in seconds."""
    return {
        "settings": settings,
        "rounds": [asdict(one) | {"worst": one.worst, "worst_mended": one.worst_mended, "ok": one.ok} for one in rounds],
        "worst_gap": max((one.worst for one in rounds), default=0.0),
        "worst_gap_mended": max((one.worst_mended for one in rounds), default=0.0),
        "lost": sum(one.count.lost for one in rounds),
        "duplicates": sum(one.count.duplicates for one in rounds),
        "again": sum(one.count.again for one in rounds),
        "disorder": sum(one.count.disorder for one in rounds),
        "ok": all(one.ok for one in rounds),
    }


if __name__ == "__main__":
    app()
