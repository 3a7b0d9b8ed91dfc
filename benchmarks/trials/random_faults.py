"""Break a ring of five brokers with stores at random, its clients with persistent sessions: `python -m benchmarks.trials.random_faults`.

At each site one subscriber wants everything and one publisher for each QoS publishes; they keep every rule of the protocol over as many
connections as it takes (see `strict.py`). One fault after the other is drawn by the seed: a link is cut, the mesh is parted, a
broker is killed with SIGKILL, a broker is stopped and started, a link is slow, a disk is full. Each lasts for a while under load
and is repaired; then everything must arrive, before the next one.

What is counted, for each publisher and subscriber: messages that were acknowledged and did not come (lost), that came again
(twice), that came first behind a later one (out of order). QoS 1 allows a repeat where an acknowledgement was on its way when a broker
died: those are counted apart (again), and only in rounds in which a broker dies; QoS 2 never repeats.

A full disk is a limit on the size of the broker's files (`RLIMIT_FSIZE`), which the kernel enforces as it does a full disk. A witness
at each site reads what the broker says of its store (`$SYS/broker/store/state`): such a fault counts only if the store failed
meanwhile, and it must have recovered before the next one.
"""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.cli.fleet.process import FleetError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load_generator import wire
from benchmarks.trials.journal_books import Books, read
from benchmarks.trials.scene import Scene, mesh
from benchmarks.trials.strict import Judge, Publisher, Session, Subscriber

RING = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]
KINDS = ("link cut", "partition", "kill -9", "restart", "slow link", "full disk")
PATIENCE = 60.0  # seconds without any progress after which what is missing is lost
RECOVERY = 60.0  # seconds that a store has to work again; it tries itself every five
BATCH = 0.25  # seconds of events that a broker has in memory for its journal
STEP = 0.05  # seconds between two lots of messages
app = typer.Typer(add_completion=False)


class Fault(NamedTuple):
    """what: for people. begin, end: block. dies: the site whose broker ends meanwhile. full: whose store fails. seconds: it lasts."""

    what: str
    begin: Callable[[], None]
    end: Callable[[], None]
    dies: str | None = None
    full: str | None = None
    seconds: tuple[float, float] = (0.2, 2.0)


class Witness(Session):
    """Follows what a broker says of its store. failed: how often it has failed. failing: it does so now."""

    def __init__(self, site: str) -> None:
        super().__init__(f"witness {site}", 5)
        self.failed = 0
        self.failing = False

    def packet(self, first: int, body: bytes) -> None:
        failing = wire.decode_publish(first, body, 5).payload != b"ok"
        self.failed += failing and not self.failing
        self.failing = failing


@dataclass(slots=True)
class Verdict:
    """What one fault did. failed: how often a store failed. problems: anything else that must not be."""

    what: str
    published: int = 0
    acknowledged: int = 0
    refused: int = 0
    lost: int = 0
    twice: int = 0
    again: int = 0
    disorder: int = 0
    failed: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.twice or self.disorder or self.problems)


class Trial:
    """The mesh, its clients and the books."""

    def __init__(self, scene: Scene, dice: random.Random, rate: float, qos: tuple[int, ...]) -> None:
        """rate: messages a second of all publishers together."""
        self.scene, self.dice = scene, dice
        self.publishers: dict[int, Publisher] = {}
        self.home: dict[Session, str] = {}
        self.subscribers: dict[str, Subscriber] = {}
        for index, site in enumerate(scene.sites):
            for each in qos:
                number = index * 2 + each
                publisher = Publisher(f"publisher {number}", 5, number, each, f"f/{site}/{each}".encode(), 500)
                self.publishers[number] = publisher
                self.home[publisher] = site
        for site in scene.sites:
            judges = {number: Judge(publisher.qos) for number, publisher in self.publishers.items()}
            subscriber = self.subscribers[site] = Subscriber(f"subscriber {site}", 5, judges, 0, 0.0, dice)
            self.home[subscriber] = site
        self.witnesses = {site: Witness(site) for site in scene.sites}
        self.home |= {witness: site for site, witness in self.witnesses.items()}
        self.moved = asyncio.Event()
        for session in self.home:
            session.changed = self.moved.set
        self.rate = rate / len(self.publishers)
        self.running = False
        self._before = Verdict("")

    async def begin(self) -> None:
        """Everybody connects and has subscribed; the mesh knows it."""
        listeners: list[Session] = [*self.subscribers.values(), *self.witnesses.values()]
        await self.come(listeners)
        for listener in listeners:
            listener.subscribe(b"$SYS/broker/store/state" if isinstance(listener, Witness) else b"f/#", 2)
        while not all(listener.established for listener in listeners):
            await self.something()
        await asyncio.to_thread(self.scene.settle)
        await self.come(self.publishers.values())

    async def something(self) -> None:
        """Wait until a client has heard anything, for a second at most."""
        self.moved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self.moved.wait()

    async def come(self, sessions: object) -> None:
        """Those that are not connected connect."""
        for session in [one for one in self.home if one in set(sessions) and not one.up]:  # type: ignore[call-overload]
            deadline = time.monotonic() + PATIENCE
            while not session.up:
                try:
                    await session.dial(self.scene.address(self.home[session])[1])
                except (OSError, TimeoutError):
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.05)

    async def publish(self) -> None:
        """Publish at the rate, for ever."""
        last, due = time.monotonic(), 0.0
        while True:
            await asyncio.sleep(STEP)
            now = time.monotonic()
            due += self.rate * min(now - last, 2 * STEP)
            last, count = now, int(due)
            due -= count
            for publisher in self.publishers.values():
                if self.running and count and publisher.up and publisher.limit - publisher.sent < 500:
                    publisher.go(publisher.limit + count)

    async def round(self, fault: Fault) -> Verdict:
        """One fault under load, its repair, and all that must have arrived behind it."""
        began = time.monotonic()
        seconds = self.dice.uniform(*fault.seconds)
        self.running = True
        await asyncio.sleep(0.3)
        await asyncio.to_thread(fault.begin)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(fault.end)
        await self.come([*self.subscribers.values(), *self.witnesses.values()])
        await asyncio.to_thread(self.scene.settle)
        await self.come(self.publishers.values())
        await asyncio.sleep(0.3)
        self.running = False
        for publisher in self.publishers.values():
            publisher.limit = publisher.sent
        problems = await self.arrive() + await self.stores_work()
        found = self._compare(fault)
        found.problems += problems
        found.seconds = time.monotonic() - began
        return found

    async def arrive(self) -> list[str]:
        """Wait until publishers have all their answers and subscribers all that was acknowledged; what is wrong if that ends."""
        last, since = self._progress(), time.monotonic()
        while not self._settled():
            await self.something()
            now = self._progress()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                waiting = [p.client_id for p in self.publishers.values() if not p.idle]
                return [f"without an answer: {', '.join(waiting)}"] if waiting else []
        await asyncio.sleep(0.2)  # for what comes twice
        return []

    async def stores_work(self) -> list[str]:
        """Wait until no store fails any more; which ones do not come to it."""
        end = time.monotonic() + RECOVERY
        while (failing := [site for site, witness in self.witnesses.items() if witness.failing]) and time.monotonic() < end:
            await self.something()
        return [f"the store of {site} has not recovered" for site in failing]

    def _progress(self) -> tuple[int, int]:
        acknowledged = sum(len(p.acknowledged) + len(p.refused) for p in self.publishers.values())
        return acknowledged, sum(len(j.seen) for s in self.subscribers.values() for j in s.judges.values())

    def _settled(self) -> bool:
        if not all(p.idle for p in self.publishers.values()):
            return False
        return all(p.acknowledged <= s.judges[n].seen for n, p in self.publishers.items() for s in self.subscribers.values())

    def _compare(self, fault: Fault) -> Verdict:
        """The books, less what they were after the round before."""
        now = Verdict(fault.what)
        faults: list[str] = []
        for session in self.home:
            faults += [f"{session.client_id}: {text}, {count} times" for text, count in session.faults.items()]
            session.faults.clear()
        for number, publisher in self.publishers.items():
            now.published += publisher.sent
            now.acknowledged += len(publisher.acknowledged)
            now.refused += len(publisher.refused)
            for subscriber in self.subscribers.values():
                judge = subscriber.judges[number]
                now.lost += len(publisher.acknowledged - judge.seen)
                now.twice += judge.twice
                now.again += judge.again
                now.disorder += judge.disorder
                if judge.corrupt:
                    faults.append(f"{subscriber.client_id}: {judge.corrupt} altered messages of publisher {number}")
        now.failed = sum(witness.failed for witness in self.witnesses.values())
        before, self._before = self._before, now
        names = ("published", "acknowledged", "refused", "lost", "twice", "again", "disorder", "failed")
        found = Verdict(fault.what, problems=faults)
        for name in names:
            setattr(found, name, getattr(now, name) - getattr(before, name))
        if fault.dies is None:
            found.twice, found.again = found.twice + found.again, 0
        if (fault.full is None) != (found.failed == 0):
            found.problems.append("the store did not fail" if fault.full else "a store failed though no disk was full")
        for member in self.scene.fleet.take_exits():
            found.problems.append(
                f"the broker {member.name} ended with status {member.exit_status}: {self.scene.fleet.last_words(member.name)}"
            )
        return found

    def leave(self) -> None:
        """Everybody's connection breaks."""
        for session in self.home:
            session.leave()

    # Faults

    def draw(self, kinds: tuple[str, ...]) -> Fault:
        """The next fault."""
        dice, scene = self.dice, self.scene
        kind = dice.choice(kinds)
        if kind == "link cut":
            cut = scene.cut(dice.choice(scene.links))
            return Fault(cut.what, cut.begin, cut.end)
        if kind == "partition":
            cut = scene.cut(*dice.sample(scene.links, 2))
            return Fault(f"part: {cut.what}", cut.begin, cut.end)
        if kind == "slow link":
            slow = scene.throttle(dice.choice(scene.links), dice.choice((20_000, 100_000)))
            return Fault(slow.what, slow.begin, slow.end)
        site = dice.choice(scene.sites)
        if kind == "full disk":
            begin, end = (partial(self._limit, site, size) for size in (4096, resource.RLIM_INFINITY))
            return Fault(f"full disk at {site}", begin, end, full=site, seconds=(0.5, 6.0))
        stop = scene.fleet.kill if kind == "kill -9" else scene.fleet.stop_one
        return Fault(f"{kind} {site}", lambda: stop(site), lambda: scene.fleet.restart(site), site)

    def _limit(self, site: str, size: int) -> None:
        pid = self.scene.fleet.members[site].pid
        if pid is not None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def run(
    folder: Path,
    faults: int,
    seed: int,
    rate: float,
    qos: tuple[int, ...],
    kinds: tuple[str, ...],
    step: Callable[[str], None],
    journal: Path | None = None,
) -> list[Verdict]:
    """All faults on one mesh; stops behind the first that fails. step: told what happens. journal: what brokers write, into this folder.

    Raises FleetError, OSError.
    """
    dice = random.Random(seed)
    done: list[Verdict] = []
    step("start")
    scene = Scene(mesh(RING), folder)
    if journal is not None:
        scene.fleet.journal = JournalSettings(str(journal), batch_seconds=BATCH)
    with scene:
        trial = Trial(scene, dice, rate, qos)
        await trial.begin()
        load = asyncio.create_task(trial.publish(), name="load")
        try:
            for _ in range(faults):
                fault = trial.draw(kinds)
                step(fault.what)
                done.append(await trial.round(fault))
                if not done[-1].ok:
                    break
        finally:
            load.cancel()
            trial.leave()
    return done


def table(done: list[Verdict], title: str) -> Table:
    """One row for each fault and the sums."""
    made = Table(title=title, title_justify="left")
    made.add_column("fault", justify="right")
    made.add_column("what", no_wrap=True)
    names = ("published", "acknowledged", "refused", "failed", "again", "lost", "twice", "disorder")
    headings = {"failed": "store\nfailed", "disorder": "out of\norder"}
    for name in (*names, "seconds"):
        made.add_column(headings.get(name, name), justify="right")
    for number, one in enumerate(done, 1):
        cells = [f"{getattr(one, name):,}" for name in names]
        made.add_row(str(number), one.what, *cells, f"{one.seconds:.1f}", style=None if one.ok else "red")
    made.add_section()
    made.add_row("", "sum", *(f"{sum(getattr(one, name) for one in done):,}" for name in names), f"{sum(o.seconds for o in done):.0f}")
    return made


def accounted(root: Path, done: list[Verdict], console: Console) -> Books:
    """What the journal says of the messages of all faults; printed."""
    numbers = {name: number for number, name in enumerate(sorted({site for link in RING for site in link}), 1)}
    links = [frozenset((numbers[one], numbers[other])) for one, other in RING]
    kills = sum(one.what.startswith("kill -9") for one in done)
    books = read(str(root), links, kills, max(one.seconds for one in done))
    console.print(str(books), highlight=False)
    for problem in books.problems[:20]:
        console.print(f"[red]journal[/]: {problem}", highlight=False)
    return books


@app.command()
def main(
    faults: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
    seed: Annotated[int, typer.Option(help="What breaks, when and for how long follows from it.")] = 1,
    rate: Annotated[float, typer.Option(min=10, help="Messages a second, of all publishers together.")] = 2000.0,
    qos: Annotated[list[int] | None, typer.Option(min=1, max=2, help="Of publishers; may be given twice. Both by default.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help=f"Only such faults: {', '.join(KINDS)}.")] = None,
    journal: Annotated[bool, typer.Option("--journal", help="Brokers write a journal, which must account for every message too.")] = False,
) -> None:
    """Break a ring of five brokers with stores at random and account for every message.

    Exit status 1 if an acknowledged message was lost, one came twice or out of order, or a broker ended by itself.
    """
    unknown = [one for one in kind or () if one not in KINDS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is no fault; there are {', '.join(KINDS)}")
    console = Console()
    if not console.is_terminal:
        console.width = 140
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-random-faults-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("start", total=faults)
        said = -1

        def step(what: str) -> None:
            nonlocal said
            said += 1
            bar.update(task, description=what, completed=max(0, said - 1))

        try:
            root = folder / "journal" if journal else None
            done = asyncio.run(run(folder, faults, seed, rate, tuple(qos or (1, 2)), tuple(kind or KINDS), step, root))
        except (FleetError, OSError, TimeoutError) as error:
            console.print(f"[red]{error}[/]; the brokers' logs are in {folder}", highlight=False)
            raise typer.Exit(1) from None
    console.print(table(done, f"ring of five with stores, {rate:,.0f} messages/s, seed {seed}"))
    for one in done:
        for problem in one.problems:
            console.print(f"[red]{one.what}[/]: {problem}", highlight=False)
    books = accounted(root, done, console) if root is not None else Books()
    if books.problems or not all(one.ok for one in done):
        console.print(f"the brokers' logs and stores are in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    app()
