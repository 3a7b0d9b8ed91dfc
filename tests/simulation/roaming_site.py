"""One broker of the simulation of roaming clients: a few queues around the real `Roamer`, whose port it is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mqmesh.mesh.roaming import wire
from mqmesh.mesh.roaming.names import name_of
from mqmesh.mesh.roaming.places import Known, Leave, Place, State, decode_forwards, decode_known, decode_leave, decode_place
from mqmesh.mesh.roaming.roamer import Roamer

if TYPE_CHECKING:
    from .roaming import World

CLIENT = "c"  # a client of nobody
OWNED, THIEF = name_of(CLIENT, "alice"), name_of(CLIENT, "mallory")  # one client identifier of two users
WAIT = 3.0
PRIVATE = 3  # each third message of an origin is for sessions of the wide listener only
Item = tuple[int, int, int]  # origin, serial, packet identifier in flight or 0


class Session:
    """What a broker keeps: the queue, what is in flight, whether it is subscribed.

    name: for people. generations: whose state it has. brief: it ends with its connection. stored: it is found after a crash, when it may be
    over. parked: the other user had the client identifier at this broker when it came. wide: judged by the listener whose rules allow all.
    given: what the client had from it.
    """

    def __init__(self, name: str, *generations: int) -> None:
        self.name = name
        self.generations = set(generations)
        self.brief = self.stored = self.parked = self.wide = False
        self.queue: deque[tuple[int, int]] = deque()
        self.flights: dict[int, tuple[int, int]] = {}
        self.given: set[tuple[int, int]] = set()
        self.connected = False
        self.subscribed = False

    def wants(self, serial: int) -> bool:
        """Whether a message is for it, by its subscription and the rules of its listener."""
        return self.subscribed and (self.wide or bool(serial % PRIVATE))


class Thief:
    """What a broker has of the other user, who has the owner's client identifier and no rights to any message."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.main: Session | None = None
        self.waiting = self.brief = False
        self.hopeless = 0  # what `World.served` said when he came
        self.leaving: set[Leave] = set()
        self.ready: set[Leave] = set()
        self.places: dict[str, bytes] = {}
        self.leaves: dict[int, tuple[Leave, bytes]] = {}
        self.forwards: bytes | None = None

    def connect(self, clean: bool, brief: bool) -> None:
        """He comes, if the owner has not the client identifier here."""
        broker = self.broker
        owner = broker.main
        broker.clock()
        self.waiting = False
        self.cut()
        if (owner is not None and not owner.parked) or broker.waiting:
            broker.world.refusals += 1
            return
        self.brief = brief
        self.hopeless = broker.world.served() if self.main is None else 0  # what he has already he keeps
        if broker.roamer.connect(THIEF, clean):
            self.let_in()
        else:
            self.waiting = True

    def cut(self) -> None:
        """His connection is gone."""
        if self.main is not None and self.main.connected:
            self.main.connected = False
            if self.main.brief:
                self.end()

    def end(self, quiet: bool = False) -> None:
        self.main = None
        if not quiet:
            self.broker.roamer.ended(THIEF)

    def let_in(self) -> None:
        self.waiting = False
        if self.main is None:
            world = self.broker.world
            assert self.broker.main is None or self.broker.main.parked, "two users have one client identifier at one broker"
            assert world.ticking or self.hopeless <= 0 or self.hopeless != world.served(), (
                "the owner has a session that can be asked for, and does not move"
            )
            self.main = Session(f"the other user's at {self.broker.number}")
            self.main.stored = not self.brief
        self.main.connected, self.main.brief, self.main.parked = True, self.brief, False
        self.broker.roamer.saved(THIEF)
        self.right()

    def right(self) -> None:
        """What he has is his own."""
        if self.main is not None:
            owners = [*self.main.generations, *self.main.queue, *self.main.flights]
            assert not owners, f"he has {owners} of the owner's"
            assert not self.main.subscribed

    def installed(self, state: bytes) -> None:
        assert state == b"the other user's", f"{state!r} came to the other user"
        if self.main is None:
            self.main = Session(f"the other user's at {self.broker.number}")
            self.main.stored = True
            self.main.parked = self.broker.main is not None

    def released(self, leave: Leave) -> bytes | None:
        self.waiting = False
        self.cut()
        session, self.main = self.main, None
        if session is None:
            return None
        self.leaving.add(leave)
        return b"the other user's"

    def sent(self, leave: Leave) -> None:
        if leave not in self.ready:
            self.ready.add(leave)
            self.broker.roamer.leaves.flights_sent(leave)

    def start(self) -> list[Leave]:
        """A new life of the broker: what was on its way of him."""
        self.waiting = False
        self.leaving, self.ready, stored, self.leaves = set(), set(), self.leaves, {}
        found = []
        for _, value in stored.values():
            again = decode_leave(value)
            self.leaving.add(again)
            self.leaves[id(again)] = again, value
            found.append(again)
        return found


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
        self.clean = self.brief = self.wide = False  # what the connection that waits asks for, and by which listener
        self.version = 1
        self.wanted = False  # what was said of the own interest
        self.knows: dict[int, tuple[int, bool]] = {}  # interest of others
        self.thief = Thief(self)
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
        return 1, self.knows.get(number, (1, False))[0]

    def send_to_brokers(self, brokers: int, kind: str, body: bytes) -> None:
        if kind == wire.END and not all(leave.cut.passed(self.world.everybody) for leave in self.leaving):
            self.world.late = True  # an origin is out of reach: what it sends comes behind
        for other in self.world.brokers:
            if brokers >> other.number & 1:
                assert other is not self
                self.world.streams[self.number, other.number].append((kind, body))

    def deny(self, client: str) -> None:
        self.world.denials += 1
        if client == THIEF:
            self.thief.waiting = False
        elif self.waiting:
            self.waiting = False
            self.world.cut_off(self)

    def contested(self, client: str, broker: int) -> None:
        self.world.contests += 1

    def renamed(self, client: str, name: str) -> None:
        raise AssertionError("nobody's sessions are in no run beside those of users")

    def may_have(self, client: str, owner: str | None) -> bool:
        return owner is None

    def keeps(self, client: str) -> bool:
        session = self.thief.main if client == THIEF else self.main
        return session is None or session.stored

    def save_place(self, client: str, value: bytes | None) -> None:
        places = self.thief.places if client == THIEF else self.places
        if value is None:
            places.pop(client, None)
        else:
            places[client] = value

    def save_leave(self, leave: Leave, value: bytes | None) -> None:
        leaves = self.thief.leaves if leave.client == THIEF else self.leaves
        if value is None:
            leaves.pop(id(leave), None)
        else:
            leaves[id(leave)] = leave, value

    def save_forwards(self, client: str, value: bytes | None) -> None:
        if client == THIEF:
            self.thief.forwards = value
        else:
            self.forwards = value

    def save_known(self, value: bytes) -> None:
        self.remembered = decode_known(value)

    def accept(self, client: str) -> bool:
        if client == THIEF:
            if self.thief.waiting and (self.main is None or self.main.parked):
                self.thief.let_in()
            self.thief.waiting = False
            return self.thief.main is not None
        if self.waiting:
            self.waiting = False
            if self.thief.main is None or self.thief.main.parked:
                self.world.let_in(self)
            else:  # who came meanwhile by an older claim has the client identifier
                self.world.cut_off(self)
        return self.main is not None

    def turn_away(self, client: str, quiet: bool = False) -> None:
        if client == THIEF:
            self.thief.waiting = False
            self.thief.cut()
        elif self.waiting or (self.main is not None and self.main.connected):
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
            self.roamer.ended(self.world.client)

    def discard(self, client: str) -> None:
        if client == THIEF:
            self.thief.end(quiet=True)
            return
        if self.main is not None and self.main.connected:
            self.world.cut_off(self)
            self.main.connected = False
        self.lost(self.main)
        self.end(quiet=True)

    def lost(self, session: Session | None) -> None:
        """A clean start has discarded it: by the clocks that decide, what the client had from it was before that."""
        if session is not None:
            self.world.unsure |= session.given

    def release(self, leave: Leave) -> bytes | None:
        if leave.client == THIEF:
            return self.thief.released(leave)
        self.turn_away(leave.client, quiet=True)
        session, self.main = self.main, None
        if session is None:
            return None
        self.leaving[leave] = session
        listener = b"wide" if session.wide else b"narrow"
        return b" ".join(
            [
                listener,
                b"subscribed" if session.subscribed else b"not",
                *[b"%d" % one for one in session.generations],
                *[b"%d.%d" % one for one in session.given],
            ]
        )

    def begin(self, leave: Leave) -> None:
        if leave.client == THIEF:
            return
        self.flying.add(leave)
        self.push(leave)

    def push(self, leave: Leave) -> None:
        """Send some of what waits."""
        if leave.client == THIEF:
            if self.world.reach(self, self.world.by_number[leave.to]):
                self.thief.sent(leave)
                self.roamer.leaves.progress(leave)
            return
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
        if leave.client == THIEF:
            return leave in self.thief.ready
        session = self.leaving[leave]
        return not session.queue and not session.flights and leave not in self.flying

    def forget(self, leave: Leave) -> None:
        if leave.client == THIEF:
            self.thief.leaving.discard(leave)
            return
        session = self.leaving.pop(leave)
        if not leave.cut.passed(self.world.everybody):
            self.lost(session)
        self.say()

    def restore(self, leave: Leave, place: Place) -> None:
        if leave.client == THIEF:
            self.thief.leaving.discard(leave)
            self.thief.installed(b"the other user's")
            return
        session = self.leaving.pop(leave)
        self.flying.discard(leave)
        if self.main is None:
            self.main = session
            session.parked = self.thief.main is not None
        else:
            self.main.queue += session.queue
            self.main.generations |= session.generations
            self.main.given |= session.given

    def install(self, place: Place, state: bytes, merge: bool) -> None:
        if place.client == THIEF:
            self.thief.installed(state)
            return
        if merge:
            self.world.merges += 1
        listener, subscribed, *had = state.split()
        if self.main is None:
            self.main = Session(f"main at {self.number}")
            self.main.stored = True
            self.main.parked = self.thief.main is not None
            self.main.wide = self.wide if self.waiting else listener == b"wide"
        self.gate(place)
        self.main.subscribed = self.main.subscribed or subscribed == b"subscribed"
        self.main.generations.update(int(one) for one in had if b"." not in one)
        self.main.given.update((int(one), int(two)) for one, point, two in [item.partition(b".") for item in had] if point)
        self.world.right(self)
        self.say()

    def take(self, place: Place, flights: bool, items: bytes) -> None:
        assert place.client != THIEF, "a message came to the other user"
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
        if at.client != THIEF and isinstance(at, Place) and at.state in (State.FETCHING, State.TAKING) and self.aside is None:
            self.aside = Session(f"aside at {self.number}")

    def drain(self, place: Place) -> None:
        """In steps, or at once."""
        if place.client == THIEF:
            self.roamer.drained(THIEF)
            return
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
            self.roamer.drained(self.world.client)
        self.world.pump(self)

    # messages

    def deliver(self, origin: int, serial: int) -> None:
        """A message for subscribers here."""
        place = self.roamer.places.get(self.world.client)
        if self.main is not None and self.main.wants(serial) and place is not None and place.cut.takes(origin):
            moving = place.state in (State.FETCHING, State.TAKING)
            target = self.aside if moving else self.main
            assert target is not None
            target.queue.append((origin, serial))
        for leave, session in self.leaving.items():
            if session.wants(serial) and leave.cut.takes(origin):
                session.queue.append((origin, serial))
        self.world.pump(self)

    # life

    def describe(self) -> str:
        """For a failure's text."""
        places = [(p.state.name, p.key, p.sources, p.following, p.cut.keys, p.cut.heard) for p in self.roamer.places.values()]
        return f"{self.number}: {places} leaving {[(leave.key, leave.older, leave.ended, leave.cut.heard) for leave in self.leaving]}"

    def crash(self) -> None:
        self.up = False
        main, his = self.main, self.thief.main
        if self.waiting or (main is not None and main.connected):
            self.waiting = False
            self.world.cut_off(self)
        if main is not None and main.connected:
            main.connected = False
            if main.brief:
                self.world.over(main)
        if main is not None and not main.stored:
            self.end(quiet=True)
        self.thief.waiting = False
        if his is not None:
            his.connected = False
            if not his.stored:
                self.thief.end(quiet=True)

    def start(self) -> None:
        """A new life: connections and what was only asked for are gone."""
        self.up = True
        self.draining = False
        self.roamer = Roamer(self.number, self, WAIT)
        self.clock()
        found = [(self.main, *item) for item in self.places.items()] + [(self.thief.main, *item) for item in self.thief.places.items()]
        places = []
        for session, client, value in found:
            place = decode_place(client, value)
            if session is not None or place.state is State.ASKING or place.orphaned():
                places.append(place)
        sessions, self.leaving = self.leaving, {}
        leaves = []
        stored, self.leaves = self.leaves, {}
        for leave, value in stored.values():
            again = decode_leave(value)
            self.leaving[again] = sessions[leave]
            self.leaves[id(again)] = again, value
            leaves.append(again)
        forwards = {} if self.forwards is None else {self.world.client: decode_forwards(self.forwards)}
        if self.thief.forwards is not None:
            forwards[THIEF] = decode_forwards(self.thief.forwards)
        leaves += self.thief.start()
        self.roamer.restore(places, leaves, forwards, self.remembered)
        if self.main is not None and self.main.brief:  # its connection was the last one
            self.end()
        if self.thief.main is not None and self.thief.main.brief:
            self.thief.end()
