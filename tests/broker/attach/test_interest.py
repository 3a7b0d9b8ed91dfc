"""What an attached broker is asked for: what subscribers and `in_wanted` have in common, no topic twice, nothing that nobody wants."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.attach.interest import LEVELS, LONGEST, MOST, Demand
from mqmesh.mesh.wire.policy import OPEN, Policy
from mqmesh.mqtt.topics import matches, overlaps

TOPICS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join)
FILTERS = st.builds(
    lambda levels, below: "/".join([*levels, "#"] if below else levels),
    st.lists(st.sampled_from("ab+"), min_size=1, max_size=4),
    st.booleans(),
)


def made(wanted: str = "raw/#", *held: str, policy: Policy = OPEN) -> Demand:
    demand = Demand(wanted.split(), policy)
    for one in held:
        demand.hold(one, True)
    return demand


@pytest.mark.parametrize(
    ("held", "target"),
    [
        ((), []),
        (("other/x",), []),
        (("raw/1/x",), ["raw/1/x"]),
        (("#",), ["raw/#"]),
        (("+/1/#", "raw/1/x"), ["raw/1/#"]),
        (("raw/1/+", "raw/+/x"), ["raw/#"]),  # they overlap, and a broker may send a copy for each
    ],
)
def test_what_is_asked_for(held: tuple[str, ...], target: list[str]) -> None:
    assert made("raw/#", *held).target() == target


def test_names_are_those_of_the_other_broker() -> None:
    assert made("plant/raw/#", "plant/raw/1", policy=Policy(prefixes=(("plant/", ""),))).target() == ["raw/1"]


def test_very_many_filters_are_one() -> None:
    demand = made("raw/# log/#", "log/x", *(f"raw/{number}" for number in range(MOST + 1)))
    assert sorted(demand.target()) == ["log/x", "raw/#"]
    demand.hold("raw/0", False)
    assert len(demand.target()) == MOST + 1


@given(st.lists(FILTERS, max_size=6), st.lists(FILTERS, max_size=3), st.lists(TOPICS, max_size=6))
def test_what_is_asked_for_is_what_somebody_wants(held: list[str], wanted: list[str], topics: list[str]) -> None:
    wanted = [one for number, one in enumerate(wanted) if not any(overlaps(one, other) for other in wanted[:number])]
    demand = made(" ".join(wanted), *held)
    target = demand.target()
    assert not any(overlaps(*pair) for pair in combinations(target, 2)), "a topic would come twice"
    for topic in topics:
        asked = any(matches(one, topic) for one in target)
        if any(matches(one, topic) for one in held) and any(matches(one, topic) for one in wanted):
            assert asked
        if asked:
            assert demand.of_demand(topic)


@given(st.lists(st.tuples(FILTERS, st.booleans(), st.booleans()), max_size=12))
def test_the_other_broker_has_what_is_wanted_after_each_change(changes: list[tuple[str, bool, bool]]) -> None:
    """It holds what it was told. In each moment all that is wanted is subscribed there, and no topic twice."""
    demand, there = made("a/# b/+"), set[str]()
    for filter_, held, final in changes:
        demand.hold(filter_, held)
        new, gone, more = demand.change(final)
        assert not there & set(new)
        assert there.issuperset(gone)
        there = (there | set(new)) - set(gone)
        assert there == demand.asked
        assert there.issuperset(demand.target())
        assert more == (there != set(demand.target()))
        assert not any(overlaps(*pair) for pair in combinations(there, 2))
        if final:
            assert not more
    new, gone = demand.again(True)
    assert sorted((there | set(new)) - set(gone)) == sorted(demand.target())


def test_a_session_that_is_new_there_is_asked_for_all_and_rid_of_nothing() -> None:
    demand = made("raw/#", "raw/1", "raw/2")
    demand.change(False)
    demand.hold("raw/1", False)
    assert demand.again(False) == (["raw/2"], [])
    assert demand.asked == {"raw/2"}


@given(FILTERS, TOPICS)
def test_what_an_earlier_life_has_subscribed_is_found_by_what_comes(filter_: str, topic: str) -> None:
    demand = made("#")
    assert demand.stray(topic.encode(), topic.encode())
    assert (filter_ in demand.astray(topic)) == matches(filter_, topic)
    demand.hold(filter_, True)
    demand.change(False)
    assert demand.stray(topic.encode(), topic.encode()) != matches(filter_, topic)
    assert filter_ not in demand.astray(topic), "what is wanted stays"


@pytest.mark.parametrize("topic", ["/".join("a" * (LEVELS + 1)), "a" * (LONGEST + 1), "a/\x01", "a/\u0085", "a/\U0001fffe"])
def test_what_the_other_broker_may_not_take_is_not_said_to_it(topic: str) -> None:
    """A client that chooses such a filter, or a topic there, would cut off all others."""
    assert made("a/# +", topic).target() == ["a/#" if topic.startswith("a/") else "+"]
    assert not made("#").stray(topic.encode(), topic.encode())


def test_all_filters_of_a_topic_may_have_brought_it() -> None:
    assert len(made().astray("/".join("a" * LEVELS))) == 2 ** (LEVELS + 1) + 2**LEVELS - 1


def test_a_topic_that_always_comes_in_is_no_stray() -> None:
    assert not made("raw/#").stray(b"s/1", b"s/1")
