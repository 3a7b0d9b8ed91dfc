"""Start copies of data folders in real meshes under QoS 2 load: `python -m benchmarks.trials.clones`.

Each run has a mesh of processes with stores. While publishers and subscribers with persistent sessions are at every site, one
broker's data folder is copied as a snapshot of its disk would be, and a broker is started on the copy. It dials the neighbours of its
original: at once, or after it has served a publisher of its own for a while where nobody else is. It must say within two seconds after
the first link that it has stopped. Then it gets an identity of its own (`mqmesh identity new`), and all that either of the two has
acknowledged must be at every site, once and in order. What the copy took for subscribers of its own site is in their sessions at the copy.

The runs go through all places of a ring of four, a chain of three and a triangle, in turn with both ways.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from mqmesh.broker.config import of_topology
from mqmesh.cli.demo.ring import free_ports
from mqmesh.cli.fleet import broker_file
from mqmesh.cli.fleet.process import FleetError
from mqmesh.cli.fleet.proxy import Proxy
from mqmesh.mesh.topology.topology import LinkEntry
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load_generator import wire
from benchmarks.trials.metabroker_kill import Program, mqmesh
from benchmarks.trials.random_faults import Fault, Trial
from benchmarks.trials.scene import Link, Scene, mesh
from benchmarks.trials.strict import Judge, Publisher, Session, Subscriber

MESHES: dict[str, list[Link]] = {
    "ring": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")],
    "chain": [("a", "b"), ("b", "c")],
    "triangle": [("a", "b"), ("b", "c"), ("c", "a")],
}
PLACES = [(shape, site) for shape, links in MESHES.items() for site in sorted({site for link in links for site in link})]
COPY = 99  # number of the publisher at the copy, and of the copy once it is a broker of its own
SAID_WITHIN = 2.0  # seconds from its first link until the copy has said that it stops
PATIENCE = 30.0  # seconds for everything else that must happen
USE_ANOTHER_SERVER = 0x9C
APART = 1.0  # seconds that a copy serves where nobody else is
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Result:
    """What one run showed. said: seconds from the first link to the copy's word. acknowledged: of all publishers; here: by the copy."""

    shape: str
    site: str
    apart: bool
    said: float = 0.0
    acknowledged: int = 0
    here: int = 0
    lost: int = 0
    twice: int = 0
    disorder: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.twice or self.disorder or self.problems)


class Copy:
    """A broker on a copy of a site's data folder, linked by it to the neighbours of its original, through a proxy each."""

    def __init__(self, scene: Scene, site: str) -> None:
        self.scene, self.site = scene, site
        self.folder = scene.fleet.folder / "copy"
        self.folder.mkdir()
        self.port, self.http = free_ports(2)
        self.log = self.folder / "copy.log"
        neighbours = [other for link in scene.links if site in link for other in link if other != site]
        self.proxies = {other: Proxy(*scene.address(other)) for other in neighbours}
        self.program = Program(
            mqmesh("broker", "--config", self.folder / "copy.toml", "--stop-with-stdin"),
            self.log,
        )
        self._write(scene.fleet.members[site].number, site)

    def _write(self, number: int, name: str) -> None:
        """The file of a broker under this number and name, on the copied folder."""
        topology = self.scene.fleet.topology
        listen = (f"mqtt://127.0.0.1:{self.port}",)
        brokers = [replace(one, listen=listen) if one.name == self.site else one for one in topology.brokers]
        links = [LinkEntry(other, self.site, address=proxy.url) for other, proxy in self.proxies.items()]
        config = of_topology(replace(topology, brokers=brokers, links=links), self.site, self.folder)
        file = self.folder / "copy.toml"
        broker_file.write(file, replace(config, number=number, name=name))
        file.write_text(f'{file.read_text()}\n[http]\nlisten = "http://127.0.0.1:{self.http}"\n')

    def take(self) -> None:
        """Copy the data folder while its broker does nothing: what its disk holds at one moment."""
        pid = self.scene.fleet.members[self.site].process
        assert pid is not None
        pid.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self.scene.fleet.folder / self.site, self.folder / self.site)
        finally:
            pid.send_signal(signal.SIGCONT)

    def part(self) -> None:
        """It is where nobody else is."""
        for proxy in self.proxies.values():
            proxy.cut()

    def join(self) -> None:
        """It comes where the others are."""
        for proxy in self.proxies.values():
            proxy.mend()

    @property
    def said(self) -> float | None:
        """Seconds from its first link until it has said that it stops; None: it has not."""
        when: dict[str, datetime] = {}
        for line in self.log.read_text(errors="replace").splitlines():
            for event in ("link-up", "fenced"):
                if f" event={event} " in line:
                    when.setdefault(event, datetime.fromisoformat(line.split(" ", 1)[0]))
        return (when["fenced"] - when["link-up"]).total_seconds() if len(when) == 2 else None

    def ready(self) -> tuple[int, str]:
        """What /ready says: the status and the text."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ready", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def connack(self) -> int:
        """The reason code of its answer to a stranger's CONNECT."""
        body = wire.text(b"MQTT") + b"\x05\x02" + b"\0\x3c" + b"\0" + wire.text(b"stranger")
        with socket.create_connection(("127.0.0.1", self.port), 5) as client:
            client.sendall(wire.packet(0x10, body))
            return client.recv(64)[3]

    def identity(self, command: str) -> subprocess.CompletedProcess[str]:
        """`mqmesh identity` for its folder."""
        command_line = mqmesh("identity", command, "--config", self.folder / "copy.toml")
        return subprocess.run(command_line, capture_output=True, text=True, check=False)

    def renew(self) -> str:
        """While it is stopped: an identity of its own. What is wrong if that fails, else ""."""
        self._write(COPY, f"{self.site}-copy")
        done = self.identity("new")
        return done.stderr if done.returncode else ""

    def close(self) -> None:
        """End it."""
        self.program.kill()
        for proxy in self.proxies.values():
            proxy.close()


class Copies(Trial):
    """The books, where some messages of the publisher at the copy are for its own site: they are in the sessions there.

    mirror: the subscriber of the copied site for its session at the copy. site: that site. before: messages that the copy was given under
    its first identity.
    """

    mirror: Subscriber | None = None
    site = ""
    before = 0

    def _settled(self) -> bool:
        if not all(publisher.idle for publisher in self.publishers.values()):
            return False
        return not any(
            publisher.acknowledged - subscriber.judges[number].seen - (self.there() if (number, site) == (COPY, self.site) else set())
            for number, publisher in self.publishers.items()
            for site, subscriber in self.subscribers.items()
        )

    def there(self) -> set[int]:
        """What the copy has given to the mirror, of what it was given under its first identity."""
        return set() if self.mirror is None else {one for one in self.mirror.judges[COPY].seen if one <= self.before}


class Guest(Publisher):
    """A publisher that a broker may refuse."""

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except wire.WireError:
            self.leave()


async def one_run(scene: Scene, shape: str, site: str, apart: bool, rate: float, seed: int) -> Result:
    """One copy in one mesh."""
    found = Result(shape, site, apart)
    trial = Copies(scene, random.Random(seed), rate, (2,))
    here = Guest("publisher of the copy", 5, COPY, 2, f"f/{site}/copy".encode(), 500)
    here.changed = trial.moved.set
    await trial.begin()
    for subscriber in trial.subscribers.values():
        subscriber.judges[COPY] = Judge(2)
    copy = Copy(scene, site)
    load = asyncio.create_task(trial.publish(), name="load")
    try:
        trial.running = True
        await _until(trial, lambda: all(len(one.acknowledged) > 20 for one in trial.publishers.values()))
        await asyncio.to_thread(copy.take)
        if apart:
            copy.part()
        await asyncio.to_thread(copy.program.start)
        trial.publishers[COPY] = here  # from now on it has its part of the load
        with suppress(OSError, TimeoutError):
            await here.dial(copy.port)
        if apart:
            await _until(trial, lambda: len(here.acknowledged) > 20)
            await asyncio.sleep(APART)
            copy.join()
        await _until(trial, lambda: copy.said is not None)
        found.said = copy.said or 0.0
        found.problems += await asyncio.to_thread(_refused, copy)
        await _until(trial, lambda: not here.up)
        trial.site, trial.before = site, here.sent
        await asyncio.to_thread(copy.program.kill)
        await asyncio.to_thread(copy.program.start)  # that changes nothing
        found.problems += await asyncio.to_thread(_refused, copy)
        await asyncio.to_thread(copy.program.kill)
        found.problems += [text for text in (await asyncio.to_thread(copy.renew),) if text]
        await asyncio.to_thread(copy.program.start)
        await _dial(here, copy.port)
        await _until(trial, lambda: bool(here.acknowledged))  # a copy that stopped at once has acknowledged nothing before
        trial.mirror = _mirror(trial, site)
        await _dial(trial.mirror, copy.port)
        trial.running = False
        for publisher in trial.publishers.values():
            publisher.limit = publisher.sent
        found.problems += await trial.arrive()
        trial.subscribers[site].judges[COPY].seen |= trial.there()
    finally:
        load.cancel()
        trial.leave()
        here.leave()
        if trial.mirror is not None:
            trial.mirror.leave()
        copy.close()
    verdict = trial._compare(Fault(f"copy of {site}", lambda: None, lambda: None, site))
    found.acknowledged, found.here = verdict.acknowledged, len(here.acknowledged)
    found.lost, found.twice, found.disorder = verdict.lost, verdict.twice, verdict.disorder
    found.problems += [*verdict.problems, *(f"{here.client_id}: {text}, {count} times" for text, count in here.faults.items())]
    found.problems += _missing(trial)
    if found.said > SAID_WITHIN:
        found.problems.append(f"the copy stopped after {found.said:.1f} s")
    return found


def _mirror(trial: Copies, site: str) -> Subscriber:
    """The subscriber of the copied site again, for its session at the copy: what the copy took for its own site is there."""
    judges = {number: Judge(2) for number in (*trial.publishers, COPY)}
    mirror = Subscriber(trial.subscribers[site].client_id, 5, judges, 0, 0.0, random.Random(1))
    mirror.established, mirror.changed = True, trial.moved.set
    return mirror


def _missing(trial: Copies) -> list[str]:
    """Which acknowledged messages are where not."""
    found = []
    for number, publisher in trial.publishers.items():
        for site, subscriber in trial.subscribers.items():
            if missing := sorted(publisher.acknowledged - subscriber.judges[number].seen):
                found.append(f"{site} lacks {len(missing)} of {publisher.client_id}: {missing[0]} to {missing[-1]} of {publisher.sent}")
    return found


def _refused(copy: Copy) -> list[str]:
    """What is wrong with a broker that has stopped: it must say so to whoever asks whether it is ready."""
    status, text = copy.ready()
    if status != 503 or "mqmesh identity new" not in text:
        return [f"/ready of the copy says {status}: {text[:200]!r}"]
    shown = copy.identity("show")
    if shown.returncode != 1:
        return [f"mqmesh identity show ends with {shown.returncode}: {shown.stdout[:200]!r}"]
    reason = copy.connack()
    return [] if reason == USE_ANOTHER_SERVER else [f"the copy answers CONNECT with 0x{reason:02X}"]


async def _until(trial: Trial, condition: Callable[[], bool]) -> None:
    """Wait until it is so, looking after each thing that a client hears. TimeoutError."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await trial.something()


async def _dial(session: Session, port: int) -> None:
    end = time.monotonic() + PATIENCE
    while not session.up:
        try:
            await session.dial(port)
        except (OSError, TimeoutError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.05)


def run(folder: Path, shape: str, site: str, apart: bool, rate: float, seed: int) -> Result:
    """One run in a mesh of its own. Raises FleetError, OSError, TimeoutError."""
    with Scene(mesh(MESHES[shape]), folder) as scene:
        return asyncio.run(one_run(scene, shape, site, apart, rate, seed))


def table(done: list[Result], title: str) -> Table:
    """One row for each run."""
    made = Table(title=title, title_justify="left")
    for name in ("mesh", "copy of", "started"):
        made.add_column(name, no_wrap=True)
    names = ("acknowledged", "here", "lost", "twice", "disorder")
    headings = {"here": "by the\ncopy", "disorder": "out of\norder"}
    for name in names:
        made.add_column(headings.get(name, name), justify="right")
    made.add_column("said\nafter", justify="right")
    for one in done:
        cells = [f"{getattr(one, name):,}" for name in names]
        way = "apart" if one.apart else "at once"
        made.add_row(one.shape, one.site, way, *cells, f"{one.said:.2f} s", style=None if one.ok else "red")
    return made


@app.command()
def main(
    runs: Annotated[int, typer.Option(min=1, help="How many; 20 are all places, both ways.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the clients.")] = 1,
    rate: Annotated[float, typer.Option(min=10, help="Messages a second, of all publishers together.")] = 1000.0,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Start copies of data folders in real meshes and account for every message.

    Exit status 1 if an acknowledged message was lost, one came twice or out of order, or a copy did not say in time that it stops.
    """
    console = Console(stderr=as_json)
    ways = itertools.cycle([(shape, site, apart) for apart in (False, True) for shape, site in PLACES])
    done: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("start", total=runs)
        for index, (shape, site, apart) in enumerate(itertools.islice(ways, runs)):
            bar.update(task, description=f"{shape}, copy of {site}", completed=index)
            folder = Path(tempfile.mkdtemp(prefix="mqmesh-clones-"))
            try:
                done.append(run(folder, shape, site, apart, rate, seed + index))
            except (FleetError, OSError, TimeoutError, RuntimeError) as error:
                done.append(Result(shape, site, apart, problems=[f"{type(error).__name__}: {error}"]))
            if done[-1].ok:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                done[-1].problems.append(f"the brokers' logs and stores are in {folder}")
    if as_json:
        print(json.dumps([asdict(one) for one in done]))
    else:
        console.print(table(done, f"copies of data folders, {rate:,.0f} messages/s of QoS 2"))
        for one in done:
            for problem in one.problems:
                console.print(f"[red]{one.shape}, copy of {one.site}[/]: {problem}", highlight=False)
    if not all(one.ok for one in done):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
