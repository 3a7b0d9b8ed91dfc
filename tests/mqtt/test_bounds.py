"""The bounds of a packet, held against what its decoder finds."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mqtt.bounds import SINGLE, check_bounds, check_properties
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.length import encode_length, read_length
from mqmesh.mqtt.packets import Connect, Disconnect, Packet, Subscribe, Subscription, Unsubscribe, Will
from mqmesh.mqtt.properties import PacketKind, Property, encode_properties
from mqmesh.mqtt.reasons import Reason
from support.examples import examples

from .strategies import properties, versioned

PAIRS = [("", "")]


def body(data: bytes) -> tuple[int, bytes]:
    _, start = read_length(data, 1, len(data))
    return data[0], data[start:]


def refused(data: bytes, most_properties: int = 1000, most_filters: int = 1000, version: int = 5) -> bool:
    try:
        check_bounds(*body(data), version, most_properties, most_filters)
    except PeerError as error:
        if error.reason != Reason.QUOTA_EXCEEDED:
            raise
        return True
    return False


@settings(max_examples=examples(300))
@given(properties(PacketKind.PUBLISH), st.integers(0, 60), st.integers(1, 20), st.binary(max_size=9))
def test_a_block_with_more_properties_than_may_be_is_refused_whatever_else_it_holds(
    found: dict[int, object], pairs: int, most: int, rest: bytes
) -> None:
    found.pop(Property.SUBSCRIPTION_IDENTIFIER, None)
    found[Property.USER_PROPERTY] = PAIRS * pairs
    raw = encode_properties(found)
    data = b"ab" + encode_length(len(raw)) + raw + rest
    count = len(found) - 1 + pairs
    try:
        end = check_properties(data, 2, most)
    except PeerError:
        assert count > most
    else:
        assert count <= most + SINGLE  # those that stand once do not count
        assert end == len(data) - len(rest)


@settings(max_examples=examples(300))
@given(st.sampled_from((0x10, 0x20, 0x82, 0xA2, 0xE0, 0xF0, 0x40)), st.binary(max_size=400), st.sampled_from((4, 5)))
def test_what_cannot_be_read_is_left_to_the_decoder(first: int, data: bytes, version: int) -> None:
    refused(bytes((first,)) + encode_length(len(data)) + data, 3, 3, version)


@settings(max_examples=examples(500))
@given(
    versioned(),
    st.integers(0, 200),
    st.sampled_from((b"", b"\x7f", b"\xff\x7f", b"\xff", b"\x26", b"\x0b\x80")),
    st.integers(0, 3),
)
def test_packets_that_end_anywhere_are_read_within_their_body(found: tuple[Packet, int], cut: int, tail: bytes, most: int) -> None:
    packet, version = found
    first, whole = body(encode(packet, version))
    with contextlib.suppress(PeerError):
        check_bounds(first, whole[:cut] + tail, version, most, most)


def test_a_length_of_properties_that_is_the_last_of_a_packet() -> None:
    name = bytes(100)
    connect = b"\0\4MQTT\5\6\0\0" + b"\0" + len(name).to_bytes(2, "big") + name + b"\x7f"  # the will's
    check_bounds(0x10, connect, 5, 10, 10)
    assert check_properties(b"ab\x7f", 2, 10) == 3 + 127


@pytest.mark.parametrize("count", [10, 27])
def test_each_packet_with_properties(count: int) -> None:
    many = {Property.USER_PROPERTY: PAIRS * count}
    over = count > 10
    assert refused(encode(Connect("c", properties=dict(many)), 5), 10) is over
    assert refused(encode(Connect("c", will=Will("t", b"", properties=dict(many))), 5), 10) is over
    assert refused(encode(Disconnect(properties=dict(many)), 5), 10) is over
    assert refused(encode(Subscribe(1, [Subscription("a")], dict(many)), 5), 10) is over
    assert refused(encode(Unsubscribe(1, ["a"], dict(many)), 5), 10) is over


@settings(max_examples=examples(100))
@given(st.lists(st.text("ab/+", min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 12), st.sampled_from((4, 5)))
def test_filters_are_counted(names: list[str], most: int, version: int) -> None:
    names = [name if "+" not in name else "+" for name in names]
    packets = Subscribe(1, [Subscription(name) for name in names]), Unsubscribe(1, names)
    for packet in packets:
        data = encode(packet, version)
        assert decode(*body(data), version) == packet
        assert refused(data, most_filters=most, version=version) is (len(names) > most)
