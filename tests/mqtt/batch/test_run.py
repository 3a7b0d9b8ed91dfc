"""Runs: the variants of a run are what the codec would encode message by message, from payloads or from received bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mqtt.batch.run import PID_HIGH, PID_LOW, Frames, Run, acknowledgement_table
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.length import encode_length
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property, encode_properties

PROPERTIES = [{}, {Property.CONTENT_TYPE: "text/plain"}, {Property.USER_PROPERTY: [("a", "b" * 200)]}]


def expected(run: Run, version: int, qos: int, retain: bool, properties: dict, payloads: list[bytes]) -> bytes:
    topic = run.topic.decode()
    return b"".join(encode(Publish(topic, payload, qos, retain, False, 1 if qos else 0, properties), version) for payload in payloads)


def with_identifier_1(frames: Frames, count: int) -> bytes:
    data = bytearray(frames.data)
    assert len(data) == count * frames.size
    if frames.pid_offset:
        data[frames.pid_offset :: frames.size] = b"\0" * count
        data[frames.pid_offset + 1 :: frames.size] = b"\1" * count
    return bytes(data)


def received(topic: str, qos: int, retain: bool, payloads: list[bytes], version: int, properties: dict) -> Run:
    """A run over raw bytes, as the broker makes it."""
    frames = [
        encode(Publish(topic, payload, qos, retain, False, n if qos else 0, properties), version) for n, payload in enumerate(payloads, 7)
    ]
    size, length = len(frames[0]), len(payloads[0])
    raw = (b"".join(frames), size - length, size, length)
    return Run(topic.encode(), qos, retain, None, encode_properties(properties), raw=raw, raw_version=version)


payload_lists = st.integers(0, 200).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=6))


@given(
    payload_lists,
    st.sampled_from([4, 5]),
    st.sampled_from([4, 5]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from(PROPERTIES),
    st.sampled_from(["t", "a/" * 70 + "b"]),
)
def test_every_variant_is_what_the_codec_encodes(payloads, came, goes, qos, wanted, retain, keep, properties, topic):
    properties = properties if came == 5 else {}
    run = received(topic, qos, retain, payloads, came, properties)
    for one in (run, Run(topic.encode(), qos, retain, payloads, encode_properties(properties)), run.part(0, run.count)):
        frames = one.frames(goes, wanted, keep)
        assert with_identifier_1(frames, run.count) == expected(run, goes, wanted, keep, properties, payloads)


@given(payload_lists, st.data())
def test_parts_keep_order_and_what_is_said_of_the_messages(payloads, data):
    run = received("a/b", 1, True, payloads, 5, PROPERTIES[1])
    start = data.draw(st.integers(0, len(payloads) - 1))
    stop = data.draw(st.integers(start + 1, len(payloads)))
    assert run.part(start, stop).payloads == payloads[start:stop]
    assert run.every(start, 2).payloads == payloads[start::2]
    assert run.chosen([stop - 1, start]).payloads == [payloads[stop - 1], payloads[start]]
    part = run.part(start, stop).part(0, 1)
    assert (part.topic, part.qos, part.retain, part.properties, part.payloads) == (run.topic, 1, True, run.properties, [payloads[start]])
    assert run.payloads == payloads


def test_a_part_does_not_hold_on_to_the_whole_run():
    payloads = [bytes(1000) for _ in range(100)]
    part = received("t", 1, False, payloads, 4, {}).part(3, 5)
    assert len(part.frames(4, 1).data) < 2100


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (16383, b"\xff\x7f"), (268_435_455, b"\xff\xff\xff\x7f")]
)
def test_encode_length(value, encoded):
    assert encode_length(value) == encoded


def test_encode_length_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="268435455"):
        encode_length(268_435_456)


def test_tables():
    table = acknowledgement_table(0x40)
    for packet_id in (0, 1, 255, 256, 65535):
        entry = bytes((0x40, 2)) + packet_id.to_bytes(2, "big")
        assert table[4 * packet_id : 4 * packet_id + 4] == entry
        assert (PID_HIGH[packet_id], PID_LOW[packet_id]) == tuple(entry[2:])
