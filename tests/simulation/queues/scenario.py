"""One seed: a mesh of 3 to 6 brokers, queues with their homes at one or two of them, publishers and members everywhere.

Chance draws the links, the network, the disks and the load, what each queue is set to (plan, deliveries, back-off, bounds, store, ...), who
is a member where, and what happens: members hang, leave, return, or move to another site (in two of three seeds, where clients roam);
links are cut, brokers are killed in
the middle of a commit and started again, disks are full, fail or are slow, clocks jump. Visitors, whose sessions end with their
connections, go for good at some time, or with their broker. Then all is repaired, and members work what is left.

Checked while it runs: `ledger.py`; a put that its home acknowledges is on the disk, and so is what a member was told to be done.
Checked at the end of each message, against what the logs say:
- one that was acknowledged was put, once, unless its publisher had to send it again without a handle; one that was refused was not put;
  one with an expiry may also have expired in the custody of its publisher's site, if that says so;
- it is done, or expired (if it may), or dead, with one dead letter for each time that it died, or it waits among the dead letters: nothing
  else is left;
- messages of one publisher and QoS stand in the order in which they were sent;
- what queues have in memory is what their logs say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings, PeerSettings
from mqmesh.broker.queues.core.plan import POOL, plan_of
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import WHEN_FULL, Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.properties import Property

from ..recipients.broker import SimulatedWriter
from ..recipients.virtual import STEP
from .broker import FOLDER, QueuePlace, simulated_queues
from .clients import REFUSED, Got, Putter, Worker
from .ledger import DONE, EXPIRED, OUTCOMES, UNUSABLE, Entry, Key, Ledger

SETTLED = 2.0  # seconds that the mesh has before it begins
TROUBLE = 6.0  # seconds in which things break
PATIENCE = 90.0  # seconds until the next message comes to its end, once all is repaired
QUIET = 5.0  # seconds in which nothing more may come: messages without an acknowledgement are on their way between sites, and nobody asks
FAULTS = ("hang", "leave", "move", "cut", "cut", "kill", "kill", "full", "failing", "slow", "clock")
VISITOR = "z"
POISON, BAD = 17, 23  # every so manieth message is always returned, or cannot be used


@dataclass(slots=True)
class Sent:
    """What was put. expires: it has an expiry. reason: of its acknowledgement; -1: there was none. again: it was sent more than once."""

    number: int
    queue: str
    publisher: str
    qos: int
    handle: str
    plain: bool
    expires: bool
    reason: int = -1
    again: bool = False


class Scenario:
    """The run of one seed. roam: clients move between sites. happened: what broke, for people. counts: where messages have ended."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.roam = seed % 3 != 2
        self.ledger = Ledger()
        self.messages: list[Sent] = []
        self.happened: list[str] = []
        self.counts: dict[str, int] = {}
        self.places: dict[str, QueuePlace] = {}
        self.homes: dict[str, QueuePlace] = {}  # of queues
        self.rules: dict[str, Rules] = {}
        self.publishers: dict[str, Putter] = {}
        self.workers: list[Worker] = []
        self.visitors: list[Worker] = []
        self.calm = False
        self.repeats = 0  # that are still to be sent

    def run(self) -> Scenario:
        """AssertionError where something is wrong."""
        with simulated_queues(self.seed, self.ledger, self.places) as (loop, chance):
            self.loop, self.chance = loop, chance
            loop.run_until_complete(self._main())
            self._stop()
        return self

    # ---- making

    def _make(self) -> None:
        chance = self.chance
        slow = chance.choice((1.0, 1.0, 30.0))  # how much longer bytes are under way
        delay = self.loop.network.delay
        self.loop.network.delay = lambda: slow * delay()
        self.loop.network.grain = chance.choice((STEP, 0.0005, 0.005))
        SimulatedWriter.commit *= chance.choice((1, 1, 5, 20))
        self.rate = chance.choice((3, 8, 15))  # bursts of messages a second
        names = [f"b{number}" for number in range(chance.randint(3, 6))]
        self.links = [(names[number], chance.choice(names[:number])) for number in range(1, len(names))]
        for _ in range(chance.randint(0, 3)):
            one, other = sorted(chance.sample(names, 2), reverse=True)
            if (one, other) not in self.links:
                self.links.append((one, other))
        homes = {name: self._queues(name) for name in chance.sample(names, chance.randint(1, 2))}
        for number, name in enumerate(names):
            peers = [PeerSettings(f"mqtt://{other}:1883") for one, other in self.links if one == name]
            mesh = MeshSettings("simulated", "a key for all of them", peers=peers, retry_last=0.5, clients="roam" if self.roam else "site")
            config = BrokerConfig(
                name, number + 1, [f"mqtt://{name}:1883"], mesh=mesh, queues=homes.get(name), limits=Limits(sys_interval=0)
            )
            place = self.places[name] = QueuePlace(self.loop, config, self.ledger, chance)
            place.commit = chance.choice((0.0005, 0.002, 0.01, 0.05))
            place.segment_bytes = chance.choice((1_500, 6_000, 1 << 20))
            for queue in homes[name].rules if name in homes else ():
                self.homes[queue] = place

    def _queues(self, home: str) -> QueueSettings:
        """The queues of one home."""
        settings = QueueSettings(folder=FOLDER)
        for number in range(self.chance.randint(1, 2)):
            name = f"{home}q{number}"
            rules = settings.rules[name] = self._rules(name)
            if rules.dead_letters:
                settings.rules[rules.dead_letters] = Rules(store=rules.store)
            settings.subscribers[name] = [f"{name}-{letter}" for letter in "abc"] if str(rules.plan) == "all" else []
            self.rules.update(settings.rules)
        return settings

    def _rules(self, name: str) -> Rules:
        chance = self.chance
        a, b, c = [f"{name}-{letter}" for letter in "abc"]
        rules = Rules(plan_of(chance.choice(("pool", "pool", "pool", "all", f"{a} | {b}, {c}", f"{a} > {b}"))))
        rules.deliveries = chance.choice((0, 0, 2, 3))
        rules.backoff = chance.choice((0.0, 0.0, 0.2))
        rules.retention = chance.choice((0.0, 0.0, 2.0, 3600.0))
        rules.messages = chance.choice((0, 0, 0, 30))
        rules.when_full = chance.choice(WHEN_FULL)
        rules.dead_letters = f"{name}-dead" if rules.when_full == "dead-letter" or chance.random() < 0.5 else ""
        rules.prefetch = chance.choice((1000, 1000, 5, 1))
        rules.delay = chance.choice((0.0, 0.0, 0.0, 0.4))
        rules.age = chance.choice((0.0, 0.0, 0.0, 4.0))
        rules.single = rules.plan == POOL and chance.random() < 0.2
        rules.requests = chance.random() < 0.4
        rules.store = chance.choice(("log", "log", "sqlite"))
        rules.early = chance.random() < 0.3
        return rules

    def _clients(self) -> None:
        loop, chance, brokers = self.loop, self.chance, list(self.places)
        requests = {name for name, rules in self.rules.items() if rules.requests}
        for name in self.rules:
            for letter in "abc" if not name.endswith("-dead") else "":
                worker = Worker(loop, f"{name}-{letter}", chance.choice(brokers), [name], requests, chance, self._judge, self._confirmed)
                worker.slowness = chance.choice((0.01, 0.05, 0.5))
                worker.late = chance.random() < 0.5
                worker.window = chance.choice((0, 0, 3, 20))
                self.workers.append(worker)
            if not name.endswith("-dead") and chance.random() < 0.5:
                self._visit(
                    Worker(loop, f"{name}-{VISITOR}", chance.choice(brokers), [name], requests, chance, self._judge, self._confirmed)
                )
        for number in range(chance.randint(1, 3)):
            name = f"pub{number}"
            self.publishers[name] = Putter(loop, name, chance.choice(brokers), self._acknowledged, self._repeated)

    def _visit(self, visitor: Worker) -> None:
        """Somebody is a member for some time."""
        visitor.expiry = 0
        self.visitors.append(visitor)
        self.loop.call_later(SETTLED + TROUBLE * self.chance.random(), visitor.leave, context=visitor.context)

    def _kind(self, number: int, queue: str) -> str:
        """What is always said of a message; "": it can be worked."""
        if number % POISON == 3 and self.rules[queue].deliveries:
            return "return"
        return "unusable" if number % BAD == 5 else ""

    def _judge(self, worker: Worker, got: Got) -> str:
        """What a member says of a message."""
        kind = self._kind(got.number, got.queue)
        if kind:
            return kind
        if self.calm:
            return "done"
        return self.chance.choices(("done", "return", "nothing"), (80, 12, 8))[0]

    def _confirmed(self, queue: str, position: int, what: str) -> None:
        if what == "done":
            states = [one.state for one in self.ledger.entries[queue, position].parts]
            assert DONE in states, f"message {position} of {queue} was answered to be done, and on the disk it is {states}"

    def _acknowledged(self, number: int, reason: int) -> None:
        sent = self.messages[number]
        if sent.reason < 0 or sent.reason >= REFUSED:
            sent.reason = reason
        if reason < REFUSED and sent.qos == 1 and self.homes[sent.queue].name == self.publishers[sent.publisher].broker:
            assert self._found(sent), f"message {number} is acknowledged by its home {self.homes[sent.queue].name}, and not on the disk"

    def _repeated(self, number: int, said: str) -> None:
        queue, _, position = said.rpartition(":")
        assert (queue, int(position)) in self.ledger.numbers[number], f"message {number} is said to be {said}"

    # ---- running

    async def _main(self) -> None:
        self._make()
        for place in self.places.values():
            await place.start()
        self._clients()
        for client in (*self.workers, *self.visitors, *self.publishers.values()):
            client.begin()
        await asyncio.sleep(SETTLED)
        tasks = [asyncio.ensure_future(self._publish())]
        tasks += [asyncio.ensure_future(self._trouble()) for _ in range(self.chance.randint(1, 3))]
        await asyncio.sleep(TROUBLE)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await self._repair()
        await self._arrive()
        self._check()

    async def _publish(self) -> None:
        chance, queues = self.chance, [name for name in self.rules if not name.endswith("-dead")]
        while True:
            await asyncio.sleep(chance.expovariate(self.rate))
            for _ in range(chance.choice((1, 1, 1, 5, 20))):
                self._put(chance.choice(list(self.publishers)), chance.choice(queues))

    def _put(self, publisher: str, queue: str) -> None:
        chance, number = self.chance, len(self.messages)
        pairs: list[tuple[str, str]] = []
        properties: dict[int, Any] = {}
        handle = f"h{number}" if chance.random() < 0.3 and not self.rules[queue].early else ""  # it would wait for the log, and others not
        if handle:
            pairs.append(("mqmesh-handle", handle))
        if chance.random() < 0.3:
            pairs.append(("mqmesh-group", chance.choice("xyz")))
        plain = chance.random() < 0.8
        if not plain:
            kinds = ("mqmesh-priority", "mqmesh-delay", "expiry", "mqmesh-plan")
            what = chance.choice(kinds[:3] if self.rules[queue].single else kinds)  # the active one may be none of a plan
            values = {
                "mqmesh-priority": "059",
                "mqmesh-delay": ("0s", "300ms", "2s"),
                "mqmesh-plan": ("pool", f"{queue}-a", f"{queue}-b | {queue}-c"),
            }
            if what == "expiry":
                plain = True
                properties[Property.MESSAGE_EXPIRY_INTERVAL] = chance.randint(1, 4)
            else:
                pairs.append((what, chance.choice(values[what])))
        if pairs:
            properties[Property.USER_PROPERTY] = pairs
        qos = chance.choice((1, 1, 1, 2, 0))
        self.messages.append(Sent(number, queue, publisher, qos, handle, plain, Property.MESSAGE_EXPIRY_INTERVAL in properties))
        body = b"%d %s" % (number, b"." * chance.choice((0, 10, 60, 200)))
        self.publishers[publisher].put(number, body, queue, qos, properties)
        if handle and qos and chance.random() < 0.2:  # once more, whatever becomes of the first
            self.messages[number].again = True
            self.repeats += 1
            self.loop.call_later(3 * chance.random(), self._repeat, publisher, (number, body, queue, qos, properties))

    def _repeat(self, publisher: str, put: tuple[int, bytes, str, int, dict[int, Any]]) -> None:
        self.repeats -= 1
        self.publishers[publisher].put(*put)

    async def _trouble(self) -> None:
        chance = self.chance
        while True:
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            await self._one(chance.choice(FAULTS), chance.choice((0.02, 0.3, 1.0, 2.5)) * chance.uniform(0.5, 1.5))

    async def _one(self, kind: str, seconds: float) -> None:
        """One fault, from its begin to its end."""
        chance = self.chance
        if kind == "kill":
            place = chance.choice([*self.places.values(), *self.homes.values()])
            if place.life is not None:
                self._note(f"kill {place.name}")
                place.kill()
                for visitor in self.visitors:
                    visitor.wanted = visitor.wanted and (visitor.broker != place.name or chance.random() < 0.5)
                await asyncio.sleep(seconds)
                await self._start(place)
        elif kind == "cut":
            link = chance.choice(self.links)
            self._note(f"cut {link}")
            self.loop.network.cut(*link)
            await asyncio.sleep(seconds)
            self.loop.network.mend(*link)
            self._note(f"mend {link}")
        elif kind in ("full", "failing", "slow"):
            await self._disk(kind, seconds)
        elif kind == "clock":
            place = chance.choice([*self.places.values(), *self.homes.values()])
            place.ahead += chance.choice((-2.0, -0.3, 0.3, 2.0, 10.0))
            self._note(f"the clock of {place.name} is {place.ahead:.1f} s ahead")
        else:
            await self._absent(chance.choice(self.workers), kind, seconds)

    async def _start(self, place: QueuePlace) -> None:
        if place.life is None:
            self._note(f"start {place.name}")
            await place.start()

    async def _disk(self, kind: str, seconds: float) -> None:
        place = self.chance.choice(list(self.homes.values()))
        disks = [log.disk for log in place.logs.values()]
        self._note(f"disk {kind} {place.name}")
        if kind == "slow":
            before, place.commit = place.commit, 0.3
        for disk in disks if kind != "slow" else ():
            setattr(disk, kind, True)
        await asyncio.sleep(seconds)
        if kind == "slow":
            place.commit = before
        for disk in disks:
            disk.full = disk.failing = False
        self._note(f"disk well {place.name}")

    async def _absent(self, client: Worker, kind: str, seconds: float) -> None:
        self._note(f"{kind} {client.name}")
        if kind == "hang":
            client.hang()
            await asyncio.sleep(seconds)
            client.wake()
        else:
            client.leave()
            await asyncio.sleep(seconds)
            if kind == "move" and self.roam:  # else the client of another site is another one
                client.broker = self.chance.choice(list(self.places))
            client.begin()
        self._note(f"{client.name} is back at {client.broker}")

    def _note(self, text: str) -> None:
        self.happened.append(f"{self.loop.time() - 1000:7.3f} {text}")

    async def _repair(self) -> None:
        self._note("repair")
        self.calm = True
        for link in self.links:
            self.loop.network.mend(*link)
        for place in self.places.values():
            place.commit = min(place.commit, 0.02)
            for log in place.logs.values():
                log.disk.full = log.disk.failing = False
            await self._start(place)
        for visitor in self.visitors:
            visitor.leave()
        for worker in self.workers:
            worker.slowness = min(worker.slowness, 0.05)
            worker.wake()
            worker.begin()

    async def _arrive(self) -> None:
        """Wait until every message is at an end, or waits as a dead letter, and nothing more comes."""
        ended, idle, quiet = 0, 0.0, 0.0
        while idle < PATIENCE and quiet < QUIET:
            await asyncio.sleep(0.5)
            before, ended = ended, sum(entry.ended > 0 for entry in self.ledger.entries.values())
            idle = 0.0 if ended > before else idle + 0.5
            quiet = 0.0 if self._left() else quiet + 0.5

    def _left(self) -> list[str]:
        """What is still to happen."""
        left = [f"{name} waits for acknowledgements: {len(one.waiting)}" for name, one in self.publishers.items() if one.waiting]
        if self.repeats:
            left.append(f"{self.repeats} messages are to be sent once more")
        for name, home in self.homes.items():
            queue = self._queue(name, home)
            if (queue.waiting or queue.held) and not name.endswith("-dead"):
                held = {one.name: one.held for one in queue.members.values() if one.held}
                left.append(f"{name} at {home.name}: {queue.waiting} wait, {held} are held: {self.rules[name]}")
            if queue.moves or queue.opened or queue.dead or queue.dying:
                left.append(f"{name} at {home.name} has something to write")
        if not left:
            left += [
                f"message {sent.number} has not come" for sent in self.messages if 0 <= sent.reason < REFUSED and not self._ended(sent)
            ]
        return left

    def _queue(self, name: str, home: QueuePlace) -> Queue:
        assert home.broker is not None
        assert home.broker.site.queues is not None
        return home.broker.site.queues.store.queues[name]

    def _stop(self) -> None:
        for place in self.places.values():
            if place.life is not None:
                place.kill()
        for client in (*self.workers, *self.visitors, *self.publishers.values()):
            client.life.end()

    # ---- checking

    def _ended(self, sent: Sent) -> bool:
        """Whether a message that was acknowledged was put, or has expired before it could be."""
        return bool(self._found(sent)) or (sent.expires and sent.number in self.ledger.expired)

    def _found(self, sent: Sent) -> list[Key]:
        """Where a message was put."""
        return [key for key in self.ledger.numbers[sent.number] if key[0] == sent.queue]

    def _check(self) -> None:
        for error in self.loop.errors:
            raise AssertionError(f"in the loop: {error['message']}") from error.get("exception")
        left = self._left()
        assert not left, f"left: {left[:10]}"
        self._check_memory()
        for sent in self.messages:
            self._check_sent(sent, self._found(sent))
        for key, entry in self.ledger.entries.items():
            self._check_entry(key, entry)
        self._check_order()

    def _check_memory(self) -> None:
        for name, home in self.homes.items():
            queue = self._queue(name, home)
            queue.check()
            strange = [one for one in queue.subscribers if one.rpartition("-")[2] not in "abc"]
            assert not strange, f"{name} has subscribers that no client is: {strange}"
            there = {
                block.first + at + one for block in queue.blocks.values() for at, count in queue.open_runs(block) for one in range(count)
            }
            told = {position for (of, position), entry in self.ledger.entries.items() if of == name and not (entry.ended or entry.gone)}
            assert there == told, f"{name} has {sorted(there - told)[:5]} that its log does not have, and not {sorted(told - there)[:5]}"

    def _check_sent(self, sent: Sent, found: list[Key]) -> None:
        if sent.number in self.publishers[sent.publisher].again:
            sent.again = True
        if 0 <= sent.reason < REFUSED:
            assert self._ended(sent), f"{sent} is lost"
        elif sent.reason >= REFUSED and not sent.again:
            assert not found, f"{sent} was refused, and is {found}"
        if not sent.again:
            assert len(found) <= 1, f"{sent} is {found}"
        elif sent.handle:
            for first, second in pairwise(found):
                before, after = self.ledger.entries[first], self.ledger.entries[second]
                forgotten = before.gone or 0 < before.ended < after.life
                assert forgotten, f"{sent} has a handle, and is {found}: {before} {after}"

    def _check_entry(self, key: Key, entry: Entry) -> None:
        rules = self.rules[key[0]]
        if key[0].endswith("-dead"):
            self._count("dead")
            return
        if entry.gone:
            self._count("gone")
            return
        died = either = 0  # either: a member may have refused it, or it died
        for part in entry.parts:
            assert part.state in OUTCOMES, f"{key} is {part.state.name}: {entry}"
            if part.state is EXPIRED:
                left = any(name.endswith(f"-{VISITOR}") for name in part.group)  # for good
                assert entry.expires or entry.withdrawn or left, f"{key} is EXPIRED, and may not: {entry}"
            elif part.state is UNUSABLE and self._kind(entry.number, key[0]) == "unusable":
                either += 1
            elif part.state is UNUSABLE:
                assert part.tries == rules.deliveries - 1, f"{key} is UNUSABLE: {entry}"
                died += 1
            self._count(part.state.name)
        assert not entry.withdrawn or (rules.messages and rules.when_full != "refuse"), f"{key} is withdrawn"
        if rules.dead_letters:
            died += entry.withdrawn and rules.when_full == "dead-letter"
            letters = self.ledger.dead.get(key, [])
            assert died <= len(letters) <= died + either, f"{key} died {died} times, and its dead letters are {letters}: {entry}"

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _check_order(self) -> None:
        last: dict[tuple[str, str, int], tuple[int, int]] = {}
        for sent in self.messages:
            rules = self.rules[sent.queue]
            found = self._found(sent)
            if not sent.plain or sent.again or not found or not sent.qos or rules.delay:
                continue
            line = sent.publisher, sent.queue, sent.qos
            number, position = last.get(line, (0, 0))
            assert found[0][1] > position, (
                f"message {sent.number} of {line} stands at {found[0][1]}, and {number}, sent before, at {position}"
            )
            last[line] = sent.number, found[0][1]


def run(seed: int) -> Scenario:
    """Run a seed; a failure says how to repeat it and what happened."""
    scenario = Scenario(seed)
    try:
        return scenario.run()
    except Exception as error:
        error.add_note(f"repeat it: python -m tests.simulation --mode queues --seeds 1 --start {seed}")
        error.add_note("\n".join(scenario.happened[-40:]))
        raise


__all__ = ["Scenario", "run"]
