"""The suite's own reader refuses what no server may send: what it lets through has been looked at."""

from __future__ import annotations

import pytest

from conformance import wire

from .wire import Unlawful, packet, packets_in, properties, string

BAD_5 = {
    "reserved type": b"\0\0",
    "flags of CONNACK": b"\x21\x03\0\0\0",
    "reserved acknowledge flags": packet(0x20, b"\x02\0\0"),
    "session present in a refusal": packet(0x20, b"\x01\x80\0"),
    "reason code of CONNACK": packet(0x20, b"\0\x8e\0"),
    "property length is missing": packet(0x20, b"\0\0"),
    "property of PUBLISH in CONNACK": packet(0x20, b"\0\0", properties({"topic_alias": 1})),
    "property twice": packet(0x20, b"\0\0", properties({"server_keep_alive": [1, 1]})),
    "receive maximum 0": packet(0x20, b"\0\0", properties({"receive_maximum": 0})),
    "unknown property": packet(0x20, b"\0\0", properties(b"\x7f\0")),
    "ill-formed string": packet(0x20, b"\0\0", properties({"reason_string": b"\xff"})),
    "U+0000": packet(0x20, b"\0\0", properties({"reason_string": "a\0"})),
    "QoS 3": wire.publish("t", b"x", 3, 1),
    "DUP at QoS 0": wire.publish("t", b"x", dup=True),
    "identifier 0": wire.publish("t", b"x", 1, 0),
    "wildcard": wire.publish("t/#", b"x"),
    "no topic and no alias": wire.publish("", b"x"),
    "alias 0": wire.publish("t", b"x", topic_alias=0),
    "session expiry of a server": wire.disconnect(0, session_expiry=1),
    "0x04 of a server": wire.disconnect(4),
    "reason code of PUBACK": wire.acknowledge("PUBACK", 1, 0x92),
    "reason code of PUBREL": wire.acknowledge("PUBREL", 1, 0x10),
    "identifier 0 of PUBACK": wire.acknowledge("PUBACK", 0),
    "SUBACK without codes": packet(0x90, b"\0\1\0"),
    "code of SUBACK": packet(0x90, b"\0\1\0\x03"),
    "code of UNSUBACK": packet(0xB0, b"\0\1\0\x02"),
    "body of PINGRESP": b"\xd0\x01x",
    "flags of PUBREL": b"\x60\x02\0\1",
    "a client's packet": wire.PINGREQ,
    "bytes behind the end": packet(0x40, b"\0\1\0\0x"),
    "length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "length that is not minimal": b"\xd0\x80\0",
}
BAD_4 = {
    "DISCONNECT": wire.disconnect(),
    "AUTH": b"\xf0\0",
    "return code 6": b"\x20\x02\0\x06",
    "code of SUBACK": b"\x90\x03\0\1\x03",
    "codes in UNSUBACK": b"\xb0\x03\0\1\0",
    "reason code in PUBACK": b"\x40\x03\0\1\0",
}


@pytest.mark.parametrize("what", BAD_5)
def test_the_reader_refuses(what: str) -> None:
    with pytest.raises(Unlawful):
        list(packets_in(BAD_5[what], 5))


@pytest.mark.parametrize("what", BAD_4)
def test_the_reader_refuses_in_3_1_1(what: str) -> None:
    with pytest.raises(Unlawful):
        list(packets_in(BAD_4[what], 4))


def test_the_reader_refuses_a_failure_in_suback_of_3_1() -> None:
    data = b"\x90\x03\0\1\x80"
    assert next(packets_in(data, 4)).reasons == [0x80]
    with pytest.raises(Unlawful):
        list(packets_in(data, 3))


def test_the_reader_takes_what_is_good() -> None:
    data = b"".join(
        [
            packet(0x20, b"\1\0", properties({"receive_maximum": 5, "user": [("a", "b"), ("a", "c")]})),
            wire.publish("a/b", b"x", 2, 9, retain=True, dup=True, topic_alias=3, subscription_identifier=[1, 268435455]),
            wire.acknowledge("PUBREL", 7, 0x92, reason_string="ü"),
            packet(0x90, b"\0\5\0", b"\2\x8f"),
            b"\xd0\0",
            packet(0xE0, b"\x8e", properties({"server_reference": "other"})),
        ]
    )
    found = list(packets_in(data + b"\x30", 5))
    assert [one.kind for one in found] == ["CONNACK", "PUBLISH", "PUBREL", "SUBACK", "PINGRESP", "DISCONNECT"]
    assert found[0].properties == {"receive_maximum": 5, "user": [("a", "b"), ("a", "c")]}
    assert (found[1].topic, found[1].payload, found[1].qos, found[1].packet_id) == ("a/b", b"x", 2, 9)
    assert found[1].properties["subscription_identifier"] == [1, 268435455]
    assert found[2].reason == 0x92
    assert found[3].reasons == [2, 0x8F]
    assert sum(one.size for one in found) == len(data)
    assert string("é") == b"\0\2\xc3\xa9"
