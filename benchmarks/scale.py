"""How a broker bears many: `python -m benchmarks.scale`, three figures, each with the same few lines for every broker.

- idle: resident memory of each of many connected clients that say nothing;
- subscriptions: the time of one message to one subscriber while nearly nobody else has subscriptions, and while others have a million
  (one in five with wildcards) that do not match; the memory of each subscription;
- unread: one subscriber never reads, publishers go flat out, first QoS 0, then QoS 1: the largest resident memory above the start, beside
  the configured bound (`limits.broker_bytes` of mqmesh; Mosquitto has none that counts all).

Exit status 1 if a figure of mqmesh is beyond its bar.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.peers import Deployment, Mosquitto, Mqmesh, Peer, PeerError, says_ready

PACKET = 1000  # filters of one SUBSCRIBE
SUBSCRIBERS = 100
MESSAGES = 3000  # timed ones; the first 500 do not count
TOPIC = b"scale/one/x"
BARS = {"idle": 4096.0, "subscriptions": 1.3, "unread": 1.0}
Step = Callable[[int], None]
app = typer.Typer(add_completion=False)


@dataclass
class Figure:
    """One measurement. value: what the bar is about: bytes a connection, ratio of medians, share of the bound (NaN: there is none)."""

    what: str
    peer: str
    value: float
    bar: float | None
    details: dict[str, float] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether it keeps to its bar, if it has one."""
        return self.bar is None or self.value <= self.bar


class Bounded(Mqmesh):
    """mqmesh with a bound on what it holds. megabytes: of `limits.broker_bytes`."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.megabytes = megabytes

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        config = deployment.folder / "broker.toml"
        config.write_text(
            f'listen = ["mqtt://127.0.0.1:{deployment.ports[index]}"]\n[limits]\nbroker_bytes = "{self.megabytes} MiB"\n'
            f'session_queue_bytes = "{self.megabytes} MiB"\nsession_queue_messages = 1000000\n'
        )
        deployment.start("mqmesh", [*self.python(0), "-m", "mqmesh.cli.main", "broker", "--config", str(config)], says_ready)


def resident(deployment: Deployment) -> int:
    """Bytes of a broker in memory."""
    return int(psutil.Process(deployment.pids[0]).memory_info().rss)


def settled(deployment: Deployment) -> int:
    """The same once it does not change any more."""
    before, now = -1, resident(deployment)
    while now != before:
        time.sleep(0.5)
        before, now = now, resident(deployment)
    return now


@contextlib.contextmanager
def running(peer: Peer) -> Iterator[Deployment]:
    """A broker alone."""
    with tempfile.TemporaryDirectory(prefix="mqmesh-scale-") as folder:
        deployment = peer.deploy(Path(folder) / peer.name, 1, 1)
        try:
            yield deployment
        finally:
            deployment.stop()


def idle(peer: Peer, clients: int, step: Step) -> Figure:
    """Resident memory of each idle client."""
    with running(peer) as deployment:
        kept = [Connection(deployment.entry, f"first-{number:03}", 4) for number in range(100)]  # what is made once is made
        before = settled(deployment)
        started = time.perf_counter()
        for number in range(clients):
            kept.append(Connection(deployment.entry, f"client-{number:06}", 4))
            step(1)
        took = time.perf_counter() - started
        each = (settled(deployment) - before) / clients
        for one in kept:
            one.close()
    return Figure("idle", peer.name, each, BARS["idle"], {"clients": clients, "bytes_each": each, "connects_a_second": clients / took})


def filters_of(client: int, count: int) -> Iterator[bytes]:
    """Filters that no measured topic matches, one in five with a wildcard."""
    for number in range(client * count, (client + 1) * count):
        match number % 10:
            case 0:
                yield f"plant/{number % 997}/line{number}/+/temp".encode()
            case 1:
                yield f"plant/+/machine{number}/#".encode()
            case _:
                yield f"plant/{number % 997}/line{number}/sensor{number % 13}/temp".encode()


def subscribe(connection: Connection, filters: list[bytes]) -> None:
    """One SUBSCRIBE, and its SUBACK. WireError when one is refused."""
    body = b"\0\1" + b"".join([wire.text(one) + b"\0" for one in filters])
    connection.sock.sendall(wire.packet(0x82, body))
    if connection.expect(wire.SUBACK)[2:] != bytes(len(filters)):
        raise wire.WireError("the broker refuses subscriptions")


def median(deployment: Deployment) -> float:
    """Microseconds from the send of one QoS 0 message to its arrival."""
    publisher, subscriber = (Connection(deployment.entry, name, 4) for name in ("publisher", "subscriber"))
    subscriber.subscribe(TOPIC, 0)
    frame = wire.publish(TOPIC, b"a reading", 0, 4)
    times = []
    for _ in range(MESSAGES):
        begin = time.perf_counter()
        publisher.sock.sendall(frame)
        got = 0
        while got < len(frame):
            got += len(subscriber.sock.recv(4096))
        times.append(time.perf_counter() - begin)
    publisher.close()
    subscriber.close()
    return statistics.median(times[500:]) * 1e6


def subscriptions(peer: Peer, count: int, step: Step) -> Figure:
    """How much longer a message takes beside many subscriptions."""
    with running(peer) as deployment:
        few = Connection(deployment.entry, "few", 4)
        subscribe(few, list(filters_of(0, 10)))
        with_few = min(median(deployment) for _ in range(3))
        before = settled(deployment)
        kept = []
        started = time.perf_counter()
        each = count // SUBSCRIBERS
        for client in range(1, SUBSCRIBERS + 1):
            connection = Connection(deployment.entry, f"many-{client}", 4)
            kept.append(connection)
            filters = list(filters_of(client, each))
            for first in range(0, each, PACKET):
                subscribe(connection, filters[first : first + PACKET])
            step(each)
        took = time.perf_counter() - started
        size = (settled(deployment) - before) / (each * SUBSCRIBERS)
        with_many = min(median(deployment) for _ in range(3))
        details = {"count": count, "us_with_10": with_few, "us_with_all": with_many}
        details |= {"bytes_each": size, "subscribes_a_second": count / took}
    return Figure("subscriptions", peer.name, with_many / with_few, BARS["subscriptions"], details)


def unread(peer: Peer, seconds: float, megabytes: int | None, step: Step) -> Figure:
    """The largest memory above the start while one subscriber never reads."""
    with running(peer) as deployment:
        deaf = Connection(deployment.entry, "deaf", 4)
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # type: ignore[union-attr]
        subscribe(deaf, [b"scale/#"])
        before, largest, sent = settled(deployment), 0, 0
        for qos in (0, 1):
            publishers = [Flood(deployment.entry, number, qos) for number in range(4)]
            end = time.monotonic() + seconds / 2
            while (now := time.monotonic()) < end:
                turn = min(end, now + 0.1)
                while time.monotonic() < turn:
                    for publisher in publishers:
                        publisher.go()
                largest = max(largest, resident(deployment) - before)
                step(1)
            sent += sum(publisher.bytes for publisher in publishers)
            for publisher in publishers:
                publisher.close()
        value = largest / (megabytes << 20) if megabytes else float("nan")
    details = {"seconds": seconds, "megabytes_sent": sent / 2**20, "megabytes_more": largest / 2**20, "bound_megabytes": megabytes or 0}
    return Figure("unread", peer.name, value, BARS["unread"] if megabytes else None, details)


class Flood(Connection):
    """A publisher that sends whatever its socket takes, and throws acknowledgements away."""

    def __init__(self, address: tuple[str, int], number: int, qos: int) -> None:
        super().__init__(address, f"flood-{qos}-{number}", 4)
        self.sock.setblocking(False)
        one = [wire.publish(b"scale/%d/x" % number, bytes(1000), qos, 4, pid=pid) for pid in range(1, 61)]
        self.block = b"".join(one)
        self.left = bytearray()
        self.bytes = 0

    def go(self) -> None:
        """As much as the socket takes now."""
        readable, writable, _ = select.select([self.fd], [self.fd], [], 0.001)
        if readable and not self.sock.recv(1 << 16):
            raise wire.WireError("the broker hung up on a publisher")
        if writable:
            self.left = self.left or bytearray(self.block)
            sent = self.try_send(self.left)
            self.bytes += sent
            del self.left[:sent]


@app.command()
def main(
    clients: Annotated[int, typer.Option(help="Idle clients.", min=1)] = 10_000,
    count: Annotated[int, typer.Option("--subscriptions", help="Subscriptions.", min=SUBSCRIBERS * 10)] = 1_000_000,
    seconds: Annotated[float, typer.Option(help="How long publishers go on while nobody reads.", min=1)] = 60.0,
    megabytes: Annotated[int, typer.Option(help="mqmesh's limits.broker_bytes in the last measurement, MiB.", min=16)] = 64,
    peers: Annotated[str, typer.Option(help="Which brokers, of mqmesh and mosquitto.")] = "mqmesh,mosquitto",
    only: Annotated[str, typer.Option(help="Which measurements.")] = "idle,subscriptions,unread",
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON on stdout, progress on stderr.")] = False,
) -> None:
    """Measure how brokers bear many idle clients, many subscriptions, and a subscriber that never reads."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < clients + 200:
        raise typer.BadParameter(f"{clients} clients need as many open files; ulimit -Hn gives {hard}")
    console = Console(stderr=as_json)
    figures = []
    try:
        for what in only.split(","):
            for name in peers.split(","):
                figures.append(measure(what, name, clients, count, seconds, megabytes, console))
    except (PeerError, wire.WireError) as error:
        console.print(f"scale: {error}")
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps([{**asdict(one), "good": one.good} for one in figures]))
    else:
        console.print(table(figures))
    if not all(one.good for one in figures if one.peer == "mqmesh"):
        raise typer.Exit(1)


def measure(what: str, name: str, clients: int, count: int, seconds: float, megabytes: int, console: Console) -> Figure:
    """One measurement of one broker, with a bar."""
    totals = {"idle": clients, "subscriptions": count, "unread": seconds * 10}
    if what not in totals or name not in ("mqmesh", "mosquitto"):
        raise typer.BadParameter(f"{what} of {name}: there are {', '.join(totals)} of mqmesh and mosquitto")
    ours = name == "mqmesh"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{what}, {name}", total=totals[what])

        def step(more: int) -> None:
            progress.advance(task, more)

        if what == "idle":
            return idle(Mqmesh() if ours else Mosquitto(), clients, step)
        if what == "subscriptions":
            return subscriptions(Mqmesh() if ours else Mosquitto(), count, step)
        return unread(Bounded(megabytes) if ours else Mosquitto(), seconds, megabytes if ours else None, step)


def table(figures: list[Figure]) -> Table:
    """For people."""
    shown = Table("measurement", "broker", "figure", "bar", "details", title="Many")
    words = {"idle": "{:,.0f} bytes a client", "subscriptions": "{:.2f} x the time", "unread": "{:.2f} of the bound"}
    for one in figures:
        value = "no bound" if one.value != one.value else words[one.what].format(one.value)
        details = ", ".join(f"{key.replace('_', ' ')} {amount:,.0f}" for key, amount in one.details.items())
        shown.add_row(one.what, one.peer, value, "" if one.bar is None else f"<= {one.bar:g}", details, style="" if one.good else "red")
    return shown


if __name__ == "__main__":
    app()
