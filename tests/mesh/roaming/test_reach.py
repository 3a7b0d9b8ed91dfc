"""What a member that comes or goes means for very many clients: a few at a time."""

from __future__ import annotations

from typing import Any, cast

from mqmesh.mesh.roaming import wire
from mqmesh.mesh.roaming.asking import Asking
from mqmesh.mesh.roaming.names import Places
from mqmesh.mesh.roaming.places import Place, State
from mqmesh.mesh.roaming.port import Port
from mqmesh.mesh.roaming.reach import LOOKS, PATIENCE, PORTION, Reach

MEMBER, BIT = 5, 1 << 5


class Said:
    """A port that keeps what is said to brokers; the reach over it, and its places."""

    def __init__(self, count: int) -> None:
        self.claims: list[str] = []
        self.fenced: list[str] = []
        self.resolved: list[str] = []
        self.places = Places()
        for i in range(count):
            place = self.places[f"c{i}"] = Place(f"c{i}", (1, 1))
            place.state = State.HERE
        self.asking = Asking(self.places)
        port, fence = cast("Port", self), lambda place, bit: self.fenced.append(place.client)
        self.reach = Reach(self.places, self.asking, port, fence, lambda place: None, lambda place: self.resolved.append(place.client))

    def send_to_brokers(self, brokers: int, kind: str, body: bytes) -> None:
        assert (brokers, kind) == (BIT, wire.CLAIM)
        found = cast("list[Any]", wire.decode(kind, body))
        self.claims += [claim.client for claim in found]

    def answer(self) -> None:
        """All that is claimed is answered."""
        for client in self.claims:
            self.places[client].asked |= BIT


def test_the_next_portion_follows_the_answer_to_the_one_before() -> None:
    said = Said(5 * PORTION)
    said.reach.up(MEMBER)
    assert said.reach.go_on(0.0)
    assert said.claims == [f"c{i}" for i in range(PORTION)]
    assert said.reach.go_on(PATIENCE / 2)
    assert len(said.claims) == PORTION
    said.answer()
    assert said.reach.go_on(PATIENCE / 2)
    assert len(said.claims) == 2 * PORTION


def test_who_does_not_answer_is_not_waited_for_for_ever() -> None:
    said, now = Said(5 * PORTION), 0.0
    said.reach.up(MEMBER)
    while said.reach.go_on(now):
        now += PATIENCE
    assert sorted(said.claims) == sorted(said.places)
    assert now <= 6 * PATIENCE


def test_one_portion_looks_at_a_bounded_number() -> None:
    said = Said(10 * LOOKS)
    for place in list(said.places.values())[:-1]:
        place.asked = BIT
    said.reach.up(MEMBER)
    steps = 0
    while said.reach.go_on(0.0):
        steps += 1
        said.answer()
        assert steps < 20
    assert steps >= 9
    assert said.claims == [f"c{10 * LOOKS - 1}"]


def test_clients_that_wait_come_first_and_wait_for_this_member_too() -> None:
    said = Said(3 * PORTION)
    last = said.places[f"c{3 * PORTION - 1}"]
    last.state, last.waiting, last.until = State.ASKING, 1 << 2, 9.0
    said.asking.add(last)
    said.reach.up(MEMBER)
    assert last.waiting == 1 << 2 | BIT
    said.reach.go_on(0.0)
    assert said.claims[0] == last.client


def test_a_member_that_has_gone_is_not_asked_any_more() -> None:
    said = Said(5 * PORTION)
    said.reach.up(MEMBER)
    said.reach.go_on(0.0)
    said.reach.down(MEMBER)
    assert not said.reach
    assert not said.reach.go_on(9.0)
    assert len(said.claims) == PORTION


def test_who_waited_for_a_member_that_has_gone_is_told_in_portions() -> None:
    said = Said(3 * PORTION)
    for place in said.places.values():
        place.waiting = BIT | 1 << 2
    said.reach.down(MEMBER)
    assert all(place.waiting == 1 << 2 for place in said.places.values())
    del said.places["c1"]
    counts = []
    while said.reach.go_on(0.0):
        counts.append(len(said.resolved))
    assert counts[0] <= PORTION
    assert sorted(said.resolved) == sorted(said.places)


def test_a_fence_is_work_too() -> None:
    said = Said(3 * PORTION)
    for place in said.places.values():
        place.asked, place.cut.fenced = BIT, True
    said.reach.up(MEMBER)
    said.reach.go_on(0.0)
    assert len(said.fenced) == PORTION
    while said.reach.go_on(0.0):
        pass
    assert len(said.fenced) == 3 * PORTION
