"""Topic rules with the examples of the standard, and both trees against a naive reference."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mqmesh.mqtt.errors import MalformedPacket, PeerError
from mqmesh.mqtt.topics import (
    NAMES,
    PAUSE,
    SHORT,
    STEP,
    FilterTree,
    TopicTree,
    check_filter,
    check_topic,
    intersection,
    matches,
    overlaps,
    split_share,
    too_deep,
)
from support.examples import examples

from .strategies import filters, topics


def naive(filter_: list[str], topic: list[str]) -> bool:
    """The rules of 4.7.1 word by word."""
    if filter_ == ["#"]:
        return True
    if not filter_ or not topic:
        return filter_ == topic
    return filter_[0] in ("+", topic[0]) and naive(filter_[1:], topic[1:])


def reference(filter_: str, topic: str) -> bool:
    if topic[:1] == "$" and filter_[:1] in ("#", "+"):
        return False
    return naive(filter_.split("/"), topic.split("/"))


@pytest.mark.parametrize(
    ("filter_", "yes", "no"),
    [
        (
            "sport/tennis/player1/#",
            ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"],
            ["sport"],
        ),
        ("sport/#", ["sport", "sport/", "sport/a/b"], ["sports", "Sport/a", "$sport"]),
        ("#", ["a", "/", "a/$b"], ["$SYS", "$SYS/a"]),
        ("sport/tennis/+", ["sport/tennis/player1", "sport/tennis/"], ["sport/tennis/player1/ranking", "sport/tennis"]),
        ("sport/+", ["sport/"], ["sport", "sport/a/b"]),
        ("+/+", ["/finance", "a/b"], ["finance", "a/b/c", "$SYS/a"]),
        ("/+", ["/finance", "/"], ["finance"]),
        ("+", ["finance"], ["/finance", "$SYS"]),
        ("+/monitor/Clients", ["a/monitor/Clients"], ["$SYS/monitor/Clients"]),
        ("$SYS/#", ["$SYS", "$SYS/a"], ["SYS"]),
        ("$SYS/monitor/+", ["$SYS/monitor/Clients"], ["$SYS/monitor"]),
        ("+/tennis/#", ["sport/tennis", "sport/tennis/a"], ["tennis", "sport/golf"]),
        ("a//b", ["a//b"], ["a/b", "a/x/b"]),
        ("a/+/b", ["a//b", "a/x/b"], ["a/b"]),
    ],
)
def test_examples_of_the_standard(filter_: str, yes: list[str], no: list[str]) -> None:
    check_filter(filter_)
    tree: FilterTree[str] = FilterTree()
    tree.add(filter_, 1, filter_)
    retained: TopicTree[int] = TopicTree()
    for topic in yes + no:
        retained.set(topic.encode(), 0)
        assert matches(filter_, topic) == reference(filter_, topic) == (topic in yes), topic
        assert tree.match(topic) == ([filter_] if topic in yes else []), topic
    assert sorted(topic.decode() for topic, _ in retained.match(filter_)) == sorted(yes)


@settings(max_examples=examples(300))
@given(filters(), topics)
def test_matches_like_the_reference(filter_: str, topic: str) -> None:
    assert matches(filter_, topic) == reference(filter_, topic)


@settings(max_examples=examples(500))
@given(filters(), filters(), st.lists(topics, max_size=5))
def test_the_intersection_matches_what_both_filters_match(one: str, other: str, names: list[str]) -> None:
    both = intersection(one, other)
    assert (both is not None) == overlaps(one, other)
    assert both == intersection(other, one)
    for name in [*names, *(filter_.replace("+", "a").replace("#", "b") for filter_ in (one, other, both or "a"))]:
        assert (both is not None and matches(both, name)) == (matches(one, name) and matches(other, name))


@pytest.mark.parametrize(("one", "other"), [("+", "/#"), ("/#", "+")])
def test_the_empty_name_is_no_topic(one: str, other: str) -> None:
    """`/#` matches its parent too, which has no name."""
    assert not overlaps(one, other)
    assert intersection(one, other) is None


@settings(max_examples=examples(300))
@given(st.text(st.sampled_from("a/+#$\0"), max_size=7) | st.text(max_size=5))
def test_check_filter_knows_the_form(filter_: str) -> None:
    levels = filter_.split("/")
    plus = all(level == "+" or "+" not in level for level in levels)
    number = all("#" not in level for level in levels[:-1]) and (levels[-1] == "#" or "#" not in levels[-1])
    try:
        check_filter(filter_, shared=False)
    except MalformedPacket:
        assert not (filter_ and plus and number)
    else:
        assert filter_
        assert plus
        assert number


def test_check_topic() -> None:
    assert check_topic("a/ä/😀".encode()) == "a/ä/😀"
    assert check_topic(b"\xef\xbb\xbfa") == "\ufeffa"  # [MQTT-1.5.4-3]
    assert check_topic(b"$share/a") == "$share/a"
    for bad in (b"", b"a/+", b"#", b"a\0", b"\xed\xa0\x80", b"\xc0\xaf"):
        with pytest.raises(PeerError):
            check_topic(bad)


def test_split_share() -> None:
    assert split_share("a/b") is None
    assert split_share("$share") is None
    assert split_share("$SHARE/a/b") is None
    assert split_share("$share/g/a/b") == ("g", "a/b")
    assert split_share("$share/g//a") == ("g", "/a")
    assert split_share("$share/g/#") == ("g", "#")
    assert split_share("$share/g/$SYS/#") == ("g", "$SYS/#")
    for bad in ("$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/g#/a", "$share/g/a#", "$share/g/#/a"):
        with pytest.raises(MalformedPacket):
            split_share(bad)
        with pytest.raises(MalformedPacket):
            check_filter(bad)


def test_too_deep() -> None:
    assert not too_deep("a" + "/a" * 199)
    assert too_deep("a" + "/a" * 200)
    assert too_deep("a/b/#", 2)


def test_a_step_of_a_match_is_bounded() -> None:
    """Filters made of `a` and `+`: each level of a topic doubles what it concerns."""
    tree: FilterTree[int] = FilterTree()
    levels = 12
    for number in range(2**levels):
        tree.add("/".join("a+"[number >> bit & 1] for bit in range(levels)), number, number)
    found: list[int] = []
    sizes = [0]
    for _ in tree.match_in_steps("/".join("a" * levels), found):
        sizes.append(len(found))
    assert sorted(found) == list(range(2**levels))
    assert len(sizes) >= 2 * 2**levels // STEP
    assert max(b - a for a, b in itertools.pairwise([*sizes, len(found)])) <= STEP


class FilterTreeMachine(RuleBasedStateMachine):
    """Any sequence of additions and removals answers as a list of pairs does, and leaves nothing behind."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: FilterTree[tuple[str, int, int]] = FilterTree()
        self.model: dict[tuple[str, int], int] = {}

    @rule(filter_=filters(), key=st.integers(0, 3), value=st.integers(0, 9))
    def add(self, filter_: str, key: int, value: int) -> None:
        assert self.tree.add(filter_, key, (filter_, key, value)) == ((filter_, key) not in self.model)
        self.model[filter_, key] = value

    @rule(filter_=filters(), key=st.integers(0, 3))
    def remove_any(self, filter_: str, key: int) -> None:
        assert self.tree.remove(filter_, key) == (self.model.pop((filter_, key), None) is not None)

    @rule(data=st.data())
    def remove_known(self, data: Any) -> None:
        if self.model:
            filter_, key = data.draw(st.sampled_from(sorted(self.model)))
            assert self.tree.remove(filter_, key)
            del self.model[filter_, key]

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        expected = [(filter_, key, value) for (filter_, key), value in self.model.items() if reference(filter_, topic)]
        assert sorted(self.tree.match(topic)) == sorted(expected)
        found: list[tuple[str, int, int]] = []
        for _ in self.tree.match_in_steps(topic, found):
            pass
        assert sorted(found) == sorted(expected)
        for key in range(4):
            found = []
            for _ in self.tree.match_key_in_steps(topic, key, found):
                pass
            assert sorted(found) == sorted(one for one in expected if one[1] == key)

    @invariant()
    def agrees(self) -> None:
        assert len(self.tree) == len(self.model)
        listed = list(self.tree.filters())
        assert sorted(listed) == sorted({filter_ for filter_, _ in self.model})
        for filter_ in listed:
            found = {key: (one, key, value) for (one, key), value in self.model.items() if one == filter_}
            assert self.tree.get(filter_) == found
            assert self.tree.count(filter_) == len(found)
        if not self.model:
            assert self.tree._root.empty()


class TopicTreeMachine(RuleBasedStateMachine):
    """Any sequence of settings and deletions answers as a dict does, and leaves nothing behind."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: TopicTree[int] = TopicTree()
        self.model: dict[bytes, int] = {}

    @rule(topic=topics, value=st.integers())
    def set(self, topic: str, value: int) -> None:
        self.tree.set(topic.encode(), value)
        self.model[topic.encode()] = value

    @rule(topic=topics)
    def delete_any(self, topic: str) -> None:
        assert self.tree.delete(topic.encode()) == (self.model.pop(topic.encode(), None) is not None)

    @rule(data=st.data())
    def delete_known(self, data: Any) -> None:
        if self.model:
            topic = data.draw(st.sampled_from(sorted(self.model)))
            assert self.tree.delete(topic)
            del self.model[topic]

    @rule(filter_=filters())
    def match(self, filter_: str) -> None:
        expected = [(topic, value) for topic, value in self.model.items() if reference(filter_, topic.decode())]
        assert sorted(self.tree.match(filter_)) == sorted(expected)
        assert sorted(value for value in self.tree.walk(filter_) if value is not None) == sorted(value for _, value in expected)

    @invariant()
    def agrees(self) -> None:
        assert len(self.tree) == len(self.model)
        assert sorted(self.tree) == sorted(self.model)
        assert all(self.tree.get(topic) == value for topic, value in self.model.items())
        if not self.model:
            assert not self.tree._root.names()


@settings(max_examples=examples(200), deadline=None)
@given(filters(), st.lists(topics, max_size=30, unique=True), st.data())
def test_a_walk_finds_what_stays_once_and_says_when_it_finds_nothing(filter_: str, names: list[str], data: Any) -> None:
    tree: TopicTree[str] = TopicTree()
    for name in names:
        tree.set(name.encode(), name)
    moved: set[str] = set()
    found: list[str] = []
    for value in tree.walk(filter_):
        if value is not None:
            found.append(value)
        one = data.draw(st.sampled_from(names) | topics)
        moved.add(one)
        if not tree.delete(one.encode()):
            tree.set(one.encode(), one)
    assert len([name for name in found if name not in moved]) == len({name for name in found if name not in moved})
    assert {name for name in found if name not in moved} == {name for name in names if name not in moved and reference(filter_, name)}


def test_a_walk_that_finds_nothing_pauses() -> None:
    tree: TopicTree[int] = TopicTree()
    for number in range(20 * PAUSE):
        tree.set(b"a/%d/x" % number, number)
    assert len(list(tree.walk("+/+/y"))) >= 20
    assert len([value for value in tree.walk("#") if value is not None]) == 20 * PAUSE


TestFilterTree = FilterTreeMachine.TestCase


def test_names_of_levels_are_one_object_and_few_are_remembered() -> None:
    """Whoever names ever new topics and deletes them leaves nothing behind but some short names."""
    tree: TopicTree[int] = TopicTree()
    tree.set(b"site/a/temp", 1)
    tree.set(b"site/b/temp", 2)
    one, other = (tree._root.get(b"site").get(name).names() for name in (b"a", b"b"))  # type: ignore[union-attr]
    assert one[0] is other[0]
    for number in range(3 * NAMES):
        topic = b"new/%d/%s%d" % (number, b"x" * 1000, number)
        tree.set(topic, number)
        tree.delete(topic)
    assert len(tree._names) == NAMES
    assert max(map(len, tree._names)) <= SHORT


TestTopicTree = TopicTreeMachine.TestCase
TestFilterTree.settings = TestTopicTree.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def lines_run(call: Callable[[], Any]) -> int:
    """How many lines of Python a call runs."""
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    gc.disable()  # what others do when garbage is collected is not the call's
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_a_match_costs_the_levels_not_the_size() -> None:
    """Counted, not timed: a match runs as many lines in a tree of 20,000 filters as in one of 20."""
    costs = []
    for size in (20, 20_000):
        tree: FilterTree[int] = FilterTree()
        for index in range(size):
            tree.add(f"site/{index}/+/state", 1, index)
            tree.add(f"site/{index}/#", 1, -index)
            tree.add(f"site/{index}/x/state", 1, index)
        assert sorted(tree.match("site/7/x/state")) == [-7, 7, 7]
        costs.append(lines_run(lambda: tree.match("site/7/x/state")))  # noqa: B023
    assert costs[0] == costs[1] < 100
