"""Three metabrokers in a ring of three sites are harmed in turn, and judged: `python -m benchmarks.trials.metabrokers_kill`.

They keep their sessions in one PostgreSQL database. Members at each site have durable sessions with three remote brokers, and publish and
hear at QoS 1. A round harms one metabroker under load: `kill` (SIGKILL), `drain` (SIGTERM), `stall` (SIGSTOP until another one has its
sessions, then SIGCONT), or `part`: both links of its site are cut, up to twice as long as a lease lasts, and mended. Then everything that
was acknowledged must arrive, and each remote must have one connection again.

Judged as in `metabroker_kill`, and: how long it took until the last member of the harmed one heard that its session goes on; after `part`,
until all had arrived from when the links were mended.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from mqmesh.cli.fleet.proxy import Proxy
from paho.mqtt.client import MQTTMessage

from benchmarks.peers import free_port
from benchmarks.trials.kill import PahoPublisher, PahoSubscriber, errors_in, paho_client
from benchmarks.trials.metabroker_kill import DRAIN, Member, Program, mqmesh, remote_broker, until
from benchmarks.trials.strict import Judge

SITES = ("porto", "lyon", "turin")
KINDS = ("kill", "drain", "stall", "part")
PARTED = 10.0  # seconds, at most
app = typer.Typer(add_completion=False)


class TimedMember(Member):
    """A member that notes when it last heard that its session goes on."""

    at = 0.0

    def _on_message(self, client: object, data: object, came: MQTTMessage) -> None:
        before = self.resumed
        super()._on_message(client, data, came)
        if self.resumed > before:
            self.at = time.monotonic()


@dataclass(slots=True)
class Verdict:
    """What was found. seconds: of each round until the last session went on. connections: at most, of one remote, after a round."""

    rounds: dict[str, int] = field(default_factory=dict)
    published: int = 0
    delivered: int = 0
    requested: int = 0
    lost: int = 0
    doubled: int = 0
    disorder: int = 0
    removed_by_id: int = 0
    removed_by_identity: int = 0
    repeated_requests: int = 0
    moved: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    connections: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether nothing was lost or doubled."""
        return not (self.lost or self.doubled or self.disorder or self.faults) and self.connections == 1


class Site:
    """A broker of the ring, and the metabroker beside it."""

    def __init__(self, folder: Path, number: int, port: int, links: list[Proxy], database: str) -> None:
        """links: to the sites before it."""
        name = SITES[number]
        peers = "".join(f'[[mesh.peer]]\naddress = "{link.url}"\n' for link in links)
        config = folder / f"{name}.toml"
        config.write_text(
            f'name = "{name}"\nnumber = {number + 1}\nlisten = ["mqtt://127.0.0.1:{port}"]\n[metabroker]\npassword_file = "password"\n'
            f'[mesh]\nname = "ring"\nkey = "sixteen bytes or more"\n{peers}'
        )
        broker = mqmesh("broker", "--config", config, "--log-level", "warning", "--stop-with-stdin")
        options = (
            "--policy",
            folder / "policy.toml",
            "--password-file",
            folder / "password",
            "--data",
            database,
            "--data-key-file",
            folder / "password",
        )
        status = ("--status-topic", f"metabroker/status/{name}")
        self.broker = Program(broker, folder / f"{name}.log")
        self.metabroker = Program(
            mqmesh("metabroker", "--community", f"mqtt://127.0.0.1:{port}", *options, *status), folder / f"metabroker-{name}.log"
        )
        self.name, self.port = name, port


class Trial:
    """All processes, clients, and the dice. rate: messages a round of each publisher and member, at most."""

    def __init__(self, folder: Path, seed: int, database: str, members: int, rate: int) -> None:
        self.dice, self.rate, self.verdict = random.Random(seed), rate, Verdict()
        (folder / "policy.toml").write_text(
            "[limits]\nsessions_per_client = 10\n"
            '[[allow]]\nclients = ["*"]\nremotes = ["mqtt://127.0.0.1:*"]\npublish = ["#"]\nsubscribe = ["#"]\n'
        )
        (folder / "password").write_text("a password of more than sixteen bytes\n")
        ports = [free_port() for _ in SITES]
        self.links = {(far, near): Proxy("127.0.0.1", ports[far]) for near in range(len(SITES)) for far in range(near)}
        self.sites = [
            Site(folder, number, port, [link for (_, near), link in self.links.items() if near == number], database)
            for number, port in enumerate(ports)
        ]
        there = [free_port() for _ in SITES]
        self.urls = [f"mqtt://127.0.0.1:{port}" for port in there]
        folders = [folder / f"remote{number}" for number in range(len(there))]
        for one in folders:
            one.mkdir()
        self.remotes = [remote_broker("mqmesh", port, one) for port, one in zip(there, folders, strict=True)]
        self.programs = [*self.remotes, *(site.broker for site in self.sites), *(site.metabroker for site in self.sites)]
        for program in self.programs:
            program.start()
        self.status: dict[str, dict[str, Any]] = {}
        self.watcher = paho_client("watcher")
        self.watcher.on_connect = self._look
        self.watcher.on_message = self._on_status
        self.watcher.connect_async("127.0.0.1", ports[0], keepalive=3600)
        self.watcher.loop_start()
        until(lambda: len(self.status) == len(SITES), "three metabrokers")
        self.publishers = [PahoPublisher(port, number, 1, f"down/{number}", 20) for number, port in enumerate(there, 1)]
        places = [(11 + one, one % len(SITES), one // len(SITES) % len(there)) for one in range(members)]
        self.subscribers = [
            PahoSubscriber(port, 1, {number: Judge(1) for number, _, at in places if at == remote}) for remote, port in enumerate(there)
        ]
        self.members = [
            TimedMember(ports[site], f"m{number}", number, self.urls[remote], range(remote + 1, remote + 2))
            for number, site, remote in places
        ]
        until(lambda: all(one.established for one in self.subscribers) and all(one.subscribed for one in self.members), "subscriptions")

    def _look(self, *_: object) -> None:
        self.watcher.subscribe("metabroker/status/#", 1)

    def _on_status(self, _client: object, _data: object, came: MQTTMessage) -> None:
        self.status[came.topic.rpartition("/")[2]] = json.loads(came.payload or b"{}")

    def round(self, kind: str) -> None:
        """Load, harm, and everything arrives."""
        dice = self.dice
        self._even()
        site = dice.choice([one for one in self.sites if self._sessions(one)] or self.sites)
        self._load()
        time.sleep(dice.random() ** 2 * 0.5)
        if kind == "part":
            self._part(site)
        else:
            self._harm(site, kind)
        self.verdict.rounds[kind] = self.verdict.rounds.get(kind, 0) + 1
        self._compare()

    def _load(self) -> None:
        for publisher in self.publishers:
            publisher.go(publisher.limit + self.dice.randint(1, self.rate))
        for member in self.members:
            member.publish(self.dice.randint(1, self.rate))

    def _part(self, site: Site) -> None:
        """The site is cut off from the others, and not from the database and the remotes."""
        links = [link for ends, link in self.links.items() if self.sites.index(site) in ends]
        for link in links:
            link.cut()
        time.sleep(self.dice.random() * PARTED)
        self._load()
        for link in links:
            link.mend()
        mended = time.monotonic()
        self._drain()
        self.verdict.seconds.setdefault("part", []).append(round(time.monotonic() - mended, 2))

    def _harm(self, site: Site, kind: str) -> None:
        moved, began = self._sessions(site), time.monotonic()
        if kind == "stall":
            site.metabroker.send(signal.SIGSTOP)
        else:
            site.metabroker.kill(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        until(lambda: sum(one.at > began for one in self.members) >= moved, "sessions that go on")
        times = sorted(one.at - began for one in self.members if one.at > began)
        self.verdict.seconds.setdefault(kind, []).append(round(times[-1], 2) if times else 0.0)
        self.verdict.moved += moved
        if kind == "stall":
            site.metabroker.send(signal.SIGCONT)
        else:
            site.metabroker.start()
        self._drain()

    def _sessions(self, site: Site) -> int:
        found = self.status.get(site.name, {})
        return int(found["sessions"]["all"]) if found.get("up") else 0

    def _connections(self) -> Counter[str]:
        ups = [one for one in self.status.values() if one.get("up")]
        return Counter(remote["remote"] for one in ups for remote in one["remotes"] if remote["up"])

    def _even(self) -> None:
        """Wait until the metabrokers have said which sessions they have."""
        with suppress(RuntimeError):
            until(lambda: sum(map(self._sessions, self.sites)) == len(self.members), "all sessions in the status", 20.0)
            until(lambda: set(self._connections().values()) == {1}, "one connection a remote", 20.0)
        self.verdict.connections = max(self.verdict.connections, max(self._connections().values(), default=0))

    def _drain(self) -> None:
        before, since = -1, time.monotonic()
        while self._missing() or self._busy():
            time.sleep(0.05)
            for member in self.members:
                member.acknowledge()
            now = self._progress()
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > DRAIN:
                return

    def _judges(self) -> list[Judge]:
        return [judge for judges in self._all_judges() for judge in judges.values()]

    def _all_judges(self) -> list[dict[int, Judge]]:
        return [one.judges for one in self.members] + [one.judges for one in self.subscribers]

    def _progress(self) -> int:
        found = sum(len(judge.seen) for judge in self._judges())
        return found + sum(len(one.acknowledged) for one in self.publishers) + sum(len(member.answered) for member in self.members)

    def _busy(self) -> int:
        return sum(not one.idle for one in self.publishers) + sum(not member.idle for member in self.members)

    def _missing(self) -> int:
        lost = sum(
            len(self.publishers[number - 1].acknowledged - judge.seen) for one in self.members for number, judge in one.judges.items()
        )
        there = {number: judge for one in self.subscribers for number, judge in one.judges.items()}
        return lost + sum(len(member.answered - there[member.number].seen) for member in self.members)

    def _compare(self) -> None:
        verdict, members = self.verdict, self.members
        heard = [judge for member in members for judge in member.judges.values()]
        verdict.published = sum(len(one.acknowledged) for one in self.publishers)
        verdict.requested = sum(len(member.answered) for member in members)
        verdict.delivered = sum(len(judge.seen) for judge in heard)
        verdict.lost = self._missing() + self._busy()
        verdict.doubled = sum(member.doubled for member in members)
        verdict.disorder = sum(judge.disorder for judge in heard)
        verdict.removed_by_id = sum(member.by_id for member in members)
        verdict.removed_by_identity = sum(member.by_identity for member in members)
        verdict.repeated_requests = sum(judge.again for one in self.subscribers for judge in one.judges.values())
        faults = sum((member.faults for member in members), Counter[str]())
        faults["corrupt"] = sum(judge.corrupt for judge in self._judges())
        verdict.faults = {name: count for name, count in faults.items() if count}

    def end(self) -> None:
        """Stop everything."""
        clients = [one.client for one in self.publishers] + [one.client for one in self.members] + [one.client for one in self.subscribers]
        for client in (*clients, self.watcher):
            with suppress(Exception):
                client.disconnect()
            client.loop_stop()
        for program in reversed(self.programs):
            program.kill()
        for link in self.links.values():
            link.close()


def trial(folder: Path, seed: int, database: str, kinds: list[str], members: int, rate: int, say: bool = False) -> Verdict:
    """A round of each kind, or as many as go well. Raises RuntimeError, OSError."""
    work = Trial(folder, seed, database, members, rate)
    try:
        for kind in kinds:
            work.round(kind)
            if say:
                print(kind, work.verdict.seconds[kind][-1], f"lost={work.verdict.lost}", work.verdict.faults, flush=True)
            if work.verdict.lost or work.verdict.faults:
                break
        work._even()
    finally:
        work.end()
    return work.verdict


@app.command()
def main(
    database: Annotated[str, typer.Option(help="postgresql://..., of a database for this alone.")],
    kills: Annotated[int, typer.Option(help="How often a metabroker is killed.")] = 30,
    others: Annotated[int, typer.Option(help="How often one is drained, stalled, and cut off.")] = 3,
    members: Annotated[int, typer.Option(help="Sessions.")] = 300,
    rate: Annotated[int, typer.Option(help="Messages a round of each publisher and member, at most.")] = 10,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 1,
) -> None:
    """Harm one of three metabrokers again and again, and compare what was acknowledged with what arrived."""
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-metabrokers-kill-"))
    kinds = ["kill"] * kills + list(KINDS[1:]) * others
    verdict = trial(folder, seed, database, kinds, members, rate, say=True)
    errors = [line for site in SITES for line in errors_in(folder / f"metabroker-{site}.log") if "Traceback" in line]
    print(json.dumps({**asdict(verdict), "errors": len(errors)}))
    if not verdict.good or errors:
        print(f"logs and data are in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    app()
