"""The bounds of a packet, held against what its decoder finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mqtt.bounds import SINGLE, check_bounds, check_properties
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.length import encode_length, read_length
from mqmesh.mqtt.packets import Connect, Disconnect, Subscribe, Subscription, Unsubscribe, Will
from mqmesh.mqtt.properties import PacketKind, Property, encode_properties
from mqmesh.mqtt.reasons import Reason
from support.examples import examples

from .strategies import properties

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
