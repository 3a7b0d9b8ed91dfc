"""Rules of access: what decides, what `%u` and `%c` stand for, and that no subscription brings more than its rules allow."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth.rules import Rules
from mqmesh.broker.config import parse
from mqmesh.mqtt.topics import covers, matches, overlaps

LEVELS = ("a", "b", "")
TOPICS = ["/".join(levels) for count in (1, 2, 3) for levels in product((*LEVELS, "$s"), repeat=count) if "/".join(levels)]
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(st.sampled_from(["a", "b", "+", "$s"]), min_size=1, max_size=2),
    st.sampled_from([[], ["#"], ["+"]]),
) | st.just("#")


def rules(*tables: dict[str, Any]) -> Rules:
    """Rules of a file; somebody can prove a name by a certificate."""
    access = parse({"access": {"certificates": True, "rule": list(tables)}}, "F").access
    assert access is not None
    return access.rules


@given(FILTERS, FILTERS)
def test_overlaps_finds_every_common_topic(one: str, other: str) -> None:
    assert overlaps(one, other) == overlaps(other, one)
    if any(matches(one, topic) and matches(other, topic) for topic in TOPICS):
        assert overlaps(one, other)


@given(FILTERS, FILTERS)
def test_what_overlaps_has_a_common_topic(one: str, other: str) -> None:
    if overlaps(one, other):
        topics = ["/".join(levels) for count in (1, 2, 3) for levels in product(("a", "b", "$s"), repeat=count)]
        assert any(matches(one, topic) and matches(other, topic) for topic in topics)


@given(FILTERS, FILTERS)
def test_covers_leaves_no_topic_out(wide: str, narrow: str) -> None:
    if covers(wide, narrow):
        assert all(matches(wide, topic) for topic in TOPICS if matches(narrow, topic))


@given(st.lists(st.tuples(st.booleans(), FILTERS), min_size=1, max_size=4), FILTERS)
def test_what_a_granted_filter_matches_is_allowed_topic_by_topic(given_rules: list[tuple[bool, str]], asked: str) -> None:
    """The same rules, asked for each topic that comes, would never say no."""
    found = rules(*({"allow" if allows else "deny": ["subscribe"], "topics": [topics]} for allows, topics in given_rules))
    if found.subscribe(None, "c", asked).allowed:
        for topic in TOPICS:
            if matches(asked, topic):
                assert found.subscribe(None, "c", topic).allowed, topic


def test_the_first_rule_that_fits_decides() -> None:
    found = rules({"deny": ["publish"], "topics": ["plant/secret/#"]}, {"allow": ["publish"], "topics": ["plant/#"]})
    assert str(found.publish("u", "c", "plant/secret/x")) == "rule 1 denies it"
    assert str(found.publish("u", "c", "plant/x")) == "rule 2 allows it"
    assert str(found.publish("u", "c", "elsewhere")) == "no rule allows it"
    assert not found.subscribe("u", "c", "plant/x").allowed  # no rule speaks of that


def test_without_rules_everything_is_allowed() -> None:
    assert Rules().publish(None, "c", "any/topic").allowed
    assert Rules().subscribe(None, "c", "#").allowed


@pytest.mark.parametrize(
    ("user", "client", "topic", "allowed"),
    [
        ("alice", "c1", "u/alice/x", True),
        ("alice", "c1", "u/bob/x", False),
        ("alice", "c1", "c/c1", True),
        ("alice", "c1", "c/c2", False),
        (None, "c1", "u/None/x", False),
        ("a/b", "c1", "u/a/b/x", False),
        ("+", "c1", "u/bob/x", False),
        ("#", "c1", "u/bob/x", False),
        ("%c", "c1", "u/c1/x", False),
    ],
)
def test_names_in_topics(user: str | None, client: str, topic: str, allowed: bool) -> None:
    found = rules({"allow": ["publish", "subscribe"], "topics": ["u/%u/#", "c/%c"]})
    assert found.publish(user, client, topic).allowed == allowed
    assert found.subscribe(user, client, topic).allowed == allowed


def test_users_and_clients() -> None:
    found = rules({"allow": ["publish"], "users": ["meter-*"], "clients": ["dev?"], "topics": ["#"]})
    assert found.publish("meter-1", "dev1", "x").allowed
    assert not found.publish("meter-1", "dev12", "x").allowed
    assert not found.publish("other", "dev1", "x").allowed
    assert not found.publish(None, "dev1", "x").allowed


def test_shared_subscriptions_are_judged_by_their_filter() -> None:
    found = rules({"allow": ["subscribe"], "topics": ["jobs/#"]})
    assert found.subscribe(None, "c", "$share/g/jobs/+").allowed
    assert not found.subscribe(None, "c", "$share/g/#").allowed


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"topics": ["a"]}, "access.rule[1].allow is missing: give allow"),
        ({"allow": ["publish"], "deny": ["publish"], "topics": ["a"]}, "access.rule[1].allow = ['publish']: give allow"),
        ({"allow": ["write"], "topics": ["a"]}, "access.rule[1].allow = ['write']: give allow"),
        ({"allow": ["publish"]}, "access.rule[1].topics is missing: give a list of topic filters"),
        ({"allow": ["publish"], "topics": ["a/#/b"]}, "# must stand alone"),
        ({"allow": ["publish"], "topics": ["$share/g/a"]}, "leave $share/NAME/ out"),
        ({"allow": ["publish"], "topics": ["a"], "user": ["x"]}, 'unknown key; did you mean "users"?'),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse({"access": {"rule": [table]}}, "F")
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("access", "text"),
    [
        ({"anonymous": False}, "nobody could come in"),
        ({"users": "/nonexistent"}, "there is no such file"),
        ({"rule": [{"allow": ["publish"], "users": ["x"], "topics": ["a"]}]}, "rule 1 is for users, and no name is proven"),
        ({"tokens": {}}, "access.tokens.key is missing"),
    ],
)
def test_mistakes_of_the_table(access: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse({"access": access}, "F")
    assert text in str(raised.value)


def test_an_empty_name_among_the_users_is_who_has_none() -> None:
    given_rules = rules({"users": ["", "bob"], "allow": ["publish"], "topics": ["a"]})
    assert given_rules.publish(None, "c", "a").allowed
    assert given_rules.publish("bob", "c", "a").allowed
    assert not given_rules.publish("alice", "c", "a").allowed


def test_rules_of_who_has_no_name_need_no_proof_of_names() -> None:
    access = parse({"access": {"rule": [{"users": [""], "allow": ["publish"], "topics": ["a"]}]}}, "F").access
    assert access is not None
    assert access.rules.publish(None, "c", "a").allowed
