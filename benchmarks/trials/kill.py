"""A broker with a data folder is killed (SIGKILL) at random moments under load, restarted, and judged: `python -m benchmarks.trials.kill`.

Load: publishers and subscribers with persistent sessions, QoS 1 and 2, MQTT 3.1.1 and 5: strict ones of our own (`strict.py`) and
paho-mqtt's, which keeps its own state over its connections. One subscriber is mostly away, so that its messages wait on
disk. One takes seven messages at a time.

A round: all publish; at a random moment the broker is killed, sometimes again while it starts or while everything catches up;
it is started again, all come back and finish what they had begun, everything is drained and compared:

- lost: messages that the broker acknowledged (PUBACK, PUBREC) and a persistent subscriber never got;
- twice: messages that came twice at QoS 2 (at QoS 1 they may, and are counted as again);
- disorder: messages of one publisher that came behind a later one;
- faults: whatever a broker must never do (a session forgotten, an identifier used twice, an acknowledgement that nobody waits for).

Everything that depends on chance comes from the seed, but for what the machine's timing adds. Exit status 1 if anything was wrong.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import paho.mqtt.client as paho
import typer
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.peers import ROOT, free_port
from benchmarks.trials.strict import HEADER, Judge, Publisher, Session, Subscriber, message

DRAIN = 60.0  # seconds without progress after which what is missing counts as lost
STORES = ("sqlite", "lmdb")
LOAD = 0.6  # longest time that a round publishes before the kill, seconds
app = typer.Typer(add_completion=False)


class Broker:
    """A broker process on one port and one data folder."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self.port = free_port()
        self.folder = folder
        self.log = folder / "log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is not ready yet."""
        command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--listen", f"mqtt://127.0.0.1:{self.port}"]
        command += ["--data", str(self.folder / "data"), "--log-level", "warning", "--stop-with-stdin", *self._options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
            os.set_blocking(self._process.stdout.fileno(), False)  # type: ignore[union-attr]

    async def ready(self) -> None:
        """Wait until it listens. RuntimeError if it ends instead."""
        assert self._process is not None
        assert self._process.stdout is not None
        said = b""
        while b"ready" not in said:
            said += self._process.stdout.read() or b""
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker ended by itself: {self.log.read_text()[-500:]}")
            await asyncio.sleep(0.005)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


class PahoPublisher:
    """paho-mqtt publishing `message(number, 1)`, ... with a persistent session, in a thread of its own."""

    def __init__(self, port: int, number: int, qos: int, topic: str, window: int) -> None:
        self.number, self.qos, self.topic = number, qos, topic
        self.sent = self.limit = 0
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self._sequences: dict[int, int] = {}
        self._early: set[int] = set()
        self._lock = threading.Lock()
        self.client = paho_client(f"paho publisher {number}")
        self.client.max_inflight_messages_set(window)
        self.client.on_publish = self._on_publish
        self.client.connect_async("127.0.0.1", port, keepalive=3600)
        self.client.loop_start()

    def _on_publish(self, _client: object, _data: object, pid: int, *_rest: object) -> None:
        with self._lock:
            sequence = self._sequences.pop(pid, 0)
            if sequence:
                self.acknowledged.add(sequence)
            else:
                self._early.add(pid)  # before `publish` has said which message it is

    def go(self, limit: int) -> None:
        """Publish up to this sequence."""
        self.limit = limit
        while self.sent < limit:
            self.sent += 1
            # Without our lock: paho-mqtt calls `_on_publish` with a lock of its own that `publish` takes too.
            pid = self.client.publish(self.topic, message(self.number, self.sent), self.qos).mid
            with self._lock:
                if pid in self._early:
                    self._early.discard(pid)
                    self.acknowledged.add(self.sent)
                else:
                    self._sequences[pid] = self.sent

    @property
    def idle(self) -> bool:
        """Whether everything is acknowledged through to the end."""
        return len(self.acknowledged) == self.limit


class PahoSubscriber:
    """paho-mqtt with a persistent session, in a thread of its own."""

    def __init__(self, port: int, qos: int, judges: dict[int, Judge]) -> None:
        self.judges = judges
        self.established = False
        self.faults: Counter[str] = Counter()
        self.client = paho_client("paho subscriber")
        self.client.on_message = self._on_message
        self.client.on_connect = lambda client, _data, flags, _reason, _properties: self._on_connect(client, qos, flags.session_present)
        self.client.on_subscribe = lambda *_: setattr(self, "established", True)
        self.client.connect_async("127.0.0.1", port, keepalive=3600)
        self.client.loop_start()

    def _on_connect(self, client: paho.Client, qos: int, present: bool) -> None:
        if self.established and not present:
            self.faults["session forgotten"] += 1
        if not self.established:
            client.subscribe("kill/#", qos)

    def _on_message(self, _client: object, _data: object, publication: paho.MQTTMessage) -> None:
        number, sequence = HEADER.unpack_from(publication.payload)
        self.judges[number].take(number, sequence, bytes(publication.payload))


class PahoClient(paho.Client):
    """paho-mqtt 2.2 with one fault mended: a connection that ends before its CONNACK makes it forget that a message is released.

    It then sends the PUBLISH again though it has sent its PUBREL, which MQTT-4.3.3-6 forbids and no broker can tell from a new message.
    """

    def _messages_reconnect_reset_out(self) -> None:
        with self._out_message_mutex:
            for kept in self._out_messages.values():
                if kept.state == MessageState.MQTT_MS_RESEND_PUBREL:
                    kept.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP
        super()._messages_reconnect_reset_out()


def paho_client(client_id: str) -> paho.Client:
    """A client that comes back at once and keeps its session."""
    client = PahoClient(CallbackAPIVersion.VERSION2, client_id, clean_session=False)
    client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
    return client


@dataclass(slots=True)
class Verdict:
    """What was found so far."""

    rounds: int = 0
    kills: int = 0
    published: int = 0
    acknowledged: int = 0
    refused: int = 0
    delivered: int = 0
    lost: int = 0
    twice: int = 0
    again: int = 0
    disorder: int = 0
    corrupt: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Whether the broker kept its promises."""
        return not (self.lost or self.twice or self.disorder or self.corrupt or self.faults)


class Trial:
    """One broker, its clients, and the dice."""

    def __init__(self, folder: Path, seed: int, options: list[str], rate: int = 3000) -> None:
        self.dice = random.Random(seed)
        self.rate = rate
        self.broker = Broker(folder, options)
        port = self.broker.port
        self.publishers = [
            Publisher("publisher 1", 4, 1, 1, b"kill/1", 200),
            Publisher("publisher 2", 5, 2, 2, b"kill/2", 100),
            Publisher("publisher 3", 4, 3, 2, b"kill/3", 1),
        ]
        self.qos = {1: 1, 2: 2, 3: 2, 4: 1, 5: 2}
        self.subscribers = [
            self._subscriber("subscriber 2", 5, 2, 0),
            self._subscriber("subscriber 1", 4, 1, 0),
            self._subscriber("subscriber few", 5, 2, 7),
        ]
        self.absent = self._subscriber("subscriber away", 5, 2, 0)
        self.paho_publishers = [PahoPublisher(port, 4, 1, "kill/4", 20), PahoPublisher(port, 5, 2, "kill/5", 20)]
        self.paho_subscriber = PahoSubscriber(port, 2, self._judges(2))
        self.verdict = Verdict()
        self._away = True

    def _judges(self, qos: int) -> dict[int, Judge]:
        return {number: Judge(min(qos, published)) for number, published in self.qos.items()}

    def _subscriber(self, name: str, version: int, qos: int, receive_maximum: int) -> Subscriber:
        return Subscriber(name, version, self._judges(qos), receive_maximum, self.dice.choice((0.0, 0.3, 0.7)), self.dice)

    @property
    def _all_publishers(self) -> list[Publisher | PahoPublisher]:
        return [*self.publishers, *self.paho_publishers]

    @property
    def _sessions(self) -> list[Session]:
        return [*self.publishers, *self.subscribers, *([] if self._away else [self.absent])]

    async def begin(self) -> None:
        """Start the broker and establish all sessions."""
        self.broker.start()
        await self.broker.ready()
        for session in [*self.publishers, *self.subscribers, self.absent]:
            await session.dial(self.broker.port)
            qos = min(judge.qos for judge in session.judges.values()) if isinstance(session, Subscriber) else 0
            wanted = 2 if isinstance(session, Subscriber) and any(judge.qos == 2 for judge in session.judges.values()) else qos
            session.subscribe(b"kill/#" if isinstance(session, Subscriber) else b"nothing", wanted)
            await until(partial(getattr, session, "established"))
        self.absent.leave()
        await until(lambda: self.paho_subscriber.established)

    async def round(self) -> None:
        """Load, kill, restart, drain, compare."""
        dice = self.dice
        self._away = dice.random() < 0.7
        if not self._away:
            await self._come(self.absent)
        # what paho-mqtt is given between two connections may overtake what it holds back
        await until(lambda: all(publisher.client.is_connected() for publisher in self.paho_publishers))
        for publisher in self._all_publishers:
            publisher.go(publisher.limit + max(1, int(dice.random() * self.rate / len(self.qos) * (0.02 if publisher.number == 3 else 1))))
        await self._serve(dice.random() ** 2 * LOAD)
        self.kill()
        self.broker.start()
        while dice.random() < 0.25:
            await self._serve(dice.random() * 0.8)  # perhaps before it is ready
            self.kill()
            self.broker.start()
        await self.broker.ready()
        await self._everybody()
        if dice.random() < 0.3:
            await self._serve(dice.random() * 0.1)
            self.kill()
            self.broker.start()
            await self.broker.ready()
            await self._everybody()
        await self._drain()
        self._compare()
        if not self._away:
            self.absent.leave()
        self.verdict.rounds += 1

    def kill(self) -> None:
        """Kill the broker."""
        self.broker.kill()
        self.verdict.kills += 1

    async def _serve(self, seconds: float) -> None:
        """Let the clients work for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.02))
            for subscriber in (*self.subscribers, self.absent):
                subscriber.pay()

    async def _everybody(self) -> None:
        for session in self._sessions:
            await self._come(session)

    async def _come(self, session: Session) -> None:
        session.leave()
        for _ in range(200):
            try:
                await session.dial(self.broker.port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                return
        raise RuntimeError(f"{session.client_id} cannot connect")

    async def _drain(self) -> None:
        """Until everything has arrived, or nothing moves any more."""
        before, since = -1, time.monotonic()
        while not self._settled():
            await self._serve(0.02)
            now = self._progress()
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > DRAIN:
                break

    def _progress(self) -> int:
        acknowledged = sum(len(publisher.acknowledged) for publisher in self._all_publishers)
        return acknowledged + sum(len(judge.seen) + judge.again for judges in self._receivers() for judge in judges.values())

    def _receivers(self) -> list[dict[int, Judge]]:
        found = [subscriber.judges for subscriber in self.subscribers] + [self.paho_subscriber.judges]
        return found if self._away else [*found, self.absent.judges]

    def _settled(self) -> bool:
        if not all(publisher.idle for publisher in self._all_publishers):
            return False
        return not any(self._missing(publisher, judges) for publisher in self._all_publishers for judges in self._receivers())

    def _missing(self, publisher: Publisher | PahoPublisher, judges: dict[int, Judge]) -> int:
        return len(publisher.acknowledged - judges[publisher.number].seen)

    def _compare(self) -> None:
        verdict = self.verdict
        everyone = self._all_publishers
        verdict.published = sum(publisher.sent for publisher in everyone)
        verdict.acknowledged = sum(len(publisher.acknowledged) for publisher in everyone)
        verdict.refused = sum(len(publisher.refused) for publisher in everyone)
        verdict.lost = sum(self._missing(publisher, judges) for publisher in everyone for judges in self._receivers())
        judges = [
            judge
            for found in (*[s.judges for s in (*self.subscribers, self.absent)], self.paho_subscriber.judges)
            for judge in found.values()
        ]
        verdict.delivered = sum(len(judge.seen) for judge in judges)
        for name in ("twice", "again", "disorder", "corrupt"):
            setattr(verdict, name, sum(getattr(judge, name) for judge in judges))
        verdict.faults = self.paho_subscriber.faults.copy()
        for session in (*self.publishers, *self.subscribers, self.absent):
            verdict.faults += session.faults
        for name, found in [*((s.client_id, s.judges) for s in (*self.subscribers, self.absent)), ("paho", self.paho_subscriber.judges)]:
            for number, judge in found.items():
                if judge.disorder:
                    verdict.faults[f"publisher {number} out of order at {name}, {judge.first_disorder}"] = judge.disorder

    def end(self) -> None:
        """Stop everything."""
        for session in (*self.publishers, *self.subscribers, self.absent):
            session.leave()
        for client in (*(publisher.client for publisher in self.paho_publishers), self.paho_subscriber.client):
            with suppress(Exception):
                client.disconnect()
            client.loop_stop()
        self.broker.kill()


async def until(reached: Callable[[], bool]) -> None:
    """Look until it is so: what is awaited happens in paho-mqtt's thread, or on a socket without a task of its own."""
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def trial(
    folder: Path, seed: int, rounds: int, options: list[str], progress: Progress | None = None, rate: int = 3000, store: str = STORES[0]
) -> Verdict:
    """So many rounds, or as many as go well. options: of the broker. rate: messages a round, at most. Raises RuntimeError, OSError."""
    if store != STORES[0]:
        config = folder / "broker.toml"
        config.write_text(f'[store]\nkind = "{store}"\n')
        options = [*options, "--config", str(config)]
    work = Trial(folder, seed, options, rate)
    task = progress.add_task("kill -9", total=rounds) if progress is not None else None
    try:
        await work.begin()
        for _ in range(rounds):
            await work.round()
            if progress is not None and task is not None:
                progress.update(task, advance=1, description=f"{work.verdict.delivered:,} delivered")
            if not work.verdict.good:
                break
        # whoever was away comes last
        work._away = False
        await work._come(work.absent)
        await work._drain()
        work._compare()
    finally:
        work.end()
    return work.verdict


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often the broker is killed, at least.")] = 200,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 1,
    durability: Annotated[str, typer.Option(help="fsync or os; a killed process loses nothing with either.")] = "fsync",
    rate: Annotated[int, typer.Option(min=10, help="Messages a round, at most.")] = 3000,
    store: Annotated[str, typer.Option(help=f"Where the broker keeps it: {' or '.join(STORES)}.")] = STORES[0],
) -> None:
    """Kill a broker with SIGKILL again and again under QoS 1 and 2 load, and compare what was acknowledged with what arrived.

    Exit status 1 if an acknowledged message was lost, one came twice at QoS 2 or out of order, or the broker broke another rule.
    """
    if durability not in ("fsync", "os"):
        raise typer.BadParameter(f"'{durability}': fsync or os; with memory nothing survives", param_hint="--durability")
    if store not in STORES:
        raise typer.BadParameter(f"'{store}': there are {', '.join(STORES)}", param_hint="--store")
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-kill-"))
    with Progress(*columns, console=console, transient=True) as progress:
        try:
            verdict = asyncio.run(trial(folder, seed, rounds, ["--durability", durability], progress, rate, store))
        except (RuntimeError, OSError) as error:
            console.print(f"[red]{escape(str(error))}[/]; the broker's log and data are in {folder}", highlight=False)
            raise typer.Exit(1) from None
    errors = errors_in(folder / "log")
    console.print(table(verdict, f"kill -9, {store} with {durability}, seed {seed}"))
    for line in errors[:10]:
        console.print(line, markup=False, highlight=False)
    if not verdict.good or errors:
        console.print(f"the broker's log and data are in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder, ignore_errors=True)


def errors_in(log: Path) -> list[str]:
    """What the broker holds for its own faults, of all its lives."""
    return [line for line in log.read_text().splitlines() if " level=error " in line or line.startswith("Traceback ")]


def table(verdict: Verdict, title: str) -> Table:
    """What was counted."""
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    for name in ("rounds", "kills", "published", "acknowledged", "refused", "delivered", "again", "lost", "twice", "disorder", "corrupt"):
        table.add_row(name, f"{getattr(verdict, name):,}")
    for fault, count in verdict.faults.items():
        table.add_row(fault, f"{count:,}")
    return table


if __name__ == "__main__":
    app()
