"""The handshakes of QoS 0, 1 and 2 in both directions (3.4 to 3.7, 4.3), and packets that are too large for words (3.x.2)."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Client, Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


@states(mqtt311="3.3.4-1 4.3.2-2 4.3.3-2", mqtt5="3.3.4-1 4.3.2-4 4.3.3-8 4.3.3-11")
def test_publish_is_answered_as_its_qos_says(lab: Lab, version: int) -> None:
    client = lab.client(version)
    topic = fresh()
    client.send(wire.publish(topic, b"0", version=version))
    client.nothing()
    client.send(wire.publish(topic, b"1", 1, 10, version=version))
    client.expect("PUBACK", packet_id=10)
    client.send(wire.publish(topic, b"2", 2, 11, version=version))
    client.expect("PUBREC", packet_id=11)
    client.send(wire.acknowledge("PUBREL", 11))
    client.expect("PUBCOMP", packet_id=11)
    client.nothing()


@states(mqtt311="4.3.2-2", mqtt5="4.3.2-5")
def test_qos_1_after_puback_the_identifier_is_a_new_message(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version)
    for number in range(3):
        client.send(wire.publish(topic, b"%d" % number, 1, 5, dup=number > 0, version=version))
        client.expect("PUBACK", packet_id=5)
    assert watcher.payloads(3) == [b"0", b"1", b"2"]


@states(mqtt311="4.3.3-2", mqtt5="4.3.3-10")
def test_qos_2_is_delivered_once_until_pubrel(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version)
    for number in range(4):
        client.send(wire.publish(topic, b"once", 2, 5, dup=number > 0, version=version))
        client.expect("PUBREC", packet_id=5)
    client.send(wire.acknowledge("PUBREL", 5))
    client.expect("PUBCOMP", packet_id=5)
    watcher.message(topic, b"once")
    watcher.nothing()


@states(mqtt311="4.3.3-2", mqtt5="4.3.3-10 4.3.3-12")
def test_qos_2_in_one_piece(lab: Lab, version: int) -> None:
    """Several packets of one identifier in one piece of bytes: repeated, released, used anew."""
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version)
    first, again = (wire.publish(topic, b"1", 2, 5, dup=dup, version=version) for dup in (False, True))
    client.send(
        first, again, wire.acknowledge("PUBREL", 5), wire.publish(topic, b"2", 2, 5, version=version), wire.acknowledge("PUBREL", 5)
    )
    found = [client.receive() for _ in range(5)]
    assert [one.kind for one in found if one] == ["PUBREC", "PUBREC", "PUBCOMP", "PUBREC", "PUBCOMP"]
    assert watcher.payloads(2) == [b"1", b"2"]
    watcher.nothing()


@states(mqtt311="4.3.3-2", mqtt5="4.3.3-12")
def test_qos_2_after_pubcomp_the_identifier_is_a_new_message(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version)
    for number in range(3):
        client.send(wire.publish(topic, b"%d" % number, 2, 5, dup=number == 2, version=version))
        client.expect("PUBREC", packet_id=5)
        client.send(wire.acknowledge("PUBREL", 5))
        client.expect("PUBCOMP", packet_id=5)
    assert watcher.payloads(3) == [b"0", b"1", b"2"]


@states(mqtt5="4.3.3-9 3.5.2-1")
def test_qos_2_after_a_refusal_the_identifier_is_a_new_message(lab: Lab, version: int) -> None:
    """A payload that is not as it says is what this broker may refuse in PUBREC; others accept it, or end the connection."""
    topic = fresh()
    watcher = lab.client()
    watcher.subscribe(topic)
    client = lab.client()
    client.send(wire.publish(topic, b"\xff", 2, 5, payload_format=1))
    answer = client.receive()
    assert answer is not None
    if answer.kind == "DISCONNECT":
        assert answer.reason == 0x99
        client = lab.client()
    elif answer.reason < 0x80:
        client.send(wire.acknowledge("PUBREL", 5))
        client.expect("PUBCOMP", packet_id=5)
        watcher.message(topic, b"\xff")
    client.send(wire.publish(topic, b"good", 2, 5))
    client.expect("PUBREC", packet_id=5, reason=0)
    client.send(wire.acknowledge("PUBREL", 5))
    client.expect("PUBCOMP", packet_id=5, reason=0)
    watcher.message(topic, b"good")
    watcher.nothing()


@states(mqtt311="4.3.3-2", mqtt5="4.3.3-11 3.7.2-1")
def test_pubrel_is_answered_also_when_nothing_is_known(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(wire.acknowledge("PUBREL", 77))
    assert client.expect("PUBCOMP", packet_id=77).reason in ((0, 0x92) if version == 5 else (0,))
    client.nothing()


@states(mqtt5="3.6.2-1 4.3.3-4")
def test_pubrec_for_nothing_is_answered_with_0x92_or_not(lab: Lab, version: int) -> None:
    client = lab.client()
    client.send(wire.acknowledge("PUBREC", 77), wire.PINGREQ)
    found = client.receive()
    assert found is not None
    if found.kind == "PUBREL":
        assert found.packet_id == 77
        assert found.reason in (0, 0x92)
        client.expect("PINGRESP")


@states(mqtt5="3.4.2-1 3.7.2-1 4.13.1-1")
def test_acknowledgements_for_nothing_do_no_harm(lab: Lab, version: int) -> None:
    """Identifiers that nobody knows are no protocol error (4.13.1 names none), but a reason code that the packet cannot have is."""
    client = lab.client()
    for kind in ("PUBACK", "PUBCOMP"):
        client.send(
            wire.acknowledge(kind, 77), wire.acknowledge(kind, 78, 0), wire.acknowledge(kind, 79, 0, reason_string="x", user=("a", "b"))
        )
    client.nothing()
    for kind, reason in (("PUBACK", 0x92), ("PUBREC", 0x04), ("PUBREL", 0x10), ("PUBCOMP", 0x80)):
        other = lab.client()
        other.send(wire.acknowledge(kind, 77, reason))
        other.refused(PROTOCOL_ERROR, MALFORMED)


@states(mqtt311="4.3.1-1 4.3.2-1 4.3.3-1", mqtt5="4.3.1-1 4.3.2-2 4.3.3-2 4.3.3-4 4.3.3-5")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_broker_s_side_of_a_delivery(lab: Lab, version: int, qos: int) -> None:
    topic = fresh()
    client = lab.client(version)
    client.subscribe((topic, qos))
    lab.client(version).publish(topic, b"x", 2)
    found = client.message(topic, b"x", finish=False, qos=qos, dup=False, retain=False)
    if qos == 1:
        client.send(wire.acknowledge("PUBACK", found.packet_id))
    if qos == 2:
        client.send(wire.acknowledge("PUBREC", found.packet_id))
        client.expect("PUBREL", packet_id=found.packet_id, reason=0)
        client.send(wire.acknowledge("PUBCOMP", found.packet_id))
    client.nothing()


@states(mqtt5="4.3.3-4 3.6.2-1")
def test_reason_codes_below_0x80_are_success(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client()
    client.subscribe((topic, 2))
    writer = lab.client()
    writer.publish(topic, b"1", 1)
    one = client.message(finish=False)
    client.send(wire.acknowledge("PUBACK", one.packet_id, 0x10, reason_string="nobody"))
    writer.publish(topic, b"2", 2)
    two = client.message(finish=False)
    client.send(wire.acknowledge("PUBREC", two.packet_id, 0x10, user=("a", "b")))
    client.expect("PUBREL", packet_id=two.packet_id)
    client.send(wire.acknowledge("PUBCOMP", two.packet_id, 0x00))
    client.nothing()


@states(mqtt311="3.6.1-1", mqtt5="3.6.1-1 4.13.1-1")
def test_reserved_flags_of_pubrel(lab: Lab, version: int) -> None:
    for flags in (0, 1, 3, 6, 10, 15):
        client = lab.client(version)
        client.send(bytes((0x60 | flags,)) + wire.acknowledge("PUBREL", 1)[1:])
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="4.8.0-1", mqtt5="4.13.1-1")
def test_acknowledgements_of_a_wrong_length(lab: Lab, version: int) -> None:
    for kind in ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP"):
        first = wire.acknowledge(kind, 1)[:1]
        bodies = [b"", b"\0"]
        if version == 5:
            bodies += [b"\0\1\0\1", b"\0\1\0\5\x1f\0\1a", b"\0\1\0\0x"]
        else:
            bodies.append(b"\0\1\0")
        for body in bodies:
            client = lab.client(version)
            client.send(first + wire.varint(len(body)) + body)
            client.refused(MALFORMED, PROTOCOL_ERROR)


def answers_of(client: Client, topic: str) -> list[wire.Packet]:
    """One of each answer that a broker gives, some of them failures."""
    found = []
    for packet in (
        wire.publish(topic, b"x", 1, 1),
        wire.publish(topic, b"x", 2, 2),
        wire.acknowledge("PUBREL", 2),
        wire.acknowledge("PUBREL", 3),
        wire.acknowledge("PUBREC", 4),
        wire.subscribe(5, (topic, 0), (f"{topic}/#", 1)),
        wire.unsubscribe(6, topic, "never subscribed"),
        wire.publish("$SYS/not/ours", b"x", 1, 7),
        wire.subscribe(8, ("/".join("a" * 300), 0)),  # deeper than a server needs to take
        wire.PINGREQ,
    ):
        client.send(packet)
    while (one := client.receive()) is not None and one.kind != "PINGRESP":
        found.append(one)
    return found


@states(mqtt5="3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.6.2-2 3.6.2-3 3.7.2-2 3.7.2-3 3.9.2-1 3.9.2-2 3.11.2-1 3.11.2-2 3.1.2-24 3.2.2-19")
def test_no_answer_is_above_the_client_s_maximum_packet_size(lab: Lab, version: int) -> None:
    for most in (40, 60, 100):
        client = lab.dial()
        client.send(wire.connect(fresh("c"), maximum_packet_size=most))
        first = client.receive()
        if first is None or first.kind != "CONNACK" or first.reason:
            continue  # CONNACK itself did not fit
        found = [first, *answers_of(client, fresh())]
        assert max(one.size for one in found) <= most


@states(mqtt5="3.1.2-29 3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1 3.9.3-2 3.11.3-2")
def test_request_problem_information_0(lab: Lab, version: int) -> None:
    client = lab.client(request_problem=0)
    found = answers_of(client, fresh())
    assert {one.kind for one in found} >= {"PUBACK", "PUBREC", "PUBCOMP", "SUBACK", "UNSUBACK"}
    for one in found:
        assert not {"reason_string", "user"} & set(one.properties), one


@states(mqtt5="3.14.2-3 3.14.2-4 3.14.2-1 3.14.2-2 3.14.4-1 3.14.4-2 4.13.2-1")
def test_disconnect_of_the_broker(lab: Lab, version: int) -> None:
    for most in (60, 100, 1000):
        client = lab.dial()
        client.send(wire.connect(fresh("c"), maximum_packet_size=most))
        first = client.receive()
        if first is None or first.kind != "CONNACK" or first.reason:
            continue
        client.send(wire.publish("a/#", b"x"), wire.PINGREQ)
        for one in client.rest():
            assert one.kind == "DISCONNECT"
            assert one.reason >= 0x80
            assert one.size <= most
            assert "session_expiry" not in one.properties
