"""A site is away for many messages, then it returns: `python -m benchmarks.trials.away --messages 10000000`.

Three brokers in a triangle, each with its data on the disk and all limits at their defaults. A publisher at `a` sends messages of 100
bytes at QoS 1 to subscribers at `b` and `c`. `c` is killed, so that what it wants waits at `a`. After so many messages it starts again
and gets them.

Judged: no message is refused, lost, doubled or out of order, at `b` nor at `c`; and the resident memory of `a` and `b` does not grow with
what waits: at the end it is at most `GROWTH` above what it was after a tenth of the messages. Exit status 1 otherwise.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.trials.scene import Scene, mesh

if TYPE_CHECKING:
    from benchmarks.trials.scene import Round

LINKS = (("a", "b"), ("b", "c"), ("c", "a"))
SIZE = 100  # bytes of a payload
SETTLED = 0.1  # of the messages, after which memory is looked at first
GROWTH = 64 << 20  # bytes of resident memory
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Away:
    """What happened. memory: resident bytes of `a` and `b`, by the number of messages that waited. took: seconds to publish; to get all."""

    memory: list[tuple[int, int, int]] = field(default_factory=list)
    took: tuple[float, float] = (0.0, 0.0)
    gap: float = 0.0
    round: Round | None = None

    def look(self, waiting: int, scene: Scene) -> None:
        """Note memory. waiting: messages that wait for `c`."""
        members = scene.fleet.members
        self.memory.append((waiting, resident(members["a"].pid), resident(members["b"].pid)))

    @property
    def growth(self) -> int:
        """Bytes that `a` or `b` has grown by since a tenth of the messages waited."""
        last = self.memory[-1][0]
        begin = next(one for one in self.memory if one[0] >= SETTLED * last)
        return max(one[at] - begin[at] for one in self.memory if one[0] >= begin[0] for at in (1, 2))

    def problems(self) -> list[str]:
        """What is wrong, one line each."""
        assert self.round is not None
        found = [] if self.round.ok else [str(self.round)]
        if self.growth > GROWTH:
            found.append(f"memory grew by {self.growth >> 20} MiB, at most {GROWTH >> 20}")
        return found


def resident(pid: int | None) -> int:
    """Bytes of a process."""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def run(folder: Path, messages: int, rate: float, console: Console) -> Away:
    """The whole trial, with progress bars. Raises FleetError."""
    found = Away()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, Scene(mesh(LINKS), folder) as scene:
        scene.subscribe(["b", "c"], qos=1)
        scene.publish(rate, sites=["a"], sizes=(SIZE,))
        scene.start()
        fault = scene.kill("c")
        fault.begin()
        scene.load.meter()
        sent, begun = scene.load.sent, time.monotonic()
        task = bar.add_task("c is away", total=messages)
        while (waiting := scene.load.sent - sent) < messages:
            time.sleep(1)
            found.look(waiting, scene)
            bar.update(task, completed=waiting)
        found.gap = scene.load.gaps(lambda _, site: site == "c").get("b", 0.0)
        away = time.monotonic()
        bar.update(bar.add_task("c gets them", total=None))
        fault.end()
        found.round = scene.check("c was away", patience=messages / 1000 + 60)
        found.look(waiting, scene)
        found.took = away - begun, time.monotonic() - away
    return found


@app.command()
def main(
    messages: Annotated[int, typer.Option(min=1000, help="How many are published while the site is away.")] = 1_000_000,
    rate: Annotated[float, typer.Option(min=100, help="Messages a second, at most.")] = 100_000.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Let a site be away for many messages, and see that all of them arrive and nobody else suffers."""
    console = Console(stderr=as_json)
    with tempfile.TemporaryDirectory(prefix="mqmesh-away-") as folder:
        found = run(Path(folder), messages, rate, console)
    assert found.round is not None
    problems = found.problems()
    values: dict[str, Any] = {
        "messages": found.memory[-1][0],
        "received": found.round.count.received,
        "refused": found.round.count.refused,
        "lost": found.round.count.lost,
        "twice": found.round.count.duplicates,
        "again": found.round.count.again,
        "disorder": found.round.count.disorder,
        "gap": found.gap,
        "growth": found.growth,
        "resident": found.memory[-1][1:],
        "published_in": found.took[0],
        "received_in": found.took[1],
        "problems": problems,
    }
    if as_json:
        print(json.dumps(values))
    else:
        console.print(
            f"{values['messages']:,} messages while c was away, published in {found.took[0]:.0f} s; all had arrived {found.took[1]:.0f} s"
            f" after its start: {values['received']:,} received, {values['refused']} refused, {values['lost']} lost,"
            f" {values['twice']} twice, {values['again']} again, {values['disorder']} out of order; longest silence at b"
            f" {found.gap:.2f} s; memory grew by {found.growth >> 20} MiB to {', '.join(f'{one >> 20}' for one in values['resident'])} MiB",
            highlight=False,
            soft_wrap=True,
        )
        for line in problems:
            console.print(f"[red]{line}[/]", highlight=False)
    if problems:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
