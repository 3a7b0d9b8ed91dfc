"""Lose links of a ring without a word and see how long traffic stands still: `python -m benchmarks.trials.blackhole`.

Each round lets a link carry nothing any more, in turn with a broker that stops (SIGSTOP). No connection is reset: the neighbours hear
nothing, and that is all that they have to go by (`mesh.silence`). There is another path each time. Nothing else happens meanwhile: the load
is light, so that what is measured is how soon the mesh knows and goes round.

Each message is accounted for, as in `benchmarks.trials.faults`, whose table it ends with.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import FleetError
from mqmesh.mesh.link.settings import LinkConfig
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load_generator.wire import WireError
from benchmarks.trials.faults import WANTED, as_dict, table
from benchmarks.trials.scene import Fault, Round, Scene

app = typer.Typer(add_completion=False)


def faults(scene: Scene, rng: random.Random) -> Iterator[Fault]:
    """Each link and each broker in turn, each time in another order."""
    while True:
        links, sites = scene.links[:], scene.sites[:]
        rng.shuffle(links)
        rng.shuffle(sites)
        for link, site in zip(links, sites, strict=True):
            yield scene.silence(link)
            yield scene.stop(site)


def run(folder: Path, rounds: int, rng: random.Random, rate: float, silence: float, console: Console) -> list[Round]:
    """All rounds on one mesh, with a progress bar; stops after the first that loses, doubles or disorders a message. Raises FleetError."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    topology = ring()
    topology.mesh = replace(topology.mesh, silence=silence)
    done: list[Round] = []
    with Progress(*columns, console=console, transient=True) as bar, Scene(topology, folder) as scene:
        task = bar.add_task("start", total=rounds)
        scene.subscribe(qos=1)
        scene.publish(rate)
        scene.start()
        for number, fault in enumerate(itertools.islice(faults(scene, rng), rounds), 1):
            bar.update(task, description=f"round {number}: {fault.what}")
            done.append(scene.round(fault, 2 * silence + rng.uniform(0, silence), 0.5))
            bar.advance(task)
            if not done[-1].ok:
                break
    return done


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many; 10 are each link and each broker once.")] = 40,
    seed: Annotated[int, typer.Option(help="The order and the moments follow from it.")] = 1,
    rate: Annotated[float, typer.Option(min=10, help="Messages a second, of all sites together.")] = 1000.0,
    silence: Annotated[float, typer.Option(min=0.1, help="Seconds, of the brokers' setting mesh.silence.")] = LinkConfig().silence,
    within: Annotated[float, typer.Option(min=0.1, help="Seconds in which traffic has to flow again.")] = WANTED,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of the table.")] = False,
) -> None:
    """Silence links and stop brokers of a ring of five, and say how long each site waited for traffic.

    Exit status 1 if that was too long, or anything was lost, doubled or out of order. Run nothing beside it, if gaps count.
    """
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 140
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-blackhole-"))
    try:
        done = run(folder, rounds, random.Random(seed), rate, silence, console)
    except (FleetError, WireError, OSError) as error:
        console.print(f"[red]{escape(str(error))}[/]; the brokers' logs are in {folder}", highlight=False)
        raise typer.Exit(1) from None
    worst = sorted(one.worst for one in done)
    late = sum(gap > within for gap in worst)
    middle, high = worst[len(worst) // 2], worst[math.ceil(len(worst) * 0.9) - 1]
    if as_json:
        settings = {"rounds": rounds, "seed": seed, "rate": rate, "silence": silence, "within": within}
        print(json.dumps(as_dict(done, settings) | {"median_gap": middle, "late": late}, indent=1))
    else:
        console.print(table(done, f"ring of five, QoS 1, {rate:,.0f} messages/s to each site, mesh.silence {silence:g} s, seed {seed}"))
        console.print(f"gap: {worst[0]:.2f} s at least, {middle:.2f} s in the middle, 90 % up to {high:.2f} s, {worst[-1]:.2f} s at most")
    for one in done:
        for problem in one.problems:
            console.print(f"[red]{escape(one.what)}[/]: {escape(problem)}", highlight=False)
    if late:
        console.print(f"[red]{late} of {len(done)} rounds took longer than {within:g} s[/]", highlight=False)
    if late or not all(one.ok for one in done):
        console.print(f"the brokers' logs are in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    app()
