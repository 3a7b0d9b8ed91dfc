"""Round trips, truncation and trailing bytes for every packet of both versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mqtt import packets as p
from mqmesh.mqtt.codec import decode, decode_in_steps, encode
from mqmesh.mqtt.errors import PeerError, UsageError
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import ConnectReturn, Reason
from support.examples import examples

from .strategies import versioned

versions = pytest.mark.parametrize("version", [4, 5])


def split(data: bytes) -> tuple[int, bytes]:
    """The first byte and the body of exactly one packet."""
    [frame] = Framer().feed(data)
    return frame


@settings(max_examples=examples(150))
@given(versioned())
def test_what_is_encoded_decodes_to_the_same(case: tuple[Any, int]) -> None:
    packet, version = case
    assert decode(*split(encode(packet, version)), version) == packet


@versions
def test_a_packet_of_many_filters_is_read_one_filter_in_a_step(version: int) -> None:
    names = [f"t/{number}" for number in range(100)]
    for packet in (p.Subscribe(7, [p.Subscription(name, 1) for name in names]), p.Unsubscribe(7, names)):
        read, steps = decode_in_steps(*split(encode(packet, version)), version)
        assert sum(1 for _ in steps) == 100
        assert read == packet


@settings(max_examples=examples(100))
@given(versioned())
def test_truncated_at_every_byte(case: tuple[Any, int]) -> None:
    """Each prefix of a body is refused, or is a shorter packet of the same kind (fewer payload bytes, codes, properties ..)."""
    packet, version = case
    first, body = split(encode(packet, version))
    rigid = isinstance(packet, p.Connect | p.Connack)
    for size in range(len(body)):
        try:
            shorter = decode(first, body[:size], version)
        except PeerError:
            continue
        assert not rigid
        assert type(shorter) is type(packet)
        assert shorter != packet
        assert decode(*split(encode(shorter, version)), version) == shorter


@settings(max_examples=examples(150))
@given(versioned(), st.binary(min_size=1, max_size=4))
def test_trailing_bytes(case: tuple[Any, int], rest: bytes) -> None:
    """Bytes behind the end are refused in packets that have an end of their own."""
    packet, version = case
    first, body = split(encode(packet, version))
    open_ended = isinstance(packet, p.Publish | p.Subscribe | p.Suback | p.Unsubscribe) or (isinstance(packet, p.Unsuback) and version == 5)
    short_form = isinstance(packet, p.Acknowledgement | p.Disconnect | p.Auth) and version == 5
    if open_ended or short_form:
        try:
            longer = decode(first, body + rest, version)
        except PeerError:
            return
        assert type(longer) is type(packet)
        assert decode(*split(encode(longer, version)), version) == longer
        return
    with pytest.raises(PeerError):
        decode(first, body + rest, version)


@versions
def test_short_forms_are_used(version: int) -> None:
    assert encode(p.Puback(258), version) == b"\x40\x02\x01\x02"
    assert encode(p.Pubrel(258), version) == b"\x62\x02\x01\x02"
    assert encode(p.Disconnect(), version) == b"\xe0\x00"
    assert encode(p.Pingreq(), version) == b"\xc0\x00"
    assert encode(p.Pingresp(), version) == b"\xd0\x00"


def test_short_forms_of_version_5() -> None:
    assert encode(p.Puback(1, Reason.NO_MATCHING_SUBSCRIBERS), 5) == b"\x40\x03\x00\x01\x10"
    assert encode(p.Disconnect(Reason.SERVER_BUSY), 5) == b"\xe0\x01\x89"
    assert encode(p.Auth(), 5) == b"\xf0\x00"
    assert decode(0x40, b"\0\x01\x10", 5) == decode(0x40, b"\0\x01\x10\0", 5) == p.Puback(1, Reason.NO_MATCHING_SUBSCRIBERS)
    assert decode(0x40, b"\0\x01\0", 5) == decode(0x40, b"\0\x01", 5) == p.Puback(1)
    assert decode(0xE0, b"\x04", 5) == decode(0xE0, b"\x04\0", 5) == p.Disconnect(Reason.DISCONNECT_WITH_WILL)


def test_reasons_become_return_codes_of_3_1_1() -> None:
    assert encode(p.Connack(False, Reason.UNSUPPORTED_PROTOCOL_VERSION), 4) == b"\x20\x02\x00\x01"
    assert encode(p.Connack(False, Reason.CLIENT_IDENTIFIER_NOT_VALID), 4) == b"\x20\x02\x00\x02"
    assert encode(p.Connack(False, ConnectReturn.NOT_AUTHORIZED), 4) == b"\x20\x02\x00\x05"
    assert encode(p.Connack(True), 4) == b"\x20\x02\x01\x00"
    assert encode(p.Suback(1, [Reason.GRANTED_QOS_1, Reason.NOT_AUTHORIZED]), 4) == b"\x90\x04\x00\x01\x01\x80"
    assert encode(p.Unsuback(1, [Reason.SUCCESS]), 4) == b"\xb0\x02\x00\x01"
    assert encode(p.Puback(1, Reason.NOT_AUTHORIZED), 4) == b"\x40\x02\x00\x01"


def test_mqisdp_is_served_as_version_4() -> None:
    data = bytes.fromhex("10 0e 00 06 4d5149736470 03 02 000a 0000".replace(" ", ""))
    packet = decode(*split(data), 3)
    assert packet == p.Connect("", 4, True, 10, mqisdp=True)
    assert encode(packet, 4) == data


@pytest.mark.parametrize(("start", "mqisdp"), [("00 06 4d5149736470 83", True), ("00 04 4d515454 84", False)])
def test_a_bridge_says_so_by_a_bit_of_the_level(start: str, mqisdp: bool) -> None:
    body = bytes.fromhex(start + "02 000a 0001 62")
    data = bytes((0x10, len(body))) + body
    packet = decode(*split(data), 4)
    assert packet == p.Connect("b", 4, True, 10, mqisdp=mqisdp, bridge=True)
    assert encode(packet, 4) == data


@pytest.mark.parametrize("level", [0x80, 0x81, 0x82, 0x85, 0xFF])
def test_there_is_no_other_level_of_a_bridge(level: int) -> None:
    with pytest.raises(PeerError, match=f"no Protocol Version {level} here"):
        decode(0x10, b"\0\4MQTT" + bytes((level,)) + b"\2\0\x0a\0\1b", 4)


def test_version_3_counts_as_4() -> None:
    publish = p.Publish("a/b", b"x", 1, packet_id=7)
    assert encode(publish, 3) == encode(publish, 4)
    assert decode(*split(encode(publish, 4)), 3) == publish


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (p.Publish("a/+", b""), 5),
        (p.Publish("", b""), 5),
        (p.Publish("", b"", properties={Property.TOPIC_ALIAS: 1}), 4),
        (p.Publish("a", b"", qos=1), 5),
        (p.Publish("a", b"", qos=3, packet_id=1), 5),
        (p.Publish("a", b"", dup=True), 5),
        (p.Publish("a\0", b""), 5),
        (p.Publish("\ud800", b""), 5),
        (p.Publish("a" * 65536, b""), 5),
        (p.Publish("a", properties={Property.TOPIC_ALIAS: 0}), 5),
        (p.Publish("a", properties={Property.TOPIC_ALIAS: 65536}), 5),
        (p.Publish("a", properties={Property.MESSAGE_EXPIRY_INTERVAL: -1}), 5),
        (p.Publish("a", properties={Property.CORRELATION_DATA: bytes(65536)}), 5),
        (p.Publish("a", properties={Property.SUBSCRIPTION_IDENTIFIER: [268_435_456]}), 5),
        (p.Publish("a", properties={Property.REASON_STRING: "x"}), 5),
        (p.Publish("a", properties={0x7F: 1}), 5),
        (p.Puback(0), 5),
        (p.Puback(1, Reason.SERVER_BUSY), 5),
        (p.Subscribe(1, []), 5),
        (p.Subscribe(1, [p.Subscription("a/#/b")]), 5),
        (p.Subscribe(1, [p.Subscription("$share/g/a", no_local=True)]), 5),
        (p.Subscribe(1, [p.Subscription("a", retain_handling=3)]), 5),
        (p.Subscribe(1, [p.Subscription("a")], {Property.SUBSCRIPTION_IDENTIFIER: [1, 2]}), 5),
        (p.Suback(1, []), 5),
        (p.Suback(1, [Reason.NO_SUBSCRIPTION_EXISTED]), 5),
        (p.Unsubscribe(1, []), 5),
        (p.Unsuback(1, []), 5),
        (p.Connect(version=3), 4),
        (p.Connect(version=4, password=b"x"), 4),
        (p.Connect(will=p.Will("")), 5),
        (p.Connect(keep_alive=65536), 5),
        (p.Connect(properties={Property.AUTHENTICATION_DATA: b"x"}), 5),
        (p.Connack(True, Reason.BANNED), 5),
        (p.Connack(False, Reason.MALFORMED_PACKET), 4),
        (p.Disconnect(Reason.SUCCESS, {Property.TOPIC_ALIAS: 1}), 5),
        (p.Auth(), 4),
        (p.Auth(Reason.CONTINUE_AUTHENTICATION), 5),
        (p.Subscription("a"), 5),
    ],
)
def test_what_mqtt_cannot_express_is_a_usage_error(packet: Any, version: int) -> None:
    with pytest.raises(UsageError):
        encode(packet, version)


def test_a_packet_beyond_the_largest_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.mqtt.encode.LONGEST_LENGTH", 100)
    assert len(encode(p.Publish("a", bytes(97)), 4)) == 102
    with pytest.raises(UsageError):
        encode(p.Publish("a", bytes(98)), 4)
