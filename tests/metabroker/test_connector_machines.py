"""Connectors without a server: mappings that lose nothing, and whatever bytes may come."""

from __future__ import annotations

from typing import Any

import pytest
from connector_values import FILTERS, PROPERTIES, TOPICS, is_filter, is_topic
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.metabroker.address import parse_address
from mqmesh.metabroker.connectors.nats import codec as nats_codec
from mqmesh.metabroker.connectors.nats import jetstream
from mqmesh.metabroker.connectors.nats import machine as nats
from mqmesh.metabroker.connectors.nats import mapping as nats_mapping
from mqmesh.metabroker.events import Published, Refused, Subscribed, Up
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.topics import matches


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
        status, read = nats_codec.read_headers(nats_codec.headers(pairs))
        assert nats_mapping.from_nats("a/b", b"", status, read, reply).properties == properties


@pytest.mark.parametrize("text", ["v\r\nNats-Rollup: all", "\n", "\x7f", " v", "v\t"])
def test_a_header_of_nats_stays_one(text: str) -> None:
    """The metabroker refuses control characters before; the mapping does as well."""
    for properties in ({Property.USER_PROPERTY: [("k", text)]}, {Property.CONTENT_TYPE: text}, {Property.USER_PROPERTY: [(text, "v")]}):
        assert nats_mapping.check(Publish("t", b"", 1, properties=properties), 0) is not None
    assert nats_mapping.check(Publish(f"t/{text}", b"", 1), 0) is not None


INFO = b'INFO {"headers":true,"max_payload":1000,"jetstream":true}\r\n'


def nats_up() -> nats.Machine:
    machine = nats.Machine(nats.Login("metabroker-1"), "x")
    machine.begin(0.0)
    machine.receive(INFO + b"PONG\r\n", 0.0)
    machine.take()
    streams = b'{"total":1,"offset":0,"streams":[{"config":{"name":"S","subjects":["s.>"]}}]}'
    events = machine.receive(b"MSG _INBOX.metabroker-1-x.r1 1 %d\r\n%s\r\n" % (len(streams), streams), 0.0)
    assert isinstance(events[0], Up)
    machine.take()
    return machine


def test_a_stream_is_asked_again() -> None:
    """No acknowledgement, or nobody there to give one: the same message goes again, under the same identifier."""
    machine = nats_up()
    machine.publish(Publish("s/1", b"x", 1), 7, 0.0)
    sent = machine.take()
    assert b"Nats-Msg-Id: mqmesh-metabroker-1-x-1\r\n" in sent
    nobody = b"HMSG _INBOX.metabroker-1-x.p1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    assert machine.receive(nobody, 0.0) == []
    assert b"STREAM.LIST" in machine.take()
    empty = b'{"total":0,"offset":0,"streams":[]}'
    machine.receive(b"MSG _INBOX.metabroker-1-x.r2 1 %d\r\n%s\r\n" % (len(empty), empty), 0.0)
    assert machine.take() == b"PUB s.1 1\r\nx\r\nPING\r\n"
    assert machine.receive(b"PONG\r\n", 0.0) == [Published(7, 0)]
    assert machine.bytes == 0


def test_nats_is_read_byte_by_byte() -> None:
    machine = nats_up()
    machine.subscribe("a/+", 0, 3, 9, 0.0)
    assert machine.take() == b"SUB a.* 2\r\nPING\r\n"
    events = []
    for byte in b"PONG\r\nHMSG a.b 2 r.1 18 20\r\nNATS/1.0\r\nk: v\r\n\r\nhi\r\nMSG a.c 2 0\r\n\r\n":
        events += machine.receive(bytes((byte,)), 0.0)
    assert events[0] == Subscribed(9, 0)
    first, second = (event.publish for event in events[1:])
    assert (first.topic, second.topic, second.payload) == ("a/b", "a/c", b"")
    assert first.properties[Property.USER_PROPERTY] == [("k", "v")]
    assert first.properties[Property.SUBSCRIPTION_IDENTIFIER] == [3]


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"MSG a 2 3\r\n", b"HMSG a 2 5 9\r\n", b"-ERR 'x'\r\n", b"INFO []\r\n"]), max_size=6)
)
def test_nats_takes_any_bytes(chunks: list[bytes]) -> None:
    machine = nats_up()
    try:
        for chunk in chunks:
            machine.receive(chunk, 0.0)
    except PeerError:
        pass


@pytest.mark.parametrize(
    ("text", "credentials"),
    [("Authorization Violation", True), ("Maximum Connections Exceeded", False), ("User Authentication Revoked", True)],
)
def test_why_nats_refuses(text: str, credentials: bool) -> None:
    machine = nats.Machine(nats.Login("n"), "x")
    machine.begin(0.0)
    [refused] = machine.receive(INFO + f"-ERR '{text}'\r\n".encode(), 0.0)
    assert refused == Refused(credentials, text)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("amqp://h", "amqp://h:5672"),
        ("amqp://h/", "amqp://h:5672"),
        ("amqp://h/%2F", "amqp://h:5672"),
        ("amqps://h:1/a%2Fb", "amqps://h:1/a%2Fb"),
        ("nats://[::1]", "nats://[::1]:4222"),
        ("tls://h/", "tls://h:4222"),
    ],
)
def test_addresses(text: str, right: str) -> None:
    address = parse_address(text)
    assert str(address) == right
    assert parse_address(right) == address
