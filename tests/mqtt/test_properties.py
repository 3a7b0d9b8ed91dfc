"""The property table, and the two readers of a PUBLISH's properties held against each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mqtt.errors import MalformedPacket, PeerError, UsageError
from mqmesh.mqtt.length import encode_length
from mqmesh.mqtt.properties import PROPERTIES, PacketKind, Property, decode_properties, encode_properties
from mqmesh.mqtt.publish import PublishProperties, publish_properties, strip
from support.examples import examples

from .strategies import properties

HIDDEN = {Property.TOPIC_ALIAS, Property.SUBSCRIPTION_IDENTIFIER}


def block(found: dict[int, Any]) -> bytes:
    raw = encode_properties(found)
    return encode_length(len(raw)) + raw


def test_the_table_is_complete() -> None:
    assert set(PROPERTIES) == set(Property)
    assert {key for key, rule in PROPERTIES.items() if rule.repeatable} == {Property.USER_PROPERTY, Property.SUBSCRIPTION_IDENTIFIER}
    assert all(rule.packets for rule in PROPERTIES.values())


@settings(max_examples=examples(200))
@given(st.sampled_from(list(PacketKind)).flatmap(lambda kind: st.tuples(st.just(kind), properties(kind))), st.binary(max_size=5))
def test_round_trip_inside_other_bytes(case: tuple[PacketKind, dict[int, Any]], rest: bytes) -> None:
    kind, found = case
    raw = block(found)
    assert decode_properties(b"ab" + raw + rest, 2, kind) == (found, 2 + len(raw))


@pytest.mark.parametrize("kind", list(PacketKind))
@pytest.mark.parametrize("identifier", list(Property))
def test_each_property_only_where_it_belongs(kind: PacketKind, identifier: Property) -> None:
    value = {"UTF-8 string": "a", "binary data": b"a", "UTF-8 string pair": [("a", "b")], "variable byte integer": [1]}
    found = {identifier: value.get(PROPERTIES[identifier].type.value, 1)}
    raw = block(found)
    if kind in PROPERTIES[identifier].packets:
        assert decode_properties(raw, 0, kind)[0] == found
        assert encode_properties(found, kind) == encode_properties(found)
        return
    with pytest.raises(MalformedPacket, match="must not stand in"):
        decode_properties(raw, 0, kind)
    with pytest.raises(UsageError, match="must not stand in"):
        encode_properties(found, kind)


def test_the_order_of_the_dict_is_the_order_on_the_wire() -> None:
    raw = encode_properties({Property.CORRELATION_DATA: b"x", Property.PAYLOAD_FORMAT_INDICATOR: 1})
    assert raw == b"\x09\0\x01x\x01\x01"
    assert list(decode_properties(bytes((len(raw),)) + raw, 0, PacketKind.PUBLISH)[0]) == [9, 1]


def as_dict(found: PublishProperties) -> dict[int, Any]:
    values = {
        Property.PAYLOAD_FORMAT_INDICATOR: found.payload_format,
        Property.MESSAGE_EXPIRY_INTERVAL: found.expiry,
        Property.CONTENT_TYPE: found.content_type,
        Property.RESPONSE_TOPIC: found.response_topic,
        Property.CORRELATION_DATA: found.correlation,
        Property.TOPIC_ALIAS: found.topic_alias,
        Property.SUBSCRIPTION_IDENTIFIER: list(found.subscription_identifiers) or None,
        Property.USER_PROPERTY: list(found.user_properties) or None,
    }
    return {key: value for key, value in values.items() if value is not None}


@settings(max_examples=examples(300))
@given(properties(PacketKind.PUBLISH).flatmap(lambda found: st.permutations(list(found.items()))), st.binary(max_size=5))
def test_publish_properties_say_what_the_decoder_says(items: list[tuple[int, Any]], payload: bytes) -> None:
    found = dict(items)
    raw = block(found)
    data = b"topic" + raw + payload + b"next packet"
    read = publish_properties(data, 5, 5 + len(raw) + len(payload))
    assert as_dict(read) == found
    assert data[read.end :] == payload + b"next packet"
    assert read.length == len(encode_properties(found))
    assert read.block == encode_properties({key: value for key, value in items if key not in HIDDEN})
    bare = {key: value for key, value in items if key not in HIDDEN | {Property.MESSAGE_EXPIRY_INTERVAL}}
    assert read.without_expiry == encode_properties(bare)
    assert (read.length == len(read.block)) == (not HIDDEN & set(found))


@settings(max_examples=examples(100))
@given(properties(PacketKind.PUBLISH), st.sets(st.sampled_from([1, 2, 3, 8, 9, 0x0B, 0x23, 0x26])))
def test_strip(found: dict[int, Any], unwanted: set[int]) -> None:
    left = {key: value for key, value in found.items() if key not in unwanted}
    assert strip(encode_properties(found), *unwanted) == encode_properties(left)


def outcome(read: Any, *arguments: Any) -> tuple[Any, ...]:
    try:
        result = read(*arguments)
    except PeerError as error:
        return error.reason, error.clause, error.text
    return ("read", as_dict(result), result.end) if isinstance(result, PublishProperties) else ("read", *result)


@settings(max_examples=examples(300))
@given(properties(PacketKind.PUBLISH), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), max_size=3), st.integers(0, 3))
def test_both_readers_judge_damaged_bytes_alike(found: dict[int, Any], changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(block(found))
    for at, value in changes:
        data[at % len(data)] = value
    raw = bytes(data[: len(data) - cut])
    assert outcome(publish_properties, raw + b"beyond the end", 0, len(raw)) == outcome(decode_properties, raw, 0, PacketKind.PUBLISH)
