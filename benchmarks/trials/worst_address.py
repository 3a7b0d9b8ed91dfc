"""One source address does its worst, and a client at another address goes on: `python -m benchmarks.trials.worst_address`.

The attacker (127.0.0.66) takes memory in every way that a client or a stranger has, one after the other, and keeps what it got:

- silent connections, and links that never prove a key;
- clients that connect and leave as fast as they can;
- packets of which the last byte never comes, from strangers and from clients;
- wills, subscriptions with long filters, topic aliases, retained messages, topics by the thousand;
- queues of sessions that are away, also of messages that come alone and that others get in many forms; subscribers that do not read, and
  subscribers that do not acknowledge.

Each way goes on until the broker refuses, or until it has offered more than `limits.broker_bytes`. After each of them a
client at 127.0.0.2 does what clients do: it connects with a will, subscribes,
publishes, gets its messages, retains one, leaves a session behind and comes back for it. Beside all of it a client at 127.0.0.3
publishes to itself, 200 times a second at most (`pulse.py`); the table has its latency while each attack goes on.

Judged: no request of that client is refused, no message of it is lost, and the broker's resident memory never exceeds
`limits.broker_bytes` and a fifth; with `--pinned` that 99 of 100 messages at 127.0.0.3 took at most 25 ms during each attack, and that
there were enough of them to say so. Then the attacker has a core for itself, and the broker another. Exit status 1 if anything was wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.length import encode_length
from mqmesh.mqtt.packets import Connack, Connect, Disconnect, Puback, Publish, Suback, Subscribe, Subscription, Will
from mqmesh.mqtt.properties import Property
from rich.console import Console
from rich.table import Table

from benchmarks.peers import ROOT, free_port

ATTACKER, VICTIM, PULSE = "127.0.0.66", "127.0.0.2", "127.0.0.3"
LATENCY = 0.025  # seconds that 99 of 100 messages may take
SHORTEST = 1.0  # seconds: what an attack has taken it keeps for so long, so that messages beside it can be measured
FEWEST = 10  # messages beside an attack, without which its latency says nothing
PIECE = 700_000  # bytes of what is large
PATIENCE = 120.0  # seconds for an answer: a busy machine is no failure
app = typer.Typer(add_completion=False)


class Peer:
    """One connection with MQTT 5. `refused` is the reason that ended it, 0 for none."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.refused = 0
        self._framer = Framer()
        self._come: list[Any] = []

    def send(self, *packets: Any) -> None:
        self.writer.write(b"".join(one if isinstance(one, bytes) else encode(one, 5) for one in packets))

    async def receive(self) -> Any:
        """The next packet; None at the end."""
        while not self._come:
            data = b""
            with suppress(OSError):
                data = await asyncio.wait_for(self.reader.read(2**18), PATIENCE)
            if not data:
                return None
            self._come += [decode(first, body, 5) for first, body in self._framer.feed(data)]
        packet = self._come.pop(0)
        if isinstance(packet, Disconnect):
            self.refused = packet.reason
        return packet

    async def expect(self, kind: type[Any]) -> Any:
        """The next packet of a kind. AssertionError if another one comes, or none."""
        packet = await self.receive()
        assert isinstance(packet, kind), f"{packet} came, not {kind.__name__}"
        return packet

    async def flushed(self) -> bool:
        """Wait until all is sent. False: the broker has closed the connection."""
        try:
            await asyncio.wait_for(self.writer.drain(), PATIENCE)
        except OSError:
            return False
        return not self.reader.at_eof()

    def close(self) -> None:
        self.writer.transport.abort()


@dataclass
class Trial:
    """A broker under attack. kept: the attacker's connections. answers: how the victim fared, by attack."""

    port: int
    process: subprocess.Popen[bytes]
    limit: int
    kept: list[Peer] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    rows: list[tuple[str, int, int, int]] = field(default_factory=list)
    times: list[tuple[float, float]] = field(default_factory=list)  # when each attack began and ended
    pulse: list[tuple[float, float]] = field(default_factory=list)  # when a message was published, and how long it took

    def latency(self, attack: int) -> tuple[int, float, float]:
        """Messages that were published during an attack, and of how long they took: 99 of 100, the most, in seconds."""
        begun, ended = self.times[attack]
        took = [seconds for at, seconds in self.pulse if begun <= at <= ended]
        return len(took), statistics.quantiles(took, n=100, method="inclusive")[98] if len(took) > 1 else 0.0, max(took, default=0.0)

    async def dial(self, host: str) -> Peer | None:
        """A connection from an address; None: it was refused."""
        try:
            return Peer(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0), limit=2**20))
        except OSError:
            return None

    async def client(self, host: str, name: str, will: Will | None = None, expiry: int = 0) -> Peer | None:
        """A client; None: it was refused."""
        peer = await self.dial(host)
        if peer is None:
            return None
        peer.send(Connect(name, 5, expiry == 0, 0, None, None, will, {Property.SESSION_EXPIRY_INTERVAL: expiry} if expiry else {}))
        answer = await peer.receive()
        if isinstance(answer, Connack) and answer.reason < 0x80:
            return peer
        peer.close()
        return None

    def resident(self) -> tuple[int, int]:
        """Bytes of resident memory: now, and the most so far."""
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines())
        return tuple(int(lines[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]

    # The victim

    async def go_on(self) -> None:
        """What a client at another address does. AssertionError if anything of it does not work."""
        sleeper = await self.client(VICTIM, "sleeper", expiry=3600)
        assert sleeper is not None, "a session that stays is refused"
        sleeper.send(Subscribe(1, [Subscription("victim/queue", 1)]))
        assert (await sleeper.expect(Suback)).reasons[0] < 0x80, "a subscription is refused"
        sleeper.close()
        client = await self.client(VICTIM, "victim", Will("victim/will", bytes(2000), 1))
        assert client is not None, "a client is refused"
        client.send(Subscribe(1, [Subscription("victim/#", 1)]))
        assert (await client.expect(Suback)).reasons[0] < 0x80, "a subscription is refused"
        for number in range(1, 21):
            topic = "victim/queue" if number % 2 else "victim/other"
            client.send(Publish(topic, b"%d" % number + bytes(5000), 1, packet_id=number))
            came = [await client.receive(), await client.receive()]
            answer = next((one for one in came if isinstance(one, Puback)), None)
            message = next((one for one in came if isinstance(one, Publish)), None)
            assert answer is not None, f"message {number} is not acknowledged: {came}"
            assert answer.reason < 0x80, f"message {number} is refused"
            assert message is not None, f"message {number} did not come: {came}"
            client.send(Puback(message.packet_id))
        client.send(Publish("kept", bytes(5000), 1, True, packet_id=30))
        assert (await client.expect(Puback)).reason < 0x80, "a retained message is refused"
        client.send(Disconnect())
        sleeper = await self.client(VICTIM, "sleeper", expiry=3600)
        assert sleeper is not None, "a client may not come for its session"
        for _ in range(10):
            message = await sleeper.expect(Publish)
            sleeper.send(Puback(message.packet_id))
        sleeper.close()

    # The attacker

    async def attack(self, name: str, way: Callable[[], Awaitable[int]]) -> None:
        """One way of the attacker, for `SHORTEST` seconds at least, then the victim."""
        begun = time.monotonic()
        offered = await way()
        await asyncio.sleep(max(0.0, begun + SHORTEST - time.monotonic()))
        self.times.append((begun, time.monotonic()))
        try:
            await asyncio.wait_for(self.go_on(), PATIENCE)
        except (AssertionError, TimeoutError) as error:
            self.faults.append(f"{name}: {error or 'the client at the other address got no answer'}")
        now, most = self.resident()
        if most > self.limit + self.limit // 5:
            self.faults.append(f"{name}: {most:,} bytes of resident memory, at most {self.limit + self.limit // 5:,}")
        self.rows.append((name, offered, now, most))

    async def many(self, one: Callable[[int], Awaitable[int]], most: int) -> int:
        """Repeat until the broker refuses ten times in a row or more than its bound is offered: the bytes that were offered."""
        offered = refused = 0
        for number in range(most):
            size = await one(number)
            refused = 0 if size else refused + 1
            offered += size
            if refused == 10 or offered > 1.2 * self.limit:
                break
        return offered

    async def _keep(self, peer: Peer | None, *what: Any) -> int:
        """Send and keep the connection: the bytes; 0: refused."""
        if peer is None:
            return 0
        peer.send(*what)
        size = sum(len(one) for one in what if isinstance(one, bytes))
        if not await peer.flushed():
            peer.close()
            return 0
        self.kept.append(peer)
        return size

    async def silent(self) -> int:
        async def one(number: int) -> int:
            link = Connect("", 5, True, 0, None, None, None, {Property.AUTHENTICATION_METHOD: "mqmesh-1"})
            return await self._keep(await self.dial(ATTACKER), *([encode(link, 5)] if number % 4 == 3 else [b"\x10"]))

        return await self.many(one, 300)

    async def connects(self) -> int:
        """Clients that come and go."""

        async def one(number: int) -> int:
            peers = await asyncio.gather(*[self.client(ATTACKER, f"connects {number} {index}") for index in range(20)])
            for peer in peers:
                if peer is not None:
                    peer.close()
            return 20 if any(peers) else 0

        return await self.many(one, 200)

    async def halves_of_strangers(self) -> int:
        async def one(_: int) -> int:
            return await self._keep(await self.dial(ATTACKER), b"\x10" + encode_length(500_000) + bytes(490_000))

        return await self.many(one, 4000)

    async def halves(self) -> int:
        async def one(number: int) -> int:
            half = b"\x30" + encode_length(PIECE) + bytes(PIECE - 1)
            return await self._keep(await self.client(ATTACKER, f"half {number}"), half)

        return await self.many(one, 4000)

    async def wills(self) -> int:
        async def one(number: int) -> int:
            peer = await self.client(
                ATTACKER, f"will {number}", Will("a/will", b"", 1, False, {Property.USER_PROPERTY: [("k" * 30_000, "v" * 30_000)] * 7})
            )
            if peer is not None:
                self.kept.append(peer)
            return 420_000 if peer is not None else 0

        return await self.many(one, 4000)

    async def subscriptions(self) -> int:
        peer = await self.client(ATTACKER, "subscriptions")
        if peer is None:
            return 0
        self.kept.append(peer)

        async def one(number: int) -> int:
            filters = [f"{number}/{index}/" + "x" * 2000 for index in range(100)]
            peer.send(Subscribe(1, [Subscription(text, 0) for text in filters]))
            answer = await peer.receive()
            return 200_000 if isinstance(answer, Suback) and any(reason < 0x80 for reason in answer.reasons) else 0

        return await self.many(one, 400)

    async def aliases(self) -> int:
        async def one(number: int) -> int:
            packets = [Publish("a" * 60_000, b"", 0, properties={Property.TOPIC_ALIAS: alias}) for alias in range(1, 65)]
            return await self._keep(await self.client(ATTACKER, f"alias {number}"), *[encode(packet, 5) for packet in packets])

        return await self.many(one, 100)

    async def retained(self) -> int:
        return await self._publish("retained", lambda number: f"attacker/retained/{number}", True)

    async def queues(self) -> int:
        for number in range(64):
            away = await self.client(ATTACKER, f"away {number}", expiry=3600)
            if away is None:
                break
            away.send(Subscribe(1, [Subscription(f"attacker/queue/{number}", 1)]))
            await away.expect(Suback)
            away.close()
        return await self._publish("queues", lambda number: f"attacker/queue/{number % 64}", False)

    async def topics(self) -> int:
        """Topics of 60 kB, each of which is used once."""
        peer = await self.client(ATTACKER, "topics")
        if peer is None:
            return 0
        offered = 0
        while offered < 1.2 * self.limit:
            peer.send(*[Publish(f"{offered}/{number}/" + "t" * 60_000) for number in range(10)])
            offered += 600_000
            if not await peer.flushed():
                break
        peer.close()
        return offered

    async def small(self) -> int:
        """Messages of a few bytes, one at a time, for sessions that are away."""
        for number in range(20):
            away = await self.client(ATTACKER, f"small {number}", expiry=3600)
            if away is not None:
                away.send(Subscribe(1, [Subscription(f"attacker/small/{number}", 1)]))
                await away.expect(Suback)
                away.close()
        peers = [await self.client(ATTACKER, f"small publisher {number}") for number in range(20)]
        sent = await asyncio.gather(*[self._publish_small(peer, number) for number, peer in enumerate(peers) if peer is not None])
        return sum(sent)

    async def _publish_small(self, peer: Peer, number: int) -> int:
        sent = 0
        for at in range(5_000):
            peer.send(Publish(f"attacker/small/{number}", b"x", 1, packet_id=at + 1))
            answer = await peer.receive()
            if not isinstance(answer, Puback) or answer.reason >= 0x80:
                break
            sent += 20
        peer.close()
        return sent

    async def forms(self) -> int:
        """Messages for a session that is away, which others get in forty forms."""
        away = await self.client(ATTACKER, "forms", expiry=3600)
        if away is None:
            return 0
        away.send(Subscribe(1, [Subscription("attacker/forms", 1)]))
        await away.expect(Suback)
        away.close()
        tasks = []
        for number in range(1, 41):
            peer = await self.client(ATTACKER, f"form {number}")
            if peer is not None:
                peer.send(Subscribe(1, [Subscription("attacker/forms", 0)], {Property.SUBSCRIPTION_IDENTIFIER: [number]}))
                await peer.receive()
                self.kept.append(peer)
                tasks.append(asyncio.create_task(_drain(peer)))
        offered = await self._publish("forms publisher", lambda _: "attacker/forms", False)
        for task in tasks:
            task.cancel()
        return offered

    async def _publish(self, name: str, topic: Callable[[int], str], retain: bool) -> int:
        peer = await self.client(ATTACKER, name)
        if peer is None:
            return 0

        async def one(number: int) -> int:
            peer.send(Publish(topic(number), number.to_bytes(4, "big") + bytes(100_000), 1, retain, packet_id=number % 65535 + 1))
            answer = await peer.receive()
            return 100_000 if isinstance(answer, Puback) and answer.reason < 0x80 else 0

        offered = await self.many(one, 50_000)
        peer.close()
        return offered

    async def unread(self) -> int:
        """Subscribers that read nothing, and a publisher of QoS 0."""
        peers = [await self.client(ATTACKER, f"unread {number}") for number in range(40)]
        for peer in peers:
            if peer is not None:
                peer.send(Subscribe(1, [Subscription("attacker/unread", 0)]))
                if isinstance(await peer.receive(), Suback):
                    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
                self.kept.append(peer)
        publisher = await self.client(ATTACKER, "unread publisher")
        if publisher is None:
            return 0
        offered = 0
        while offered < 24 * 2**20:
            publisher.send(*[encode(Publish("attacker/unread", bytes(20_000)), 5)] * 20)
            offered += 400_000
            if not await publisher.flushed():
                break
        return 40 * offered

    async def unacknowledged(self) -> int:
        """Subscribers that read and never acknowledge, and publishers of QoS 1."""
        tasks = []
        for number in range(12):
            peer = await self.client(ATTACKER, f"unacknowledged {number}")
            if peer is None:
                continue
            peer.send(Subscribe(1, [Subscription("attacker/flight", 1)]))
            await peer.receive()
            self.kept.append(peer)
            tasks.append(asyncio.create_task(_drain(peer)))
        offered = await self._publish("flight", lambda _: "attacker/flight", False) if tasks else 0
        for task in tasks:
            task.cancel()
        return offered * len(tasks)

    async def run(self) -> None:
        """All ways. What the attacker got it keeps, but for some, so that each way has its turn."""
        await self.go_on()
        ways = [
            self.silent,
            self.connects,
            self.halves_of_strangers,
            self.halves,
            self.wills,
            self.subscriptions,
            self.aliases,
            self.unread,
        ]
        ways += [self.topics, self.unacknowledged, self.forms, self.small, self.retained, self.queues, self.halves]
        for way, following in itertools.zip_longest(ways, ways[1:]):
            await self.attack(way.__name__.replace("_", " "), way)
            if following is not None and way is not self.silent:
                for peer in self.kept:
                    peer.close()
                self.kept.clear()


async def _drain(peer: Peer) -> None:
    while await peer.reader.read(2**18):
        pass


@asynccontextmanager
async def broker(megabytes: int, cores: set[int]) -> AsyncIterator[Trial]:
    """A broker with a bound, in a process of its own, and the client that publishes to itself. cores: that both run on; none: on any."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "broker.toml"
        file.write_text(
            f'name = "a"\nnumber = 1\nlisten = ["mqtt://127.0.0.1:{port}"]\n[mesh]\nname = "m"\nkey = "a secret of some bytes"\n'
            f'[limits]\nbroker_bytes = "{megabytes} MiB"\nmax_packet_size = "1 MiB"\nsession_queue_bytes = "1 GiB"\n'
        )
        command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(file), "--log-level", "error", "--stop-with-stdin"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)  # noqa: ASYNC220
        try:
            assert process.stdout is not None
            said = await asyncio.to_thread(process.stdout.readline)
            assert said.startswith(b"ready"), said
            lines = Path(folder) / "pulse"
            command = [sys.executable, "-m", "benchmarks.trials.pulse", "127.0.0.1", str(port), PULSE]
            with lines.open("wb") as out:
                pulse = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, cwd=ROOT)  # noqa: ASYNC220
            for one in (process, pulse) if cores else ():
                os.sched_setaffinity(one.pid, cores)
            found = Trial(port, process, megabytes * 2**20)
            yield found
            await asyncio.to_thread(pulse.communicate)
            found.pulse = [tuple(map(float, line.split())) for line in lines.read_text().splitlines()[1:]]  # type: ignore[misc]
            if pulse.returncode:
                found.faults.append("the client that publishes to itself was refused")
        finally:
            process.kill()
            process.wait()


async def trial(megabytes: int, pinned: bool = False) -> Trial:
    """The whole trial with a bound of so many MiB. pinned: this process has a core for itself."""
    cores = sorted(os.sched_getaffinity(0)) if pinned else []
    async with broker(megabytes, set(cores[:1])) as one:
        if cores:
            os.sched_setaffinity(0, cores[1:])
        await one.run()
    for number, (name, *_) in enumerate(one.rows):
        count, took, _ = one.latency(number)
        if pinned and count < FEWEST:
            one.faults.append(f"{name}: {count} messages of a client at another address fell into it, too few to judge")
        if pinned and took > LATENCY:
            one.faults.append(f"{name}: {1000 * took:.1f} ms for 99 of 100 messages of a client at another address")
    return one


@app.command()
def main(
    megabytes: Annotated[int, typer.Option(help="limits.broker_bytes, MiB.", min=256)] = 1024,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Give the attacker a core for itself, and judge latency. Nothing else may run.")
    ] = False,
) -> None:
    """Let one address do its worst, and judge the broker."""
    if pinned and len(os.sched_getaffinity(0)) < 2:
        raise typer.BadParameter("there is only one core")
    one = asyncio.run(trial(megabytes, pinned))
    table = Table("attack", "offered, MB", "resident, MB", "most so far, MB", title=f"one address, {megabytes} MiB")
    for head in ("messages beside it", "99 of 100, ms", "slowest, ms"):
        table.add_column(head)
    for number, (name, offered, now, most) in enumerate(one.rows):
        count, took, slowest = one.latency(number)
        sizes = [f"{size / 1e6:,.0f}" for size in (offered, now, most)]
        table.add_row(name, *sizes, f"{count:,}", f"{1000 * took:.1f}", f"{1000 * slowest:.1f}")
    console = Console()
    console.print(table)
    for fault in one.faults:
        console.print(fault, style="red")
    raise typer.Exit(1 if one.faults else 0)


if __name__ == "__main__":
    app()
