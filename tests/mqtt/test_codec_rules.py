"""Each rule that the decoder enforces: the bytes that break it, the reason code and the clause."""

from __future__ import annotations

import pytest
from mqmesh.mqtt.codec import decode
from mqmesh.mqtt.errors import MalformedPacket, PeerError
from mqmesh.mqtt.reasons import Reason

MALFORMED, PROTOCOL = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
VERSION = Reason.UNSUPPORTED_PROTOCOL_VERSION
ALIAS = Reason.TOPIC_ALIAS_INVALID


def string(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return len(raw).to_bytes(2, "big") + raw


def connect(flags: int, payload: bytes = b"\0\0", level: int = 5, properties: bytes = b"\0", name: bytes = b"MQTT") -> bytes:
    return string(name) + bytes((level, flags)) + b"\0\x0a" + (properties if level == 5 else b"") + payload


def publish5(properties: bytes) -> bytes:
    return string("a") + bytes((len(properties),)) + properties


def connect5(properties: bytes) -> bytes:
    return connect(2, properties=bytes((len(properties),)) + properties)


def connack5(properties: bytes) -> bytes:
    return b"\0\0" + bytes((len(properties),)) + properties


ID = b"\0\x01"

# (first byte, body, version, reason, clause)
RULES = {
    "packet type 0": (0x00, b"", 5, MALFORMED, "2.1.2"),
    "flags of CONNECT": (0x11, connect(2, string("p")), 5, MALFORMED, "MQTT-2.1.3-1"),
    "flags of PUBACK": (0x42, ID, 5, MALFORMED, "MQTT-2.1.3-1"),
    "flags of PUBREL": (0x60, ID, 4, MALFORMED, "MQTT-3.6.1-1"),
    "flags of SUBSCRIBE": (0x80, ID, 5, MALFORMED, "MQTT-3.8.1-1"),
    "flags of UNSUBSCRIBE": (0xA0, ID, 5, MALFORMED, "MQTT-3.10.1-1"),
    "flags of PINGREQ": (0xC1, b"", 5, MALFORMED, "MQTT-2.1.3-1"),
    "flags of DISCONNECT": (0xE1, b"", 5, MALFORMED, "MQTT-3.14.1-1"),
    "flags of AUTH": (0xF1, b"", 5, MALFORMED, "MQTT-3.15.1-1"),
    # CONNECT
    "protocol name": (0x10, connect(2, name=b"MQTS"), 5, VERSION, "MQTT-3.1.2-1"),
    "protocol name that is not UTF-8": (0x10, connect(2, name=b"\xff\xff"), 5, VERSION, "MQTT-3.1.2-1"),
    "protocol level 6": (0x10, connect(2, level=6), 5, VERSION, "MQTT-3.1.2-2"),
    "protocol level 3 of MQTT": (0x10, connect(2, level=3), 5, VERSION, "MQTT-3.1.2-2"),
    "protocol level 4 of MQIsdp": (0x10, connect(2, level=4, name=b"MQIsdp"), 5, VERSION, "MQTT-3.1.2-2"),
    "the bit of a bridge with MQTT 5": (0x10, connect(2, level=0x85), 5, VERSION, "MQTT-3.1.2-2"),
    "no protocol level": (0x10, string("MQTT"), 5, MALFORMED, "4.13.1"),
    "CONNECT that ends in its header": (0x10, string("MQTT") + b"\x05\x02\0", 5, MALFORMED, "4.13.1"),
    "reserved connect flag": (0x10, connect(3), 5, MALFORMED, "MQTT-3.1.2-3"),
    "will QoS without will": (0x10, connect(0x0A), 5, MALFORMED, "MQTT-3.1.2-11"),
    "will retain without will": (0x10, connect(0x22), 4, MALFORMED, "MQTT-3.1.2-13"),
    "will QoS 3": (0x10, connect(0x1E), 5, MALFORMED, "MQTT-3.1.2-12"),
    "will without topic": (0x10, connect(6, b"\0\0\0"), 5, MALFORMED, "4.13.1"),
    "will with an empty topic": (0x10, connect(6, b"\0\0\0\0\0\0\0"), 5, PROTOCOL, "MQTT-4.7.3-1"),
    "will topic with wildcard": (0x10, connect(6, b"\0\0" + string("a/#") + b"\0\0", level=4), 4, MALFORMED, "MQTT-3.3.2-2"),
    "will without payload": (0x10, connect(6, b"\0\0\0" + string("a")), 5, MALFORMED, "4.13.1"),
    "will delay in CONNECT itself": (0x10, connect5(b"\x18\0\0\0\x01"), 5, MALFORMED, "2.2.2.2"),
    "session expiry in a will": (0x10, connect(6, b"\0\0\x05\x11\0\0\0\x01" + string("a") + b"\0\0"), 5, MALFORMED, "2.2.2.2"),
    "user name flag without user name": (0x10, connect(0x82), 5, MALFORMED, "4.13.1"),
    "password flag without password": (0x10, connect(0x42), 5, MALFORMED, "4.13.1"),
    "user name without its flag": (0x10, connect(2, b"\0\0" + string("u")), 5, MALFORMED, "4.13.1"),
    "password without user name in 3.1.1": (0x10, connect(0x42, b"\0\0" + string("p"), level=4), 4, MALFORMED, "3.1.1 MQTT-3.1.2-22"),
    "no client identifier": (0x10, connect(2, b""), 5, MALFORMED, "4.13.1"),
    "client identifier that is not UTF-8": (0x10, connect(2, string(b"\xc0\x80")), 5, MALFORMED, "MQTT-1.5.4-1"),
    "user name with U+0000": (0x10, connect(0x82, b"\0\0" + string("u\0")), 5, MALFORMED, "MQTT-1.5.4-2"),
    "Receive Maximum 0": (0x10, connect5(b"\x21\0\0"), 5, PROTOCOL, "3.1.2.11.3"),
    "Maximum Packet Size 0": (0x10, connect5(b"\x27\0\0\0\0"), 5, PROTOCOL, "3.1.2.11.4"),
    "Request Response Information 2": (0x10, connect5(b"\x19\x02"), 5, PROTOCOL, "2.2.2.2"),
    "Request Problem Information 2": (0x10, connect5(b"\x17\x02"), 5, PROTOCOL, "2.2.2.2"),
    "repeated property": (0x10, connect5(b"\x21\0\x01\x21\0\x01"), 5, PROTOCOL, "2.2.2.2"),
    "Authentication Data without method": (0x10, connect5(b"\x16\0\x01x"), 5, PROTOCOL, "3.1.2.11.10"),
    "no property length": (0x10, string("MQTT") + b"\x05\x02\0\0", 5, MALFORMED, "4.13.1"),
    # CONNACK
    "short CONNACK": (0x20, b"\0", 4, MALFORMED, "4.13.1"),
    "reserved flags in CONNACK": (0x20, b"\x02\0", 4, MALFORMED, "MQTT-3.2.2-1"),
    "Session Present in a refusal": (0x20, b"\x01\x05", 4, PROTOCOL, "MQTT-3.2.2-6"),
    "Session Present in a refusal of 5": (0x20, b"\x01\x87\0", 5, PROTOCOL, "MQTT-3.2.2-6"),
    "return code 6": (0x20, b"\0\x06", 4, PROTOCOL, "3.1.1 3.2.2.3"),
    "reason that CONNACK has not": (0x20, b"\0\x8d\0", 5, PROTOCOL, "MQTT-3.2.2-8"),
    "Maximum QoS 2": (0x20, connack5(b"\x24\x02"), 5, PROTOCOL, "2.2.2.2"),
    "Retain Available 2": (0x20, connack5(b"\x25\x02"), 5, PROTOCOL, "2.2.2.2"),
    "Wildcard Subscription Available 2": (0x20, connack5(b"\x28\x02"), 5, PROTOCOL, "2.2.2.2"),
    "Subscription Identifier Available 2": (0x20, connack5(b"\x29\x02"), 5, PROTOCOL, "2.2.2.2"),
    "Shared Subscription Available 2": (0x20, connack5(b"\x2a\xff"), 5, PROTOCOL, "2.2.2.2"),
    "properties in CONNACK of 3.1.1": (0x20, b"\0\0\0", 4, MALFORMED, "4.13.1"),
    # PUBLISH
    "QoS 3": (0x36, string("a") + ID + b"\0", 5, MALFORMED, "MQTT-3.3.1-4"),
    "DUP at QoS 0": (0x38, string("a") + b"\0", 5, MALFORMED, "MQTT-3.3.1-2"),
    "packet identifier 0 in PUBLISH": (0x32, string("a") + b"\0\0\0", 5, PROTOCOL, "MQTT-2.2.1-3"),
    "no packet identifier": (0x32, string("a") + b"\0", 4, MALFORMED, "4.13.1"),
    "PUBLISH that ends in its topic": (0x30, b"\0\x02a", 4, MALFORMED, "4.13.1"),
    "# in the topic": (0x30, string("a/#") + b"\0", 5, MALFORMED, "MQTT-3.3.2-2"),
    "+ in the topic": (0x30, string("+"), 4, MALFORMED, "MQTT-3.3.2-2"),
    "empty topic without alias": (0x30, b"\0\0\0", 5, PROTOCOL, "3.3.2.1"),
    "empty topic in 3.1.1": (0x30, b"\0\0", 4, PROTOCOL, "MQTT-4.7.3-1"),
    "surrogate": (0x30, string(b"\xed\xa0\x80") + b"\0", 5, MALFORMED, "MQTT-1.5.4-1"),
    "overlong UTF-8": (0x30, string(b"\xc1\xa1"), 4, MALFORMED, "MQTT-1.5.4-1"),
    "UTF-8 beyond U+10FFFF": (0x30, string(b"\xf4\x90\x80\x80"), 4, MALFORMED, "MQTT-1.5.4-1"),
    "cut UTF-8": (0x30, string(b"a\xc3"), 4, MALFORMED, "MQTT-1.5.4-1"),
    "U+0000 in the topic": (0x30, string("a\0b"), 4, MALFORMED, "MQTT-1.5.4-2"),
    "Topic Alias 0": (0x30, publish5(b"\x23\0\0"), 5, ALIAS, "MQTT-3.3.2-8"),
    "Topic Alias twice": (0x30, publish5(b"\x23\0\x01\x23\0\x01"), 5, PROTOCOL, "2.2.2.2"),
    "Subscription Identifier 0": (0x30, publish5(b"\x0b\0"), 5, PROTOCOL, "3.8.2.1.2"),
    "Subscription Identifier of five bytes": (0x30, publish5(b"\x0b\xff\xff\xff\xff\x01"), 5, MALFORMED, "1.5.5"),
    "Subscription Identifier not minimal": (0x30, publish5(b"\x0b\x81\0"), 5, MALFORMED, "MQTT-1.5.5-1"),
    "Payload Format Indicator 2": (0x30, publish5(b"\x01\x02"), 5, PROTOCOL, "2.2.2.2"),
    "Response Topic with wildcard": (0x30, publish5(b"\x08" + string("a/+")), 5, PROTOCOL, "MQTT-3.3.2-14"),
    "Correlation Data twice": (0x30, publish5(b"\x09\0\0\x09\0\0"), 5, PROTOCOL, "2.2.2.2"),
    "User Property with U+0000": (0x30, publish5(b"\x26" + string("a\0") + string("")), 5, MALFORMED, "MQTT-1.5.4-2"),
    "User Property without value": (0x30, publish5(b"\x26" + string("a")), 5, MALFORMED, "4.13.1"),
    "Will Delay Interval in PUBLISH": (0x30, publish5(b"\x18\0\0\0\0"), 5, MALFORMED, "2.2.2.2"),
    "property identifier 0": (0x30, publish5(b"\0"), 5, MALFORMED, "2.2.2.2"),
    "unknown property": (0x30, publish5(b"\x7e"), 5, MALFORMED, "2.2.2.2"),
    "property identifier of two bytes": (0x30, publish5(b"\x81\x01\0"), 5, MALFORMED, "2.2.2.2"),
    "property identifier not minimal": (0x30, publish5(b"\x81\0\0"), 5, MALFORMED, "MQTT-1.5.5-1"),
    "value beyond the property length": (0x30, string("a") + b"\x03\x02\0\0\0\0", 5, MALFORMED, "4.13.1"),
    "property length beyond the packet": (0x30, string("a") + b"\x05\x01\0", 5, MALFORMED, "4.13.1"),
    "property length not minimal": (0x30, string("a") + b"\x80\0", 5, MALFORMED, "MQTT-1.5.5-1"),
    "property length of five bytes": (0x30, string("a") + b"\x80\x80\x80\x80\x01", 5, MALFORMED, "1.5.5"),
    # acknowledgements
    "empty PUBACK": (0x40, b"", 5, MALFORMED, "4.13.1"),
    "packet identifier 0 in PUBACK": (0x40, b"\0\0", 4, PROTOCOL, "MQTT-2.2.1-3"),
    "PUBACK of three bytes in 3.1.1": (0x40, ID + b"\0", 4, MALFORMED, "4.13.1"),
    "reason that PUBACK has not": (0x40, ID + b"\x92", 5, PROTOCOL, "MQTT-3.4.2-1"),
    "reason that PUBREC has not": (0x50, ID + b"\x01", 5, PROTOCOL, "MQTT-3.5.2-1"),
    "reason that PUBREL has not": (0x62, ID + b"\x10", 5, PROTOCOL, "MQTT-3.6.2-1"),
    "reason that PUBCOMP has not": (0x70, ID + b"\x80", 5, PROTOCOL, "MQTT-3.7.2-1"),
    "bytes behind PUBACK": (0x40, ID + b"\0\0\0", 5, MALFORMED, "4.13.1"),
    "Reason String twice": (0x40, ID + b"\0\x06\x1f\0\0\x1f\0\0", 5, PROTOCOL, "2.2.2.2"),
    # SUBSCRIBE
    "packet identifier 0 in SUBSCRIBE": (0x82, b"\0\0\0" + string("a") + b"\0", 5, PROTOCOL, "MQTT-2.2.1-3"),
    "empty SUBSCRIBE": (0x82, ID + b"\0", 5, PROTOCOL, "MQTT-3.8.3-2"),
    "empty SUBSCRIBE of 3.1.1": (0x82, ID, 4, PROTOCOL, "MQTT-3.8.3-2"),
    "filter without options": (0x82, ID + string("a"), 4, MALFORMED, "4.13.1"),
    "QoS 3 in SUBSCRIBE": (0x82, ID + b"\0" + string("a") + b"\x03", 5, PROTOCOL, "3.8.3.1"),
    "Retain Handling 3": (0x82, ID + b"\0" + string("a") + b"\x30", 5, PROTOCOL, "3.8.3.1"),
    "reserved options": (0x82, ID + b"\0" + string("a") + b"\x40", 5, MALFORMED, "MQTT-3.8.3-5"),
    "reserved options in 3.1.1": (0x82, ID + string("a") + b"\x04", 4, MALFORMED, "MQTT-3.8.3-5"),
    "No Local on a shared subscription": (0x82, ID + b"\0" + string("$share/g/a") + b"\x04", 5, PROTOCOL, "MQTT-3.8.3-4"),
    "empty filter": (0x82, ID + b"\0" + string("") + b"\0", 5, MALFORMED, "MQTT-4.7.3-1"),
    "# not last": (0x82, ID + b"\0" + string("a/#/b") + b"\0", 5, MALFORMED, "MQTT-4.7.1-1"),
    "# not alone": (0x82, ID + string("a#") + b"\0", 4, MALFORMED, "MQTT-4.7.1-1"),
    "# twice": (0x82, ID + string("##") + b"\0", 4, MALFORMED, "MQTT-4.7.1-1"),
    "+ not alone": (0x82, ID + string("a/b+/c") + b"\0", 4, MALFORMED, "MQTT-4.7.1-2"),
    "filter with U+0000": (0x82, ID + string("a\0") + b"\0", 4, MALFORMED, "MQTT-1.5.4-2"),
    "share without name": (0x82, ID + b"\0" + string("$share//a") + b"\0", 5, MALFORMED, "MQTT-4.8.2-1"),
    "share without anything": (0x82, ID + b"\0" + string("$share/") + b"\0", 5, MALFORMED, "MQTT-4.8.2-1"),
    "share without filter": (0x82, ID + b"\0" + string("$share/g") + b"\0", 5, MALFORMED, "MQTT-4.8.2-2"),
    "share with an empty filter": (0x82, ID + b"\0" + string("$share/g/") + b"\0", 5, MALFORMED, "MQTT-4.8.2-2"),
    "share name with wildcard": (0x82, ID + b"\0" + string("$share/+/a") + b"\0", 5, MALFORMED, "MQTT-4.8.2-2"),
    "share with a bad filter": (0x82, ID + b"\0" + string("$share/g/a#") + b"\0", 5, MALFORMED, "MQTT-4.7.1-1"),
    "Subscription Identifier twice": (0x82, ID + b"\x04\x0b\x01\x0b\x02" + string("a") + b"\0", 5, PROTOCOL, "2.2.2.2"),
    "Subscription Identifier 0 in SUBSCRIBE": (0x82, ID + b"\x02\x0b\0" + string("a") + b"\0", 5, PROTOCOL, "3.8.2.1.2"),
    "second filter cut": (0x82, ID + b"\0" + string("a") + b"\0\0", 5, MALFORMED, "4.13.1"),
    "SUBACK without code": (0x90, ID + b"\0", 5, PROTOCOL, "MQTT-3.8.4-6"),
    "reason that SUBACK has not": (0x90, ID + b"\0\x10", 5, PROTOCOL, "MQTT-3.9.3-2"),
    "return code that SUBACK has not": (0x90, ID + b"\x87", 4, PROTOCOL, "MQTT-3.9.3-2"),
    # UNSUBSCRIBE
    "empty UNSUBSCRIBE": (0xA2, ID + b"\0", 5, PROTOCOL, "MQTT-3.10.3-2"),
    "empty UNSUBSCRIBE of 3.1.1": (0xA2, ID, 4, PROTOCOL, "MQTT-3.10.3-2"),
    "packet identifier 0 in UNSUBSCRIBE": (0xA2, b"\0\0" + string("a"), 4, PROTOCOL, "MQTT-2.2.1-3"),
    "bad filter in UNSUBSCRIBE": (0xA2, ID + string("a+"), 4, MALFORMED, "MQTT-4.7.1-2"),
    "Subscription Identifier in UNSUBSCRIBE": (0xA2, ID + b"\x02\x0b\x01" + string("a"), 5, MALFORMED, "2.2.2.2"),
    "UNSUBACK without code": (0xB0, ID + b"\0", 5, PROTOCOL, "MQTT-3.11.3-1"),
    "reason that UNSUBACK has not": (0xB0, ID + b"\0\x01", 5, PROTOCOL, "MQTT-3.11.3-2"),
    "UNSUBACK of 3.1.1 with codes": (0xB0, ID + b"\0", 4, MALFORMED, "4.13.1"),
    # the rest
    "PINGREQ with a body": (0xC0, b"\0", 5, MALFORMED, "4.13.1"),
    "PINGRESP with a body": (0xD0, b"\0", 4, MALFORMED, "4.13.1"),
    "DISCONNECT of 3.1.1 with a reason": (0xE0, b"\0", 4, MALFORMED, "4.13.1"),
    "reason that DISCONNECT has not": (0xE0, b"\x85", 5, PROTOCOL, "MQTT-3.14.2-1"),
    "bytes behind DISCONNECT": (0xE0, b"\0\0\0", 5, MALFORMED, "4.13.1"),
    "AUTH in 3.1.1": (0xF0, b"", 4, MALFORMED, "3.1.1 2.2.1"),
    "reason that AUTH has not": (0xF0, b"\x80\0", 5, PROTOCOL, "MQTT-3.15.2-1"),
    "AUTH of one byte": (0xF0, b"\x18", 5, MALFORMED, "4.13.1"),
    "AUTH without method": (0xF0, b"\x18\0", 5, PROTOCOL, "3.15.2.2.2"),
    "bytes behind AUTH": (0xF0, b"\x18\x04\x15\0\x01mx", 5, MALFORMED, "4.13.1"),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    first, body, version, reason, clause = RULES[name]
    with pytest.raises(PeerError) as caught:
        decode(first, body, version)
    assert (caught.value.reason, caught.value.clause) == (reason, clause)
    assert isinstance(caught.value, MalformedPacket) == (reason is MALFORMED)
    assert clause in str(caught.value)


def test_what_looks_wrong_and_is_allowed() -> None:
    """The other side of the fence: cases beside the rules that must pass."""
    decode(0x10, connect(0x42, b"\0\0" + string("p")), 5)  # 3.1.2.9: password without user name in MQTT 5
    decode(0x10, connect(0, level=4), 4)  # Clean Session 0 with an empty identifier: the server answers with return code 2
    decode(0x10, connect(2, string("\ufeffx")), 5)  # [MQTT-1.5.4-3]
    assert decode(0x30, b"\0\0\x03\x23\0\x01", 5).topic == ""  # type: ignore[union-attr]
    decode(0x30, string("$share/g/a"), 4)  # an ordinary topic name
    decode(0x82, ID + string("$share") + b"\0", 4)
    decode(0x82, ID + string("$share/") + b"\0", 4)  # MQTT 3.1.1 has no shared subscriptions
    decode(0x82, ID + b"\0" + string("$share/g//") + b"\0", 5)
    decode(0x82, ID + b"\0" + string("/") + b"\x2e", 5)
    decode(0x30, publish5(b"\x0b\x01\x0b\x02\x26\0\0\0\0\x26\0\0\0\0"), 5)  # repeatable
    decode(0x30, publish5(b"\x02\0\0\0\0\x08\0\1a"), 5)
    decode(0xE0, b"\x00\x05\x11\0\0\0\0", 5)
