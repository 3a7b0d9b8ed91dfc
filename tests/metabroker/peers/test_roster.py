"""Who of several metabrokers answers: rosters on a bus that delays words at random, loses beats, breaks, and heals."""

from __future__ import annotations

import random
from collections import defaultdict, deque

import pytest
from mqmesh.metabroker.peers.members import account_of, key_of, reaches_of, written
from mqmesh.metabroker.peers.roster import BEAT, PATIENCE, RANDOM, SETTLED, SILENT, Request, Roster, Said
from mqmesh.metabroker.policy import parse

FAR = "mqtt://far:1883"
POLICY = parse({"allow": [{"clients": ["*"], "remotes": ["mqtt://far:*"]}]})
ANY = (None, None)


class Place:
    """One metabroker: its roster, and what it answered."""

    def __init__(self, bus: Bus, number: int, site: str, policy: object = POLICY) -> None:
        self.bus = bus
        self.roster = Roster(number, reaches_of(policy), f"place {number}", site, joining=True)  # type: ignore[arg-type]
        self.inboxes: dict[object, deque[tuple[Said | Request, float]]] = defaultdict(deque)  # of each speaker
        self.alive, self.stalled = True, False
        self.part = 0  # which hears which
        self.answered: list[str] = []
        self.roster.connected(bus.now)

    def take(self, one: Said | Request) -> None:
        if isinstance(one, Said):
            self.roster.hear(one.topic, one.body, self.bus.now)
        else:
            self.decide(one)
        again, self.roster.again = self.roster.again, []
        for request in again:
            self.decide(request)
        self.say()

    def decide(self, request: Request) -> None:
        if " " not in request.topic:  # in a session
            assert not self.roster.session(request.topic, request)
            return
        client, remote = request.topic.split(" ")
        if self.roster.connect(request, client, remote, ANY, request.body.decode(), self.bus.now):
            self.answered.append(client)
            session = self.roster.new_session(random.randbytes(RANDOM))
            key = self.roster.me.key(client, remote, account_of(*ANY))
            self.roster.begin(session, client, key or key_of(remote, b""), False)

    def say(self) -> None:
        for said in self.roster.take():
            self.bus.say(self, said)


class Bus:
    """Words arrive in the order of their speaker, each listener at its own pace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.places: list[Place] = []
        self.retained: dict[str, Said] = {}

    def add(self, number: int, site: str = "", policy: object = POLICY) -> Place:
        place = Place(self, number, site, policy)
        for said in self.retained.values():
            place.inboxes[said.topic].append((said, self.now))
        self.places.append(place)
        place.say()
        return place

    def say(self, speaker: Place, said: Said) -> None:
        if said.retain:
            self.retained[said.topic] = said
            if not said.body:
                del self.retained[said.topic]
        self.send(said, said.topic if said.body else speaker, speaker.part, lossy=not said.qos)

    def send(self, one: Said | Request, speaker: object, part: int = 0, lossy: bool = False) -> None:
        for place in self.places:
            if place.alive and place.part == part and not (lossy and self.random.random() < 0.05):
                place.inboxes[speaker].append((one, self.now + self.random.random() * 0.05))

    def connect(self, client: str, remote: str = FAR, site: str = "", part: int = 0) -> None:
        self.send(Request(f"{client} {remote}", site.encode(), {}), client, part)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            for place in [one for one in self.places if one.alive and not one.stalled]:
                for inbox in list(place.inboxes.values()):
                    while inbox and inbox[0][1] <= self.now:
                        place.take(inbox.popleft()[0])
                if round(self.now * 100) % round(BEAT * 100) == 0:
                    place.roster.tick(self.now)
                    place.say()

    def answers(self, client: str) -> int:
        return sum(place.answered.count(client) for place in self.places)


def test_one_alone_answers_at_once_and_says_little() -> None:
    bus = Bus(1)
    place = bus.add(1)
    bus.connect("c")
    bus.run(0.2)
    assert place.answered == ["c"]
    bus.run(10)
    assert not place.roster.take()
    assert place.roster.me.active


def test_a_community_without_peers_is_served_all_the_same() -> None:
    roster = Roster(1, reaches_of(POLICY), joining=True)
    roster.connected(0.0)
    request = Request("c", b"", {})
    assert not roster.connect(request, "c", FAR, ANY, "", 0.0)
    roster.tick(PATIENCE)
    assert (roster.deaf, roster.again) == (True, [request])
    said = roster.take()[0]
    roster.hear(said.topic, said.body, PATIENCE)
    assert not roster.deaf, "our own words come back"


@pytest.mark.parametrize("seed", range(20))
def test_each_connect_has_one_answer_while_metabrokers_come(seed: int) -> None:
    """And sessions of one remote and account share a metabroker."""
    bus = Bus(seed)
    remotes = [f"mqtt://far:{port}" for port in range(1, 9)]
    count = 0
    for number in range(1, 5):
        bus.add(number)
        for _ in range(40):
            bus.connect(f"c{count}", bus.random.choice(remotes))
            count += 1
            bus.run(0.02)
    bus.run(5)
    assert [bus.answers(f"c{one}") for one in range(count)] == [1] * count
    held = [key for place in bus.places for key in place.roster.me.keys]
    assert len(held) == len(set(held)) == len(remotes)


@pytest.mark.parametrize("seed", range(20))
def test_the_connects_of_one_that_dies_are_answered_by_another(seed: int) -> None:
    bus = Bus(seed)
    for number in (1, 2, 3):
        bus.add(number)
    bus.run(1)
    owner, _ = bus.places[0].roster.owner("c", FAR, b"", "")
    dead = next(place for place in bus.places if place.roster.me.number == owner)
    dead.alive = False
    bus.connect("c")
    bus.run((SILENT + 3) * BEAT)
    assert bus.answers("c") == 1
    others = [place for place in bus.places if place is not dead]
    assert all([one.number for one in place.roster.dead] == [owner] for place in others)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_answered_is_not_answered_again_when_its_owner_dies(seed: int) -> None:
    bus = Bus(seed)
    for number in (1, 2, 3):
        bus.add(number)
    bus.run(1)
    clients = [f"c{number}" for number in range(10)]
    for client in clients:
        bus.connect(client)
    bus.run(0.2)
    next(place for place in bus.places if place.answered).alive = False
    bus.run((SILENT + 3) * BEAT)
    assert [bus.answers(client) for client in clients] == [1] * len(clients)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_answered_while_a_newcomer_joined_is_not_answered_again(seed: int) -> None:
    """It has kept the requests, and learns from the others that they are answered."""
    bus = Bus(seed)
    for number in (1, 2):
        bus.add(number)
    bus.run(1)
    bus.add(3).roster.patient = True
    clients = [f"c{number}" for number in range(10)]
    for client in clients:
        bus.connect(client)
    bus.run(1.5)
    next(place for place in bus.places if place.answered).alive = False
    bus.run((SILENT + 3) * BEAT)
    assert [bus.answers(client) for client in clients] == [1] * len(clients)


def test_the_site_of_the_client_goes_first_and_what_is_held_stays() -> None:
    bus = Bus(3)
    north, south = bus.add(1, "north"), bus.add(2, "south")
    bus.run(1)
    for number in range(8):
        bus.connect(f"n{number}", f"mqtt://far:{number + 1}", "north")
    bus.run(0.2)
    assert (len(north.answered), len(south.answered)) == (8, 0)
    bus.connect("s", "mqtt://far:1", "south")
    bus.connect("t", "mqtt://far:9", "south")
    bus.run(0.2)
    assert (north.answered[8:], south.answered) == (["s"], ["t"])


def test_only_those_whose_policy_reaches_the_remote_answer() -> None:
    bus = Bus(4)
    bus.add(1)
    near = bus.add(2, policy=parse({"allow": [{"clients": ["*"], "remotes": ["mqtt://near:*"]}]}))
    bus.run(1)
    for number in range(5):
        bus.connect(f"c{number}", f"mqtt://near:{number + 1}")
    bus.connect("nobody", "mqtt://elsewhere:1")
    bus.run(0.2)
    assert set(near.answered) >= {f"c{number}" for number in range(5)}
    assert bus.answers("nobody") == 1


def test_one_that_is_taken_for_dead_speaks_up_and_hears_that_its_clients_were_moved() -> None:
    bus = Bus(5)
    one, other = bus.add(1), bus.add(2)
    bus.run(1)
    one.part = 1
    bus.run(3)
    assert [dead.number for dead in other.roster.dead] == [1]
    other.roster.move(other.roster.dead.pop())
    one.part = 0
    bus.run(3)
    assert (list(one.roster.members), list(other.roster.members)) == ([2], [1])
    assert one.roster.outlived
    bus.connect("c")
    bus.run(0.2)
    assert bus.answers("c") == 1


def test_who_is_in_the_same_place_makes_room_if_it_is_no_earlier_life() -> None:
    bus = Bus(9)
    one = bus.add(1)
    bus.run(1)
    one.alive = False
    two = bus.add(2)
    for place in (one, two):
        place.roster.me.where = "here"
    bus.retained.clear()
    one.roster.connected(bus.now)
    one.say()
    for _ in range(2):  # an earlier life whose words are retained until it is known
        two.roster.disconnected()
        two.roster.connected(bus.now)
        for said in list(bus.retained.values()):
            two.roster.hear(said.topic, said.body, bus.now)
        two.say()
    assert list(bus.retained) == ["metabroker/peer/00000002"]
    assert not two.roster.twin
    one.roster.connected(bus.now)
    one.say()
    two.roster.connected(bus.now)
    two.roster.hear("metabroker/peer/00000001", bus.retained["metabroker/peer/00000001"].body, bus.now)
    assert two.roster.twin
    two.roster.move_to("there")
    assert not two.roster.twin


def test_requests_for_sessions_of_a_dead_one_wait_until_somebody_has_them() -> None:
    """Also of sessions that it had taken over itself, whose identifiers have an earlier number."""
    bus = Bus(6)
    one, two, three = (bus.add(number) for number in (1, 2, 3))
    for place in bus.places:
        place.roster.share()
        place.roster.found(set())
    bus.run(1)
    key = key_of(FAR, account_of(*ANY))
    own, older = one.roster.new_session(bytes(RANDOM)), Roster(9).new_session(bytes(RANDOM))
    for session in (own, older):
        one.roster.begin(session, "c", key, True)
    one.say()
    bus.run(0.2)
    one.alive = False
    bus.run((SILENT + 3) * BEAT)
    request = Request(f"s {FAR}", b"", {})
    assert not any(place.roster.session(session, request) for place in (two, three) for session in (own, older))
    assert not two.roster.connect(Request(f"c {FAR}", b"", {}), "c", FAR, ANY, "", bus.now)
    for session in (own, older):
        two.roster.begin(session, "c", key, True)
    two.roster.took_home(1)
    assert [one.topic for one in two.roster.again] == [request.topic, request.topic, f"c {FAR}"]
    two.roster.again.clear()
    two.say()
    bus.run(0.2)
    assert not any(three.roster.session(session, request) for session in (own, older))


def test_requests_wait_until_the_new_owner_has_said_which_sessions_it_has() -> None:
    """It may have said that it begins them while it did not know of us, or before we heard it."""
    bus = Bus(12)
    one, two, three = (bus.add(number) for number in (1, 2, 3))
    for place in bus.places:
        place.roster.share()
        place.roster.found(set())
    bus.run(1)
    session = one.roster.new_session(bytes(RANDOM))
    one.roster.begin(session, "c", key_of(FAR, account_of(*ANY)), True)
    one.say()
    bus.run(0.2)
    one.alive = False
    bus.run((SILENT + 3) * BEAT)
    request = Request(session, b"", {})
    three.take(request)
    two.roster.begin(session, "c", key_of(FAR, account_of(*ANY)), True)
    two.roster.take()  # nobody hears it
    two.roster.took_home(1)
    two.say()
    bus.run(0.3)
    assert not three.roster.session(session, request), "there is such a session, and its owner answers"
    assert session in three.roster.members[2].sessions
    assert not three.roster.again


def shared(seed: int) -> tuple[Place, Place, str]:
    """Two with a database; the first one has a durable session of `c`."""
    bus = Bus(seed)
    one, two = bus.add(1), bus.add(2)
    for place in bus.places:
        place.roster.share()
        place.roster.found({1, 2} - {place.roster.me.number})
    bus.run(1)
    session = one.roster.new_session(bytes(RANDOM))
    one.roster.begin(session, "c", key_of(FAR, account_of(*ANY)), True)
    one.say()
    bus.run(0.2)
    return one, two, session


def cut_off(one: Place, other: Place) -> None:
    """They do not hear each other; each has its lease."""
    one.part = 1
    one.bus.run((SILENT + 3) * BEAT)
    assert (list(one.roster.members), list(other.roster.members)) == ([], [])


def test_requests_for_one_that_was_cut_off_are_its_own_again_when_it_is_back() -> None:
    one, two, session = shared(7)
    cut_off(one, two)
    connect = Request(f"d {FAR}", b"", {})
    two.take(connect)
    assert not two.roster.session(session, Request(session, b"", {}))
    assert two.answered == [], "the other one may be dead: its connection is shared by whoever has its sessions then"
    one.part = 0
    one.bus.run(2)
    assert list(two.roster.members) == [1]
    assert not two.roster.seeks, "nobody looks for its home any more"
    assert two.roster.again == []
    two.take(connect)
    one.take(connect)
    assert (one.answered, two.answered) == (["d"], [])


def test_one_that_is_slow_and_not_dead_has_its_requests() -> None:
    """Nobody else answers them, though it says nothing for a while."""
    one, two, _ = shared(10)
    bus = one.bus
    asked = [f"c{number}" for number in range(8)]
    one.stalled = True
    for number, client in enumerate(asked):
        bus.connect(client, f"mqtt://far:{9000 + number}")
    bus.run((SILENT + 3) * BEAT)
    assert list(two.roster.members) == []
    assert 0 < sum(bus.answers(client) for client in asked) < len(asked)
    one.stalled = False
    bus.run(2)
    assert [bus.answers(client) for client in asked] == [1] * len(asked)


def test_what_one_has_is_known_though_it_is_taken_for_dead_again_before_it_says_so() -> None:
    """Words about it from when it was cut off come late, between its first beat and its sessions."""
    one, two, _ = shared(11)
    older = Roster(9).new_session(bytes(RANDOM))  # of one whose sessions it has taken over
    one.roster.begin(older, "c", key_of(FAR, account_of(*ANY)), True)
    one.say()
    one.bus.run(0.2)
    cut_off(one, two)
    topic = one.roster.topic
    two.roster.hear(topic, written("beat", epoch=0, count=2, active=True), one.bus.now)
    two.roster.hear(topic, b"", one.bus.now)
    assert not two.roster.session(older, Request(older, b"", {})), "nobody says that there is no such session"
    one.part = 0
    one.bus.run(2)
    assert list(two.roster.members) == [1]
    assert not two.roster.session(older, Request(older, b"", {}))


def test_connects_do_not_wait_for_one_that_stays_cut_off() -> None:
    """Its sessions are its own all the same; a connect request for a durable one of them is answered as one that is away."""
    one, two, session = shared(8)
    cut_off(one, two)
    two.take(Request(f"d {FAR}", b"", {}))
    one.bus.run(SETTLED)
    assert two.answered == ["d"]
    assert two.roster.absent("c", FAR, ANY)
    assert not two.roster.absent("d", FAR, ANY)
    assert not two.roster.session(session, Request(session, b"", {})), "it may still die, and its home be taken"
    one.part = 0
    one.bus.run(2)
    assert (list(one.roster.members), list(two.roster.members)) == ([2], [1])
    assert not two.roster.absent("c", FAR, ANY)


@pytest.mark.parametrize("back", [False, True])
def test_of_two_durable_sessions_of_one_client_the_older_ends(back: bool) -> None:
    """Both were begun while the two did not hear each other. back: the client has gone back to the first one since."""
    one, two, _ = shared(12)
    cut_off(one, two)
    place = ("d", key_of(FAR, account_of(*ANY)))
    names = []
    for at, each in enumerate((one, two)):
        names.append(each.roster.new_session(bytes(RANDOM)))
        each.roster.begin(names[-1], *place, True)
        each.roster.answered(names[-1], 100.0 + at)
    if back:
        one.roster.answered(names[0], 102.0)
    assert [each.roster.outdated() for each in (one, two)] == [[], []], "they do not know of each other's"
    one.part = 0
    one.bus.run(2)
    assert one.roster.compare
    assert two.roster.compare
    assert [each.roster.outdated() for each in (one, two)] == ([[], names[1:]] if back else [names[:1], []])
    assert not one.roster.changed


def test_of_two_durable_sessions_in_one_metabroker_the_older_ends() -> None:
    """It has taken over the home of another one, of whose session it did not know."""
    roster = Roster(1, reaches_of(POLICY))
    roster.share()
    for session, at in (("older", 1.0), ("newer", 2.0), ("other", 0.5)):
        roster.begin(session, "e" if session == "other" else "c", b"key", True)
        roster.answered(session, at)
    roster.take_home(2)
    assert roster.compare
    assert roster.outdated() == ["older"]


def test_an_earlier_release_says_no_times_and_its_sessions_end_none() -> None:
    one, _, session = shared(13)
    one.roster.answered(session, 5.0)
    theirs = [("x", "c", key_of(FAR, account_of(*ANY)), True)]
    items = {"where": "place 5", "site": "", "reaches": [], "counted": [], "moved": [], "count": 1, "active": True, "sessions": theirs}
    one.roster.hear("metabroker/peer/00000005", written("state", epoch=0, **items), one.bus.now)
    assert 5 in one.roster.members
    assert one.roster.outdated() == []
