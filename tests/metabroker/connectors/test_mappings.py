"""Connectors without a server: mappings that lose nothing, and headers of whatever bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.products.nats.headers import Headers, Pairs
from mqmesh.metabroker.connectors.nats import jetstream
from mqmesh.metabroker.connectors.nats import mapping as nats_mapping
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.topics import matches
from support.connector_values import FILTERS, PROPERTIES, TOPICS, is_filter, is_topic


@given(TOPICS.filter(is_topic))
def test_a_topic_comes_back_or_is_refused(topic: str) -> None:
    """No topic becomes another one."""
    try:
        assert nats_mapping.topic_of(nats_mapping.subject_of(topic).encode()) == topic
    except nats_mapping.Unmappable:
        assert any(mark in topic for mark in " \t*>$")


@given(FILTERS.filter(is_filter), TOPICS.filter(is_topic))
def test_a_filter_means_the_same_there(filter_: str, topic: str) -> None:
    """What matches in MQTT matches there, and the other way."""
    expected = matches(filter_, topic)
    try:
        subject, subjects = nats_mapping.subject_of(topic), nats_mapping.subjects_of(filter_)
        assert sum(jetstream.covers(one, subject) for one in subjects) == int(expected)
    except nats_mapping.Unmappable:
        pass


@given(PROPERTIES)
def test_properties_come_back_or_are_refused(properties: dict[int, Any]) -> None:
    publish = Publish("a/b", b"", 1, properties=properties)
    if nats_mapping.check(publish, 0) is None:
        pairs = nats_mapping.to_nats(publish)
        response = properties.get(Property.RESPONSE_TOPIC)
        reply = nats_mapping.subject_of(response).encode() if response else b""
        written = "".join(f"{name}: {value.strip()}\r\n" for name, value in Pairs(pairs).items())  # as the library does
        read = Headers(f"NATS/1.0\r\n{written}\r\n".encode())
        assert nats_mapping.from_nats("a/b", b"", read.status, read.pairs, reply).properties == properties


@given(st.binary(max_size=60), st.sampled_from([b"", b"NATS/1.0", b"NATS/1.0 503\r\n", b"NATS/1.0\r\n"]))
def test_headers_may_be_any_bytes(data: bytes, start: bytes) -> None:
    read = Headers(start + data)
    assert all(name in read or name == "Status" for name, _ in read.pairs)


PATTERNS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4).map(".".join)
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


@given(PATTERNS, st.booleans(), PATTERNS, st.booleans(), SUBJECTS)
def test_what_two_patterns_have_in_common(one: str, more: bool, other: str, most: bool, subject: str) -> None:
    """It matches what both match, and nothing else."""
    left, right = one + ".>" * more, other + ".>" * most
    both = jetstream.common(left, right)
    assert both == jetstream.common(right, left)
    matched = jetstream.covers(left, subject) and jetstream.covers(right, subject)
    assert (both is not None and jetstream.covers(both, subject)) == matched


@pytest.mark.parametrize("text", ["v\r\nNats-Rollup: all", "\n", "\x7f", " v", "v\t", "\u00a0v", "v\u2003"])
def test_a_header_of_nats_stays_one(text: str) -> None:
    """The metabroker refuses control characters before; the mapping does as well."""
    for properties in ({Property.USER_PROPERTY: [("k", text)]}, {Property.CONTENT_TYPE: text}, {Property.USER_PROPERTY: [(text, "v")]}):
        assert nats_mapping.check(Publish("t", b"", 1, properties=properties), 0) is not None
    if text.isascii():
        assert nats_mapping.check(Publish(f"t/{text}", b"", 1), 0) is not None
