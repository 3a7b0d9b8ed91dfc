"""What a gate lets out and in, and under which names."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.wire.control import LinkEntry, LinkRecord, decode, encode
from mqmesh.mesh.wire.policy import CLOSED, LONGEST, OPEN, Policy, PolicyFilter, check_policy, decode_policy
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.topics import matches

LEVELS = st.sampled_from(["a", "b", "c", "x", ""])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = st.one_of(TOPICS, TOPICS.map(lambda t: f"{t}/#"), TOPICS.map(lambda t: f"+/{t}"), st.just("#"))
LISTS = st.lists(FILTERS, max_size=3).map(tuple)
PREFIX = st.one_of(st.just(""), st.lists(LEVELS.filter(bool), min_size=1, max_size=3).map(lambda parts: "/".join(parts) + "/"))
PAIRS = st.lists(st.tuples(PREFIX, PREFIX), max_size=4, unique_by=(lambda p: p[0], lambda p: p[1])).map(tuple)
POLICIES = st.builds(Policy, st.one_of(st.none(), LISTS), LISTS, st.one_of(st.none(), LISTS), LISTS, PAIRS)


@given(POLICIES, st.lists(TOPICS, max_size=20))
def test_names_are_translated_one_to_one(policy: Policy, topics: list[str]) -> None:
    gate, free = PolicyFilter(policy), PolicyFilter(Policy(prefixes=policy.prefixes))
    for topic in topics:
        raw = topic.encode()
        name, back = gate.outwards(raw), gate.inwards(raw)
        if name is not None:
            assert free.inwards(name) == raw
        if back is not None:
            assert free.outwards(back) == raw
    for way in (free.outwards, free.inwards):
        named = [name for topic in set(topics) if (name := way(topic.encode())) is not None]
        assert len(named) == len(set(named))


@given(POLICIES, TOPICS)
def test_what_passes_is_allowed_and_not_excepted(policy: Policy, topic: str) -> None:
    gate = PolicyFilter(policy)
    if gate.outwards(topic.encode()) is not None:
        assert policy.out is None or any(matches(f, topic) for f in policy.out)
        assert not any(matches(f, topic) for f in policy.out_except)
    inside = gate.inwards(topic.encode())
    if inside is not None:
        assert policy.into is None or any(matches(f, inside.decode()) for f in policy.into)
        assert not any(matches(f, inside.decode()) for f in policy.into_except)


@given(POLICIES)
def test_a_policy_travels_in_link_state(policy: Policy) -> None:
    check_policy(policy)
    entries = (LinkEntry(2, 5, 1, policy), LinkEntry(3, 6, 1))
    record = LinkRecord(1, b"u" * 16, "b1", 7, 8, entries)
    packet = encode("linkstate", [record])
    (got,) = decode("linkstate", packet[packet.index(b"linkstate") + 10 :])
    assert got == record


def test_without_a_policy_link_state_is_as_it_was() -> None:
    packet = encode("linkstate", [LinkRecord(1, b"u" * 16, "b1", 7, 8, (LinkEntry(3, 6, 1),))])
    assert packet.endswith(b"\x93\x03\x06\x01\xc0")


def test_prefixes() -> None:
    gate = PolicyFilter(Policy(prefixes=(("site-a/", "partner/site-a/"), ("partner/site-b/", "site-b/"))))
    assert gate.outwards(b"site-a/t/1") == b"partner/site-a/t/1"
    assert gate.inwards(b"partner/site-a/t/1") == b"site-a/t/1"
    assert gate.inwards(b"site-b/t") == b"partner/site-b/t"
    assert gate.outwards(b"other") == b"other"
    # what would be mistaken for a translated name does not pass
    assert gate.outwards(b"partner/site-a/t") is None
    assert gate.inwards(b"site-a/t") is None
    assert gate.inwards(b"partner/site-b/t") is None


def test_the_longest_prefix_wins_and_its_shadow_does_not_pass() -> None:
    gate = PolicyFilter(Policy(prefixes=(("x/", "y/"), ("x/z/", "w/"))))
    assert gate.outwards(b"x/1") == b"y/1"
    assert gate.outwards(b"x/z/1") == b"w/1"
    assert gate.inwards(b"y/z/1") is None


def test_everything_under_one_prefix() -> None:
    gate = PolicyFilter(Policy(prefixes=(("", "acme/"), ("bolt/", ""))))
    assert gate.outwards(b"t/1") == b"acme/t/1"
    assert gate.outwards(b"bolt/t") == b"t"
    assert gate.inwards(b"t") == b"bolt/t"
    assert gate.inwards(b"acme/t") == b"t"


def test_no_system_topic_and_no_empty_one_comes_out() -> None:
    gate = PolicyFilter(Policy(prefixes=(("x/", ""),)))
    assert gate.outwards(b"x/$SYS/broker") is None
    assert gate.outwards(b"x/$mesh/open") is None
    assert gate.outwards(b"x/") is None
    assert gate.outwards(b"$mqmesh/x") is None
    assert PolicyFilter(Policy(prefixes=(("", "far/"),))).outwards(b"$mqmesh/x") is None
    assert PolicyFilter(Policy(prefixes=(("far/", ""),))).inwards(b"$mqmesh/x") is None
    assert gate.outwards(b"x//") == b"/"
    longer = PolicyFilter(Policy(prefixes=(("", "p" * 100 + "/"),)))
    assert longer.outwards(b"t" * 65_434) is not None
    assert longer.outwards(b"t" * 65_435) is None


def test_open_and_closed() -> None:
    assert OPEN.open
    assert PolicyFilter(OPEN).outwards(b"t") == b"t"
    assert CLOSED.closed
    assert PolicyFilter(CLOSED).outwards(b"t") is None
    assert PolicyFilter(CLOSED).inwards(b"t") is None
    assert not Policy(out=()).closed
    assert not Policy(out=()).open


@pytest.mark.parametrize(
    "policy",
    [
        Policy(out=("a/#/b",)),
        Policy(into=("",)),
        Policy(out_except=("$SYS/#",)),
        Policy(prefixes=(("a", "b/"),)),
        Policy(prefixes=(("a/+/", "b/"),)),
        Policy(prefixes=(("$a/", "b/"),)),
        Policy(prefixes=(("a/", "b/"), ("a/", "c/"))),
        Policy(prefixes=(("a/", "b/"), ("c/", "b/"))),
        Policy(out=("x" * (LONGEST + 1),)),
    ],
)
def test_what_is_no_policy_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_policy(policy)
    packet = encode("linkstate", [LinkRecord(1, b"u" * 16, "b1", 7, 8, (LinkEntry(2, 5, 1, policy),))])
    with pytest.raises(PeerError, match="linkstate"):
        decode("linkstate", packet[packet.index(b"linkstate") + 10 :])


@pytest.mark.parametrize(
    "value", [[], 1, [None, [], None, []], [None, [], None, [], [["a/"]]], ["a", [], None, [], []], [[1], [], None, [], []]]
)
def test_malformed_policies_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_policy(value)


def test_answers_for_long_topics_are_not_kept() -> None:
    """Whoever publishes chooses the topics: 20,000 of the longest ones would be a gigabyte."""
    names = PolicyFilter(Policy(prefixes=(("here/", ""),)))
    tracemalloc.start()
    try:
        for number in range(100):
            topic = b"%d" % number + 60_000 * b"x"
            assert names.inwards(topic) == b"here/" + topic
            assert names.outwards(b"here/" + topic) == topic
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000
