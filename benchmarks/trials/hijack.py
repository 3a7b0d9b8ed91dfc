"""Take over other users' sessions in a real mesh: `python -m benchmarks.trials.hijack`.

A triangle of broker processes whose clients roam. One user has a session at `a` with a subscription to topics that the rules allow to
nobody else; a feeder at `c` publishes to them all the time. Another user, who has a good token too, connects with the same client
identifier again and again, while something happens to the session:

- takeover: its client is connected;
- away: its client is not;
- move: its client comes to `b`, and the session moves there;
- kill: the broker that has it is killed (SIGKILL) at some moment, and started again a little later;
- start: that broker is killed and starts without links, so that both clients wait there until it has heard of the mesh.

Each with both users in the one part and the other, at the session's site and at another one, with and without Clean Start, with a store
and without one. The other user must be refused. Where the session's site cannot be asked, or has lost it with its memory, he may have a
session of his own (docs/roaming.md); he must never hear that there is one, get a message of the owner's, end the owner's connection, or
discard the session. Afterwards the owner comes back, finds the session and gets all that was acknowledged to the feeder.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jwt
import typer
from mqmesh.cli.fleet.process import Fleet, FleetError
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Connack, Connect, Disconnect, Puback, Publish, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.trials.scene import mesh

USERS = ("alice", "mallory")
FEEDER = "feeder"
STORES = ("sqlite", "memory")
MOMENTS = ("takeover", "away", "move", "kill", "start")
HOME, TO, FED = "a", "b", "c"  # where the session is, where it moves, and where messages come from
FOREVER = 0xFFFFFFFF
REFUSED, LATER = {5: 0x87, 4: 5}, {5: 0x89, 4: 3}
ROAM_WAIT = 0.3  # seconds that a broker waits for the others' answers; one that is slower counts as one that cannot be asked
THIEVES = 3  # connections of the other user at a time
PATIENCE = 30.0  # seconds for what must happen
APART = 0.6  # seconds that a broker is down, or has no links
FEED = 0.005  # seconds between two messages
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Result:
    """What one case showed.

    tries: CONNECTs of the other user that were answered. own: sessions of his own. sessions: how often he was in the owner's, had it
    discarded, or ended its connection. messages: that came to him. acknowledged: to the feeder; lost: of these, what the owner has not got.
    """

    store: str
    moment: str
    other: bool
    clean: bool
    owner: str
    tries: int = 0
    refused: int = 0
    own: int = 0
    sessions: int = 0
    messages: int = 0
    acknowledged: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.sessions or self.messages or self.lost or self.problems) and self.tries > 0

    @property
    def breaks(self) -> bool:
        """Whether the session's broker is down for a while."""
        return self.moment in ("kill", "start")

    @property
    def kept(self) -> bool:
        """Whether the session's broker has it all the time, or again."""
        return self.store != "memory" or not self.breaks


class Client(asyncio.Protocol):
    """One connection. got: what came, as (topic, payload). ended: the reason of the broker's DISCONNECT."""

    def __init__(self, moved: Callable[[], None], version: int = 5) -> None:
        self.version, self.moved = version, moved
        self.connack: Connack | None = None
        self.granted: list[int] | None = None
        self.got: list[tuple[str, bytes]] = []
        self.acknowledged: set[int] = set()
        self.ended: int | None = None
        self.up = False
        self._framer = Framer()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.up = transport, True  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.up = False
        self.moved()

    def send(self, packet: Any) -> None:
        """Write, if there is a connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(packet, self.version))

    def leave(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()
        self.up = False

    def data_received(self, data: bytes) -> None:
        for first, body in self._framer.feed(data):
            packet = decode(first, body, self.version)
            if isinstance(packet, Publish):
                self.got.append((packet.topic, packet.payload))
                if packet.qos:
                    self.send(Puback(packet.packet_id))
            elif isinstance(packet, Connack):
                self.connack = packet
            elif isinstance(packet, Suback | Unsuback):
                self.granted = [int(reason) for reason in packet.reasons]
            elif isinstance(packet, Puback):
                if packet.reason < 0x80:
                    self.acknowledged.add(packet.packet_id)
            elif isinstance(packet, Disconnect):
                self.ended = int(packet.reason)
        self.moved()


class Trial:
    """One mesh and who uses it."""

    def __init__(self, fleet: Fleet, key: bytes, store: str, dice: random.Random) -> None:
        self.fleet, self.key, self.store, self.dice = fleet, key, store, dice
        self.moved = asyncio.Event()
        self.numbers = itertools.count(1)

    async def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until it is so; it changes with what clients hear. TimeoutError."""
        async with asyncio.timeout(patience):
            while not condition():
                self.moved.clear()
                await self.moved.wait()

    async def linked(self) -> None:
        """Wait until all links are up and the brokers agree. Raises FleetError."""

        def wait() -> None:
            end = time.monotonic() + PATIENCE
            with self.fleet.changed:
                while (missing := self.fleet.unsettled()) is not None:
                    if time.monotonic() > end:
                        raise FleetError(missing)
                    self.fleet.changed.wait(0.5)

        await asyncio.to_thread(wait)

    async def connect(self, site: str, user: str, name: str, clean: bool = False, version: int = 5, keep: bool = True) -> Client:
        """CONNECT, and wait for its answer, or for the end of the connection. keep: the session outlives it. OSError, TimeoutError."""
        client = Client(self.moved.set, version)
        port = self.fleet.members[site].address.port
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
        token = jwt.encode({"exp": time.time() + 3600, "sub": user}, self.key, "HS256").encode()
        properties = {Property.SESSION_EXPIRY_INTERVAL: FOREVER} if keep and version == 5 else {}
        client.send(Connect(name, version, clean, user_name=user, password=token, properties=properties))  # type: ignore[arg-type]
        try:
            await self.until(lambda: client.connack is not None or not client.up)
        except BaseException:  # nobody would end it
            client.leave()
            raise
        return client

    async def let_in(self, site: str, user: str, name: str, **how: bool) -> Client:
        """The same, until it is let in. TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(OSError):
                    client = await self.connect(site, user, name, **how)
                    if client.connack is not None and not client.connack.reason:
                        return client
                    client.leave()
                await asyncio.sleep(0.05)

    async def subscribe(self, client: Client, *filters: str) -> list[int]:
        """SUBSCRIBE with QoS 1; what SUBACK grants, nothing if the connection ends. TimeoutError."""
        client.granted = None
        client.send(Subscribe(1, [Subscription(one, 1) for one in filters]))
        await self.until(lambda: client.granted is not None or not client.up)
        return client.granted or []

    async def unsubscribe(self, client: Client, filter_: str) -> list[int]:
        """UNSUBSCRIBE; the reason code, nothing if the connection ends. TimeoutError."""
        client.granted = None
        client.send(Unsubscribe(1, [filter_]))
        await self.until(lambda: client.granted is not None or not client.up)
        return client.granted or []


class Case:
    """One attack. It fills in its `Result`."""

    def __init__(self, trial: Trial, result: Result) -> None:
        self.trial, self.result = trial, result
        self.owner, self.thief = result.owner, USERS[1 - USERS.index(result.owner)]
        self.name = f"client {next(trial.numbers)}"
        self.topic = f"own/{self.owner}/{self.name}"
        self.clients: list[Client] = []  # of the owner
        self.thieves: list[Client] = []
        self.feeder: Client | None = None
        self.fed = 0
        self.over = False  # the other user gives up
        self.reachable = True  # the session's broker, by all others
        self.faults = 0  # how often it was not
        self.pausing = False  # the other user tries nothing new
        self.trying = 0  # connections of his that are under way

    # ---- the owner and the feeder

    async def come(self, site: str) -> Client:
        client = await self.trial.let_in(site, self.owner, self.name)
        self.clients.append(client)
        return client

    async def feed(self) -> None:
        """Publish for the owner until it is enough."""
        self.feeder = await self.trial.let_in(FED, FEEDER, f"feeder of {self.name}", clean=True, keep=False)
        while True:
            self.fed += 1
            self.feeder.send(Publish(f"{self.topic}/x", b"%d" % self.fed, 1, packet_id=self.fed))
            await asyncio.sleep(FEED)

    def had(self) -> set[int]:
        """What the owner got."""
        return {int(payload) for client in self.clients for _, payload in client.got}

    # ---- the other user

    async def attack(self, site: str) -> None:
        """Connect again and again, until he gives up."""
        dice = self.trial.dice
        while not self.over:
            if self.pausing:
                await self.trial.until(lambda: not self.pausing)
            self.trying += 1
            try:
                await self._try(site, dice.choice((4, 5)))
            finally:
                self.trying -= 1
                self.trial.moved.set()
            await asyncio.sleep(dice.uniform(0, 0.05))

    async def _try(self, site: str, version: int) -> None:
        result, safe, faults = self.result, self.reachable, self.faults
        try:
            client = await self.trial.connect(site, self.thief, self.name, result.clean, version)
        except (OSError, TimeoutError):
            return
        self.thieves.append(client)
        if client.connack is not None:
            result.tries += 1
            self.trial.moved.set()
            await self.judge(site, client, client.connack, safe and faults == self.faults)
        client.leave()

    async def judge(self, site: str, client: Client, connack: Connack, safe: bool) -> None:
        """safe: the session's broker was reachable all the time."""
        result, version = self.result, client.version
        if connack.reason in (REFUSED[version], LATER[version]):
            result.refused += 1
            return
        if connack.reason:
            result.problems.append(f"CONNACK 0x{connack.reason:02X} at {site}")
            return
        if result.kept and (safe or site == HOME):
            result.sessions += 1
            result.problems.append(f"let in at {site}, where the session's broker can be asked")
        if not connack.session_present:
            result.own += 1
        elif not await self._his(client):
            result.sessions += 1
        granted = await self.trial.subscribe(client, f"{self.topic}/#", f"own/{self.thief}/#")
        if granted and granted[0] < 0x80:
            result.problems.append(f"his subscription to the owner's topics is granted at {site}")
        await asyncio.sleep(0.05)

    async def _his(self, client: Client) -> bool:
        """Whether the session that he found is one of his own."""
        others = [one for one in self.thieves if one is not client]
        if any(one.connack is not None and not one.connack.reason for one in others):
            return True
        if all(one.connack is not None for one in others):
            return False
        if client.version == 4:  # its UNSUBACK does not say what there was
            return True
        # A broker that was killed before it answered may have let him in. The owner's session has a subscription.
        return await self.trial.unsubscribe(client, f"{self.topic}/#") == [Reason.NO_SUBSCRIPTION_EXISTED]

    @asynccontextmanager
    async def attacked(self) -> AsyncIterator[None]:
        """The other user is at it meanwhile."""
        dice, others = self.trial.dice, (TO, FED)
        sites = [dice.choice(others) if self.result.other else HOME for _ in range(THIEVES)]
        tasks = [asyncio.create_task(self.attack(site), name=f"attack at {site}") for site in sites]
        try:
            yield
        finally:
            self.over = True  # a CONNECT that is on its way is answered first: else he may come in after `go_home`, and keep the owner out
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in filter(None, ended):
            raise error

    async def go_home(self) -> None:
        """He ends what he has made, wherever that is. He goes on to listen at one site until then."""
        for client in self.thieves:
            client.leave()
        for site in (HOME, TO, FED):
            client = await self.trial.connect(site, self.thief, self.name, clean=True, keep=False)
            client.send(Disconnect())
            client.leave()

    # ---- what happens

    async def run(self) -> None:
        """The whole case."""
        trial, result = self.trial, self.result
        alice = await self.come(HOME)
        if await trial.subscribe(alice, f"{self.topic}/#") != [1]:
            raise RuntimeError("the owner's subscription is not granted")
        await trial.linked()
        feeding = asyncio.create_task(self.feed(), name="feed")
        try:
            await trial.until(lambda: len(alice.got) > 10)
            if result.moment != "takeover":
                alice.leave()
            async with self.attacked():
                await getattr(self, result.moment)()
            await trial.linked()
            await self.go_home()
            if result.moment == "takeover" and (not alice.up or alice.ended is not None):
                result.sessions += 1
                result.problems.append(f"the owner's connection was ended: {alice.ended}")
        finally:
            feeding.cancel()
        await self.check()

    async def takeover(self) -> None:
        await self._tried(15)

    async def away(self) -> None:
        await self._tried(15)

    async def _tried(self, times: int) -> None:
        await self.trial.until(lambda: self.result.tries >= times)

    async def move(self) -> None:
        await self._tried(3)
        for site in (TO, HOME, TO):
            self._is_there(await self.come(site))
            await asyncio.sleep(self.trial.dice.uniform(0, 0.1))
            self.clients[-1].leave()

    async def kill(self) -> None:
        fleet, dice = self.trial.fleet, self.trial.dice
        await self._tried(3)
        await asyncio.sleep(dice.uniform(0, 0.1))
        self.reachable = False
        self.faults += 1
        await asyncio.to_thread(fleet.kill, HOME)
        await asyncio.sleep(dice.uniform(0, APART))
        await asyncio.to_thread(fleet.restart, HOME)
        await self.trial.linked()
        await self._in_reach()
        await self._tried(self.result.tries + 5)

    async def start(self) -> None:
        fleet = self.trial.fleet
        await self._tried(3)
        self.reachable = False
        self.faults += 1
        await asyncio.to_thread(fleet.kill, HOME)
        for other in (TO, FED):
            fleet.cut(HOME, other)
        restarting = asyncio.create_task(asyncio.to_thread(fleet.restart, HOME))
        coming = asyncio.create_task(self.come(HOME))
        await restarting
        await asyncio.sleep(self.trial.dice.uniform(0, APART))
        for other in (TO, FED):
            fleet.mend(HOME, other)
        if self.result.kept:
            self._is_there(await coming)
        else:
            await asyncio.wait([coming], timeout=5)  # the other user may have been the first
            coming.cancel()
        await self.trial.linked()
        await self._in_reach()
        await self._tried(self.result.tries + 5)

    async def _in_reach(self) -> None:
        """The session's broker can be asked again. What the other user got meanwhile is his own and stays (docs/roaming.md): he ends it."""
        self.pausing = True
        try:
            await self.trial.until(lambda: not self.trying)
            for site in (TO, FED):
                client = await self.trial.connect(site, self.thief, self.name, clean=True, keep=False)
                client.send(Disconnect())
                await self.trial.until(partial(lambda one: not one.up, client))
            self.reachable = True
        finally:
            self.pausing = False
            self.trial.moved.set()

    def _is_there(self, client: Client) -> None:
        """The owner has come and must find the session."""
        assert client.connack is not None
        if not client.connack.session_present:
            self.result.sessions += 1
            self.result.problems.append("the owner's session was gone")

    # ---- afterwards

    async def check(self) -> None:
        """The owner comes back, and everything has to come."""
        trial, result, feeder = self.trial, self.result, self.feeder
        assert feeder is not None
        with suppress(TimeoutError):
            await trial.until(lambda: len(feeder.acknowledged) == self.fed, 5)
        result.acknowledged = len(feeder.acknowledged)
        result.messages = sum(topic.startswith(f"own/{self.owner}/") for client in self.thieves for topic, _ in client.got)
        last = await self.come(TO)
        if result.kept:
            self._is_there(last)
            with suppress(TimeoutError):
                await trial.until(lambda: feeder.acknowledged <= self.had(), 20)
            result.lost = len(feeder.acknowledged - self.had())
        for client in (*self.clients, *self.thieves, feeder):
            client.leave()
        end = await trial.let_in(TO, self.owner, self.name, clean=True, keep=False)
        end.send(Disconnect())
        end.leave()


def cases(rounds: int, stores: tuple[str, ...] = STORES, moments: tuple[str, ...] = MOMENTS) -> Iterator[Result]:
    """All of them, store by store."""
    for store in stores:
        for number in range(rounds):
            for owner, moment, other, clean in itertools.product(USERS, moments, (False, True), (False, True)):
                if (USERS.index(owner) + moments.index(moment) + other + clean + number) % 2 == 0:  # the other half is the next round's
                    yield Result(store, moment, other, clean, owner)


async def one(trial: Trial, result: Result) -> None:
    """Run one case; what goes wrong stands in its result."""
    case = Case(trial, result)
    try:
        await case.run()
    except (TimeoutError, OSError, FleetError, RuntimeError) as error:
        result.problems.append(f"{type(error).__name__}: {error}")
    for member in trial.fleet.take_exits():
        result.problems.append(f"the broker {member.name} ended with status {member.exit_status}")


async def play(
    folder: Path, store: str, results: list[Result], seed: int, step: Callable[[Result], None], roam_wait: float = ROAM_WAIT
) -> None:
    """Some cases in one mesh with one kind of store; stops after the first that fails. Raises FleetError.

    roam_wait: as in the mesh's settings. A busy machine needs more: else the other user rightly gets a session of his own where a broker
    is slow, and the owner a new one.
    """
    key = secrets.token_hex(32).encode()  # of random bytes some are white space, which brokers take from the ends
    (folder / "tokens.key").write_bytes(key)
    topology = mesh([("b", "a"), ("c", "a"), ("c", "b")])  # a dials both: it waits for a mesh when it starts
    topology.mesh = replace(topology.mesh, clients="roam", roam_wait=roam_wait, retry_last=0.2)
    rules = [
        {"allow": ["publish", "subscribe"], "topics": ["own/%u/#"]},
        {"users": [FEEDER], "allow": ["publish"], "topics": ["own/#"]},
    ]
    topology.tables = {
        "access": {"anonymous": False, "tokens": {"key": str(folder / "tokens.key")}, "rule": rules},
        "store": {"kind": store},
    }
    fleet = Fleet(topology, folder, proxies=True)
    await asyncio.to_thread(fleet.start)
    try:
        trial = Trial(fleet, key, store, random.Random(seed))
        for result in results:
            step(result)
            await one(trial, result)
            if not result.ok:
                break
    finally:
        await asyncio.to_thread(fleet.stop)


def table(done: list[Result], title: str) -> Table:
    """One row for each store, moment, place and kind of CONNECT, and the sums."""
    made = Table(title=title, title_justify="left", caption="own: sessions of his own, where the owner's could not be asked for")
    for heading in ("store", "while", "at", "CONNECT"):
        made.add_column(heading, no_wrap=True)
    names = ("tries", "refused", "own", "sessions", "messages", "acknowledged", "lost")
    for heading in ("cases", *names):
        made.add_column(heading, justify="right")
    rows: dict[tuple[str, str, str, str], Counter[str]] = {}
    bad: set[tuple[str, str, str, str]] = set()
    for result in sorted(done, key=lambda one: (one.store, MOMENTS.index(one.moment), one.other, one.clean)):
        key = (result.store, result.moment, "another site" if result.other else "its site", "clean start" if result.clean else "resume")
        row = rows.setdefault(key, Counter())
        row.update({"cases": 1, **{name: getattr(result, name) for name in names}})
        if not result.ok:
            bad.add(key)
    total: Counter[str] = Counter()
    for key, row in rows.items():
        total.update(row)
        made.add_row(*key, *(f"{row[name]:,}" for name in ("cases", *names)), style="red" if key in bad else None)
    made.add_section()
    made.add_row("", "", "", "sum", *(f"{total[name]:,}" for name in ("cases", *names)))
    return made


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="Each has half of the 40 cases, for each store.")] = 4,
    seed: Annotated[int, typer.Option(help="Of moments and places.")] = 1,
    store: Annotated[list[str] | None, typer.Option(help="sqlite, lmdb or memory, more than once; sqlite and memory if left out.")] = None,
    moment: Annotated[list[str] | None, typer.Option(help=f"{', '.join(MOMENTS)}, more than once; all if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Try to take over sessions of another user in a real mesh, whatever happens to it.

    Exit status 1 if that succeeded, an owner lost a session or an acknowledged message, or a broker ended by itself.
    """
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 140
    stores, moments = tuple(store or STORES), tuple(moment or MOMENTS)
    if wrong := set(moments) - set(MOMENTS):
        raise typer.BadParameter(f"{', '.join(wrong)}: there are {', '.join(MOMENTS)}", param_hint="--moment")
    wanted = list(cases(rounds, stores, moments))
    done: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("start", total=len(wanted))

        def step(result: Result) -> None:
            bar.update(task, description=f"{result.store}, {result.moment}", completed=len(done))
            done.append(result)

        for kind in stores:
            folder = Path(tempfile.mkdtemp(prefix="mqmesh-hijack-"))
            asyncio.run(play(folder, kind, [one for one in wanted if one.store == kind], seed, step))
            if done[-1].ok:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                done[-1].problems.append(f"the brokers' logs are in {folder}")
    if as_json:
        print(json.dumps([asdict(one) | {"ok": one.ok} for one in done]))
    else:
        console.print(table(done, f"sessions of other users, seed {seed}"))
    for one in done:
        for problem in one.problems:
            console.print(f"[red]{one.store}, {one.moment}[/]: {problem}", highlight=False)
    if not all(one.ok for one in done):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
