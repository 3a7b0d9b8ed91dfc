"""A site comes back to very many clients that roam, and nobody waits for it: `python -m benchmarks.trials.many_clients --clients 20000`.

Two brokers, `a` - `b`, each with its data on the disk. `b` is killed, and clients with durable sessions connect at `a` and leave: `b`
cannot be asked for their sessions. Then `b` is started again, and is asked for all of them. Meanwhile a client at each site publishes to
itself (`pulse.py`).

Judged: no message of theirs took longer than `LONGEST` seconds, the link stayed, and a client of `a` that comes to `b` has its session.
Exit status 1 otherwise. Run it alone.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.trials.pulses import Pulses, report, slow
from benchmarks.trials.scene import Scene, mesh

TOGETHER = 200  # clients that connect at one time
QUIET = 2.0  # seconds, longer than between two issues of $SYS
PATIENCE = 600.0  # seconds until then
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Found:
    """waited: by site, the longest time that a message took, in seconds. asked: seconds from b's start until it was asked for all.

    links: times that the link was lost. moved: whether a client of `a` has its session at `b`.
    """

    waited: dict[str, float] = field(default_factory=dict)
    asked: float = 0.0
    links: int = 0
    moved: bool = False

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        lost = [f"the link was lost {self.links} times"] * bool(self.links)
        return slow(self.waited) + lost + ["a client that came to b has lost its session"] * (not self.moved)


async def connect(address: tuple[str, int], clients: int, progress: Progress) -> None:
    """Clients with durable sessions, which connect and leave."""
    slots, task = asyncio.Semaphore(TOGETHER), progress.add_task("clients connect", total=clients)

    async def one(number: int) -> None:
        async with slots:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(wire.connect(f"client-{number}", 4, True))
            assert (await reader.readexactly(4))[3] == 0, "a client was refused"
            writer.close()
            progress.advance(task)

    await asyncio.gather(*(one(number) for number in range(clients)))


def asked(scene: Scene) -> None:
    """Wait until `a` says that it has gone through all clients."""
    watcher = Connection(scene.address("a"), "watcher", 4)
    watcher.subscribe(b"$SYS/broker/roaming/asking", 0)
    end = time.monotonic() + PATIENCE
    watcher.sock.settimeout(QUIET)  # it says so each second while it changes, and at once how it was
    value = b""
    while value[-1:] != b"0":
        try:
            value = watcher.expect(wire.PUBLISH)
        except TimeoutError:
            if time.monotonic() > end:
                raise SystemExit("a does not come to an end") from None
    watcher.sock.close()


def losses(scene: Scene) -> int:
    """How often a's log says that b was lost."""
    return (scene.fleet.folder / "a.log").read_text().count("event=member-down number=2")


def run(folder: Path, clients: int, console: Console) -> Found:
    """The whole trial, with progress bars. Raises FleetError."""
    found = Found()
    topology = mesh((("a", "b"),))
    topology.mesh = replace(topology.mesh, clients="roam", roam_wait=0.2)
    topology.tables["limits"] = {"sys_interval": 1}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, Scene(topology, folder) as scene, Pulses(folder) as pulses:
        scene.fleet.kill("b")
        asyncio.run(connect(scene.address("a"), clients, bar))
        pulses.begin("a", scene.address("a"))
        pulses.wait()
        bar.add_task("b comes back", total=None)
        before = losses(scene)
        scene.fleet.restart("b")
        begun = time.monotonic()
        pulses.begin("b", scene.address("b"))
        scene.settle()
        time.sleep(QUIET)  # the value of the second before is gone
        asked(scene)
        found.asked = time.monotonic() - begun
        found.moved = Connection(scene.address("b"), f"client-{clients - 1}", 4, persistent=True).present
        found.waited = pulses.end()
        found.links = losses(scene) - before
    return found


@app.command()
def main(
    clients: Annotated[int, typer.Option(min=10, help="How many clients have sessions.")] = 20_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Let a site come back to many clients that roam, and see that others do not wait."""
    console = Console(stderr=as_json)
    with tempfile.TemporaryDirectory(prefix="mqmesh-clients-") as folder:
        found = run(Path(folder), clients, console)
    figures: dict[str, object] = {"clients": clients, "asked": found.asked, "links": found.links, "moved": found.moved}
    line = f"b was asked for all {found.asked:.1f} s after its start; link lost {found.links} times"
    title = f"a site comes back to {clients:,} clients"
    report(console, title, found.waited, line, found.problems(), figures if as_json else None)


if __name__ == "__main__":
    app()
