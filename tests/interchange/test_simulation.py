"""Exchanges of three homes under chance: posts, answers, cancels, crashes before and after commits, lost disks, cut links, messages that
come twice, clocks that jump. Whatever happens: each request ends once for each recipient, or for each response of one that gives several;
nobody gets anything after the end but the one who cancelled is told, and no identifier is issued twice.

`MQMESH_INTERCHANGE_SEEDS` says how many worlds; `make soak` takes 10,000.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from mqmesh.interchange.calls import State, Step
from mqmesh.interchange.exchange import DEFAULT_EXPIRY, Deliver, Elsewhere, Exchange, Save
from mqmesh.interchange.identifiers import BEGINNING, Identifiers, first_count
from mqmesh.interchange.message import Declaration, Header, Kind, Message, Part, read_header
from mqmesh.interchange.refusals import Refusal
from msgspec.structs import replace
from support.examples import how_many

SEEDS = how_many("MQMESH_INTERCHANGE_SEEDS", 300)
STEPS = 60
EACH = 100  # seeds of a test
HOMES = (1, 2, 3)
SERVICES = [f"site{home}/{name}" for home in HOMES for name in ("a", "b")]
WAYS = [f"way/{name}" for name in "xy"]
SEVERAL = {"site1/b": 2, "site2/b": 3}  # responses to a request


class Ways:
    """Explicit services before each recipient; a response goes back by way/y if its body says so."""

    def out(self, message: Message, now: int = 0) -> list[tuple[Step, ...]]:
        return [tuple(Step(one) for one in (*message.header.services, to)) for to in message.header.recipients]

    def back(self, request: Header, response: Message, now: int = 0) -> tuple[Step, ...]:
        return (Step(Declaration("way/y")),) if response.body.data == b"by y" else ()

    def arrive(self, message: Message, steps: tuple[Step, ...], at: int, now: int = 0) -> tuple[Step, ...]:
        return steps

    def delivery(self, service: str) -> str:
        return "mqtt"

    def refuses_duplicates(self, service: str) -> bool:
        return True

    def responses(self, service: str) -> int:
        return SEVERAL.get(service, 1)

    def follows(self, service: str) -> bool:
        return service.endswith("/b")


class Home:
    """One interchange, with what it has kept."""

    def __init__(self, number: int, now: int) -> None:
        self.number, self.ahead = number, 0
        self.rows: dict[str, bytes] = {}
        self.born, self.last = first_count(now), 0
        self.life = 0
        self.exchange = self.made()

    def made(self) -> Exchange:
        ids = Identifiers(self.number, self.last, lambda: "f" * 16)
        exchange = Exchange(ids, Ways(), self.born, retention=20_000, most=30)
        exchange.restore(self.rows.values())
        return exchange


class World:
    """Three homes and their services. wanted: recipients of each request that was acknowledged."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = BEGINNING + 10**9 + seed
        self.homes = {number: Home(number, self.now) for number in HOMES}
        self.cut: set[int] = set()
        self.travelling: list[tuple[int, Message]] = []
        self.held: list[tuple[str, Message]] = []  # deliveries that a service has not worked
        self.wanted: dict[str, tuple[str, set[str], Home, int]] = {}  # call -> sender, recipients, home and its life
        self.cancelled: set[str] = set()
        self.ends: Counter[tuple[str, str, str]] = Counter()  # call, recipient, number of the response
        self.hops: set[str] = set()
        self.calls: set[str] = set()
        self.handles: dict[str, set[str]] = {}
        self.serial = 0

    # What happens

    def post(self, at: int, message: Message) -> None:
        """A post comes in at a home: it is decided there and committed, or lost before the commit, or handed on."""
        home = self.homes[at]
        now = self.now + home.ahead
        try:
            verdict = home.exchange.post(message, now)
        except Refusal:
            assert not home.exchange.take()
            return
        except Elsewhere as elsewhere:
            if not elsewhere.asks and elsewhere.home in self.homes:
                self.travelling += [(elsewhere.home, message)] * self.chance.choice((1, 1, 2))
            return
        actions = home.exchange.take()
        if self.chance.random() < 0.1:
            self.crash(home)
            if message.header.handle:
                self.post(at, message)  # it was not acknowledged
            return
        kind, header = message.header.kind, message.header
        if kind in (Kind.REQUEST, Kind.NOTIFICATION):
            assert verdict.call not in self.calls
            self.calls.add(verdict.call)
            if header.handle:
                self.handles.setdefault(header.handle, set()).add(verdict.call)
        if kind is Kind.REQUEST:
            self.wanted[verdict.call] = header.sender, {one.service for one in header.recipients}, home, home.life
        if kind is Kind.CANCEL:
            self.cancelled |= {verdict.call}
        self.commit(home, actions)

    def commit(self, home: Home, actions: list[Deliver | Save]) -> None:
        home.last = home.exchange.ids.last
        for action in actions:
            if isinstance(action, Save):
                if action.value is None:
                    home.rows.pop(action.call, None)
                else:
                    home.rows[action.call] = action.value
                continue
            header = action.message.header
            assert header.hop not in self.hops, "a hop twice"
            self.hops.add(header.hop)
            sender = self.wanted.get(header.call, ("",))[0]
            if header.kind in (Kind.RESPONSE, Kind.ERROR) and action.service == sender:
                self.ends[header.call, header.sender, header.number] += 1
                assert self.ends[header.call, header.sender, header.number] == 1, "a second end"
            else:
                self.held.append((action.service, action.message))
                if header.kind is not Kind.CANCEL:
                    ended = [one for one in home.exchange.calls[header.call].branches if one.hops and one.hop.id == header.hop]
                    assert all(not one.state.ended or one.state is State.DELIVERED for one in ended), "something after the end"

    def crash(self, home: Home) -> None:
        home.exchange = home.made()

    def act(self) -> None:
        chance = self.chance
        match chance.randrange(12):
            case 0 | 1 | 2:
                self.new_call()
            case 3 | 4 | 5 | 6 if self.held:
                self.work()
            case 7 if self.wanted:
                call = chance.choice(list(self.wanted))
                who = self.wanted[call][0] if chance.random() < 0.8 else chance.choice(SERVICES)
                self.post(chance.choice(HOMES), Message(Header(Kind.CANCEL, who, call=call)))
            case 8:
                self.crash(self.homes[chance.choice(HOMES)])
            case 9:
                self.cut ^= {chance.choice(HOMES)}
            case 10:
                home = self.homes[chance.choice(HOMES)]
                if chance.random() < 0.1:  # its disk is lost, and it is there again later
                    home.rows, home.last, home.life = {}, 0, home.life + 1
                    self.now += 1
                    home.born = first_count(self.now + home.ahead)
                    home.exchange = home.made()
                elif chance.random() < 0.5:
                    home.ahead += chance.randrange(60_000)
                else:  # the clock was set back while it was off
                    home.ahead -= chance.randrange(5_000)
                    self.crash(home)
            case _:
                self.now += chance.choice((1, 50, 5_000))
                self.pass_time()
        for to, message in [one for one in self.travelling if one[0] not in self.cut]:
            self.travelling.remove((to, message))
            self.post(to, message)

    def new_call(self) -> None:
        chance = self.chance
        self.serial += 1
        fields = {
            "kind": chance.choice(("request", "request", "notification")),
            "sender": chance.choice(SERVICES),
            "recipients": chance.sample(SERVICES, chance.randint(1, 2)),
            "services": chance.choice(([], [], ["way/x"], WAYS)),
            "handle": f"h{self.serial}",
        }
        if chance.random() < 0.5:
            fields["expires"] = self.now + chance.choice((10, 20_000, 100_000))
        at = chance.choice(HOMES)
        message = Message(read_header(fields), Part(b"?"))
        self.post(at, message)
        if chance.random() < 0.2:  # its acknowledgement was lost
            self.post(at, replace(message, header=replace(message.header, possible_duplicate=True)))

    def work(self) -> None:
        """A service does something with what it has; it may get it again."""
        chance = self.chance
        service, message = chance.choice(self.held)
        if chance.random() < 0.8:
            self.held.remove((service, message))
        header, body = message.header, chance.choice((b"!", b"by y"))
        who = service if chance.random() < 0.9 else chance.choice((*SERVICES, *WAYS))
        named = {"hop": header.hop} if chance.random() < 0.7 else {"call": header.call}
        kind = chance.choice((Kind.RESPONSE, Kind.RESPONSE, Kind.RESPONSE, Kind.ERROR, Kind.ACKNOWLEDGE))
        number = str(chance.randint(1, SEVERAL[who])) if who in SEVERAL else ""
        answer = Message(Header(kind, who, code="no" if kind is Kind.ERROR else "", number=number, **named), Part(body))
        for _ in range(chance.choice((1, 1, 2))):
            self.post(chance.choice(HOMES), answer)

    def pass_time(self) -> None:
        for home in self.homes.values():
            home.exchange.on_timer(self.now + home.ahead)
            actions = home.exchange.take()
            if self.chance.random() < 0.1:
                self.crash(home)
            else:
                self.commit(home, actions)

    def finish(self) -> None:
        """All links are up, nobody does anything more, and time passes."""
        self.cut.clear()
        for _ in range(3):
            self.now += DEFAULT_EXPIRY
            for home in self.homes.values():
                home.exchange.on_timer(self.now + home.ahead)
                self.commit(home, home.exchange.take())
        assert all(len(calls) == 1 for calls in self.handles.values()), "a handle was posted twice"
        assert not any(home.exchange.calls or home.rows for home in self.homes.values()), "something is never forgotten"
        assert all(home.exchange.next_deadline() is None for home in self.homes.values())
        assert all(home.exchange.idle() for home in self.homes.values()), "a session or a call is counted for ever"
        for call, (_, recipients, home, life) in self.wanted.items():
            if home.life != life:
                continue  # it was lost with the disk
            for recipient in recipients:
                whole, of = self.ends[call, recipient, ""], SEVERAL.get(recipient, 1)
                numbers = sum(self.ends[call, recipient, f"{number}/{of}"] for number in range(1, of + 1))
                complete = (whole == 1 and numbers < of) if of == 1 or whole else numbers == of
                told = f"{call} to {recipient}: {whole} ends, {numbers} of {of} responses"
                assert complete or (not whole and call in self.cancelled), told


@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_each_request_ends_once(first: int) -> None:
    for seed in range(first, min(first + EACH, SEEDS)):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.act()
            world.finish()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
