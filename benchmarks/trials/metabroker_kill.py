"""A metabroker and a remote broker are killed (SIGKILL) under load, and judged: `python -m benchmarks.trials.metabroker_kill`.

With `--inside` the metabroker is a part of the community broker, and both die at once.

Members of a community (`mqmesh broker`) have durable sessions with a remote broker through `mqmesh metabroker --data`. They publish to
it, and programs at the remote publish to them, all at QoS 1. Each round kills the remote once and the metabroker once, at random moments
and in random order, starts them again on the same folders, and makes one member leave the community for a while; then all that was
acknowledged must arrive.

The members do what the protocol asks of a client and no more: they leave out repeats by `id`, repeat requests without an answer when
`status` 14 comes, resume when they have been away themselves. Before the application sees a message it passes a once-only window over its
identity (publisher and sequence), as in the JMS-like client. Judged:

- lost: messages that the remote acknowledged to their publisher and a member never got; requests whose puback came and that never
  reached the programs at the remote;
- doubled: messages that passed the once-only window twice; disorder: messages of one publisher behind a later one;
- faults: a session that did not go on, an `id` with two meanings, a request that was refused.

Repeats that the window removed are counted beside that: QoS 1 allows them when an acknowledgement dies with its process. Exit status 1 if
anything was wrong. Everything that depends on chance comes from the seed, but for what the machine's timing adds.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgpack
import typer
from paho.mqtt.client import MQTTMessage
from rich.console import Console
from rich.table import Table

from benchmarks.peers import ROOT, free_port
from benchmarks.trials.kill import PahoPublisher, PahoSubscriber, errors_in, paho_client
from benchmarks.trials.strict import HEADER, Judge, message

DRAIN = 60.0  # seconds without progress after which what is missing counts as lost
LOAD = 0.5  # longest time before a kill, seconds
WINDOW = 4096  # identities that a once-only window remembers
MEMBERS, PUBLISHERS = 3, 2
app = typer.Typer(add_completion=False)


class Program:
    """A process that is started on the same command, port and folder again and again. said: what it prints when it is ready."""

    def __init__(self, command: list[str], log: Path, said: bytes = b"ready") -> None:
        self.command, self.log, self._said = command, log, said
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready. RuntimeError if it ends instead."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
        assert self._process.stdout is not None
        if self._said and not self._process.stdout.readline().startswith(self._said):
            raise RuntimeError(f"{self.log.name} ended by itself: {self.log.read_text()[-500:]}")

    def send(self, how: signal.Signals) -> None:
        """Send a signal."""
        if self._process is not None:
            self._process.send_signal(how)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, with SIGKILL if nothing else is said."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def mqmesh(*arguments: object) -> list[str]:
    """The command line of one of our programs."""
    return [sys.executable, "-m", "mqmesh.cli.main", *map(str, arguments)]


def remote_broker(kind: str, port: int, folder: Path) -> Program:
    """The remote: `mqmesh`, or `mosquitto` that saves its state at each change."""
    if kind == "mqmesh":
        command = mqmesh("broker", "--listen", f"mqtt://127.0.0.1:{port}", "--data", folder / "remote", "--log-level", "warning")
        return Program([*command, "--stop-with-stdin"], folder / "remote.log")
    config = folder / "mosquitto.conf"
    state = folder / "remote"
    state.mkdir()
    saves = f"persistence true\npersistence_location {state}/\nautosave_interval 1\nautosave_on_changes true\n"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\nmax_queued_messages 0\nmax_inflight_messages 0\n{saves}"
    )
    return Program([shutil.which("mosquitto", path="/usr/sbin:/usr/bin") or "mosquitto", "-c", str(config)], folder / "remote.log", b"")


class Member:
    """A client of the community with a durable session, in paho-mqtt's thread. numbers: of the publishers that it hears."""

    def __init__(self, port: int, name: str, number: int, url: str, numbers: range) -> None:
        self.name, self.number, self.url = name, number, url
        self.session = ""
        self.subscribed = False
        self.judges = {one: Judge(1) for one in numbers}
        self.faults: Counter[str] = Counter()
        self.by_id = self.by_identity = self.doubled = self.resumed = self.sent = 0
        self.answered: set[int] = set()
        self._unanswered: dict[int, bytes] = {}
        self._last = self._acknowledged = 0
        self._window: OrderedDict[bytes, None] = OrderedDict()
        self._seen: Counter[bytes] = Counter()
        self._topics: dict[int, bytes] = {}
        self._lock = threading.RLock()
        self._resuming = False
        self.client = paho_client(name)  # the name in its requests: the community broker lets no other client read the answers
        self.client._clean_session = True  # the community keeps nothing for it
        self.client.on_connect = lambda *_: self._on_connect()
        self.client.on_subscribe = lambda _client, _data, mid, *_rest: self._on_subscribed(mid)
        self.client.on_message = self._on_message
        self.client.connect_async("127.0.0.1", port, keepalive=3600)
        self.client.loop_start()

    # What a client of the protocol does

    def _request(self, verb: str, **body: Any) -> None:
        self.client.publish(f"metabroker/request/{self.session}/{verb}", msgpack.packb(body), 1)

    def _on_connect(self) -> None:
        topic = f"metabroker/response/{self.session}/#" if self.session else f"metabroker/response/{self.name}/connack"
        self._awaited = self.client.subscribe(topic, 1)[1]

    def _on_subscribed(self, mid: int) -> None:
        if mid != self._awaited:
            return
        if not self.session:
            body = {"client": self.name, "remote": self.url, "durable": True}
            self.client.publish(f"metabroker/request/{self.name}/connect", msgpack.packb(body), 1)
        elif not self.subscribed:
            self._request("subscribe", message="subscribe", topics=["down/#"], qos=1, durable=True)
        else:
            self._resume()

    def _resume(self) -> None:
        self._resuming = True
        self._request("resume", message="resume", id=self._last)

    def _on_message(self, _client: object, _data: object, came: MQTTMessage) -> None:
        verb = came.topic.rpartition("/")[2]
        body = msgpack.unpackb(came.payload)
        with self._lock:
            if verb == "publish":
                self._publication(body)
            elif verb == "puback":
                if body["code"] == 0:
                    self.answered.add(body["message"])
                    self._unanswered.pop(body["message"], None)
                else:
                    self.faults[f"request refused: {body.get('reason')}"] += 1
            elif verb == "connack" and body["code"] == 0:
                self.session = body["session"]
                self._on_connect()
            elif verb == "suback" and body["code"] == 0:
                self.subscribed = True
            elif verb == "resack" and body["code"] == 0:
                self._resuming = False
                self._again()
            elif verb == "status" and body["code"] == 14:
                self.resumed += 1
                if self._resuming:
                    self._resume()
                self._again()
            elif verb != "status" or body["code"] not in (0, 5):
                self.faults[f"{verb}: {body}"] += 1

    def _again(self) -> None:
        for body in self._unanswered.values():
            self.client.publish(f"metabroker/request/{self.session}/publish", body, 1)

    def _publication(self, body: dict[str, Any]) -> None:
        number, payload = body["id"], bytes(body["payload"])
        if number <= self._last:
            self.by_id += 1
            if self._topics.get(number, payload) != payload:
                self.faults["an id with two meanings"] += 1
            return
        if body.get("after", number - 1) != self._last:
            if not self._resuming:  # else it was sent before the metabroker knew that this client is there again
                self.faults["a gap"] += 1
                self._resume()
            return
        self._last = number
        self._topics[number] = payload
        if number - self._acknowledged >= 20:
            self.acknowledge()
        self._once_only(payload)

    def _once_only(self, payload: bytes) -> None:
        identity = payload[: HEADER.size]
        if identity in self._window:
            self.by_identity += 1
            return
        self._window[identity] = None
        if len(self._window) > WINDOW:
            self._window.popitem(last=False)
        publisher, sequence = HEADER.unpack(identity)
        judge = self.judges[publisher]
        before = judge.again
        judge.take(publisher, sequence, payload)
        self.doubled += judge.again - before

    # What the trial does with it

    def acknowledge(self) -> None:
        """Say what has come."""
        with self._lock:
            if self._last > self._acknowledged:
                self._acknowledged = self._last
                self._request("ack", id=self._last)

    def publish(self, count: int) -> None:
        """Send so many requests."""
        for _ in range(count):
            with self._lock:
                self.sent += 1
                payload = message(self.number, self.sent)
                body = msgpack.packb({"message": self.sent, "topic": f"kill/{self.number}", "payload": payload, "qos": 1})
                self._unanswered[self.sent] = body
                self.client.publish(f"metabroker/request/{self.session}/publish", body, 1)

    @property
    def idle(self) -> bool:
        """Whether every request has its answer."""
        return not self._unanswered

    def leave(self) -> None:
        """Away from the community."""
        self.client.disconnect()
        self.client.loop_stop()

    def come(self) -> None:
        """There again."""
        self.client.reconnect()
        self.client.loop_start()


@dataclass(slots=True)
class Verdict:
    """What was found."""

    rounds: int = 0
    metabroker_kills: int = 0
    remote_kills: int = 0
    published: int = 0
    delivered: int = 0
    requested: int = 0
    arrived: int = 0
    lost: int = 0
    doubled: int = 0
    disorder: int = 0
    removed_by_id: int = 0
    removed_by_identity: int = 0
    repeated_requests: int = 0
    resumed: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether nothing was lost or doubled."""
        return not (self.lost or self.doubled or self.disorder or self.faults)


class Trial:
    """All processes, clients, and the dice. rate: messages a round and publisher, at most."""

    def __init__(self, folder: Path, seed: int, kind: str, rate: int, inside: bool = False) -> None:
        self.dice = random.Random(seed)
        self.rate = rate
        here, there = free_port(), free_port()
        url = f"mqtt://127.0.0.1:{there}"
        policy = folder / "policy.toml"
        policy.write_text('[[allow]]\nclients = ["*"]\nremotes = ["mqtt://127.0.0.1:*"]\npublish = ["#"]\nsubscribe = ["#"]\n')
        listen = mqmesh("broker", "--listen", f"mqtt://127.0.0.1:{here}", "--log-level", "warning", "--stop-with-stdin")
        command = mqmesh("metabroker", "--community", f"mqtt://127.0.0.1:{here}", "--policy", policy, "--data", folder / "data")
        self.remote = remote_broker(kind, there, folder)
        self.programs = [self.remote]
        if inside:
            config = folder / "community.toml"
            config.write_text(f'data = "community"\n[metabroker]\npolicy = "{policy}"\ndata = "data"\n')
            command = [*listen, "--config", str(config)]
        else:
            self.programs.append(Program(listen, folder / "community.log"))
        self.metabroker = Program(command, folder / "metabroker.log")
        self.programs.append(self.metabroker)
        for program in self.programs:
            program.start()
        self.verdict = Verdict()
        self.publishers = [PahoPublisher(there, number, 1, f"down/{number}", 20) for number in range(1, PUBLISHERS + 1)]
        numbers = range(11, 11 + MEMBERS)
        self.subscriber = PahoSubscriber(there, 1, {number: Judge(1) for number in numbers})
        heard = range(1, PUBLISHERS + 1)
        self.members = [Member(here, f"m{number}", number, url, heard) for number in numbers]
        until(lambda: self.subscriber.established and all(member.subscribed for member in self.members), "subscriptions")

    def round(self) -> None:
        """Load, kills, an absence, and everything arrives."""
        dice = self.dice
        for publisher in self.publishers:
            publisher.go(publisher.limit + dice.randint(1, self.rate))
        away = dice.choice(self.members)
        for member in self.members:
            member.publish(dice.randint(1, self.rate))
        leaves = dice.random() < 0.5
        if leaves:
            away.leave()
        for victim in dice.sample(("metabroker", "remote"), 2):
            time.sleep(dice.random() ** 2 * LOAD)
            program: Program = getattr(self, victim)
            program.kill()
            time.sleep(dice.random() * 0.1)
            program.start()
            setattr(self.verdict, f"{victim}_kills", getattr(self.verdict, f"{victim}_kills") + 1)
        if leaves:
            away.come()
        self._drain()
        self.verdict.rounds += 1
        self._compare()

    def _drain(self) -> None:
        before, since = -1, time.monotonic()
        while not self._settled():
            time.sleep(0.02)
            for member in self.members:
                member.acknowledge()
            now = self._progress()
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > DRAIN:
                return

    def _progress(self) -> int:
        found = sum(len(judge.seen) for member in self.members for judge in member.judges.values())
        found += sum(len(judge.seen) for judge in self.subscriber.judges.values())
        return found + sum(len(one.acknowledged) for one in self.publishers) + sum(len(member.answered) for member in self.members)

    def _settled(self) -> bool:
        return not self._busy() and not self._missing()

    def _busy(self) -> int:
        """How many have something without an acknowledgement or an answer."""
        return sum(not one.idle for one in self.publishers) + sum(not member.idle for member in self.members)

    def _missing(self) -> int:
        lost = sum(len(one.acknowledged - member.judges[one.number].seen) for one in self.publishers for member in self.members)
        return lost + sum(len(member.answered - self.subscriber.judges[member.number].seen) for member in self.members)

    def _compare(self) -> None:
        verdict, members = self.verdict, self.members
        heard = [judge for member in members for judge in member.judges.values()]
        there = list(self.subscriber.judges.values())
        verdict.published = sum(len(one.acknowledged) for one in self.publishers)
        verdict.requested = sum(len(member.answered) for member in members)
        verdict.delivered = sum(len(judge.seen) for judge in heard)
        verdict.arrived = sum(len(judge.seen) for judge in there)
        verdict.lost = self._missing() + self._busy()
        verdict.doubled = sum(member.doubled for member in members)
        verdict.disorder = sum(judge.disorder for judge in heard)
        verdict.removed_by_id = sum(member.by_id for member in members)
        verdict.removed_by_identity = sum(member.by_identity for member in members)
        verdict.repeated_requests = sum(judge.again for judge in there)
        verdict.resumed = sum(member.resumed for member in members)
        faults = sum((member.faults for member in members), Counter(self.subscriber.faults))
        faults["corrupt"] = sum(judge.corrupt for judge in (*heard, *there))
        verdict.faults = {name: count for name, count in faults.items() if count}

    def end(self) -> None:
        """Stop everything."""
        for client in (*(one.client for one in self.publishers), *(member.client for member in self.members), self.subscriber.client):
            with suppress(Exception):
                client.disconnect()
            client.loop_stop()
        for program in reversed(self.programs):
            program.kill()


def until(reached: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Look until it is so: it happens in paho-mqtt's threads. RuntimeError after so many seconds."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise RuntimeError(f"no {what} within {seconds:.0f} s")
        time.sleep(0.005)


def trial(
    folder: Path,
    seed: int,
    rounds: int,
    kind: str,
    rate: int,
    report: Callable[[Verdict], None] = lambda _: None,
    inside: bool = False,
) -> Verdict:
    """So many rounds, or as many as go well. Raises RuntimeError, OSError."""
    work = Trial(folder, seed, kind, rate, inside)
    try:
        for _ in range(rounds):
            work.round()
            report(work.verdict)
            if not work.verdict.good:
                break
    finally:
        work.end()
    return work.verdict


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often the remote and the metabroker are killed.")] = 10,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 1,
    remote: Annotated[str, typer.Option(help="mqmesh or mosquitto; the latter may lose what it acknowledged before it saved.")] = "mqmesh",
    rate: Annotated[int, typer.Option(min=1, help="Messages a round of each publisher and member, at most.")] = 500,
    inside: Annotated[bool, typer.Option("--inside", help="The metabroker runs inside the community broker, and dies with it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Kill a metabroker and a remote broker with SIGKILL under load, and compare what was acknowledged with what arrived."""
    if remote not in ("mqmesh", "mosquitto"):
        raise typer.BadParameter(f"'{remote}': mqmesh or mosquitto", param_hint="--remote")
    console = Console(stderr=as_json)
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-metabroker-kill-"))
    try:
        verdict = trial(folder, seed, rounds, remote, rate, inside=inside)
    except (RuntimeError, OSError) as error:
        console.print(f"{error}; logs and data are in {folder}", markup=False, highlight=False)
        raise typer.Exit(1) from None
    errors = errors_in(folder / "metabroker.log")
    if as_json:
        print(json.dumps({"remote": remote, "inside": inside, "seed": seed, **asdict(verdict), "errors": len(errors)}))
    else:
        console.print(table(verdict, f"kill -9 of the metabroker and of a remote ({remote}), seed {seed}"))
    for line in errors[:10]:
        console.print(line, markup=False, highlight=False)
    if not verdict.good or errors:
        console.print(f"logs and data are in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder, ignore_errors=True)


def table(verdict: Verdict, title: str) -> Table:
    """What was counted."""
    made = Table(title=title, title_justify="left")
    made.add_column("what")
    made.add_column("count", justify="right")
    for name, value in asdict(verdict).items():
        if name != "faults":
            made.add_row(name.replace("_", " "), f"{value:,}")
    for fault, count in verdict.faults.items():
        made.add_row(fault, f"{count:,}")
    return made


if __name__ == "__main__":
    app()
