"""PacketBatch runs: frames that are not alike, moved together; each variant is what the codec would encode message by message."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mqtt.batch.packets import PacketBatch
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property, encode_properties
from mqmesh.mqtt.session import Delivery, Outbound

PROPERTIES: list[dict[int, Any]] = [
    {},
    {Property.CONTENT_TYPE: "x"},
    {Property.USER_PROPERTY: [("k" * 100, "v" * 100)], Property.CORRELATION_DATA: b"\0"},
]

messages = st.lists(
    st.tuples(
        st.sampled_from(["a", "b/c", "d" * 130]), st.sampled_from([b"", b"x", b"y" * 100, b"z" * 20_000]), st.sampled_from(PROPERTIES)
    ),
    min_size=1,
    max_size=8,
)


def mixed(found: list[Any], version: int, qos: int, offsets: bool = False) -> PacketBatch:
    frames = [
        encode(Publish(topic, payload, qos, packet_id=9 if qos else 0, properties=properties), version)
        for topic, payload, properties in found
    ]
    made = PacketBatch(b"".join(frames), version, qos, len(frames), 5.0)
    if offsets and qos:
        return PacketBatch(b"".join(frames), version, qos, len(frames), 5.0, made.encoded(version, qos)[1])
    return made


def packets(data: bytes, version: int) -> list[Publish]:
    return [decode(first, body, version) for first, body in Framer().feed(bytes(data))]  # type: ignore[misc]


@given(messages, st.sampled_from([4, 5]), st.sampled_from([4, 5]), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_every_variant(found, came, goes, qos, wanted, offsets):
    run = mixed(found, came, qos, offsets)
    data, places = run.encoded(goes, wanted)
    expected = [
        Publish(topic, payload, wanted, packet_id=0, properties=properties if came == goes == 5 else {})
        for topic, payload, properties in found
    ]
    if wanted:
        assert len(places) == len(found)
        data = bytes(run.stamped(goes, wanted, False, b"", 0, run.count, 100, False))
        for n, packet in enumerate(expected):
            packet.packet_id = 100 + n
    assert packets(data, goes) == expected
    assert run.payloads == [payload for _, payload, _ in found]


@given(messages, st.sampled_from([4, 5]), st.integers(0, 2), st.data())
def test_parts_and_single_messages(found, version, qos, data):
    run = mixed(found, version, qos)
    start = data.draw(st.integers(0, len(found) - 1))
    stop = data.draw(st.integers(start + 1, len(found)))
    part = run.part(start, stop)
    assert (part.count, part.qos, part.received) == (stop - start, qos, 5.0)
    assert part.payloads == [payload for _, payload, _ in found[start:stop]]
    one = run.single(start)
    topic, payload, properties = found[start]
    assert (one.topic, one.payloads, one.qos, one.received) == (topic.encode(), [payload], qos, 5.0)
    assert one.properties == (encode_properties(properties) if version == 5 else b"")


@given(messages, st.sampled_from([4, 5]), st.sampled_from([4, 5]), st.integers(1, 3))
def test_deliveries_through_a_narrow_window_and_again(found, came, goes, limit):
    outbound = Outbound(limit)
    rest: Delivery | None = Delivery(mixed(found, came, 1), 1)
    seen = []
    while rest is not None:
        now, rest = outbound.send(rest)
        sent = packets(now.encode(goes, b""), goes)
        again = [packet for delivery in outbound.unfinished() for packet in packets(delivery.encode(goes, b"", True), goes)]
        assert all(packet.dup for packet in again)
        assert [(p.topic, p.payload, p.packet_id) for p in again] == [(p.topic, p.payload, p.packet_id) for p in sent]
        seen += [(packet.topic, packet.payload) for packet in sent]
        assert outbound.acknowledge(1, now.first, now.count) == now.count
    assert seen == [(topic, payload) for topic, payload, _ in found]
    assert outbound.bytes == 0
