"""Filters of a remote that does not say for which of them a message comes: covers, against a model of such a remote."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.metabroker import Code
from mqmesh.metabroker.core.actions import Subscribe, Unsubscribe
from mqmesh.metabroker.core.covers import Ask, Covers, Drop, Settled, Step, Wanted, merged
from mqmesh.metabroker.core.overlap_index import OverlapIndex
from mqmesh.metabroker.protocol.events import Abilities
from mqmesh.mqtt.topics import covers, overlaps

from .test_core import World

levels = st.sampled_from(["a", "b", "+", ""])
filters = st.lists(levels, min_size=1, max_size=4).flatmap(
    lambda found: st.sampled_from(["/".join(found) or "a", "/".join([*found, "#"]), "$S/" + "/".join(found)])
)
OLD = Abilities(identifiers=False, version=4)


class Far:
    """A remote that answers later, in order, and refuses some filters. wanted: what has been asked for and answered."""

    def __init__(self, refused: frozenset[str] = frozenset(), allowed: frozenset[str] | None = None) -> None:
        tokens = itertools.count(1000)
        self.covers = Covers(lambda: next(tokens), lambda one: allowed is None or one in allowed)
        self.has: dict[str, int] = {}
        self.refused = refused
        self.open: list[tuple[int, int]] = []
        self.asked: dict[int, tuple[str, int]] = {}
        self.wanted: dict[str, int] = {}
        self.answers: dict[int, int] = {}

    def do(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Ask(token, filter_, qos):
                    self.open.append((token, 0x80 if filter_ in self.refused else qos))
                    if filter_ not in self.refused:
                        self.has[filter_] = qos
                case Drop(filter_):
                    self.has.pop(filter_, None)
                case Settled(token, reason):
                    filter_, qos = self.asked.pop(token)
                    self.answers[token] = reason
                    if reason < 0x80:
                        self.wanted[filter_] = qos
        self.nothing_is_missed()

    def want(self, token: int, filter_: str, qos: int = 1) -> None:
        self.asked[token] = filter_, qos
        if filter_ in self.wanted:
            self.wanted[filter_] = min(qos, self.wanted[filter_])
        self.do(self.covers.want(Wanted(token, filter_, qos)))

    def give_up(self, filter_: str) -> None:
        del self.wanted[filter_]
        self.do(self.covers.want(Wanted(0, filter_, 0)))

    def answer(self) -> None:
        token, reason = self.open.pop(0)
        self.do(self.covers.answered(token, reason))

    def settle(self) -> None:
        while self.open:
            self.answer()
        assert self.covers.calm
        assert self.covers.filters == set(self.has)
        assert not self.asked

    def nothing_is_missed(self) -> None:
        for filter_, qos in self.wanted.items():
            assert any(covers(one, filter_) and granted >= qos for one, granted in self.has.items()), (filter_, self.has)

    def apart(self) -> bool:
        return not any(overlaps(one, other) for one, other in itertools.combinations(self.has, 2))


def run(far: Far, seed: int, names: list[str]) -> None:
    """Random requests and answers."""
    dice = random.Random(seed)
    for token in range(1, 40):
        what = dice.random()
        busy = {filter_ for filter_, _ in far.asked.values()}
        free = [one for one in far.wanted if one not in busy]
        if what < 0.4 and (fresh := [one for one in names if one not in busy]):
            far.want(token, dice.choice(fresh), dice.randrange(3))
        elif what < 0.6 and free:
            far.give_up(dice.choice(free))
        elif far.open:
            far.answer()
    far.settle()


@given(names=st.lists(filters, min_size=1, max_size=8, unique=True), seed=st.integers(0, 1 << 32))
def test_each_message_comes_once_and_none_is_missed(names: list[str], seed: int) -> None:
    far = Far()
    run(far, seed, names)
    assert far.apart()
    if not far.wanted:
        assert not far.has


@given(names=st.lists(filters, min_size=1, max_size=8, unique=True), seed=st.integers(0, 1 << 32), few=st.booleans())
def test_what_is_refused_takes_nothing_from_others(names: list[str], seed: int, few: bool) -> None:
    dice = random.Random(seed)
    wide = [merged([one, other]) for one, other in itertools.combinations(names, 2)]
    refused = frozenset(dice.sample([*names, *wide], min(3, len(names))))
    far = Far(refused, frozenset(names) if few else None)
    run(far, seed, names)
    if not few:
        assert all(reason >= 0x80 for token, reason in far.answers.items() if reason not in (0, 1, 2))
    for filter_ in list(far.wanted):
        far.give_up(filter_)
    far.settle()
    assert not far.has


@given(st.lists(filters, max_size=12), filters)
def test_the_index_finds_what_overlaps(names: list[str], wanted: str) -> None:
    index = OverlapIndex()
    for name in names:
        index.add(name)
    for name in names[::2]:
        index.remove(name)
    assert sorted(index.find(wanted)) == sorted({name for name in names[1::2] if overlaps(name, wanted)})


@given(st.lists(filters, min_size=1, max_size=4))
def test_a_cover_matches_what_its_members_match(names: list[str]) -> None:
    names = [name for name in names if name[0] == "$"] or names
    assert all(covers(merged(names), name) for name in names)


@pytest.mark.parametrize("present", [False, True])
def test_sessions_of_such_a_remote(present: bool) -> None:
    """A wider filter takes the place of narrower ones; after a connection without a session of ours all is asked for in one piece."""
    world = World()
    number = world.session("a")
    world.session("b")
    world.up(number, abilities=OLD)
    world.actions()

    def subscribe(session: str, filter_: str) -> list[object]:
        return world.request(f"{session}/subscribe", message=1, topics=[filter_], qos=1)

    def answer(ask: object, reason: int = 1) -> list[object]:
        assert isinstance(ask, Subscribe)
        world.core.subscriptions.on_subscribed(number, ask.token, reason)
        return world.actions()

    [one] = subscribe("a/s1", "down/+/rain")
    answer(one)
    [wide] = subscribe("b/s2", "down/north/#")
    assert (wide.filter, wide.identifier) == ("down/+/#", 0)
    _, dropped = answer(wide)
    assert dropped == Unsubscribe(number, "down/+/rain")
    assert sorted(world.deliver(number, "down/north/rain")) == ["a/s1", "b/s2"]
    narrow, at_once = subscribe("b/s2", "down/south/wind")
    assert (narrow.filter, at_once) == ("down/south/wind", Unsubscribe(number, "down/south/wind"))
    answer(narrow)

    world.core.on_failed(number, Code.REMOTE_UNREACHABLE, "gone")
    world.actions()
    world.up(number, present, OLD)
    asked = [one for one in world.actions() if isinstance(one, Subscribe)]
    assert [one.filter for one in asked] == ([] if present else ["down/+/#"])
    for one in asked:
        assert answer(one) == []
    assert len(world.request("a/s1/unsubscribe", message=2, topics=["down/+/rain"])) == 3, "the two that are left have nothing in common"
