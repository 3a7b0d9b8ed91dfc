"""What surveillance costs a broker at rest: `python -m benchmarks.recipients.idle`.

Many sessions that declare intervals and an alternative, each with a subscription of its own. One in a hundred is connected, hangs with
messages in its hands, and is in FAULT when the measurement begins; the others are away and have nothing to get. Then nobody says
anything, and the broker's processor time is read. The same with sessions that declare nothing shows what of it is surveillance.
"""

from __future__ import annotations

import json
import resource
import socket
import struct
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.load_generator import wire
from benchmarks.peers import Deployment, free_port, says_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

BAR = 1.0  # per cent of a core
SETTLE = 8.0  # seconds for what connecting has left to be done, and for the fault interval, 3 s
OFFERS = {"mqmesh-alternatives": "spare", "mqmesh-message-interval": "1", "mqmesh-fault-interval": "3", "mqmesh-defunct-interval": "30d"}
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Figure:
    """What one run has shown. share: of a core, in per cent."""

    watched: bool
    sessions: int
    in_fault: int
    seconds: float
    share: float


@contextmanager
def broker(folder: Path) -> Iterator[Deployment]:
    """A broker that keeps nothing on a disk, and has the table of recipients."""
    deployment = Deployment(folder, ports=[free_port()])
    config = folder / "broker.toml"
    config.write_text(
        f'listen = ["mqtt://127.0.0.1:{deployment.ports[0]}"]\n[recipients]\n[[recipients.application]]\nname = "spare"\n'
        "[limits]\nstored_sessions = 1000000\n"
    )
    deployment.start("mqmesh", [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(config)], says_ready)
    try:
        yield deployment
    finally:
        deployment.stop()


def connected(address: tuple[str, int], name: str, watched: bool) -> socket.socket:
    """A client of a session that outlives it, and that has subscribed. WireError if it is not let in."""
    sock = socket.create_connection(address, 30)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its port is free at once
    pairs = OFFERS.items() if watched else ()
    properties = b"\x11\xff\xff\xff\xff" + b"".join([b"\x26" + wire.text(key.encode()) + wire.text(value.encode()) for key, value in pairs])
    body = wire.text(b"MQTT") + b"\x05\0\0\0" + wire.encode_length(len(properties)) + properties + wire.text(name.encode())
    sock.sendall(wire.packet(0x10, body) + wire.subscribe(1, f"to/{name}".encode(), 1, 5))
    kept = b""
    while (first := wire.next_packet(kept, 0)) is None or wire.next_packet(kept, first.end) is None:
        data = sock.recv(4096)
        if not data:
            raise wire.WireError(f"the broker closes the connection of {name}: {kept.hex()}")
        kept += data
    wire.check_connack(first.body, 5)
    return sock


def measure(sessions: int, seconds: float, watched: bool, progress: Progress) -> Figure:
    """Make the sessions, let one in a hundred hang, and read the processor time."""
    hanging = []
    step = progress.add_task("watched" if watched else "not watched", total=sessions)
    with tempfile.TemporaryDirectory(prefix="mqmesh-idle-") as folder, broker(Path(folder)) as deployment:
        for number in range(sessions):
            client = connected(deployment.entry, f"session-{number}", watched)
            if number % 100:
                client.close()
            else:
                hanging.append(client)
            progress.advance(step)
        publisher = connected(deployment.entry, "publisher", False)
        for number in range(0, sessions, 100):
            for message in range(3):
                publisher.sendall(wire.publish(f"to/session-{number}".encode(), b"x", 1, 5, message + 1, b""))
            _acknowledged(publisher, 3)
        time.sleep(SETTLE)
        process = psutil.Process(deployment.pids[0])
        before, begin = process.cpu_times(), time.monotonic()
        time.sleep(seconds)
        after, took = process.cpu_times(), time.monotonic() - begin
        for client in (*hanging, publisher):
            client.close()
    used = after.user + after.system - before.user - before.system
    return Figure(watched, sessions, len(hanging), took, used / took * 100)


def _acknowledged(publisher: socket.socket, count: int) -> None:
    kept = b""
    while count:
        kept += publisher.recv(4096)
        while found := wire.next_packet(kept, 0):
            kept = kept[found.end :]
            count -= found.first >> 4 == wire.PUBACK


@app.command()
def main(
    sessions: Annotated[int, typer.Option(min=100, help="How many sessions.")] = 100_000,
    seconds: Annotated[float, typer.Option(min=1, help="Length of the measurement.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure with and without surveillance; exit status 1 beyond the bar."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with Progress(console=Console(stderr=True)) as progress:
        figures = [measure(sessions, seconds, watched, progress) for watched in (False, True)]
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    for figure in [] if as_json else figures:
        what = f"watched, {figure.in_fault:,} of them in fault" if figure.watched else "not watched"
        print(f"{figure.sessions:,} sessions, {what}: {figure.share:.2f} % of a core over {figure.seconds:.0f} s (bar: {BAR:g} %)")
    if figures[-1].share > BAR:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
