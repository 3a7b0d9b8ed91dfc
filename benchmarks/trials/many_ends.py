"""Very many clients are lost at one moment, and nobody waits for it: `python -m benchmarks.trials.many_ends --clients 5000`.

Two brokers, `a` - `b`, each with its data on the disk. At `a` there are clients with wills whose connections are reset at one moment, and
again so with wills that are delayed: these are due at one moment, and so are the ends of the sessions. Meanwhile a client at each site
publishes to itself (`pulse.py`).

Judged: no message of theirs took longer than `LONGEST` seconds, the link stayed, and a client at `b` gets each will once. Exit status 1
otherwise. Run it alone.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Will
from mqmesh.mqtt.properties import Property
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.trials.many_clients import TOGETHER, losses
from benchmarks.trials.pulses import Pulses, report, slow
from benchmarks.trials.scene import Scene, mesh

DELAY = 5  # seconds of a delayed will, and of its session
PATIENCE = 120.0  # seconds for all wills
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Found:
    """waited: by site, the longest time that a message took, in seconds. wills: messages that the client at `b` got. links: times that the
    link was lost. missing: wills that did not come.
    """

    waited: dict[str, float] = field(default_factory=dict)
    wills: int = 0
    links: int = 0
    missing: int = 0

    def problems(self, clients: int) -> list[str]:
        """What went wrong, one line each."""
        again = self.wills + self.missing - 2 * clients
        lost = [f"the link was lost {self.links} times"] * bool(self.links) + [f"{self.missing} wills did not come"] * bool(self.missing)
        return slow(self.waited) + lost + [f"{again} wills came again"] * bool(again)


async def connect(address: tuple[str, int], clients: int, delay: int, come: Callable[[], object]) -> list[asyncio.StreamWriter]:
    """Clients with wills. delay: of the will and of the end of the session, in seconds."""
    slots = asyncio.Semaphore(TOGETHER)

    async def one(number: int) -> asyncio.StreamWriter:
        async with slots:
            reader, writer = await asyncio.open_connection(*address)
            will = Will(f"will/{delay}/{number}", b"x", 1, False, {Property.WILL_DELAY_INTERVAL: delay})
            expiry: dict[int, object] = {Property.SESSION_EXPIRY_INTERVAL: delay}
            writer.write(encode(Connect(f"client-{number}", 5, True, 3600, will=will, properties=expiry), 5))
            head = await reader.readexactly(4)
            assert head[3] == 0, "a client was refused"
            come()
            return writer

    return await asyncio.gather(*(one(number) for number in range(clients)))


async def die(address: tuple[str, int], clients: int, delay: int, come: Callable[[], object], lost: Callable[[], object]) -> None:
    """Clients with wills whose connections break at one moment. lost: called then."""
    writers = await connect(address, clients, delay, come)
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)
    lost()


def collect(watcher: Connection, topics: set[bytes], wanted: int) -> int:
    """Take wills until so many different ones have come: how many came."""
    came, end = 0, time.monotonic() + PATIENCE
    while len(topics) < wanted and time.monotonic() < end:
        try:
            publication = wire.decode_publish(0x32, watcher.expect(wire.PUBLISH), 5)
        except TimeoutError:
            continue
        watcher.sock.sendall(wire.acknowledgement(wire.PUBACK, publication.pid))
        topics.add(publication.topic)
        came += 1
    return came


def run(folder: Path, clients: int, console: Console) -> Found:
    """The whole trial, with progress bars. Raises FleetError."""
    found = Found()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, Scene(mesh((("a", "b"),)), folder) as scene, Pulses(folder) as pulses:
        watcher = Connection(scene.address("b"), "watcher", 5)
        watcher.subscribe(b"will/#", 1)
        watcher.sock.settimeout(1.0)
        scene.settle()
        before, topics = losses(scene), set[bytes]()
        for site in ("a", "b"):
            pulses.begin(site, scene.address(site))
        pulses.wait()
        for turn, delay in enumerate((0, DELAY), 1):
            task = bar.add_task(f"clients come, wills after {delay} s", total=clients)
            lost = partial(bar.add_task, f"their wills come, after {delay} s", total=None)
            asyncio.run(die(scene.address("a"), clients, delay, partial(bar.advance, task), lost))
            found.wills += collect(watcher, topics, turn * clients)
        found.missing = 2 * clients - len(topics)
        found.waited = pulses.end()
        found.links = losses(scene) - before
    return found


@app.command()
def main(
    clients: Annotated[int, typer.Option(min=10, help="How many clients are lost.")] = 5_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Let many clients with wills be lost at one moment, and see that others do not wait."""
    console = Console(stderr=as_json)
    with tempfile.TemporaryDirectory(prefix="mqmesh-ends-") as folder:
        found = run(Path(folder), clients, console)
    figures: dict[str, object] = {"clients": clients, "wills": found.wills, "missing": found.missing, "links": found.links}
    line = f"{found.wills:,} wills came; link lost {found.links} times"
    report(console, f"{clients:,} clients are lost, twice", found.waited, line, found.problems(clients), figures if as_json else None)


if __name__ == "__main__":
    app()
