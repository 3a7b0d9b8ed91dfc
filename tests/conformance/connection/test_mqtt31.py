"""MQTT 3.1 (protocol name MQIsdp, level 3): what its clients get. It has no numbered statements."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Lab, fresh


def test_a_client_of_mqtt_3_1_is_served(lab: Lab) -> None:
    topic = fresh()
    client = lab.client(3)
    for qos in range(3):
        assert client.subscribe((topic, qos)) == [qos]
        for sent in range(3):
            lab.client(3).publish(topic, b"x", sent)
            client.message(topic, b"x", qos=min(qos, sent))
    assert client.unsubscribe(topic) == []
    client.leave()


def test_mqtt_3_1_and_others_reach_each_other(lab: Lab) -> None:
    topic = fresh()
    clients = {version: lab.client(version) for version in (3, 4, 5)}
    for client in clients.values():
        client.subscribe((topic, 2))
    for version in clients:
        lab.client(version).publish(topic, b"%d" % version, 2)
        for client in clients.values():
            client.message(topic, b"%d" % version, qos=2)


def test_a_session_of_mqtt_3_1_is_kept(lab: Lab) -> None:
    topic = fresh()
    client = lab.client(3, clean=False)
    client.subscribe((topic, 1))
    client.leave()
    lab.client().publish(topic, b"x")
    again = lab.client(3, client.client_id, clean=False)
    again.message(topic, b"x")
    clean = lab.client(3, client.client_id)
    clean.nothing()


def test_mqtt_3_1_has_no_session_present(lab: Lab) -> None:
    """The byte is reserved in 3.1's CONNACK; clients of that time may compare it with 0."""
    client = lab.client(3, clean=False)
    client.leave()
    assert not lab.client(3, client.client_id, clean=False).connack.session_present


def test_mqtt_3_1_has_no_failure_in_suback(lab: Lab) -> None:
    """The codes of its SUBACK are QoS levels: the reader refuses 0x80. A filter that is not taken ends the connection or is granted."""
    client = lab.client(3)
    client.send(wire.subscribe(1, ("/".join(["a"] * 1000), 1), version=3))
    found = client.receive()
    assert found is None or found.kind == "SUBACK"


def test_mqtt_3_1_needs_an_identifier(lab: Lab) -> None:
    for clean in (True, False):
        client = lab.client(3, "", reason=2, clean=clean)
        assert client.receive() is None


@pytest.mark.parametrize("length", [1, 22, 23])
def test_identifiers_of_mqtt_3_1(lab: Lab, length: int) -> None:
    lab.client(3, (fresh() + "x" * 23)[-length:]).leave()


def test_a_long_identifier_of_mqtt_3_1_is_refused_with_2_or_served(lab: Lab) -> None:
    client = lab.dial(3)
    client.send(wire.connect(fresh() + "x" * 40, 3))
    assert client.expect("CONNACK").reason in (0, 2)


def test_a_will_of_mqtt_3_1(lab: Lab) -> None:
    topic = fresh()
    watcher = lab.client()
    watcher.subscribe(topic)
    lab.client(3, will=wire.Will(topic, b"gone", 1)).hang_up()
    watcher.message(topic, b"gone", qos=1)


def test_the_names_and_levels_belong_together(lab: Lab) -> None:
    for name, level in (("MQIsdp", 4), ("MQTT", 3)):
        client = lab.dial(4)
        client.send(wire.connect(fresh(), 4, name=name, level=level))
        found = client.rest()
        assert [(one.kind, one.reason) for one in found] in ([], [("CONNACK", 1)])


def test_dup_on_other_packets_of_mqtt_3_1(lab: Lab) -> None:
    """3.1 lets DUP be set on SUBSCRIBE, UNSUBSCRIBE and PUBREL that are sent again; to close such a client would shut it out."""
    topic = fresh()
    client = lab.client(3)
    client.send(b"\x8a" + wire.subscribe(1, (topic, 2), version=3)[1:])
    client.expect("SUBACK", packet_id=1)
    client.send(wire.publish("t", b"x", 2, 2, version=3))
    client.expect("PUBREC")
    client.send(b"\x6a" + wire.acknowledge("PUBREL", 2)[1:])
    client.expect("PUBCOMP", packet_id=2)
    client.send(b"\xaa" + wire.unsubscribe(3, topic, version=3)[1:])
    client.expect("UNSUBACK", packet_id=3)


def test_bits_that_mqtt_3_1_does_not_use_may_be_set(lab: Lab) -> None:
    """Its CONNECT does not use DUP, QoS and RETAIN of the fixed header, nor bit 0 of the Connect Flags, and demands no value."""
    plain = wire.connect(fresh(), 3)
    assert plain[:11] == plain[:2] + b"\0\6MQIsdp\3"
    for first in (plain[0], *(plain[0] | flags for flags in (1, 2, 4, 8, 15))):
        client = lab.dial(3)
        client.send(bytes((first,)) + plain[1:11] + bytes((plain[11] | 1,)) + plain[12:])
        client.expect("CONNACK", reason=0)
