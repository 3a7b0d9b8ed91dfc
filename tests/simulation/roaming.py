"""Roaming clients in virtual steps: some brokers with the real `Roamer`, whose posts and messages arrive in order and once.

That is what the mesh below promises, and what `scenario.py` shows of it; so here a broker is a few queues. What is not in order between two
brokers, what is on its way when a client comes, who is in reach, who dies in between: all of that is chance, from a seed.

In half of the seeds the client sometimes wants a clean start, for a session that is kept or for one that ends with its connection. What
it has then is a new *generation*: what was before need not come any more.

In half of the seeds the client is a user's, and another user tries its client identifier everywhere, at any time, with and without a
clean start. He may have a session of his own where the owner's broker cannot be asked. Of the owner's session he never gets anything, and
nothing that he does changes what is checked of the owner's.

In half of the seeds the client comes by a narrow listener as often as by a wide one. The rules of the narrow one deny each third message.
A session is judged by the listener of its last connection, or by the one at which its client waits when it moves.

Checked at the end, when all is healed and the client has taken everything: each message came once; and of each origin in order, unless
the client was served while a holder of its session, or an origin, was out of reach. At each step: what came was not there yet; it was not
denied by the only listener that the client has used; and the client never has a session of a generation that it discarded, if all brokers
were in reach of each other when it did. Who is out of reach later excuses nothing.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import deque
from random import Random

from mqmesh.mesh.roaming import wire
from mqmesh.mesh.roaming.places import State

from .roaming_site import CLIENT, OWNED, PRIVATE, WAIT, Broker, Session

__all__ = ["CLIENT", "Broker", "World"]


class World:
    """One seed's run. owned: the client is a user's, and another user tries to have what it has."""

    def __init__(self, seed: int, owned: bool = False) -> None:
        self.owned = owned
        self.client = OWNED if owned else CLIENT
        self.comings = 0  # of the client, and changes of who is in reach
        self.attempts = self.refusals = self.denials = self.contests = 0
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
        self.firm = True  # all brokers were in reach of each other when it began
        self.hazy = False  # an older one was found since, or one began of which the client was not told
        self.ticking = False  # time has passed: who is let in does not know what all say
        self.wanting: Broker | None = None  # where the client waits for a clean start
        self.waited = False  # its broker asked all others
        self.begin = 0, 0  # the broker where it began, and the version of its interest with it
        self.aware: set[int] = set()  # origins that know of it
        self.crowded = False  # stores are full
        self.cleans = chance.random() < 0.5
        self.faults = chance.random() < 0.6
        self.listeners = Random(seed * 31 + 6)
        self.portions = Random(seed * 31 + 7)
        self.narrows = self.listeners.random() < 0.5
        self.wide = self.narrow = False  # since it had one session and was connected to it, the client came by this listener only
        self.denied: set[tuple[int, int]] = set()  # what no session of the client may have
        self.begun = False
        self.steady = True  # no connection breaks by itself
        for broker in self.brokers:
            for other in self.brokers:
                if other is not broker:
                    broker.roamer.member_up(other.number)

    def reach(self, a: Broker, b: Broker) -> bool:
        return a.up and b.up and (a.number in self.apart) == (b.number in self.apart)

    def served(self) -> int:
        """Changes whenever the owner's session may be elsewhere or out of reach; 0: it is nowhere, or cannot be asked for."""
        whole = all(self.reach(a, b) for a in self.brokers for b in self.brokers)
        here = any(b.main is not None and b.roamer.places[self.client].state is State.HERE for b in self.brokers if not b.leaving)
        return self.comings if whole and here else -self.comings

    # the client

    def connect(self, broker: Broker, clean: bool = False, brief: bool = False) -> None:
        """The client comes; what it had is broken, whether the broker there knows it or not."""
        if broker.thief.waiting or (broker.thief.main is not None and not broker.thief.main.parked):
            return  # another user has the client identifier there
        self.comings += 1
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
        broker.wide = not self.narrows or self.listeners.random() < 0.5
        if broker.wide:
            self.narrow = False
            self.denied.clear()
        else:
            self.wide = False
            self.published -= {message for message in self.published - self.got.keys() if not message[1] % PRIVATE}
        if broker.roamer.connect(self.client, clean):
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
            broker.main.stored = not broker.brief
            broker.main.subscribed = True  # the client sends SUBSCRIBE behind its CONNECT
            self.unsure.update(self.held.values())  # the client forgets that it has them
            self.held.clear()
            self.fresh = True
            broker.say()
            place = broker.roamer.places[self.client]
            if began and not broker.clean and (broker.known() & ~place.asked) | place.around:
                self.hazy = True  # it takes nothing from an origin before its marker, and there is nobody else who does
            if began:
                self.begin, self.aware = (broker.number, broker.version), {broker.number}
        session = broker.main
        assert session is not None
        assert broker.thief.main is None or broker.thief.main.parked, "two users have one client identifier at one broker"
        session.parked = False
        session.connected, session.brief, session.wide = True, broker.brief, broker.wide
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
        assert not self.firm, f"a session of generations {session.generations} at {broker.number}, {self.generation} is right"
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
        assert (origin, serial) not in self.denied, f"message {serial} of {origin} came, which the rules of the client's listener deny"
        if pid not in self.held:
            self.held[pid] = origin, serial
            if self.at is not None and self.at.main is not None:
                self.at.main.given.add((origin, serial))
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
        served = self.served_alone()
        self.wide = self.wide or (served is not None and served.wide)
        self.narrow = self.narrow or (served is not None and not served.wide)
        private = not broker.serial % PRIVATE
        if private and self.narrow:
            self.denied.add(message)
        if self.begun and self.generation and self.knows(broker) and (self.wide or not private):
            self.published.add(message)
        broker.deliver(*message)
        for other in self.brokers:
            if other is not broker and broker.knows.get(other.number, (0, False))[1]:
                self.streams[broker.number, other.number].append(("", b"%d" % broker.serial))

    def served_alone(self) -> Broker | None:
        """Where the client is connected, if there is nothing of it elsewhere, and no connection of it waits."""
        holders = [b for b in self.brokers if b.main is not None or b.leaving or b.aside is not None]
        here = self.at
        if here is None or holders != [here] or here.leaving or here.aside is not None or any(b.waiting for b in self.brokers):
            return None
        return here if here.main is not None and here.main.connected else None

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
        self.comings += 1
        before = {(a.number, b.number): self.reach(a, b) for a in self.brokers for b in self.brokers if a is not b}
        change()  # type: ignore[operator]
        if any(not self.reach(a, b) for a in self.brokers for b in self.brokers):
            self.waited = False
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
                if self.portions.random() < 0.5:
                    broker.roamer.reach.go_on(self.now)
                if broker.draining:
                    broker.drain_some()
                for leave in [*broker.leaving, *broker.thief.leaving]:
                    broker.push(leave)
        elif self.owned and what < 0.87:
            self.attempts += 1
            chance.choice(up).thief.connect(chance.random() < 0.5, chance.random() < 0.5)
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

    def catch_up(self) -> None:
        """All brokers have done what members that came or went mean."""
        for broker in self.brokers:
            broker.clock()
            for _ in range(9):
                broker.roamer.reach.go_on(self.now)

    def settle(self) -> None:
        """All is well again, and everything arrives."""
        for broker in self.brokers:
            if not broker.up:
                self.reachability(broker.start)
        self.reachability(self.apart.clear)
        for _ in range(60):
            self.now += 0.5
            self.tick(self.brokers)
            self.catch_up()
            for broker in self.brokers:
                broker.clock()
                if broker.draining:
                    broker.drain_some()
                for leave in [*broker.leaving, *broker.thief.leaving]:
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
        self.end_thieves()
        where = self.chance.choice(self.brokers)
        self.connect(where)
        self.settle()
        if self.at is None:  # turned away by a claim that was still on its way
            self.connect(where)
            self.settle()
        self.check()
        if self.owned:
            self.attack()
        return self

    def end_thieves(self) -> None:
        """The other user goes, with what he has made."""
        for broker in self.brokers:
            broker.clock()
            broker.thief.right()
            broker.thief.waiting = False
            if broker.thief.main is not None:
                broker.thief.end()
            assert not broker.thief.leaving, "something of the other user's still moves"
        self.settle()

    def attack(self) -> None:
        """All is well, and the owner is served: the other user is refused everywhere, and the owner does not notice."""
        for broker in self.brokers:
            for clean in (False, True):
                broker.thief.connect(clean, brief=False)
                self.settle()
                assert broker.thief.main is None, f"the other user was let in at {broker.number}"
                assert not broker.thief.waiting
                self.check()

    def check(self) -> None:
        state = "; ".join(broker.describe() for broker in self.brokers)
        assert self.at is not None, f"the client was turned away: {state}"
        assert self.at.main is not None, f"the client has no session: {state}"
        assert self.at.main.connected, f"the client is not served: {state}"
        holders = [b.number for b in self.brokers if b.main is not None]
        assert holders == [self.at.number], f"sessions at {holders}, the client is at {self.at.number}: {state}"
        self.right(self.at)
        assert not any(b.leaving or b.aside for b in self.brokers), f"something still moves: {state}"
        assert not any(b.roamer.forwards.of for b in self.brokers), f"something is still passed on: {state}"
        assert not any(place.open for b in self.brokers for place in b.roamer.places.values()), f"something may still come: {state}"
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
    messages = merges = attempts = 0
    for seed in range(given.start, given.start + given.seeds):
        try:
            world = World(seed, owned=seed % 2 == 1).run()
        except Exception:
            traceback.print_exc()
            print(f"repeat it: python -m tests.simulation.roaming --seeds 1 --start {seed}", file=sys.stderr)
            return 1
        messages += len(world.published)
        merges += world.merges
        attempts += world.attempts
    print(f"{given.seeds} seeds: {messages} messages, {merges} merges, {attempts} attempts of another user; failed: none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
