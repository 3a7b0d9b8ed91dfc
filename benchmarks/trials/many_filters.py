"""A site with very many filters comes back, and nobody waits for it: `python -m benchmarks.trials.many_filters --filters 400000`.

Three brokers in a chain, `a` - `b` - `c`, each with its data on the disk. At `a` there are durable sessions with `PER_SESSION` topic
filters each, no two alike. `a` is killed and started again: `b` and `c` hear of all its filters at once. Meanwhile a client at `b` and one
at `c` publish to themselves, 200 times a second at most (`pulse.py`).

Judged: no message of theirs took longer than `LONGEST` seconds, the link between `b` and `c` stayed, and messages from `c` reach the
first, the last and a middle filter. Exit status 1 otherwise. Run it alone.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Subscribe, Subscription
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.trials.pulses import Pulses, report, slow
from benchmarks.trials.scene import Scene, mesh

LINKS = (("a", "b"), ("b", "c"))
PER_SESSION = 10_000
PACKET = 1_000  # filters of one SUBSCRIBE
PATIENCE = 600.0  # seconds until the filters are known at `c`
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Found:
    """waited: by site, the longest time that a message took, in seconds. known: seconds from a's start until `c` reaches its filters.

    links: times that the link between `b` and `c` was lost.
    """

    waited: dict[str, float] = field(default_factory=dict)
    known: float = 0.0
    links: int = 0

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        return slow(self.waited) + [f"the link between b and c was lost {self.links} times"] * bool(self.links)


def topic(number: int) -> str:
    return f"site/{number % 100}/device/{number}/command"


def subscribe(address: tuple[str, int], session: int, filters: range) -> None:
    """A durable session with these filters, whose client leaves."""
    client = Connection(address, f"session-{session}", 5, persistent=True)
    for begin in range(filters.start, filters.stop, PACKET):
        part = [Subscription(topic(number), 1) for number in range(begin, min(begin + PACKET, filters.stop))]
        client.sock.sendall(encode(Subscribe(1, part), 5))
        assert not any(code > 2 for code in client.expect(wire.SUBACK)[-len(part) :]), "a filter was refused"
    client.sock.close()


def reach(scene: Scene, number: int, session: int) -> None:
    """Publish at `c` until the session at `a` has a message for a filter."""
    sender = Connection(scene.address("c"), "sender", 5)
    receiver = Connection(scene.address("a"), f"session-{session}", 5, persistent=True)
    assert receiver.present, "a has lost the session"
    receiver.sock.settimeout(0.1)
    end = time.monotonic() + PATIENCE
    while True:
        sender.sock.sendall(wire.publish(topic(number).encode(), b"x", 1, 5, 1))
        sender.expect(wire.PUBACK)
        try:
            receiver.expect(wire.PUBLISH)
            break
        except TimeoutError:
            if time.monotonic() > end:
                raise SystemExit(f"c does not reach {topic(number)}") from None
    for client in (sender, receiver):
        client.sock.close()


def run(folder: Path, filters: int, console: Console) -> Found:
    """The whole trial, with progress bars. Raises FleetError."""
    found, sessions = Found(), -(-filters // PER_SESSION)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, Scene(mesh(LINKS), folder) as scene, ExitStack() as stack:
        task = bar.add_task("sessions subscribe", total=sessions)
        for session in range(sessions):
            subscribe(scene.address("a"), session, range(session * PER_SESSION, min(filters, (session + 1) * PER_SESSION)))
            bar.update(task, completed=session + 1)
        reach(scene, filters - 1, sessions - 1)
        scene.fleet.kill("a")
        before = losses(scene)
        pulses = stack.enter_context(Pulses(folder))
        for site in ("b", "c"):
            pulses.begin(site, scene.address(site))
        pulses.wait()
        bar.add_task("a comes back", total=None)
        scene.fleet.restart("a")
        begun = time.monotonic()
        for number in (0, filters // 2, filters - 1):
            reach(scene, number, number // PER_SESSION)
        found.known = time.monotonic() - begun
        found.waited = pulses.end()
        found.links = losses(scene) - before
    return found


def losses(scene: Scene) -> int:
    """How often b's log says that c was lost."""
    return (scene.fleet.folder / "b.log").read_text().count("event=member-down number=3")


@app.command()
def main(
    filters: Annotated[int, typer.Option(min=100, help="How many filters the site has.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Let a site with many filters come back, and see that others do not wait."""
    console = Console(stderr=as_json)
    with tempfile.TemporaryDirectory(prefix="mqmesh-filters-") as folder:
        found = run(Path(folder), filters, console)
    figures: dict[str, object] = {"filters": filters, "known": found.known, "links": found.links}
    line = f"c reached all {found.known:.1f} s after a's start; link b - c lost {found.links} times"
    title = f"{filters:,} filters come back"
    report(console, title, found.waited, line, found.problems(), figures if as_json else None)


if __name__ == "__main__":
    app()
