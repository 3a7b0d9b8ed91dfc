"""What a mesh costs as it grows: `python -m benchmarks.mesh.growth 30 100 300`, one mesh for each number of brokers.

The brokers' own mesh code (`mesh/node/`), one node for each broker, in one thread and in virtual time. The graph is a ring with as many
chords, drawn by the seed. A link takes 1 to 5 ms. Nobody signs anything: a signature takes 50 us, a check 130 us more.

Three events are measured until nothing is under way any more, beside timers of long periods:

- start: all links come up at once; each broker wants one topic of its own and one that all want;
- open: `--origins` brokers publish one message of QoS 1 to all for the first time, so that each announces its tree;
- cut: a link of the ring ends, and the same brokers publish again.

For each: bytes on all links, processor seconds of all brokers and of carrying their bytes, and virtual seconds until every broker had what
it had to get. Growth is the part of a broker and active origin: bytes, and microseconds of the processor, divided by origins x N log2 N;
it must not rise.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import time
from dataclasses import asdict, dataclass
from uuid import UUID

from mqmesh.base.process.collector import Collector
from mqmesh.mesh.node.actions import Deliver, Send
from mqmesh.mesh.node.node import Node
from mqmesh.mesh.wire.identity import CAPABILITIES, LIFE_BYTES, Identity
from mqmesh.mqtt.batch.run import Run

TOPIC = b"all"
TURN = 0.0002  # virtual seconds of a turn of a broker's loop, which takes what has come in it, and writes to each link once
SETTLED = 10.0  # virtual seconds without a byte after which an event is over


@dataclass
class Cost:
    """What one event costs. seconds: of virtual time, until the last broker had what it had to get."""

    brokers: int
    event: str
    origins: int
    bytes: int
    writes: int
    processor: float
    seconds: float
    missing: int

    @property
    def growth(self) -> float:
        """Bytes of an origin, divided by N log2 N."""
        return self.bytes / self._parts

    @property
    def work(self) -> float:
        """The same of the processor, microseconds."""
        return self.processor * 1e6 / self._parts

    @property
    def _parts(self) -> float:
        return self.origins * self.brokers * math.log2(self.brokers)


def _turn(at: float) -> float:
    """When the next turn from this moment on begins."""
    return (math.floor(at / TURN) + 1) * TURN


class Mesh:
    """All brokers of one mesh."""

    def __init__(self, count: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.bytes = self.writes = 0
        self.last = 0.0  # when the last byte or delivery came
        self.got: set[tuple[int, bytes]] = set()
        self._flying: list[tuple[float, int, int, int, bytes]] = []  # at, order, broker, link (0: a timer), data
        self._order = itertools.count()
        self._timers: dict[int, float] = {}
        self.identities = {
            n: Identity("m", f"b{n}", n, UUID(int=n), 1, b"", n.to_bytes(LIFE_BYTES), CAPABILITIES) for n in range(1, count + 1)
        }
        self.nodes = {n: Node(identity) for n, identity in self.identities.items()}
        pairs = {(n, n % count + 1) for n in self.nodes}
        while len(pairs) < 2 * count:
            one, other = self.chance.sample(sorted(self.nodes), 2)
            if (other, one) not in pairs:
                pairs.add((one, other))
        self.links = {pair: self.chance.uniform(0.001, 0.005) for pair in sorted(pairs)}
        self._delay = {**self.links, **{(other, one): delay for (one, other), delay in self.links.items()}}

    def start(self) -> None:
        """All links come up; every broker has subscribers."""
        for number, node in self.nodes.items():
            node.subscribe(TOPIC.decode(), None, 1, self.now)
            node.subscribe(f"own/{number}", None, 1, self.now)
        self._link()
        for number in self.nodes:
            self._act(number)

    def begin_started(self) -> None:
        """The mesh as its start leaves it, which is not played: each broker is told what all say of themselves, by nobody."""
        for number, node in self.nodes.items():
            node.subscribe(TOPIC.decode(), None, 1, self.now)
            node.subscribe(f"own/{number}", None, 1, self.now)
        self._link()
        said = []
        for number, node in self.nodes.items():
            members, core = node._members, node._core
            members.exchange.flush()
            for end in core.links.values():
                end.synced = end.compared = True
            members.say_links()
            key = number, core.uuid
            said.append((members.states.records[key], core.lives.own, members.exchange.own.whole(key)))
        told = {life.life: life.serial for _, life, _ in said}
        for number, node in self.nodes.items():
            members, core = node._members, node._core
            for end in core.links.values():
                end.lives = told
            for record, life, wants in said:
                if record.number != number:
                    core.lives.offer(life)
                    members.states.offer(record)
                    for _ in members.interests.applying(wants):
                        pass
            members.refresh()
            core.stale()
            node.take()
            self._act(number)

    def _link(self) -> None:
        drawn = random.Random(len(self.nodes))
        for one, other in self.links:
            incarnation = drawn.getrandbits(63)  # as links have them
            for here, there in ((one, other), (other, one)):
                self.nodes[here].link_up(there, self.identities[there], incarnation, 1, self.now)

    def cut(self) -> None:
        """A link of the ring ends."""
        one, other = 1, 2
        del self._delay[one, other], self._delay[other, one]
        for here, there in ((one, other), (other, one)):
            self.nodes[here].link_down(there, self.now)
            self._act(here)

    def publish(self, origins: list[int], payload: bytes) -> None:
        """One message from each of these brokers to all others."""
        for number in origins:
            node = self.nodes[number]
            route = node.route(TOPIC)
            if route is not None:
                node.publish(route, Run(TOPIC, 1, False, [b"%d " % number + payload], received=self.now), self.now)
            self._act(number)

    def run(self, until: float) -> None:
        """Carry bytes and call timers until nothing is under way for `SETTLED` seconds, or that time has come."""
        flying = self._flying
        while flying and flying[0][0] <= min(until, self.last + SETTLED):
            self.now = flying[0][0]
            busy: dict[int, None] = {}  # brokers that have a turn now
            while flying and flying[0][0] == self.now:
                _, _, number, link, data = heapq.heappop(flying)
                if link:
                    if (link, number) not in self._delay:
                        continue
                    self.last = self.now
                    self.nodes[number].receive(link, data, self.now)
                elif self._timers.get(number) == self.now:
                    del self._timers[number]
                    self.nodes[number].handle_timer(self.now)
                else:
                    continue
                busy[number] = None
            for number in busy:
                self._act(number)

    def informed(self) -> int:
        """How many brokers do not know yet of all others how to reach them and what they want."""
        return sum(node.live().bit_count() < len(self.nodes) - 1 or node.route(TOPIC) is None for node in self.nodes.values())

    def _act(self, number: int) -> None:
        node = self.nodes[number]
        out: dict[int, list[bytes | bytearray]] = {}
        more = True  # as in the shell: what is only sent changes nothing
        while more and node.stirred and (actions := node.take()):
            more = False
            for action in actions:
                if isinstance(action, Send):
                    out.setdefault(action.link, []).append(action.data)
                    continue
                more = True
                if isinstance(action, Deliver):
                    self.got.update((number, payload) for payload in action.run.payloads)
                    self.last = self.now
                    if action.token is not None:
                        node.delivered(action.token, self.now)
        for link, parts in out.items():  # what a turn sends over a link is one write
            delay = self._delay.get((number, link))
            if delay is not None:
                data = b"".join(parts)
                self.bytes += len(data)
                self.writes += 1
                heapq.heappush(self._flying, (_turn(self.now + delay), next(self._order), link, number, data))
        due = node.next_deadline()
        if due is not None and (due := max(_turn(due), self.now)) != self._timers.get(number):
            self._timers[number] = due
            heapq.heappush(self._flying, (due, next(self._order), number, 0, b""))


def measure(count: int, origins: int, seed: int, started: bool = False) -> list[Cost]:
    """The three events in a mesh of so many brokers; started: the last two."""
    mesh = Mesh(count, seed)
    chosen = mesh.chance.sample(sorted(mesh.nodes), min(origins, count))
    found = []

    def event(name: str, active: int, missing: int, began: float, before: tuple[int, int, float]) -> None:
        spent = time.process_time() - before[2]
        cost = Cost(count, name, active, mesh.bytes - before[0], mesh.writes - before[1], spent, mesh.last - began, missing)
        found.append(cost)
        shown = f"{cost.growth:10.1f} {cost.processor:10.2f} {cost.work:7.1f} {cost.seconds:9.3f} {missing:8}"
        print(f"{count:6} {name:6} {cost.origins:8} {cost.bytes:14,} {shown}", flush=True)

    began, before = mesh.now, (mesh.bytes, mesh.writes, time.process_time())
    if started:
        mesh.begin_started()
        assert not mesh.informed(), "a broker does not know all others"
    else:
        mesh.start()
        mesh.run(began + 60)
        event("start", count, mesh.informed(), began, before)
    for name, payload in (("open", b"first"), ("cut", b"second")):
        began, before = mesh.now, (mesh.bytes, mesh.writes, time.process_time())
        mesh.got.clear()
        if name == "cut":
            mesh.cut()
        mesh.publish(chosen, payload)
        mesh.last = mesh.now
        mesh.run(began + 60)
        event(name, len(chosen), len(chosen) * (count - 1) - len(mesh.got), began, before)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mesh.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("brokers", type=int, nargs="*", default=[30, 100, 300], help="how many brokers (30 100 300)")
    parser.add_argument("--origins", type=int, default=10, help="brokers that publish (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the graph (1)")
    parser.add_argument("--started", action="store_true", help="the start is not played: of 1,000 brokers it is 15 million packets")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, behind the table")
    given = parser.parse_args()
    collector = Collector(lambda call: call())
    collector.begin()
    print(f"{'':6} {'event':6} {'origins':>8} {'bytes':>14} {'growth':>10} {'processor':>10} {'growth':>7} {'virtual':>9} {'missing':>8}")
    costs = [cost for count in given.brokers for cost in measure(count, given.origins, given.seed, given.started)]
    if given.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
