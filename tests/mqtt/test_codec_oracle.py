"""Both directions against `mqtt5`, an independent implementation of MQTT 5.0: it reads what we write, we read what it writes,
and bytes that were damaged at random are judged by both.

Where the two disagree, the standard decides. mqtt5 is laxer than the standard in the points that `LAX` lists by our clause, and
stricter where `stricter` says so; everything else must agree.
"""

from __future__ import annotations

import os
import random
from typing import Any

import mqtt5
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mqmesh.mqtt import packets as p
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.properties import PROPERTIES, Property
from support.examples import examples

from .strategies import packets

# What a panic leaves behind in the interpreter is not ours to report.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
os.environ["RUST_BACKTRACE"] = "0"  # mqtt5 panics now and then, see `their_reading`; a backtrace would take a second each time

# Our property -> mqtt5's attribute.
NAMES = {
    Property.PAYLOAD_FORMAT_INDICATOR: "payload_format_indicator",
    Property.MESSAGE_EXPIRY_INTERVAL: "message_expiry_interval",
    Property.CONTENT_TYPE: "content_type",
    Property.RESPONSE_TOPIC: "response_topic",
    Property.CORRELATION_DATA: "correlation_data",
    Property.SUBSCRIPTION_IDENTIFIER: "subscription_ids",
    Property.SESSION_EXPIRY_INTERVAL: "session_expiry_interval",
    Property.ASSIGNED_CLIENT_IDENTIFIER: "assigned_client_id",
    Property.SERVER_KEEP_ALIVE: "server_keep_alive",
    Property.AUTHENTICATION_METHOD: "authentication_method",
    Property.AUTHENTICATION_DATA: "authentication_data",
    Property.REQUEST_PROBLEM_INFORMATION: "request_problem_info",
    Property.WILL_DELAY_INTERVAL: "will_delay_interval",
    Property.REQUEST_RESPONSE_INFORMATION: "request_response_info",
    Property.RESPONSE_INFORMATION: "response_info",
    Property.SERVER_REFERENCE: "server_reference",
    Property.REASON_STRING: "reason_str",
    Property.RECEIVE_MAXIMUM: "receive_max",
    Property.TOPIC_ALIAS_MAXIMUM: "topic_alias_max",
    Property.TOPIC_ALIAS: "topic_alias",
    Property.MAXIMUM_QOS: "max_qos",
    Property.RETAIN_AVAILABLE: "retain_available",
    Property.USER_PROPERTY: "user_properties",
    Property.MAXIMUM_PACKET_SIZE: "max_packet_size",
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: "wildcard_subscription_available",
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: "subscription_id_available",
    Property.SHARED_SUBSCRIPTION_AVAILABLE: "shared_subscription_available",
}
FLAGS = {
    Property.REQUEST_PROBLEM_INFORMATION,
    Property.REQUEST_RESPONSE_INFORMATION,
    Property.RETAIN_AVAILABLE,
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE,
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
    Property.SHARED_SUBSCRIPTION_AVAILABLE,
}
# Values that say what absence says; mqtt5 does not tell the two apart and leaves them out.
DEFAULTS = {
    Property.PAYLOAD_FORMAT_INDICATOR: 0,
    Property.WILL_DELAY_INTERVAL: 0,
    Property.REQUEST_PROBLEM_INFORMATION: 1,
    Property.REQUEST_RESPONSE_INFORMATION: 0,
    Property.RECEIVE_MAXIMUM: 65535,
    Property.TOPIC_ALIAS_MAXIMUM: 0,
    Property.RETAIN_AVAILABLE: 1,
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: 1,
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: 1,
    Property.SHARED_SUBSCRIPTION_AVAILABLE: 1,
}
ACKNOWLEDGEMENTS = {
    p.Puback: (mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    p.Pubrec: (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    p.Pubrel: (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    p.Pubcomp: (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
}


def keywords(properties: dict[int, Any]) -> dict[str, Any]:
    """Our properties as mqtt5's arguments."""
    found = {NAMES[Property(key)]: bool(value) if key in FLAGS else value for key, value in properties.items()}
    if "max_qos" in found:
        found["max_qos"] = mqtt5.QoS(found["max_qos"])
    return found


def theirs(packet: Any) -> Any:
    """Our packet as mqtt5's."""
    match packet:
        case p.Connect():
            will = packet.will and mqtt5.Will(
                packet.will.topic,
                payload=packet.will.payload,
                qos=mqtt5.QoS(packet.will.qos),
                retain=packet.will.retain,
                **keywords(packet.will.properties),
            )
            return mqtt5.ConnectPacket(
                packet.client_id,
                username=packet.user_name,
                password=packet.password,
                clean_start=packet.clean_start,
                will=will,
                keep_alive=packet.keep_alive,
                **keywords(packet.properties),
            )
        case p.Connack():
            code = mqtt5.ConnAckReasonCode(packet.reason)
            return mqtt5.ConnAckPacket(session_present=packet.session_present, reason_code=code, **keywords(packet.properties))
        case p.Publish():
            return mqtt5.PublishPacket(
                packet.topic,
                packet.payload,
                qos=mqtt5.QoS(packet.qos),
                retain=packet.retain,
                packet_id=packet.packet_id or None,
                duplicate=packet.dup,
                **keywords(packet.properties),
            )
        case p.Acknowledgement():
            make, code = ACKNOWLEDGEMENTS[type(packet)]
            return make(packet.packet_id, reason_code=code(packet.reason), **keywords(packet.properties))
        case p.Subscribe():
            options = keywords(packet.properties)
            if identifiers := options.pop("subscription_ids", None):
                options["subscription_id"] = identifiers[0]
            filters = [
                mqtt5.TopicFilter(
                    one.filter,
                    max_qos=mqtt5.QoS(one.qos),
                    no_local=one.no_local,
                    retain_as_published=one.retain_as_published,
                    retain_handling=mqtt5.RetainHandling(one.retain_handling),
                )
                for one in packet.subscriptions
            ]
            return mqtt5.SubscribePacket(packet.packet_id, filters, **options)
        case p.Suback():
            codes = [mqtt5.SubAckReasonCode(code) for code in packet.reasons]
            return mqtt5.SubAckPacket(packet.packet_id, codes, **keywords(packet.properties))
        case p.Unsubscribe():
            return mqtt5.UnsubscribePacket(packet.packet_id, packet.filters, **keywords(packet.properties))
        case p.Unsuback():
            codes = [mqtt5.UnsubAckReasonCode(code) for code in packet.reasons]
            return mqtt5.UnsubAckPacket(packet.packet_id, codes, **keywords(packet.properties))
        case p.Pingreq():
            return mqtt5.PingReqPacket()
        case p.Pingresp():
            return mqtt5.PingRespPacket()
        case p.Disconnect():
            return mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode(packet.reason), **keywords(packet.properties))
        case p.Auth():
            return mqtt5.AuthPacket(reason_code=mqtt5.AuthReasonCode(packet.reason), **keywords(packet.properties))
    raise AssertionError(packet)


def without_defaults(packet: Any) -> Any:
    """The packet without the properties that mqtt5 leaves out; changes it in place."""
    blocks = [getattr(packet, "properties", {})]
    if isinstance(packet, p.Connect):
        if packet.will:
            blocks.append(packet.will.properties)
        if packet.properties.get(Property.SESSION_EXPIRY_INTERVAL) == 0:
            del packet.properties[Property.SESSION_EXPIRY_INTERVAL]
    for properties in blocks:
        for key in [key for key, value in properties.items() if DEFAULTS.get(key) == value]:
            del properties[key]
    return packet


def known_to_them(packet: Any) -> bool:
    """0x8C in DISCONNECT stands in table 2-6 but not in table 3-10; mqtt5 follows the latter. It has no empty AUTH (3.15.2.1)."""
    return not (isinstance(packet, p.Disconnect) and packet.reason == 0x8C) and packet != p.Auth()


def split(data: bytes) -> tuple[int, bytes]:
    [frame] = Framer().feed(data)
    return frame


@settings(max_examples=examples(200))
@given(packets(5).filter(known_to_them))
def test_they_read_what_we_write(packet: Any) -> None:
    data = encode(packet, 5)
    read, size = mqtt5.read(memoryview(data))
    assert size == len(data)
    assert read == theirs(packet)


@settings(max_examples=examples(200))
@given(packets(5).filter(known_to_them))
def test_we_read_what_they_write(packet: Any) -> None:
    data = theirs(packet).write()
    assert decode(*split(data), 5) == without_defaults(packet)


# What mqtt5 accepts although the standard forbids it, by the clause of our refusal.
LAX = {
    "MQTT-2.2.1-3",  # packet identifier 0
    "MQTT-3.3.1-2",  # DUP at QoS 0
    "MQTT-3.3.2-2",  # wildcard in a topic name
    "MQTT-3.3.2-8",  # Topic Alias 0
    "MQTT-3.3.2-14",  # wildcard in Response Topic
    "MQTT-3.1.2-3",  # reserved connect flag
    "MQTT-3.1.2-11",  # will QoS without will
    "MQTT-3.1.2-13",  # will retain without will
    "MQTT-3.8.3-2",  # SUBSCRIBE without filters
    "MQTT-3.10.3-2",  # UNSUBSCRIBE without filters
    "MQTT-3.2.2-1",  # reserved bits of CONNACK
    "MQTT-3.2.2-6",  # Session Present in a refusal
    "MQTT-3.8.3-4",  # No Local on a shared subscription
    "MQTT-3.8.3-5",  # reserved subscription options
    "MQTT-3.8.4-6",  # SUBACK without codes
    "MQTT-3.11.3-1",  # UNSUBACK without codes
    "MQTT-4.7.1-1",  # filters
    "MQTT-4.7.1-2",
    "MQTT-4.7.3-1",
    "MQTT-4.8.2-1",
    "MQTT-4.8.2-2",
    "MQTT-1.5.4-2",  # U+0000
    "3.1.2.11.3",  # Receive Maximum 0
    "3.1.2.11.4",  # Maximum Packet Size 0
    "3.8.2.1.2",  # Subscription Identifier 0
    "3.1.2.11.10",  # Authentication Data without method
    "3.15.2.2.2",  # AUTH without method
    "2.2.2.2",  # repeated properties
}

# mqtt5 lets a value reach beyond the Property Length (2.2.2.1).
OVERRUNS = {f"the packet ends inside {rule.name}" for rule in PROPERTIES.values()} | {"the packet ends inside a property identifier"}


def mutate(data: bytes, seed: int) -> bytes:
    """Damage a packet's body; its Remaining Length stays right, so that the parsers, not the framing, judge it."""
    chance = random.Random(seed)
    first, body = split(data)
    changed = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0 if at < len(changed):
                changed[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 1 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                del changed[at : at + chance.randrange(1, 4)]
            case _:
                changed[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 3)))
    if chance.random() < 0.1:
        first ^= 1 << chance.randrange(8)
    assume(len(changed) < 128)
    return bytes((first, len(changed))) + changed


@settings(max_examples=examples(500))
@given(packets(5), st.integers(0, 2**32))
def test_damaged_packets_are_judged_alike(packet: Any, seed: int) -> None:
    data = encode(packet, 5)
    assume(len(data) < 128)
    data = mutate(data, seed)
    judge(data)


def judge(data: bytes) -> None:
    """Both read the bytes and must agree but for what LAX and `stricter` name."""
    refusal: PeerError | None = None
    ours: Any = None
    try:
        ours = decode(data[0], data[2:], 5)
    except PeerError as error:
        refusal = error
    if refusal is not None and refusal.clause == "MQTT-1.5.4-1":
        return  # mqtt5 panics where UTF-8 is ill-formed
    read = their_reading(data)
    if refusal is not None:
        assert read is None or refusal.clause in LAX or refusal.text in OVERRUNS, f"they accept {data.hex()} as {read}; we say {refusal}"
    elif read is None:
        assert stricter(ours), f"they refuse {data.hex()}, we read {ours}"
    elif not (isinstance(ours, p.Connect) and ours.version != 5):
        assert theirs(without_defaults(ours)) == read


def their_reading(data: bytes) -> Any:
    """What mqtt5 reads in exactly these bytes; None if it refuses them or panics."""
    try:
        read, size = mqtt5.read(memoryview(data))
    except (ValueError, IndexError):
        return None
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            return None
        raise
    assert size == len(data)
    return read


def stricter(ours: Any) -> bool:
    """What mqtt5 refuses although the standard allows it."""
    if isinstance(ours, p.Connect) and ours.version != 5:
        return True  # MQTT 3.1.1
    return not known_to_them(ours)


@pytest.mark.parametrize("data", ["40020000", "30050001230078", "8207000100000161c0"])
def test_known_cases_where_the_oracle_is_lax(data: str) -> None:
    raw = bytes.fromhex(data)
    assert mqtt5.read(memoryview(raw))
    with pytest.raises(PeerError):
        decode(raw[0], raw[2:], 5)
