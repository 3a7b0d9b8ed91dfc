"""One seed: a mesh of 3 to 8 brokers, applications that stand in for each other, publishers, and a time in which everything breaks.

Chance draws the links, the network, the disks and the load (in one piece or in many, quick or slow, busy or nearly idle), who serves
which application where, its alternatives (with loops), and what happens: applications hang, leave,
wake and return, links are cut, brokers are killed and started again, the directory that some applications stand in is away, publishers go
on. Then all is repaired, and everything arrives.

Checked at the end, for each message that was acknowledged:
- it is somewhere: at an application, returned to its publisher, or among the dead letters; one with an expiry may be nowhere;
- only where it may be: its own application, or one that stands in for it, over as many steps as there are;
- every copy but one says that it may be a repeat (`mqmesh-repeated`, or DUP), unless its publisher itself had to send it again, or it came
  to a client that is no recipient, of a broker that was killed;
- a message that was returned names its topic, the reason and who was tried;
- where no broker died and no link broke: at each application, and at each publisher, the unmarked messages of one publisher for one
  recipient are in the order of publishing, but for probes.
And at the end every application takes messages again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings, PeerSettings
from mqmesh.broker.recipients.registered import registered_of
from mqmesh.broker.recipients.settings import Application, Intervals, RecipientSettings
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property

from .broker import Place, SimulatedWriter, probes, simulated
from .clients import Listener, Publisher
from .directory import Directory, Seat
from .virtual import STEP

INTERVALS = Intervals(0.4, 1.2, 3.0)
SETTLED = 3.0  # seconds that the mesh has before it begins
TROUBLE = 8.0  # seconds in which things break
PATIENCE = 90.0  # seconds that everything has to arrive, once all is repaired
QUIET = 4.0  # seconds in which nothing comes: then all has come
FAULTS = ("hang", "leave", "cut", "kill", "kill", "hang")
CALM_FAULTS = ("hang", "hang", "leave")  # of every other seed: order holds there


@dataclass
class Message:
    """What was published. to: the application. topic: an addressed one, or one that only this application is subscribed to."""

    number: int
    to: str
    topic: str
    publisher: str
    expires: bool
    acknowledged: bool = False


@dataclass
class Copy:
    """Where a message has come to: an application's name, "returned:PUBLISHER" or "dead"."""

    where: str
    marked: bool
    said: dict[str, str]


class Scenario:
    """The run of one seed. happened: what broke, for people. counts: where messages have ended."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.messages: list[Message] = []
        self.copies: dict[int, list[Copy]] = {}
        self.arrived: list[tuple[int, Copy]] = []  # in the order of coming
        self.happened: list[str] = []
        self.counts: dict[str, int] = {}
        self.probes: set[int] = set()  # messages that were left with a dead recipient until it was DEFUNCT
        self.killed: set[str] = set()  # brokers
        self.calm = True  # no broker died, no link broke

    def run(self) -> Scenario:
        """AssertionError where something is wrong."""
        with simulated(self.seed) as (loop, chance), probes(self.probes):
            self.loop, self.chance = loop, chance
            loop.run_until_complete(self._main())
            self._stop()
        return self

    # Making

    def _make(self) -> None:
        chance = self.chance
        self.addressed = chance.choice((1.0, 1.0, 0.7))  # how many messages are addressed; the others go to ordinary subscriptions
        slow = chance.choice((1.0, 1.0, 30.0))  # how much longer bytes are under way
        delay = self.loop.network.delay
        self.loop.network.delay = lambda: slow * delay()
        self.loop.network.grain = chance.choice((STEP, 0.0005, 0.005))  # what is written in a short time arrives in one piece, or in many
        SimulatedWriter.commit *= chance.choice((1, 1, 5, 20))
        self.rate = chance.choice((3, 8, 20))  # bursts of messages a second
        self.qos = chance.choice(((1,), (1,), (2,), (1, 2)))  # of messages
        self.listed = chance.random() < 0.3  # there is a directory, and some applications stand in it only
        count = chance.randint(3, 8)
        names = [f"b{number}" for number in range(count)]
        self.links = [(names[number], chance.choice(names[:number])) for number in range(1, count)]
        for _ in range(chance.randint(0, count)):
            one, other = sorted(chance.sample(names, 2), reverse=True)
            if (one, other) not in self.links:
                self.links.append((one, other))
        self.applications = self._applications(names)
        in_file = [one for one in self.applications.values() if not self.listed or chance.random() < 0.5]
        settings = RecipientSettings(intervals=INTERVALS, applications=in_file)
        self.directory = Directory()
        self.directory.records = {name: registered_of(one) for name, one in self.applications.items() if one not in in_file}
        self.places: dict[str, Place] = {}
        for number, name in enumerate(names):
            peers = [PeerSettings(f"mqtt://{other}:1883") for one, other in self.links if one == name]
            mesh = MeshSettings("simulated", "a key for all of them", peers=peers, retry_last=0.5)
            config = BrokerConfig(name, number + 1, [f"mqtt://{name}:1883"], mesh=mesh, recipients=settings, limits=Limits(sys_interval=0))
            place = self.places[name] = Place(self.loop, config)
            if self.listed:
                place.registrar = Seat(self.loop, self.directory)

    def _applications(self, brokers: list[str]) -> dict[str, Application]:
        chance = self.chance
        names = [f"app{number}" for number in range(chance.randint(2, 6))]
        found = {}
        for name in names:
            others = [other for other in names if other != name]
            alternatives = chance.sample(others, chance.randint(0, min(3, len(others))))
            if chance.random() < 0.1:
                alternatives.insert(0, "nobody-knows-it")
            consents = ["*"] if chance.random() < 0.8 else chance.sample(others, 1)
            home = chance.choice(brokers)
            probe = chance.random() < 0.3
            found[name] = Application(name, [name], [], alternatives, INTERVALS, probe, consents, home)
        return found

    def _clients(self) -> None:
        loop, chance = self.loop, self.chance
        brokers = list(self.places)
        self.listeners = {
            name: Listener(loop, name, one.broker or "", [f"app/{name}/#", f"shop/{name}/#"], self._came(name))
            for name, one in self.applications.items()
        }
        for listener in self.listeners.values():
            listener.window = chance.choice((0, 0, 3, 20))
            listener.qos = chance.choice((1, 1, 2))
        self.publishers: dict[str, Publisher] = {}
        self.replies: dict[str, Listener] = {}
        for number in range(chance.randint(1, 3)):
            name, broker = f"pub{number}", chance.choice(brokers)
            self.publishers[name] = Publisher(loop, name, broker, self._acknowledged)
            filters = [f"replies/{name}", f"app/{name}/returned"]
            self.replies[name] = Listener(loop, f"replies-{name}", broker, filters, self._came(f"returned:{name}"))
        self.dead = Listener(loop, "dead", chance.choice(brokers), ["dead/#"], self._came("dead"))

    def _came(self, where: str) -> Callable[[Publish], None]:
        def came(packet: Publish) -> None:
            if not packet.payload:
                return  # a probe
            said = dict(packet.properties.get(Property.USER_PROPERTY, ()))
            marked = packet.dup or "mqmesh-repeated" in said
            copy = Copy(where, marked, said)
            self.copies.setdefault(int(packet.payload), []).append(copy)
            self.arrived.append((int(packet.payload), copy))
            self.last = self.loop.time()

        return came

    def _acknowledged(self, number: int, reason: int) -> None:
        assert reason < 0x80, f"message {number} to {self.messages[number].to} was refused with {reason:#x}"
        self.messages[number].acknowledged = True
        self.last = self.loop.time()

    # Running

    async def _main(self) -> None:
        self.last = 0.0
        self._make()
        for place in self.places.values():
            await place.start()
        self._clients()
        for client in (*self.listeners.values(), *self.replies.values(), *self.publishers.values(), self.dead):
            client.begin()
        await asyncio.sleep(SETTLED)
        assert all(one.ready for one in self.listeners.values()), "a client was not let in"
        publishing = asyncio.ensure_future(self._publish())
        troubles = [asyncio.ensure_future(self._trouble()) for _ in range(self.chance.randint(1, 3))]
        await asyncio.sleep(TROUBLE)
        for task in (publishing, *troubles):
            task.cancel()
        await self._repair()
        await self._arrive()
        self._check()

    async def _publish(self) -> None:
        chance = self.chance
        while True:
            await asyncio.sleep(chance.expovariate(self.rate))
            for _ in range(chance.choice((1, 1, 1, 5, 30))):
                name = chance.choice(list(self.publishers))
                to = chance.choice(list(self.applications))
                properties: dict[int, object] = {}
                if chance.random() < 0.7:
                    properties[Property.RESPONSE_TOPIC] = f"replies/{name}"
                expires = chance.random() < 0.05
                if expires:
                    properties[Property.MESSAGE_EXPIRY_INTERVAL] = chance.randint(1, 5)
                topic = f"app/{to}/new" if chance.random() < self.addressed else f"shop/{to}/new"
                message = Message(len(self.messages), to, topic, name, expires)
                self.messages.append(message)
                self.publishers[name].publish(message.number, topic, chance.choice(self.qos), properties)

    async def _trouble(self) -> None:
        chance = self.chance
        while True:
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            await self._one(
                chance.choice(CALM_FAULTS if self.seed % 2 else FAULTS),
                chance.choice((0.05, 0.5, 1.5, 2.5, 6.0)) * chance.uniform(0.5, 1.5),
            )

    async def _one(self, kind: str, seconds: float) -> None:
        """One fault, from its begin to its end."""
        chance = self.chance
        self.calm = self.calm and kind not in ("kill", "cut")
        if kind == "kill":
            place = chance.choice(list(self.places.values()))
            if place.life is not None:
                self._note(f"kill {place.name}")
                place.kill()
                self.killed.add(place.name)
                await asyncio.sleep(seconds)
                self._note(f"start {place.name}")
                await place.start()
        elif kind == "cut" and self.listed and chance.random() < 0.5:
            self._note("the directory is away")
            self.directory.away = True
            await asyncio.sleep(seconds)
            self.directory.away = False
            self._note("the directory is back")
        elif kind == "cut":
            link = chance.choice(self.links)
            self._note(f"cut {link}")
            self.loop.network.cut(*link)
            await asyncio.sleep(seconds)
            self.loop.network.mend(*link)
            self._note(f"mend {link}")
        else:
            await self._absent(chance.choice([*self.listeners.values(), *self.replies.values()]), kind, seconds)

    async def _absent(self, client: Listener, kind: str, seconds: float) -> None:
        self._note(f"{kind} {client.name}")
        if kind == "hang":
            client.hang()
            await asyncio.sleep(seconds)
            client.wake()
        else:
            client.leave()
            await asyncio.sleep(seconds)
            client.begin()
        self._note(f"{client.name} is back")

    def _note(self, text: str) -> None:
        self.happened.append(f"{self.loop.time() - 1000:7.3f} {text}")

    async def _repair(self) -> None:
        self._note("repair")
        self.directory.away = False
        for link in self.links:
            self.loop.network.mend(*link)
        for place in self.places.values():
            if place.life is None:
                await place.start()
        for client in (*self.listeners.values(), *self.replies.values(), self.dead):
            client.wake()
            client.begin()

    async def _arrive(self) -> None:
        """Wait until nothing comes any more, and everything that has to come has come."""
        end = self.last = self.loop.time()
        end += PATIENCE
        while self.loop.time() < end:
            await asyncio.sleep(0.5)
            open_ = any(publisher.waiting for publisher in self.publishers.values())
            if not open_ and not self._missing() and self.loop.time() - self.last > QUIET:
                return

    def _stop(self) -> None:
        for place in self.places.values():
            if place.life is not None:
                place.kill()
        for client in (*self.listeners.values(), *self.replies.values(), *self.publishers.values(), self.dead):
            client.life.end()

    # Checking

    def _missing(self) -> list[int]:
        return [m.number for m in self.messages if m.acknowledged and not m.expires and m.number not in self.copies]

    def _check(self) -> None:
        for error in self.loop.errors:
            raise AssertionError(f"in the loop: {error['message']}") from error.get("exception")
        waiting = [number for publisher in self.publishers.values() for number, _ in publisher.waiting.values()]
        assert not waiting, f"never acknowledged: {waiting[:10]}, of {len(waiting)}"
        missing = self._missing()
        assert not missing, f"lost: {[(n, self.messages[n].to, self.messages[n].publisher) for n in missing[:10]]}, of {len(missing)}"
        reach = self._reach()
        for message in self.messages:
            copies = self.copies.get(message.number, [])
            for copy in copies:
                self._allowed(message, copy, reach)
            plain = self._unmarked(copies)
            bound = 1 + self.publishers[message.publisher].again[message.number]
            assert len(plain) <= bound, f"message {message.number} for {message.to} came to {plain} without a mark: {copies}"
            for copy in copies:
                kind = copy.where.partition(":")[0]
                kind = "delivered" if kind == message.to else "failed over" if kind.startswith("app") else kind
                self.counts[kind] = self.counts.get(kind, 0) + 1

        if self.calm:
            self._check_order()

    def _unmarked(self, copies: list[Copy]) -> list[str]:
        """Where copies have come that say nothing. Clients that are no recipients get messages before their commit, so that a broker that
        was killed does not know it: what it has returned may come twice, or to an application too (docs/recipients.md)."""
        plain = [copy.where for copy in copies if not copy.marked]
        unknown = [where for where in plain if self._broker_of(where) in self.killed]
        known = [where for where in plain if where not in unknown]
        return known or unknown[:1]

    def _broker_of(self, where: str) -> str | None:
        """The broker of the dead letters or of a publisher; None: an application's."""
        if where == "dead":
            return self.dead.broker
        kind, _, name = where.partition(":")
        return self.publishers[name].broker if kind == "returned" else None

    def _check_order(self) -> None:
        last: dict[tuple[str, str, str], int] = {}
        for number, copy in self.arrived:
            message = self.messages[number]
            if copy.marked or number in self.probes or number in self.publishers[message.publisher].again or copy.where == "dead":
                continue
            stream = copy.where, message.publisher, message.topic
            assert number > last.get(stream, -1), f"{number} came behind {last[stream]} at {stream}: {copy}"
            last[stream] = number

    def _reach(self) -> dict[str, set[str]]:
        """Who may get the messages of an application: those who stand in for it, over any number of steps."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.applications)
        graph.add_edges_from((name, other) for name, one in self.applications.items() for other in one.alternatives)
        return {name: nx.descendants(graph, name) for name in self.applications}

    def _allowed(self, message: Message, copy: Copy, reach: dict[str, set[str]]) -> None:
        what = f"message {message.number} for {message.to} at {copy.where}: {copy.said}"
        if copy.where.startswith("returned:"):
            assert copy.where == f"returned:{message.publisher}", what
            assert copy.said.get("mqmesh-topic") == message.topic, what
            assert copy.said.get("mqmesh-returned"), what
            assert copy.said.get("mqmesh-returned-at"), what
            assert copy.said.get("mqmesh-tried", "").split(",")[0] == message.to, what
        elif copy.where == "dead":
            assert copy.said.get("mqmesh-tried", "").split(",")[0] == message.to, what
        elif copy.where != message.to:
            assert copy.where in reach[message.to], what
            assert self.applications[copy.where].takes(message.to), what
            assert copy.said.get("mqmesh-failed-over", "").split(",")[0] == message.to, what
        assert copy.said.get("mqmesh-originator", message.publisher) == message.publisher, what


def run(seed: int) -> Scenario:
    """Run a seed; a failure says how to repeat it and what happened."""
    scenario = Scenario(seed)
    try:
        return scenario.run()
    except Exception as error:
        error.add_note(f"repeat it: python -m tests.simulation --mode recipients --seeds 1 --start {seed}")
        error.add_note("\n".join(scenario.happened[-40:]))
        raise


__all__ = ["Scenario", "run"]
