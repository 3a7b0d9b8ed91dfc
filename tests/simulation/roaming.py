"""Roaming clients in virtual steps: some brokers with the real `Roamer`, whose posts and messages arrive in order and once.

That is what the mesh below promises, and what `scenario.py` shows of it; so here a broker is a few queues. What is not in order between two
brokers, what is on its way when a client comes, who is in reach, who dies in between: all of that is chance, from a seed.

In half of the seeds the client sometimes wants a clean start, for a session that is kept or for one that ends with its connection. What
it has then is a new *generation*: what was before need not come any more.

Checked at the end, when all is healed and the client has taken everything: each message came once; and of each origin in order, unless
the client was served while a holder of its session, or an origin, was out of reach. At each step: what came was not there yet; and the
client never has a session of a generation that it discarded, if all brokers were in reach of each other since.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import deque
from random import Random

from mqmesh.mesh.roaming import wire
from mqmesh.mesh.roaming.places import Known, Leave, Place, State, decode_forwards, decode_known, decode_leave, decode_place
from mqmesh.mesh.roaming.roamer import Roamer

CLIENT = "c"
WAIT = 3.0
Item = tuple[int, int, int]  # origin, serial, packet identifier in flight or 0


class Session:
    """What a broker keeps: the queue, what is in flight, whether it is subscribed. name: for people. generations: whose state it has.
    brief: it ends with its connection."""

    def __init__(self, name: str, *generations: int) -> None:
        self.name = name
        self.generations = set(generations)
        self.brief = False
        self.queue: deque[tuple[int, int]] = deque()
        self.flights: dict[int, tuple[int, int]] = {}
        self.connected = False
        self.subscribed = False


class Broker:
    """A broker, and the port of its roamer."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.up = True
        self.main: Session | None = None
        self.aside: Session | None = None
        self.leaving: dict[Leave, Session] = {}
        self.flying: set[Leave] = set()  # what was in flight is not sent yet
        self.places: dict[str, bytes] = {}
        self.leaves: dict[int, tuple[Leave, bytes]] = {}
        self.forwards: bytes | None = None
        self.remembered = Known(0, 0)
        self.given_up = 0
        self.waiting = False
        self.clean = self.brief = False  # what the connection that waits asks for
        self.version = 1
        self.wanted = False  # what was said of the own interest
        self.knows: dict[int, tuple[int, bool]] = {}  # interest of others
        self.skew = world.chance.choice((0, 0, 40, -40))
        self.serial = 0
        self.roamer = Roamer(number, self, WAIT)
        self.clock()

    def clock(self) -> None:
        self.roamer.now = self.world.now
        self.roamer.memory.wall = int(self.world.now * 1000) + 100_000 + self.skew * 1000

    # interest

    def say(self) -> None:
        """Flood the own interest if it has changed."""
        wants = any(s is not None and s.subscribed for s in (self.main, *self.leaving.values()))
        if wants != self.wanted:
            self.wanted = wants
            self.version += 1
            for other in self.world.brokers:
                if other is not self:
                    self.world.interest[self.number, other.number].append((self.version, wants))

    # Port

    def known(self) -> int:
        return self.world.everybody & ~(1 << self.number | self.given_up)

    def live(self) -> int:
        return sum(1 << b.number for b in self.world.brokers if b is not self and self.world.reach(self, b))

    def interest_of(self, number: int) -> tuple[int, int]:
        if number == self.number:
            self.say()
            return 1, self.version
        return 1, self.knows.get(number, (0, False))[0]

    def post(self, brokers: int, kind: str, body: bytes) -> None:
        if kind == wire.END and not all(leave.cut.passed(self.world.everybody) for leave in self.leaving):
            self.world.late = True  # an origin is out of reach: what it sends comes behind
        for other in self.world.brokers:
            if brokers >> other.number & 1:
                assert other is not self
                self.world.streams[self.number, other.number].append((kind, body))

    def save_place(self, client: str, value: bytes | None) -> None:
        if value is None:
            self.places.pop(client, None)
        elif self.main is None or not self.main.brief:
            self.places[client] = value

    def save_leave(self, leave: Leave, value: bytes | None) -> None:
        if value is None:
            self.leaves.pop(id(leave), None)
        else:
            self.leaves[id(leave)] = leave, value

    def save_forwards(self, client: str, value: bytes | None) -> None:
        self.forwards = value

    def save_known(self, value: bytes) -> None:
        self.remembered = decode_known(value)

    def accept(self, client: str) -> bool:
        if self.waiting:
            self.waiting = False
            self.world.let_in(self)
        return self.main is not None

    def turn_away(self, client: str, quiet: bool = False) -> None:
        if self.waiting or (self.main is not None and self.main.connected):
            self.waiting = False
            self.world.cut_off(self)
            self.disconnected(quiet)

    def disconnected(self, quiet: bool = False) -> None:
        """The connection that was served is gone, and its session with it, if it is brief."""
        if self.main is not None and self.main.connected:
            self.main.connected = False
            if self.main.brief:
                self.world.over(self.main)
                self.end(quiet)

    def end(self, quiet: bool = False) -> None:
        """Forget the session. quiet: the roamer knows."""
        self.main = self.aside = None
        self.draining = False
        self.say()
        if not quiet:
            self.roamer.ended(CLIENT)

    def discard(self, client: str) -> None:
        if self.main is not None and self.main.connected:
            self.world.cut_off(self)
            self.main.connected = False
        self.end(quiet=True)

    def release(self, leave: Leave) -> bytes | None:
        self.turn_away(leave.client, quiet=True)
        session, self.main = self.main, None
        if session is None:
            return None
        self.leaving[leave] = session
        return b" ".join([b"subscribed" if session.subscribed else b"not", *[b"%d" % one for one in session.generations]])

    def begin(self, leave: Leave) -> None:
        self.flying.add(leave)
        self.push(leave)

    def push(self, leave: Leave) -> None:
        """Send some of what waits."""
        session = self.leaving.get(leave)
        if session is None or not self.world.reach(self, self.world.by_number[leave.to]):
            return
        for pid in list(session.flights):
            if self.world.chance.random() < 0.2:
                return
            origin, serial = session.flights.pop(pid)
            self.roamer.leaves.send(leave, True, b"%d %d %d" % (origin, serial, pid))
        if leave in self.flying:
            self.flying.discard(leave)
            self.roamer.leaves.flights_sent(leave)
        while session.queue and self.world.chance.random() < 0.8:
            origin, serial = session.queue.popleft()
            self.roamer.leaves.send(leave, False, b"%d %d 0" % (origin, serial))
        if not session.queue:
            self.roamer.leaves.progress(leave)

    def sent(self, leave: Leave) -> bool:
        session = self.leaving[leave]
        return not session.queue and not session.flights and leave not in self.flying

    def forget(self, leave: Leave) -> None:
        del self.leaving[leave]
        self.say()

    def restore(self, leave: Leave, place: Place) -> None:
        session = self.leaving.pop(leave)
        self.flying.discard(leave)
        if self.main is None:
            self.main = session
        else:
            self.main.queue += session.queue
            self.main.generations |= session.generations

    def install(self, place: Place, state: bytes, merge: bool) -> None:
        if merge:
            self.world.merges += 1
        if self.main is None:
            self.main = Session(f"main at {self.number}")
        self.gate(place)
        subscribed, *generations = state.split()
        self.main.subscribed = self.main.subscribed or subscribed == b"subscribed"
        self.main.generations.update(map(int, generations))
        self.world.right(self)
        self.say()

    def take(self, place: Place, flights: bool, items: bytes) -> None:
        origin, serial, pid = map(int, items.split())
        session = self.main
        assert session is not None
        if flights:
            assert not session.connected
            session.flights[pid] = origin, serial
        else:
            if pid:
                self.world.unsure.add((origin, serial))
            session.queue.append((origin, serial))
            self.world.pump(self)

    def gate(self, at: Place | Leave) -> None:
        if isinstance(at, Place) and at.state in (State.FETCHING, State.TAKING) and self.aside is None:
            self.aside = Session(f"aside at {self.number}")

    def drain(self, place: Place) -> None:
        """In steps, or at once."""
        self.world.pump(self)
        self.draining = True

    draining = False

    def drain_some(self) -> None:
        while self.aside is not None and self.aside.queue:
            assert self.main is not None
            self.main.queue.append(self.aside.queue.popleft())
            if self.world.chance.random() < 0.3:
                break
        if self.aside is None or not self.aside.queue:
            self.draining = False
            self.aside = None
            self.roamer.drained(CLIENT)
        self.world.pump(self)

    # messages

    def deliver(self, origin: int, serial: int) -> None:
        """A message for subscribers here."""
        place = self.roamer.places.get(CLIENT)
        if self.main is not None and self.main.subscribed and place is not None and place.cut.takes(origin):
            moving = place.state in (State.FETCHING, State.TAKING)
            target = self.aside if moving else self.main
            assert target is not None
            target.queue.append((origin, serial))
        for leave, session in self.leaving.items():
            if session.subscribed and leave.cut.takes(origin):
                session.queue.append((origin, serial))
        self.world.pump(self)

    # life

    def describe(self) -> str:
        """For a failure's text."""
        places = [(p.state.name, p.key, p.sources, p.following, p.cut.keys, p.cut.heard) for p in self.roamer.places.values()]
        return f"{self.number}: {places} leaving {[(leave.key, leave.older, leave.ended, leave.cut.heard) for leave in self.leaving]}"

    def crash(self) -> None:
        self.up = False
        self.turn_away(CLIENT, quiet=True)

    def start(self) -> None:
        """A new life: connections and what was only asked for are gone."""
        self.up = True
        self.draining = False
        self.roamer = Roamer(self.number, self, WAIT)
        self.clock()
        places = [decode_place(client, value) for client, value in self.places.items()]
        places = [place for place in places if self.main is not None or place.state is State.ASKING]
        sessions, self.leaving = self.leaving, {}
        leaves = []
        stored, self.leaves = self.leaves, {}
        for leave, value in stored.values():
            again = decode_leave(value)
            self.leaving[again] = sessions[leave]
            self.leaves[id(again)] = again, value
            leaves.append(again)
        forwards = {} if self.forwards is None else {CLIENT: decode_forwards(self.forwards)}
        self.roamer.restore(places, leaves, forwards, self.remembered)


class World:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed * 31 + 5)
        self.now = 1.0
        size = chance.randint(2, 5)
        self.everybody = (1 << size) - 1
        self.apart: set[int] = set()  # brokers on the other side of a partition
        self.streams: dict[tuple[int, int], deque[tuple[str, bytes]]] = {}
        self.interest: dict[tuple[int, int], deque[tuple[int, bool]]] = {}
        self.brokers: list[Broker] = []
        for number in range(size):
            self.brokers.append(Broker(self, number))
        for a in range(size):
            for b in range(size):
                if a != b:
                    self.streams[a, b], self.interest[a, b] = deque(), deque()
        self.by_number = {b.number: b for b in self.brokers}
        self.at: Broker | None = None  # where the client believes to be
        self.held: dict[int, tuple[int, int]] = {}  # packet identifiers that the client has and has not seen released
        self.pid = 0
        self.published: set[tuple[int, int]] = set()
        self.got: dict[tuple[int, int], int] = {}
        self.order: list[tuple[int, int]] = []
        self.unsure: set[tuple[int, int]] = set()  # in flight when the client was given a new session
        self.merges = 0
        self.late = False
        self.fresh = False
        self.generation = 0  # of what the client has; 0: nothing is left of it
        self.generations = 0
        self.split = False  # there is more than one session of it
        self.firm = True  # all brokers were in reach of each other since it began
        self.hazy = False  # an older one was found since, or one began of which the client was not told
        self.ticking = False  # time has passed: who is let in does not know what all say
        self.wanting: Broker | None = None  # where the client waits for a clean start
        self.waited = False  # its broker asked all others
        self.begin = 0, 0  # the broker where it began, and the version of its interest with it
        self.aware: set[int] = set()  # origins that know of it
        self.crowded = False  # stores are full
        self.cleans = chance.random() < 0.5
        self.faults = chance.random() < 0.6
        self.begun = False
        self.steady = True  # no connection breaks by itself
        for broker in self.brokers:
            for other in self.brokers:
                if other is not broker:
                    broker.roamer.member_up(other.number)

    def reach(self, a: Broker, b: Broker) -> bool:
        return a.up and b.up and (a.number in self.apart) == (b.number in self.apart)

    # the client

    def connect(self, broker: Broker, clean: bool = False, brief: bool = False) -> None:
        """The client comes; what it had is broken, whether the broker there knows it or not."""
        old, self.at = self.at, broker
        if old is not None and old is not broker and self.chance.random() < 0.5:
            old.waiting = False
            old.clock()
            old.disconnected()
        broker.clock()
        broker.waiting = False
        broker.disconnected()
        if self.wanting is not None:
            self.hazy = True  # the client did not wait for the clean start
        self.wanting = broker if clean else None
        self.waited = False
        broker.clean, broker.brief = clean, brief
        if broker.roamer.connect(CLIENT, clean):
            self.let_in(broker)
        else:
            broker.waiting = True
            self.waited = all(self.reach(a, b) for a in self.brokers for b in self.brokers)

    def let_in(self, broker: Broker) -> None:
        present = broker.main is not None
        assert not (present and broker.clean)
        if broker is self.wanting:
            self.wanting = None
            if self.at is broker:
                self.discard_all(claimed=self.waited and not self.ticking)
        if self.at is not broker and (broker.clean or not present):
            self.hazy = True
        self.firm = self.firm and not self.ticking
        if not present:
            began = not self.generation
            self.split = not began
            if began:
                self.generations += 1
                self.generation = self.generations
            broker.main = Session(f"main at {broker.number}", self.generation)
            broker.main.subscribed = True  # the client sends SUBSCRIBE behind its CONNECT
            self.unsure.update(self.held.values())  # the client forgets that it has them
            self.held.clear()
            self.fresh = True
            broker.say()
            place = broker.roamer.places[CLIENT]
            if began and not broker.clean and (broker.known() & ~place.asked) | place.around:
                self.hazy = True  # it takes nothing from an origin before its marker, and there is nobody else who does
            if began:
                self.begin, self.aware = (broker.number, broker.version), {broker.number}
        session = broker.main
        assert session is not None
        session.connected, session.brief = True, broker.brief
        broker.say()
        broker.roamer.saved(CLIENT)
        self.right(broker)
        if self.at is not broker:
            return  # the client has gone on
        for pid, (origin, serial) in sorted(session.flights.items()):
            self.arrive(origin, serial, pid)
        self.pump(broker)

    # generations

    def discard_all(self, claimed: bool = False) -> None:
        """The client wants nothing of what was before. claimed: all brokers that are in reach were told."""
        self.generation = 0
        self.published.clear()
        self.order.clear()
        whole = all(self.reach(a, b) for a in self.brokers for b in self.brokers)
        self.firm = whole and (claimed or (self.firm and not (self.split or self.hazy)))
        self.hazy = not self.firm  # there may be newer ones, by clocks that differ
        self.split = False
        self.unsure.update(self.got)  # some may be on their way to the session that begins

    def over(self, session: Session) -> None:
        """A session ended with its connection."""
        if self.split:
            self.hazy = True  # what is left of it may be found
        elif self.generation in session.generations:
            self.discard_all()

    def right(self, broker: Broker) -> None:
        """The client has no session that it discarded."""
        session = broker.main
        if session is None or not session.connected or self.at is not broker or session.generations == {self.generation}:
            return
        assert not self.firm or self.hazy, f"a session of generations {session.generations} at {broker.number}, {self.generation} is right"
        self.hazy = True

    def cut_off(self, broker: Broker) -> None:
        if self.at is broker:
            self.at = None

    def pump(self, broker: Broker) -> None:
        """What waits goes to the client, QoS 2."""
        session = broker.main
        if session is None or not session.connected or self.at is not broker:
            return
        while session.queue and len(session.flights) < 4:
            origin, serial = session.queue.popleft()
            self.pid += 1
            session.flights[self.pid] = origin, serial
            if self.steady or self.chance.random() < 0.9:  # else it is lost with the connection
                self.arrive(origin, serial, self.pid)
            else:
                self.at = None
                broker.clock()
                broker.disconnected()
                return

    def arrive(self, origin: int, serial: int, pid: int) -> None:
        if pid not in self.held:
            self.held[pid] = origin, serial
            times = self.got[origin, serial] = self.got.get((origin, serial), 0) + 1
            assert times == 1 or (origin, serial) in self.unsure or self.hazy, f"message {serial} of {origin} came {times} times"
            self.order.append((origin, serial))

    def acknowledge(self) -> None:
        broker = self.at
        if broker is not None and broker.main is not None and broker.main.connected:
            for pid in list(broker.main.flights):
                if pid in self.held:
                    del broker.main.flights[pid]
                    del self.held[pid]
            self.pump(broker)

    # what happens

    def publish(self, broker: Broker) -> None:
        broker.serial += 1
        message = broker.number, broker.serial
        if self.begun and self.generation and self.knows(broker):
            self.published.add(message)
        broker.deliver(*message)
        for other in self.brokers:
            if other is not broker and broker.knows.get(other.number, (0, False))[1]:
                self.streams[broker.number, other.number].append(("", b"%d" % broker.serial))

    def knows(self, origin: Broker) -> bool:
        """Whether what an origin publishes is for the session that the client has: once it has heard of that one's interest."""
        number, version = self.begin
        if origin.number not in self.aware and origin.knows.get(number, (0, False))[0] >= version:
            self.aware.add(origin.number)
        return origin.number in self.aware

    def carry(self, pair: tuple[int, int]) -> None:
        """One thing arrives."""
        a, b = self.by_number[pair[0]], self.by_number[pair[1]]
        if not self.reach(a, b):
            return
        if self.interest[pair] and self.chance.random() < 0.7:
            version, wants = self.interest[pair].popleft()
            b.knows[a.number] = version, wants
            b.clock()
            b.roamer.fences.interest_changed()
        elif self.streams[pair]:
            kind, body = self.next(self.streams[pair])
            b.clock()
            if kind:
                b.roamer.received(a.number, kind, body)
            else:
                b.deliver(a.number, int(body))

    def next(self, stream: deque[tuple[str, bytes]]) -> tuple[str, bytes]:
        """What arrives: the first; or the first post that is no marker, as messages and markers may have to wait until a store has room."""
        if self.crowded and self.chance.random() < 0.5:
            for index, (kind, _) in enumerate(stream):
                if kind and kind != wire.MARKER:
                    found = stream[index]
                    del stream[index]
                    return found
        return stream.popleft()

    def reachability(self, change: object) -> None:
        """Something changes who is in reach of whom; all are told."""
        before = {(a.number, b.number): self.reach(a, b) for a in self.brokers for b in self.brokers if a is not b}
        change()  # type: ignore[operator]
        if any(not self.reach(a, b) for a in self.brokers for b in self.brokers):
            self.firm = self.waited = False
        for a in self.brokers:
            for b in self.brokers:
                if a is not b and a.up and self.reach(a, b) != before[a.number, b.number]:
                    a.clock()
                    (a.roamer.member_up if self.reach(a, b) else a.roamer.member_down)(b.number)

    def tick(self, brokers: list[Broker]) -> None:
        self.ticking = True
        for broker in brokers:
            broker.clock()
            broker.roamer.tick()
        self.ticking = False

    def step(self) -> None:
        chance = self.chance
        self.now += 0.01
        up = [b for b in self.brokers if b.up]
        what = chance.random()
        pairs = list(self.streams)
        if what < 0.55:
            self.carry(chance.choice(pairs))
        elif what < 0.68:
            self.publish(chance.choice(up))
        elif what < 0.74:
            self.acknowledge()
        elif what < 0.86:
            for broker in up:
                broker.clock()
                if broker.draining:
                    broker.drain_some()
                for leave in list(broker.leaving):
                    broker.push(leave)
        elif what < 0.88:
            clean = self.cleans and chance.random() < 0.4
            if self.wanting is None or self.wanting is not self.at or chance.random() < 0.1:  # else it is patient
                self.connect(chance.choice(up), clean, clean and chance.random() < 0.5)
        elif what < 0.89:
            self.now += chance.choice((0.1, WAIT))
            self.tick(up)
        elif self.faults and what < 0.895:
            self.reachability(
                lambda: self.apart.clear() if self.apart else self.apart.update(b.number for b in self.brokers if chance.random() < 0.5)
            )
        elif self.faults and what < 0.90 and len(up) > 1:
            self.reachability(chance.choice(up).crash)
        elif what < 0.91:
            down = [b for b in self.brokers if not b.up]
            if down:
                self.reachability(chance.choice(down).start)

    def settle(self) -> None:
        """All is well again, and everything arrives."""
        for broker in self.brokers:
            if not broker.up:
                self.reachability(broker.start)
        self.reachability(self.apart.clear)
        for _ in range(60):
            self.now += 0.5
            self.tick(self.brokers)
            for broker in self.brokers:
                broker.clock()
                if broker.draining:
                    broker.drain_some()
                for leave in list(broker.leaving):
                    broker.push(leave)
            for pair in self.streams:
                while self.streams[pair] or self.interest[pair]:
                    self.carry(pair)
            self.acknowledge()

    def run(self) -> World:
        self.connect(self.brokers[0])
        self.settle()
        self.begun, self.steady = True, False
        self.crowded = self.chance.random() < 0.3
        for _ in range(self.chance.randint(50, 600)):
            self.step()
        self.steady = True
        self.settle()
        where = self.chance.choice(self.brokers)
        self.connect(where)
        self.settle()
        if self.at is None:  # turned away by a claim that was still on its way
            self.connect(where)
            self.settle()
        self.check()
        return self

    def check(self) -> None:
        state = "; ".join(broker.describe() for broker in self.brokers)
        assert self.at is not None, f"the client was turned away: {state}"
        assert self.at.main is not None, f"the client has no session: {state}"
        assert self.at.main.connected, f"the client is not served: {state}"
        holders = [b.number for b in self.brokers if b.main is not None]
        assert holders == [self.at.number], f"sessions at {holders}, the client is at {self.at.number}: {state}"
        self.right(self.at)
        assert not any(b.leaving or b.aside for b in self.brokers), f"something still moves: {state}"
        missing = sorted(self.published - self.got.keys())
        assert self.hazy or not missing, f"{len(missing)} of {len(self.published)} never came, the first {missing[:5]}: {state}"
        if not self.merges and not self.late and not self.hazy and (self.firm or self.generations == 1):
            newest: dict[int, int] = {}
            for origin, serial in self.order:
                assert serial > newest.get(origin, 0), f"message {serial} of {origin} came behind {newest[origin]}"
                newest[origin] = serial


def main() -> int:
    """Run many seeds; exit status 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.roaming", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    messages = merges = 0
    for seed in range(given.start, given.start + given.seeds):
        try:
            world = World(seed).run()
        except Exception:
            traceback.print_exc()
            print(f"repeat it: python -m tests.simulation.roaming --seeds 1 --start {seed}", file=sys.stderr)
            return 1
        messages += len(world.published)
        merges += world.merges
    print(f"{given.seeds} seeds: {messages} messages, {merges} merges; failed: none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
