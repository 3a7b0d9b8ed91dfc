"""A site is away for many messages, then it returns: `python -m benchmarks.trials.away --messages 10000000`.

Three brokers in a triangle, each with its data on the disk and all limits at their defaults. A publisher at `a` sends messages of 100
bytes at QoS 1 to a subscriber at `b`, and to a durable session at `c` whose client is away. `c` is killed, so that what it wants waits at
`a`. After so many messages it starts again, and the client comes for its messages.

Judged: no message is refused, lost, doubled or out of order, at `b` nor at `c`; and the resident memory of `a` and `b` does not grow with
what waits: at the end it is at most `GROWTH` above what it was after a tenth of the messages. Exit status 1 otherwise.
"""

from __future__ import annotations

import json
import select
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mqmesh.cli.tables import titled_table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.trials.load import HEADER, Stream
from benchmarks.trials.scene import Scene, mesh

if TYPE_CHECKING:
    from benchmarks.trials.scene import Round

LINKS = (("a", "b"), ("b", "c"), ("c", "a"))
SIZE = 100  # bytes of a payload
SETTLED = 0.1  # of the messages, after which memory is looked at first
GROWTH = 64 << 20  # bytes of resident memory
PATIENCE = 30.0  # seconds without a message at `c`
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Away:
    """What happened. memory: resident bytes of `a` and `b`, by the number of messages that waited. took: seconds to publish; to get all.

    sent: messages in all. stream: what the session at `c` got.
    """

    memory: list[tuple[int, int, int]] = field(default_factory=list)
    took: tuple[float, float] = (0.0, 0.0)
    gap: float = 0.0
    sent: int = 0
    stream: Stream = field(default_factory=Stream)
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
        stream = self.stream
        if stream.lost(self.sent) or stream.duplicates or stream.disorder:
            found.append(
                f"the session at c got {stream.received} of {self.sent} messages: {stream.lost(self.sent)} lost, {stream.duplicates} twice,"
                f" {stream.disorder} out of order"
            )
        if self.growth > GROWTH:
            found.append(f"memory grew by {self.growth >> 20} MiB, at most {GROWTH >> 20}")
        return found


class Sleeper(Connection):
    """The client of a durable session. stream: what it got."""

    def __init__(self, address: tuple[str, int], stream: Stream) -> None:
        super().__init__(address, "sleeper", 5, persistent=True)
        self.stream = stream
        self._answers: list[bytes] = []

    def read(self, data: memoryview) -> None:
        self.slow(data)
        self.push(b"".join(self._answers))
        self._answers = []

    def packet(self, first: int, body: bytes) -> None:
        message = wire.decode_publish(first, body, 5)
        self._answers.append(wire.acknowledgement(wire.PUBACK, message.pid))
        self.stream.take(HEADER.unpack_from(message.payload)[1], time.monotonic())

    def take_all(self, last: int, patience: float) -> None:
        """Take messages up to a sequence; give up when none has come for so many seconds."""
        with select.epoll() as epoll:
            self.register(epoll)
            while self.stream.next <= last:
                ready = epoll.poll(patience)
                if not ready:
                    return
                for _, events in ready:
                    if events & select.EPOLLOUT:
                        self.writable()
                    if events & ~select.EPOLLOUT:
                        self.readable()


def resident(pid: int | None) -> int:
    """Bytes of a process."""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def run(folder: Path, messages: int, rate: float, console: Console) -> Away:
    """The whole trial, with progress bars. Raises FleetError."""
    found = Away()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, Scene(mesh(LINKS), folder) as scene:
        scene.subscribe(["b"], qos=1)
        sleeper = Sleeper(scene.address("c"), found.stream)
        sleeper.subscribe(b"load/#", 1)
        sleeper.sock.close()
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
        sleeper = Sleeper(scene.address("c"), found.stream)
        assert sleeper.present, "c has lost the session"
        found.round = scene.check("c was away")
        found.sent = scene.load.sent
        sleeper.take_all(found.sent, PATIENCE)
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
        "sent": found.sent,
        "received": [found.round.count.received, found.stream.received],
        "refused": found.round.count.refused,
        "lost": [found.round.count.lost, found.stream.lost(found.sent)],
        "twice": [found.round.count.duplicates, found.stream.duplicates],
        "disorder": [found.round.count.disorder, found.stream.disorder],
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
        table = titled_table(f"{values['messages']:,} messages while c was away", "", "b", "c", left=("",))
        for name in ("received", "lost", "twice", "disorder"):
            table.add_row(name, *(f"{one:,}" for one in values[name]))
        console.print(table)
        console.print(
            f"{found.sent:,} sent, {values['refused']} refused; published in {found.took[0]:.0f} s; all had arrived {found.took[1]:.0f} s"
            f" after c's start; longest silence at b {found.gap:.2f} s; memory of a and b grew by {found.growth >> 20} MiB at most, to"
            f" {' and '.join(f'{one >> 20}' for one in values['resident'])} MiB",
            highlight=False,
            soft_wrap=True,
        )
        for line in problems:
            console.print(f"[red]{line}[/]", highlight=False)
    if problems:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
