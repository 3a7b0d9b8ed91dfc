"""Whatever a client sends: it is served or closed with a reason, nothing else breaks, and no other client notices."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqmesh.broker.client import connection as connection_module
from mqmesh.broker.ledger import QUEUED
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from mqmesh.mqtt.properties import Property
from support.examples import examples
from support.models.broker_wire import Wire, run, started

topics = st.sampled_from(["a", "a/b", "$SYS/x", "b" * 200])
filters = st.sampled_from(["#", "a/+", "$share/g/a/#", "$SYS/#", "a"])
identifiers = st.integers(1, 5)
some_properties = st.sampled_from(
    [
        {},
        {Property.TOPIC_ALIAS: 3},
        {Property.MESSAGE_EXPIRY_INTERVAL: 0},
        {Property.PAYLOAD_FORMAT_INDICATOR: 1},
        {Property.USER_PROPERTY: [("a", "b")], Property.CONTENT_TYPE: "é"},
    ]
)
packets = st.one_of(
    st.builds(
        lambda topic, payload, qos, retain, packet_id, properties: Publish(
            topic, payload, qos, retain, False, packet_id if qos else 0, properties
        ),
        topics,
        st.binary(max_size=40),
        st.integers(0, 2),
        st.booleans(),
        identifiers,
        some_properties,
    ),
    st.builds(lambda packet_id, found, qos: Subscribe(packet_id, [Subscription(found, qos)]), identifiers, filters, st.integers(0, 2)),
    st.builds(lambda packet_id, found: Unsubscribe(packet_id, [found]), identifiers, filters),
    st.builds(Puback, identifiers),
    st.builds(Pubrec, identifiers),
    st.builds(Pubrel, identifiers),
    st.builds(Pubcomp, identifiers),
    st.just(Pingreq()),
    st.just(Disconnect()),
    st.just(Auth()),
    st.just(Connect("again")),
)


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """Packets of a version with some bytes changed, inserted or left out, in chunks."""
    version = draw(st.sampled_from([4, 5]))
    found = [one for one in draw(st.lists(packets, max_size=12)) if version == 5 or not isinstance(one, Auth)]
    data = bytearray(b"".join(encode(one, version) for one in found))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    cut = draw(st.integers(0, len(data)))
    return version, [bytes(data[:cut]), bytes(data[cut:])]


async def feed(version: int | None, chunks: list[bytes], connect: bytes = b"") -> None:
    broker = await started(max_packet_size=1000)
    other = Wire(broker, 5).connect("other", Subscription("a/#", 1))
    client = Wire(broker, version or 5)
    with mock.patch.object(connection_module.log, "exception", side_effect=AssertionError) as internal:
        if version is not None:
            will = Will("a/will", b"w", 1)
            client.send(Connect("c", version, True, will=will))
        for chunk in chunks:
            client.give(chunk)
        if not client.transport.closed:
            assert client.connection.unread <= 1000 + sum(map(len, chunks))
        client.connection.connection_lost(None)
        other.send(Pingreq())
    assert not internal.called
    assert any(isinstance(packet, object) for packet in other.packets())  # every byte that it got is a packet
    assert not other.transport.closed
    assert broker.site.sessions.get("c") is None
    assert broker.context.ledger.held[QUEUED] == 0


@settings(max_examples=examples(300), deadline=None)
@given(spoiled())
def test_spoiled_packets(case: tuple[int, list[bytes]]) -> None:
    run(feed(*case))


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from([4, 5]), st.lists(st.binary(max_size=30), max_size=4))
@example(5, [b"\x32\x04\x00\x01", b"t\x00"])
def test_any_bytes_after_connect(version: int, chunks: list[bytes]) -> None:
    run(feed(version, chunks))


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=60), st.data())
def test_any_bytes_first(body: bytes, data: Any) -> None:
    head = data.draw(st.sampled_from([b"", b"\x10", bytes((0x10, len(body))), bytes((0x10, len(body) + 7)) + b"\x00\x04MQTT\x05"]))
    run(feed(None, [head + body]))
