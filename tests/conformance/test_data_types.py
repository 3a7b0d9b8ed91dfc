"""Data types, fixed header, packet identifiers, property lengths (1.5, 2 of both specifications)."""

from __future__ import annotations

import pytest

from conformance import wire

from .lab import Client, Lab, fresh
from .statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82

# Overlong forms, surrogates, above U+10FFFF, a byte that begins nothing, a character cut off, Latin-1.
ILL_FORMED = [
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xe0\x80\xaf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xff",
    b"a\xe2\x82",
    b"caf\xe9",
]

# A packet with a string in it, by where the string stands.
PLACES = {
    "topic of PUBLISH": lambda text, version: wire.publish(text, b"x", version=version),
    "topic of PUBLISH, QoS 1": lambda text, version: wire.publish(text, b"x", 1, 1, version=version),
    "filter of SUBSCRIBE": lambda text, version: wire.subscribe(1, (text, 0), version=version),
    "filter of UNSUBSCRIBE": lambda text, version: wire.unsubscribe(1, text, version=version),
}
PLACES_5 = {
    "Content Type": lambda text, version: wire.publish("t", content_type=text),
    "Response Topic": lambda text, version: wire.publish("t", response_topic=text),
    "name of a User Property": lambda text, version: wire.publish("t", user=(text, "")),
    "value of a User Property": lambda text, version: wire.publish("t", user=("", text)),
    "Reason String of PUBACK": lambda text, version: wire.acknowledge("PUBACK", 1, 0, reason_string=text),
    "Reason String of DISCONNECT": lambda text, version: wire.disconnect(0, reason_string=text),
    "User Property of SUBSCRIBE": lambda text, version: wire.subscribe(1, ("t", 0), user=("a", text)),
}


def everywhere(version: int) -> dict[str, object]:
    return PLACES | PLACES_5 if version == 5 else PLACES


@states(mqtt311="1.5.3-1 3.3.2-1 3.8.3-1 3.10.3-1 4.8.0-1", mqtt5="1.5.4-1 1.5.7-1 3.3.2-1 3.3.2-13 3.3.2-19 3.8.3-1 3.10.3-1 4.13.1-1")
def test_ill_formed_utf8_ends_the_connection(lab: Lab, version: int) -> None:
    for number, write in enumerate(everywhere(version).values()):
        # each string in one place at least, the surrogate everywhere
        for text in (ILL_FORMED[3], ILL_FORMED[number % len(ILL_FORMED)]):
            client = lab.client(version)
            client.send(write(b"a/" + text, version))
            client.refused(MALFORMED, PROTOCOL_ERROR, 0x8F, 0x90)


@states(mqtt311="1.5.3-1", mqtt5="1.5.4-1")
def test_every_ill_formed_sequence_is_found(lab: Lab, version: int) -> None:
    for text in ILL_FORMED:
        client = lab.client(version)
        client.send(wire.publish(text, b"x", version=version))
        client.refused(MALFORMED, PROTOCOL_ERROR, 0x90)


@states(mqtt311="1.5.3-1 3.1.3-4 3.1.3-10 3.1.3-11 3.1.4-1", mqtt5="1.5.4-1 3.1.3-4 3.1.3-11 3.1.3-12 3.1.4-1")
def test_ill_formed_utf8_in_connect(lab: Lab, version: int) -> None:
    for text in (b"a\xed\xa0\x80", b"\xff", b"a\0b"):
        for packet in (
            wire.connect(text, version),
            wire.connect(fresh(), version, will=wire.Will(text)),
            wire.connect(fresh(), version, user=text),
        ):
            client = lab.dial(version)
            client.send(packet)
            refusal = client.receive()
            # MQTT 5 may say why (0x85 for an identifier, 0x90 for a will topic)
            assert refusal is None or (
                version == 5 and refusal.kind == "CONNACK" and refusal.reason in (MALFORMED, PROTOCOL_ERROR, 0x80, 0x85, 0x90)
            )
            assert client.receive() is None


@states(mqtt311="1.5.3-2 4.7.3-2", mqtt5="1.5.4-2 1.5.7-1 4.7.3-2")
def test_u_0000_ends_the_connection(lab: Lab, version: int) -> None:
    for write in everywhere(version).values():
        client = lab.client(version)
        client.send(write(b"a/\0b", version))
        client.refused(MALFORMED, PROTOCOL_ERROR, 0x8F, 0x90)


@states(mqtt311="1.5.3-3 4.7.3-4", mqtt5="1.5.4-3 4.7.3-4")
def test_ef_bb_bf_is_a_character(lab: Lab, version: int) -> None:
    client, writer = lab.client(version), lab.client(version)
    topic = fresh()
    client.subscribe(wire.BOM + topic, f"{topic}/{wire.BOM}")
    writer.publish(topic, b"without")
    for name in (wire.BOM + topic, f"{topic}/{wire.BOM}"):
        writer.publish(name, b"with")
        client.message(name, b"with")
    client.nothing()


# 1.5.5: variable byte integers. A Remaining Length or Property Length of more bytes than it needs, or of more than four.
def _long_form(packet: bytes) -> bytes:
    """The same packet with one byte more in its Remaining Length."""
    length = wire.Reader(packet[1:]).varint()
    digits = wire.varint(length)
    return packet[:1] + digits[:-1] + bytes((digits[-1] | 0x80, 0)) + packet[1 + len(digits) :]


@states(mqtt5="1.5.5-1 4.13.1-1")
def test_a_property_length_that_is_not_minimal_is_malformed(lab: Lab, version: int) -> None:
    for block in (b"\x80\0", b"\x80\x80\0", b"\x80\x80\x80\0"):
        client = lab.client()
        client.send(wire.packet(0x30, wire.string("t"), block, b"x"))
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt5="1.5.5-1")
def test_a_remaining_length_that_is_not_minimal_is_malformed(lab: Lab, version: int) -> None:
    for packet in (wire.publish("t", b"x"), wire.subscribe(1, ("t", 0)), wire.disconnect(0), wire.PINGREQ):
        client = lab.client()
        client.send(_long_form(packet))
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt5="1.5.5-1")
def test_a_subscription_identifier_that_is_not_minimal_is_malformed(lab: Lab, version: int) -> None:
    client = lab.client()
    client.send(wire.subscribe(1, ("t", 0), block=b"\x0b\x81\0"))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="4.8.0-1", mqtt5="4.13.1-1")
def test_a_remaining_length_of_five_bytes_ends_the_connection(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(b"\x30\xff\xff\xff\xff\x7f")
    client.refused(MALFORMED, PROTOCOL_ERROR)
    client = lab.dial(version)
    client.send(b"\x10\xff\xff\xff\xff\x7f")
    assert [one.kind for one in client.rest()] in ([], ["CONNACK"])


@states(mqtt311="2.2.2-1 2.2.2-2 4.8.0-1", mqtt5="2.1.3-1 4.13.1-1")
@pytest.mark.parametrize("kind", ["PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE", "UNSUBSCRIBE", "PINGREQ", "DISCONNECT"])
def test_reserved_flags_of_the_fixed_header(lab: Lab, version: int, kind: str) -> None:
    packets = {
        "SUBSCRIBE": wire.subscribe(1, ("t", 0), version=version),
        "UNSUBSCRIBE": wire.unsubscribe(1, "t", version=version),
        "PINGREQ": wire.PINGREQ,
        "DISCONNECT": wire.disconnect(),
    }
    packet = packets.get(kind) or wire.acknowledge(kind, 1)
    for flags in {0, 1, 2, 4, 8, 15} - {packet[0] & 15}:
        client = lab.client(version)
        client.send(bytes((packet[0] & 0xF0 | flags,)) + packet[1:])
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="2.2.2-2 3.1.4-1", mqtt5="2.1.3-1 3.1.4-1")
def test_reserved_flags_of_connect(lab: Lab, version: int) -> None:
    for flags in (1, 2, 4, 8):
        client = lab.dial(version)
        client.send(bytes((0x10 | flags,)) + wire.connect(fresh(), version)[1:])
        answer = client.receive()
        if answer is not None:  # MQTT 5 may say why
            assert (version, answer.kind, answer.reason) == (5, "CONNACK", MALFORMED)
            assert client.receive() is None


@states(mqtt311="4.8.0-1", mqtt5="4.13.1-1")
def test_packet_type_0_and_what_only_a_server_sends(lab: Lab, version: int) -> None:
    packets = [b"\0\0", b"\x20\x02\0\0", b"\x90\x03\0\x01\0", b"\xb0\x02\0\x01", b"\xd0\0"]
    if version != 5:
        packets.append(b"\xf0\0")
    for packet in packets:
        client = lab.client(version)
        client.send(packet)
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="2.3.1-1", mqtt5="2.2.1-3")
def test_packet_identifier_0_ends_the_connection(lab: Lab, version: int) -> None:
    for packet in (
        wire.publish("t", b"x", 1, 0, version=version),
        wire.publish("t", b"x", 2, 0, version=version),
        wire.subscribe(0, ("t", 0), version=version),
        wire.unsubscribe(0, "t", version=version),
    ):
        client = lab.client(version)
        client.send(packet)
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="2.3.1-5", mqtt5="2.2.1-2")
def test_qos_0_has_no_packet_identifier(lab: Lab, version: int) -> None:
    client = lab.client(version)
    topic = fresh()
    client.subscribe((topic, 2))
    client.send(wire.publish(topic, b"\x07\x01x", version=version))
    # what stands where an identifier would be is the payload's
    client.message(topic, b"\x07\x01x", qos=0, packet_id=0)
    client.nothing()


@states(mqtt311="2.3.1-4 2.3.1-1 4.3.2-1 4.3.3-1", mqtt5="2.2.1-4 4.3.2-1 4.3.2-2 4.3.3-1 4.3.3-2")
def test_the_broker_s_packet_identifiers_are_free_ones(lab: Lab, version: int) -> None:
    topic = fresh()
    reader, writer = lab.client(version), lab.client(version)
    reader.subscribe((f"{topic}/1", 1), (f"{topic}/2", 2))
    busy: set[int] = set()
    for number in range(12):
        qos = 1 + number % 2
        writer.publish(f"{topic}/{qos}", b"%d" % number, qos)
        found = reader.message(finish=False, qos=qos, dup=False)
        assert found.packet_id not in busy
        busy.add(found.packet_id)
        if number % 4 == 3:  # some are free again
            reader.send(wire.acknowledge("PUBREC", found.packet_id))
            reader.expect("PUBREL", packet_id=found.packet_id)
            reader.send(wire.acknowledge("PUBCOMP", found.packet_id))
            busy.discard(found.packet_id)


@states(mqtt311="2.3.1-6", mqtt5="2.2.1-5")
def test_answers_carry_the_identifier_of_their_publish(lab: Lab, version: int) -> None:
    client = lab.client(version)
    for number in (1, 255, 256, 65535):
        client.send(wire.publish("t", b"x", 1, number, version=version))
        client.expect("PUBACK", packet_id=number)
        client.send(wire.publish("t", b"x", 2, number, version=version))
        client.expect("PUBREC", packet_id=number)
        client.send(wire.acknowledge("PUBREL", number))
        client.expect("PUBCOMP", packet_id=number)


@states(mqtt311="2.3.1-6", mqtt5="2.2.1-5")
def test_pubrel_of_the_broker_carries_the_identifier_of_its_publish(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    client.subscribe((topic, 2))
    for number in range(3):
        writer.publish(topic, b"%d" % number, 2)
    numbers = [client.message(finish=False, qos=2).packet_id for _ in range(3)]
    for number in reversed(numbers):
        client.send(wire.acknowledge("PUBREC", number))
        client.expect("PUBREL", packet_id=number)


@states(mqtt311="2.3.1-7", mqtt5="2.2.1-6")
def test_suback_and_unsuback_carry_the_identifier_of_what_they_answer(lab: Lab, version: int) -> None:
    client = lab.client(version)
    for number in (65535, 1, 258):
        client.send(wire.subscribe(number, ("t", 0), version=version))
        client.expect("SUBACK", packet_id=number)
        client.send(wire.unsubscribe(number, "t", version=version))
        client.expect("UNSUBACK", packet_id=number)


@states(mqtt5="2.2.2-1")
def test_a_property_length_is_there_also_when_it_is_0(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client()
    client.subscribe((topic, 0))
    client.send(wire.publish(topic, b"\x02hi"))
    client.message(topic, b"\x02hi", properties={})
    for broken in (
        wire.packet(0x82, wire.u16(9)),
        wire.packet(0x30, wire.string(topic)),
        wire.packet(0x30, wire.string(topic), b"\x05"),
        wire.packet(0x30, wire.string(topic), b"\x02\x01"),
    ):
        other = lab.client()
        other.send(broken)
        other.refused(MALFORMED, PROTOCOL_ERROR)


# 2.2.2: properties that are unknown, out of place, twice, or out of range.

MISPLACED = {
    "unknown": wire.publish("t", block=b"\x7f\0"),
    "Will Delay in PUBLISH": wire.publish("t", will_delay=1),
    "Reason String in PUBLISH": wire.publish("t", reason_string="x"),
    "Session Expiry in SUBSCRIBE": wire.subscribe(1, ("t", 0), session_expiry=1),
    "Topic Alias in SUBSCRIBE": wire.subscribe(1, ("t", 0), topic_alias=1),
    "Subscription Identifier in UNSUBSCRIBE": wire.unsubscribe(1, "t", subscription_identifier=1),
    "Content Type in PUBACK": wire.acknowledge("PUBACK", 1, 0, content_type="x"),
    "Server Reference in PUBREL": wire.acknowledge("PUBREL", 1, 0, server_reference="x"),
    "Receive Maximum in DISCONNECT": wire.disconnect(0, receive_maximum=1),
    "Payload Format twice": wire.publish("t", payload_format=[1, 1]),
    "Message Expiry twice": wire.publish("t", message_expiry=[5, 6]),
    "Content Type twice": wire.publish("t", content_type=["a", "b"]),
    "Response Topic twice": wire.publish("t", response_topic=["a", "b"]),
    "Correlation Data twice": wire.publish("t", correlation_data=[b"a", b"b"]),
    "Topic Alias twice": wire.publish("t", topic_alias=[1, 1]),
    "Subscription Identifier twice": wire.subscribe(1, ("t", 0), subscription_identifier=[1, 2]),
    "Reason String twice": wire.acknowledge("PUBACK", 1, 0, reason_string=["a", "b"]),
    "Session Expiry twice": wire.disconnect(0, session_expiry=[0, 0]),
    "Payload Format 2": wire.publish("t", payload_format=2),
    "Subscription Identifier 0": wire.subscribe(1, ("t", 0), subscription_identifier=0),
    "Property Length too short": wire.packet(0x30, wire.string("t"), b"\x03", wire.one_property("content_type", "abc"), b"x"),
    "Property Length too long": wire.packet(0x30, wire.string("t"), b"\x7f", wire.one_property("content_type", "abc")),
}


@states(mqtt5="4.13.1-1")
@pytest.mark.parametrize("what", MISPLACED)
def test_a_property_out_of_place_ends_the_connection(lab: Lab, version: int, what: str) -> None:
    client = lab.client()
    client.send(MISPLACED[what])
    client.refused(MALFORMED, PROTOCOL_ERROR)


CONNECT_PROPERTIES = {
    "unknown": {"block": b"\x7f\0"},
    "Topic Alias": {"topic_alias": 1},
    "Will Delay": {"will_delay": 1},
    "Session Expiry twice": {"session_expiry": [1, 1]},
    "Receive Maximum twice": {"receive_maximum": [1, 1]},
    "Receive Maximum 0": {"receive_maximum": 0},
    "Maximum Packet Size 0": {"maximum_packet_size": 0},
    "Maximum Packet Size twice": {"maximum_packet_size": [1000, 1000]},
    "Topic Alias Maximum twice": {"topic_alias_maximum": [1, 1]},
    "Request Response Information 2": {"request_response": 2},
    "Request Problem Information 2": {"request_problem": 2},
    "Authentication Data alone": {"authentication_data": b"x"},
    "Authentication Method twice": {"authentication_method": ["a", "a"]},
}


@states(mqtt5="3.1.4-1 4.13.1-1 3.2.2-7")
@pytest.mark.parametrize("what", CONNECT_PROPERTIES)
def test_a_property_of_connect_out_of_place_is_refused(lab: Lab, version: int, what: str) -> None:
    client = lab.dial()
    client.send(wire.connect(fresh(), **CONNECT_PROPERTIES[what]))  # type: ignore[arg-type]
    refusal = client.receive()
    assert refusal is None or (refusal.kind == "CONNACK" and refusal.reason in (MALFORMED, PROTOCOL_ERROR))
    assert client.receive() is None


@states(mqtt5="3.1.4-1 4.13.1-1")
def test_properties_of_a_will_out_of_place_are_refused(lab: Lab, version: int) -> None:
    for given in ({"session_expiry": 1}, {"will_delay": [1, 2]}, {"topic_alias": 1}, {"payload_format": 2}, {"response_topic": "a/#"}):
        client = lab.dial()
        client.send(wire.connect(fresh(), will=wire.Will("w", properties=given)))
        refusal = client.receive()
        assert refusal is None or (refusal.kind == "CONNACK" and refusal.reason >= 0x80)
        assert client.receive() is None


def bytewise(client: Client, data: bytes) -> None:
    for index in range(len(data)):
        client.send(data[index : index + 1])


@states(mqtt311="7.1.1-1", mqtt5="4.2.0-1")
def test_tcp_is_a_stream_however_it_is_cut(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.dial(version)
    packets = [
        wire.connect(fresh("c"), version),
        wire.subscribe(1, (topic, 1), version=version),
        wire.publish(topic, b"a" * 200, 1, 2, version=version),
        wire.publish(topic, b"b", version=version),
        wire.PINGREQ,
    ]
    bytewise(client, b"".join(packets))
    assert sorted(client.receive().kind for _ in range(6)) == ["CONNACK", "PINGRESP", "PUBACK", "PUBLISH", "PUBLISH", "SUBACK"]
    other = lab.dial(version)
    other.send(*packets)
    assert sorted(other.receive().kind for _ in range(6)) == ["CONNACK", "PINGRESP", "PUBACK", "PUBLISH", "PUBLISH", "SUBACK"]


@states(mqtt311="7.0.0-2")
def test_a_client_without_any_extension_is_served(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    for qos in (0, 1, 2):
        assert client.subscribe((topic, qos)) == [qos]
        assert writer.publish(topic, b"plain", qos) == 0
        client.message(topic, b"plain", qos=qos)
    client.unsubscribe(topic)
    client.leave()


@states(mqtt311="4.7.3-3", mqtt5="4.7.3-3")
def test_a_topic_of_65535_bytes_is_the_longest(lab: Lab, version: int) -> None:
    client = lab.client(version)
    topic = fresh() + "y" * 70000
    longest = topic[:65535]
    assert client.subscribe((longest, 0)) == [0]
    client.send(wire.publish(longest, b"x", version=version))
    client.message(longest, b"x")
    client.nothing()
