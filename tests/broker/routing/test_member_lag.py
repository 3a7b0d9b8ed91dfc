"""How members of shared subscriptions keep up: levels, and how seldom they change."""

from __future__ import annotations

import itertools
from random import Random
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.routing.member_lag import AWAY, BEHIND, LAGS, LONGEST, PATIENCE, READY, MemberLag
from mqmesh.mqtt.packets import Publish, Subscription
from support.models.broker_wire import Wire, started


class Member:
    """A session that is given messages and acknowledges some."""

    def __init__(self) -> None:
        self.connection = SimpleNamespace(sent=0, congested=False)
        self.outbound = SimpleNamespace(in_flight=0)
        self.queued = 0
        self.lag = MemberLag(self)
        self.lag.look(self)

    def tick(self, given: int, done: int) -> int:
        self.connection.sent += given
        self.outbound.in_flight += given - done
        assert self.outbound.in_flight >= 0
        return self.lag.look(self)


def test_a_member_that_keeps_up_stays_ready_however_much_is_in_flight() -> None:
    member = Member()
    member.tick(4000, 0)
    assert {member.tick(4000, 4000) for _ in range(50)} == {READY}


def test_one_that_lags_is_behind_until_it_has_kept_up_for_a_while_and_longer_each_time() -> None:
    member = Member()
    waits = []
    for _ in range(7):
        levels = [member.tick(100, 10) for _ in range(LAGS + 1)]
        assert levels == [READY] * LAGS + [BEHIND]
        member.tick(0, member.outbound.in_flight)
        looks = 1
        while member.tick(1, 1) == BEHIND:
            looks += 1
        waits.append(looks + 1)
    assert waits == [PATIENCE * 2**i for i in range(5)] + [LONGEST] * 2
    assert not member.lag.settled
    for _ in range(LONGEST + 1):
        member.tick(1, 1)
    assert member.lag.settled


def test_a_pause_of_one_look_changes_nothing() -> None:
    member = Member()
    assert member.tick(10, 0) == READY
    assert member.tick(0, 0) == READY
    assert member.tick(10, 20) == READY


def test_who_is_away_weighs_nothing_and_comes_back_with_what_waits_for_it() -> None:
    member = Member()
    connection, member.connection = member.connection, None
    assert member.lag.look(member) == AWAY
    assert member.lag.settled
    member.connection = connection
    assert member.lag.look(member) == READY
    member.connection = None
    member.lag.look(member)
    member.connection, member.queued = connection, 5
    assert member.lag.look(member) == BEHIND


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_levels_change_seldom_whatever_happens(seed: int, busy: float) -> None:
    member, chance = Member(), Random(seed)
    levels = []
    for _ in range(500):
        given = chance.randint(0, 50) if chance.random() < busy else 0
        levels.append(member.tick(given, int(chance.random() * (member.outbound.in_flight + given))))
    changes = sum(one != other for one, other in itertools.pairwise(levels))
    assert changes <= 2 * (6 + len(levels) // LONGEST)


# ---- in a broker


async def test_a_member_that_lags_gets_less_here_and_says_so_elsewhere() -> None:
    broker = await started()
    told: list[int] = []
    broker.site.router.mesh = SimpleNamespace(subscribe=lambda f, g, w: told.append(w), unsubscribe=lambda f, g: None, route=lambda t: None)  # type: ignore[assignment]
    slow = Wire(broker, 5).connect("slow", Subscription("$share/g/t", 1))
    fast = Wire(broker, 5).connect("fast", Subscription("$share/g/t", 1))
    publisher = Wire(broker, 5).connect("p")
    assert told == [READY, 2 * READY]
    got = {"slow": 0, "fast": 0}

    def round_(first: int) -> None:
        publisher.send(*[Publish("t", b"x", 1, packet_id=first + n) for n in range(10)])
        got["slow"] += sum(isinstance(packet, Publish) for packet in slow.packets())
        mine = [packet for packet in fast.packets() if isinstance(packet, Publish)]
        got["fast"] += len(mine)
        for packet in mine:
            fast.give(bytes((0x40, 2)) + packet.packet_id.to_bytes(2, "big"))
        broker.site.router.look_at_groups()

    for n in range(LAGS + 1):
        round_(1 + 10 * n)
    assert got == {"slow": 5 * (LAGS + 1), "fast": 5 * (LAGS + 1)}
    assert told == [READY, 2 * READY, READY + BEHIND]
    for n in range(10):
        round_(101 + 10 * n)
    assert got["slow"] == 5 * (LAGS + 1)
    assert told == [READY, 2 * READY, READY + BEHIND]
    slow.connection.connection_lost(None)
    fast.connection.connection_lost(None)
    assert told[2:] == [READY + BEHIND, READY]


async def test_a_group_without_traffic_is_not_looked_at() -> None:
    broker = await started()
    Wire(broker, 5).connect("s", Subscription("$share/g/t", 1))
    assert not broker.site.router.stirred
    Wire(broker, 5).connect("p").send(Publish("t", b"x", 0))
    assert broker.site.router.stirred
    broker.site.router.look_at_groups()
    broker.site.router.look_at_groups()
    assert not broker.site.router.stirred
