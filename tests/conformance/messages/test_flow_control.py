"""Flow control and packet sizes (3.1.2.11.3, 3.1.2.11.4, 3.3.4, 4.9)."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states


@states(mqtt5="3.3.4-9 4.9.0-1 4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("most", [1, 3])
def test_no_more_than_receive_maximum_are_in_flight(lab: Lab, version: int, qos: int, most: int) -> None:
    topic = fresh()
    client = lab.client(receive_maximum=most)
    client.subscribe((topic, 2))
    writer = lab.client()
    for number in range(2 * most + 1):
        writer.publish(topic, b"%d" % number, qos)
    for number in range(most):
        assert client.message(topic, finish=False).payload == b"%d" % number
    client.nothing()
    client.send(wire.acknowledge("PUBACK" if qos == 1 else "PUBREC", 1))
    client.hang_up()


@states(mqtt5="3.3.4-9 4.9.0-2")
def test_each_acknowledgement_makes_room_for_one(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(receive_maximum=2)
    client.subscribe((topic, 2))
    writer = lab.client()
    for number in range(8):
        writer.publish(topic, b"%d" % number, 1 + number % 2)
    open_ = [client.message(finish=False), client.message(finish=False)]
    taken = []
    while open_:
        client.nothing()
        one = open_.pop(0)
        taken.append(one.payload)
        if one.qos == 1:
            client.send(wire.acknowledge("PUBACK", one.packet_id))
        else:
            client.send(wire.acknowledge("PUBREC", one.packet_id))
            client.expect("PUBREL", packet_id=one.packet_id)
            client.nothing()  # PUBREC alone makes no room
            client.send(wire.acknowledge("PUBCOMP", one.packet_id))
        if len(taken) + len(open_) < 8:
            open_.append(client.message(finish=False))
    assert taken == [b"%d" % number for number in range(8)]


@states(mqtt5="4.9.0-2 4.4.0-2")
def test_a_pubrec_that_refuses_makes_room(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(receive_maximum=1)
    client.subscribe((topic, 2))
    writer = lab.client()
    for number in range(2):
        writer.publish(topic, b"%d" % number, 2)
    one = client.message(payload=b"0", finish=False)
    client.nothing()
    client.send(wire.acknowledge("PUBREC", one.packet_id, 0x80))
    client.message(payload=b"1")


@states(mqtt5="3.3.4-10 4.9.0-3")
def test_other_packets_are_not_held_back(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(receive_maximum=1)
    client.subscribe((topic, 2))
    writer = lab.client()
    for number in range(3):
        writer.publish(topic, b"%d" % number, 1)
    client.message(payload=b"0", finish=False)
    client.nothing()
    assert client.publish(fresh(), b"x", 1) in (0, 0x10)
    assert client.publish(fresh(), b"x", 2) in (0, 0x10)
    client.subscribe(fresh())
    client.unsubscribe(fresh())
    client.subscribe((f"{topic}/0", 0))
    writer.publish(f"{topic}/0", b"qos 0", 0)  # and QoS 0 is not counted
    client.message(f"{topic}/0", b"qos 0", qos=0)


@states(mqtt5="4.9.0-1 3.3.4-9")
def test_receive_maximum_counts_anew_on_a_resumed_session(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(receive_maximum=10)
    client.subscribe((topic, 1))
    writer = lab.client()
    for number in range(6):
        writer.publish(topic, b"%d" % number)
    assert [client.message(finish=False).payload for _ in range(6)] == [b"%d" % number for number in range(6)]
    client.hang_up()
    again = lab.kept(client_id=client.client_id, receive_maximum=2)
    for number in range(0, 6, 2):
        found = [again.message(payload=b"%d" % one, finish=False, dup=True) for one in (number, number + 1)]
        again.nothing()
        again.send(*[wire.acknowledge("PUBACK", one.packet_id) for one in found])
    again.nothing()


@states(mqtt5="3.3.4-7 4.9.0-2 4.13.1-1")
def test_more_than_the_broker_s_receive_maximum_ends_the_connection(narrow: Lab, version: int) -> None:
    client = narrow.client()
    most = client.connack.properties.get("receive_maximum", 65535)
    if most > 1000:
        return  # nobody sends so many; the number of identifiers is a bound of its own
    for number in range(1, most + 1):  # QoS 2 without a PUBREL stays open
        client.send(wire.publish("t", b"x", 2, number))
        client.expect("PUBREC", packet_id=number)
    client.nothing()
    client.send(wire.publish("t", b"x", 2, most + 1))
    client.refused(0x93)


@states(mqtt5="4.9.0-2")
def test_the_broker_s_receive_maximum_can_be_used_to_the_full(narrow: Lab, version: int) -> None:
    client = narrow.client()
    most = min(client.connack.properties.get("receive_maximum", 65535), 50)
    for _ in range(3):
        client.send(*[wire.publish("t", b"x", 1 + number % 2, number) for number in range(1, most + 1)])
        for number in range(1, most + 1):
            client.expect("PUBREC" if number % 2 else "PUBACK", packet_id=number)
        for number in range(1, most + 1, 2):
            client.send(wire.acknowledge("PUBREL", number))
            client.expect("PUBCOMP", packet_id=number)


@states(mqtt5="3.1.2-24 3.1.2-25")
def test_a_message_that_is_too_large_is_dropped(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(maximum_packet_size=200, receive_maximum=2)
    client.subscribe((topic, 2))
    other = lab.client()
    other.subscribe((topic, 2))
    writer = lab.client()
    for qos in range(3):
        writer.publish(topic, b"x" * 200, qos)
        other.message(topic, b"x" * 200)
    for qos in range(3):  # as if it had been sent: its place in the quota is free
        writer.publish(topic, b"small", qos)
        assert client.message(topic, b"small").size <= 200
    client.nothing()


@states(mqtt5="3.1.2-24 3.1.2-25")
def test_the_largest_message_that_fits_comes(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(maximum_packet_size=300)
    client.subscribe((topic, 1))
    writer = lab.client()
    room = 300 - len(wire.publish(topic, b"", 1, 1)) - 1
    for size in range(room - 2, room + 3):
        writer.publish(topic, b"x" * size)
    for size in range(room - 2, room + 1):
        found = client.message(topic, b"x" * size)
    assert found.size == 300
    client.nothing()


@states(mqtt5="3.1.2-24 3.1.2-25")
def test_retained_and_waiting_messages_that_are_too_large(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept()
    client.subscribe((topic, 1))
    client.leave()
    writer = lab.client()
    writer.publish(topic, b"x" * 500, retain=True)
    writer.publish(topic, b"small")
    again = lab.kept(client_id=client.client_id, maximum_packet_size=200)
    again.message(topic, b"small")
    again.subscribe((topic, 1))
    again.nothing()
    writer.publish(topic, b"", retain=True)
    again.message(topic, b"")
