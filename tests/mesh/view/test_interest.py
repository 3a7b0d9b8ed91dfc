"""Interest: deltas and wholes lead to the owner's set, and a match is what the filters say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.view.interest import Interests, InterestSet
from mqmesh.mesh.wire.control import InterestUpdate
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.topics import matches
from simulation.portions import portions_of
from support.steps import ended

KEY = (3, b"u" * 16)
FILTERS = ["a/#", "a/+", "a/1", "#", "b/1", "+/1"]
TOPICS = ["a/1", "a/2", "b/1", "c"]
entries = st.tuples(st.sampled_from(FILTERS), st.sampled_from([None, "g", "h"]))
changes = st.lists(st.dictionaries(entries, st.none() | st.integers(1, 3), min_size=1, max_size=3), max_size=8)


def apply(interests: Interests, update: InterestUpdate) -> str:
    return ended(interests.applying(update))


def delta(own: InterestSet, change: dict) -> InterestUpdate:
    for entry, weight in change.items():
        own.put(entry, weight)
    own.version += 1
    adds = tuple((*entry, weight) for entry, weight in change.items() if weight is not None)
    removes = tuple(entry for entry, weight in change.items() if weight is None)
    return InterestUpdate(*KEY, own.epoch, own.version - 1, own.version, own.digest, adds, removes)


def check(interests: Interests, own: InterestSet) -> None:
    for topic in TOPICS:
        match = interests.match(topic)
        assert match.mask == (1 << KEY[0] if any(g is None and matches(f, topic) for f, g in own.entries) else 0)
        wanted = {(g, f): own.entries[f, g] for f, g in own.entries if g is not None and matches(f, topic)}
        assert {group.share: group.members for group in match.groups} == {share: ((KEY[0], w),) for share, w in wanted.items()}
        for share, weight in wanted.items():
            assert interests.members(share) == ((KEY[0], weight),)


@given(changes, st.integers(0, 8), st.integers(0, 8))
def test_deltas_lead_to_the_owners_set(steps: list[dict], activated: int, lost: int) -> None:
    own, interests = InterestSet(7), Interests()
    assert apply(interests, own.whole(KEY)) == "new"
    for i, step in enumerate(steps):
        update = delta(own, step)
        if i == activated:
            interests.activate(*KEY)
        if i == lost:
            continue
        verdict = apply(interests, update)
        assert verdict == ("gap" if i > lost else "new")
        if verdict == "gap":
            assert apply(interests, own.whole(KEY)) == "new"
            lost = 99
        assert apply(interests, update) == "old"
    apply(interests, own.whole(KEY))
    interests.activate(*KEY)
    check(interests, own)
    interests.activate(KEY[0], None)
    assert all(not interests.match(topic).mask for topic in TOPICS)
    assert interests.sets == {}


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("uvw"), st.sampled_from(["said", "active", "nobody", "only"])), max_size=30))
def test_what_earlier_brokers_of_a_number_wanted_is_forgotten(steps: list[tuple[int, str, str]]) -> None:
    interests, known, active = Interests(), set(), dict[int, bytes]()
    for number, letter, what in steps:
        uuid = letter.encode() * 16
        if what == "said":
            apply(interests, InterestSet(7).whole((number, uuid)))
            known.add((number, uuid))
        elif what == "only":
            interests.keep_only(number, uuid)
            known = {key for key in known if key[0] != number or key[1] == uuid}
        else:
            old, new = active.get(number), uuid if what == "active" else None
            interests.activate(number, new)
            if old is not None and old != new:
                known.discard((number, old))
            active.pop(number, None)
            if new is not None:
                active[number] = new
        assert interests.sets.keys() == known


def test_what_changed_is_told() -> None:
    own, interests = InterestSet(7), Interests()
    interests.activate(*KEY)
    apply(interests, own.whole(KEY))
    apply(interests, delta(own, {("a/#", None): 1}))
    assert interests.changed == {"a/#"}
    interests.changed = set()
    apply(interests, delta(own, {("a/#", None): None, ("b/1", "g"): 1}))
    assert interests.changed == {"a/#", "b/1"}


def test_a_whole_of_a_new_life_replaces_at_once() -> None:
    own, interests = InterestSet(7), Interests()
    interests.activate(*KEY)
    apply(interests, own.whole(KEY))
    apply(interests, delta(own, {("a/#", None): 1, ("b/1", None): 1}))
    later = InterestSet(8)
    later.put(("b/1", None), 1)
    assert apply(interests, later.whole(KEY)) == "new"
    check(interests, later)
    assert apply(interests, own.whole(KEY)) == "old"


def test_a_wrong_digest_is_refused_and_changes_nothing() -> None:
    own, interests = InterestSet(7), Interests()
    interests.activate(*KEY)
    apply(interests, own.whole(KEY))
    good = delta(own, {("a/#", None): 1})
    assert apply(interests, good._replace(digest=good.digest ^ 1)) == "gap"
    assert not interests.match("a/1").mask
    assert apply(interests, good) == "new"
    check(interests, own)
    with pytest.raises(PeerError, match="digest"):
        apply(interests, own.whole(KEY)._replace(version=99, digest=5))


@pytest.mark.parametrize(("filter_", "group"), [("", None), ("a#", None), ("a", "g+"), ("a", "")])
def test_a_filter_that_is_none_is_the_peers_error(filter_: str, group: str | None) -> None:
    own = InterestSet(7)
    own.put((filter_, group), 1)
    with pytest.raises(PeerError):
        apply(Interests(), own.whole(KEY))


@given(
    st.lists(st.tuples(st.sampled_from(["delta", "whole", "forget", "activate", "catch up"]), changes), max_size=12),
    st.integers(1, 3),
)
def test_in_portions_the_tree_ends_as_it_would_at_once(steps: list[tuple[str, list[dict]]], size: int) -> None:
    """Whatever happens between two portions: what is known counts once nothing is late, and no entry of an earlier set is left."""
    own, interests, running = InterestSet(7), Interests(), None
    with portions_of(size):
        for what, more in steps:
            if what in ("delta", "whole") and running is None:
                for change in more[:1]:
                    update = delta(own, change)
                    running = interests.applying(update if what == "delta" else own.whole(KEY))
            elif what == "activate":
                interests.activate(*KEY)
            elif what == "forget":
                interests.activate(KEY[0], None)
            elif what == "catch up" and interests.late:
                interests.catch_up()
            if running is not None and next(running, "ended") == "ended":
                running = None
        while running is not None and next(running, "ended") != "ended":
            pass
        interests.activate(*KEY)
        apply(interests, own.whole(KEY))
        assert interests.late or interests.version_of(KEY[0]) == (own.epoch, own.version) or not own.version
        while interests.late:
            interests.catch_up()
        check(interests, own)
        interests.activate(KEY[0], None)
        while interests.late:
            interests.catch_up()
        assert not interests._tree  # type: ignore[truthy-bool]


def test_while_the_tree_is_behind_the_version_is_that_of_the_tree() -> None:
    own, interests = InterestSet(7), Interests()
    interests.activate(*KEY)
    apply(interests, delta_whole := own.whole(KEY))
    assert interests.version_of(KEY[0]) == (7, delta_whole.version)
    with portions_of(2):
        assert apply(interests, delta(own, {(f"f/{number}", None): 1 for number in range(7)})) == "new"
        assert interests.version_of(KEY[0]) == (7, 0)
        while interests.late:
            assert not interests.match("f/6").mask
            interests.catch_up()
        assert interests.version_of(KEY[0]) == (7, 1)
        assert interests.match("f/6").mask


@pytest.mark.parametrize(("what", "whole"), [("wanted", True), ("wanted", False), ("dropped", False)])
def test_what_does_not_count_any_more_when_it_has_been_read_changes_nothing(what: str, whole: bool) -> None:
    own, interests = InterestSet(7), Interests()
    interests.activate(*KEY)
    apply(interests, own.whole(KEY))
    change = delta(own, {(f"f/{number}", None): 1 for number in range(7)})
    with portions_of(2):
        steps = interests.applying(own.whole(KEY) if whole else change, wanted=lambda: what != "wanted")
        next(steps)
        if what == "dropped":
            interests.activate(KEY[0], None)
        assert ended(steps) == ("old" if whole else "gap")
    assert not interests.late
    assert not interests.match("f/1").mask
    assert interests.sets.keys() == (set() if what == "dropped" else {KEY})
