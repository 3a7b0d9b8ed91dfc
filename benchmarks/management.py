"""How long the first rows of each list take from another site, and what that does to clients: `python -m benchmarks.management`.

Two brokers of a mesh share one process and loop. The second one gets sessions, subscriptions and retained messages, made in the process.
Some of the sessions are connected, in the process too.
The first one is asked for lists of the second: over a real link, in every order, first pages and a later one. Then a client of the second
broker, in a process of its own, sends itself one message after the other, at first undisturbed, then while a list is asked for each second.

Judged by reading the table: seconds to the first rows, and percentiles of the client's latency in both phases.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from typing import Annotated, Any

import typer
from mqmesh.base.address import parse_address
from mqmesh.broker.auth.roles import ALL, ManagementSettings
from mqmesh.broker.client.connection import Connection
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings, MetabrokerSettings, PeerSettings
from mqmesh.broker.management.wire import Asker
from mqmesh.broker.server import Broker
from mqmesh.broker.transport.lost import Lost
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Publish, Subscribe, Subscription
from rich.console import Console
from rich.table import Table

HUGE = 64 * 2**30
LISTS = {
    "clients": ("client", "-received"),
    "sessions": ("client", "-bytes", "-away"),
    "subscriptions": ("client", "filter", "-qos"),
    "retained": ("topic", "-bytes", "age"),
    "groups": ("group",),
    "configuration": ("key",),
    "links": ("name",),
    "brokers": ("name",),
    "custody": ("name",),
}
SETTLE = 30.0  # seconds for the link


def broker(number: int, *peers: str) -> Broker:
    """A broker of the mesh that has room for everything."""
    limits = Limits(broker_bytes=HUGE, sys_interval=0, subscriptions=2**20)
    mesh = MeshSettings("bench", "a key of sixteen bytes", peers=[PeerSettings(peer) for peer in peers])
    config = BrokerConfig(f"site{number}", number, ["mqtt://127.0.0.1:0"], mesh=mesh, limits=limits, metabroker=MetabrokerSettings())
    config.management = ManagementSettings(("*",))
    return Broker(config)


async def fill(target: Broker, sessions: int, each: int, retained: int) -> None:
    """Make sessions with subscriptions, and retained messages, a thousand at a time."""
    site = target.site
    for start in range(0, sessions, 1000):
        for number in range(start, min(start + 1000, sessions)):
            session, _ = site.sessions.open(f"sensor-{number * 7919 % sessions:07}", False, 86_400.0)
            for one in range(each):
                site.router.subscribe(session, Subscription(f"plant/{number % 997}/line/{number}/{one}", one % 3), 0)
        await asyncio.sleep(0)
    for start in range(0, retained, 1000):
        for number in range(start, min(start + 1000, retained)):
            topic = f"plant/{number % 100}/line/{number // 100 % 100}/sensor/{number}".encode()
            run = Run(topic, 1, True, [bytes(number % 400)] if number % 400 else [b"x"], received=target.context.now - number % 5000)
            site.retained.store(run, always=True)
        await asyncio.sleep(0)


class Quiet(Lost):
    """The socket of a client that sends nothing more and reads all."""

    def is_closing(self) -> bool:
        return False


async def connect(target: Broker, clients: int) -> list[Connection]:
    """Connect the first sessions."""
    found = []
    for number in range(clients):
        connection = Connection(target.site)
        connection.connection_made(Quiet())
        connection.data_received(encode(Connect(f"sensor-{number:07}", 5, False, keep_alive=0), 5))
        found.append(connection)
        if number % 100 == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(SETTLE):
        while any(connection.session is None for connection in found):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def ask(broker: Broker, **request: Any) -> dict[str, Any]:
    """The answer to a request."""
    future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    broker.context.refresh()
    broker.management.ask(json.dumps(request).encode(), Asker("bench", None, "unix", ALL), future.set_result)
    broker.context.flush()
    return await future


async def lists(console: Console, asked: Broker, repeat: int) -> None:
    """The table of times."""
    table = Table(title="first rows from another site", title_justify="left")
    for heading in ("list", "order", "rows", "total", "seconds", "worst", "processor s", "next page", "longest ms"):
        table.add_column(heading, justify="left" if heading in ("list", "order") else "right")
    for name, orders in LISTS.items():
        for order in orders:
            first: list[float] = []
            used: list[float] = []
            later: list[float] = []
            for _ in range(repeat):
                begun, processor = time.perf_counter(), time.process_time()
                answer = await ask(asked, list=name, at="site2", sort=order, within=30)
                first.append(time.perf_counter() - begun)
                used.append(time.process_time() - processor)
                if "error" in answer:
                    raise SystemExit(f"{name}: {answer['error']}")
                if answer["cursor"]:
                    begun = time.perf_counter()
                    await ask(asked, list=name, at="site2", sort=order, cursor=answer["cursor"], within=30)
                    later.append(time.perf_counter() - begun)
            watch = asyncio.create_task(stalls())
            await ask(asked, list=name, at="site2", sort=order, within=30)
            watch.cancel()
            longest = 1000 * await watch
            times = statistics.median(first), max(first), statistics.median(used), statistics.median(later) if later else 0.0
            row = [name, order, str(len(answer["rows"])), f"{answer['total']:,}", *[f"{one:.3f}" for one in times]]
            table.add_row(*row, f"{longest:.1f}")
    console.print(table)


async def stalls() -> float:
    """The processor time that the loop took between two turns at most, in seconds, until it is cancelled."""
    longest, last = 0.0, time.thread_time()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        return longest


def client(port: int, seconds: float) -> None:
    """Send one message after the other to itself; prints percentiles of the latency in microseconds as JSON."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(encode(Connect("latency", 5, True), 5) + encode(Subscribe(1, [Subscription("latency", 0)]), 5))
        time.sleep(0.2)
        sock.recv(65_536)
        packet = encode(Publish("latency", bytes(64)), 5)
        found = []
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            sock.sendall(packet)
            left = len(packet)
            while left > 0:
                left -= len(sock.recv(65_536))
            found.append(time.perf_counter() - begun)
    cuts = statistics.quantiles(found, n=1000)
    print(
        json.dumps(
            {"messages": len(found), **{f"p{p / 10:g}": round(1e6 * cuts[p - 1], 1) for p in (500, 900, 990, 999)}, "max": max(found) * 1e6}
        )
    )


async def latency(target: Broker, seconds: float, asking: Broker | None, request: dict[str, Any]) -> dict[str, float]:
    """What the client finds; with `asking`, while a list is asked for each second."""
    port = parse_address(target.addresses[0]).port
    command = [sys.executable, "-m", "benchmarks.management", "--client", str(port), "--seconds", str(seconds)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    done = asyncio.create_task(process.communicate())
    while asking is not None and not done.done():
        await asyncio.sleep(1.0)
        await ask(asking, **request, at="site2", within=30)
    out, _ = await done
    return json.loads(out)  # type: ignore[no-any-return]


async def measure(sessions: int, clients: int, each: int, retained: int, repeat: int, seconds: float) -> None:
    console = Console(width=140)
    one = broker(1)
    await one.start()
    two = broker(2, one.addresses[0])
    await two.start()
    console.print(
        f"making {sessions:,} sessions ({clients:,} connected) with {sessions * each:,} subscriptions, and {retained:,} retained messages"
    )
    await fill(two, sessions, each, retained)
    connections = await connect(two, clients)
    async with asyncio.timeout(SETTLE):
        while not one.site.mesh.node.reachable(2):  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await lists(console, one, repeat)
    table = Table(title="latency of a client at that site, us", title_justify="left")
    for heading in ("phase", "messages", "p50", "p90", "p99", "p99.9", "max"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    phases: list[tuple[str, Broker | None, dict[str, Any]]] = [("undisturbed", None, {})]
    phases += [(f"{name} each second", one, {"list": name, "sort": LISTS[name][1]}) for name in ("retained", "subscriptions", "sessions")]
    phases.append(("undisturbed again", None, {}))
    for phase, asking, request in phases:
        found = await latency(two, seconds, asking, request)
        table.add_row(phase, *[f"{value:,.0f}" for value in found.values()])
    console.print(table)
    for connection in connections:
        connection.connection_lost(None)
    await two.stop()
    await one.stop()


def main(
    sessions: Annotated[int, typer.Option(help="How many.")] = 100_000,
    clients: Annotated[int, typer.Option(help="How many of them are connected.")] = 15_000,
    each: Annotated[int, typer.Option(help="Subscriptions of each.")] = 10,
    retained: Annotated[int, typer.Option(help="Retained messages.")] = 1_000_000,
    repeat: Annotated[int, typer.Option(help="How often each list is asked for.")] = 3,
    seconds: Annotated[float, typer.Option(help="Of each phase of the client.")] = 8.0,
    client_: Annotated[int | None, typer.Option("--client", hidden=True)] = None,
) -> None:
    """Measure."""
    if client_ is not None:
        client(client_, seconds)
        return
    try:
        import uvloop
    except ImportError:
        asyncio.run(measure(sessions, clients, each, retained, repeat, seconds))
    else:
        uvloop.run(measure(sessions, clients, each, retained, repeat, seconds))


if __name__ == "__main__":
    typer.run(main)
