"""Sessions: kept, resumed, ended; what is sent again (3.1.2.4, 3.1.2.11, 4.1, 4.4)."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states

PROTOCOL_ERROR = 0x82


@states(mqtt311="3.1.2-4 3.1.2-5 4.1.0-1 4.5.0-1 3.1.3-2", mqtt5="3.1.2-5 3.1.2-23 4.5.0-1 3.1.3-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_a_client_that_is_away(lab: Lab, version: int, qos: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, qos), (f"{topic}/+/x", qos))
    client.leave()
    writer = lab.client(version)
    for number in range(5):
        writer.publish(topic if number % 2 else f"{topic}/{number}/x", b"%d" % number, qos)
    again = lab.kept(version, client.client_id)
    assert again.connack.session_present
    assert again.payloads(5) == [b"%d" % number for number in range(5)]
    again.nothing()
    writer.publish(topic, b"now", qos)  # and the subscription stands
    again.message(topic, b"now", qos=qos, dup=False)


@states(mqtt311="3.1.2-6 4.1.0-2", mqtt5="3.1.2-4 4.1.0-2")
def test_a_clean_start_throws_everything_away(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 2))
    writer = lab.client(version)
    writer.publish(topic, b"in flight", 2)
    client.message(finish=False)
    client.hang_up()
    writer.publish(topic, b"waiting", 2)
    again = lab.client(version, client.client_id, clean=True)
    again.nothing()
    writer.publish(topic, b"later", 2)
    again.nothing()
    again.leave()
    last = lab.kept(version, client.client_id)
    assert not last.connack.session_present
    last.nothing()


@states(mqtt311="3.1.2-7", mqtt5="3.3.1-5")
def test_retained_messages_outlive_the_session(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    client.publish(topic, b"kept", retain=True)
    client.leave()
    lab.client(version, client.client_id, clean=True).leave()
    assert [one.payload for one in lab.retained(topic)] == [b"kept"]
    lab.client(version).publish(topic, b"", retain=True)


@states(mqtt311="4.1.0-1 4.1.0-2", mqtt5="4.1.0-1")
def test_a_session_lasts_while_its_connection_is_open(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)  # the shortest session that there is
    client.subscribe((topic, 2))
    writer = lab.client(version)
    for number in range(3):
        writer.publish(topic, b"%d" % number, 2)
    numbers = [client.message(finish=False).packet_id for _ in range(3)]
    for number in numbers:
        client.send(wire.acknowledge("PUBREC", number))
        client.expect("PUBREL", packet_id=number)
    client.nothing()
    for number in numbers:
        client.send(wire.acknowledge("PUBCOMP", number))
    client.nothing()


@states(mqtt5="3.1.2-23 4.1.0-2")
def test_session_expiry_0_ends_the_session_with_its_connection(lab: Lab, version: int) -> None:
    for given in ({}, {"session_expiry": 0}):
        client = lab.client(clean=False, **given)
        client.subscribe(fresh())
        client.hang_up()
        assert not lab.client(client_id=client.client_id, clean=False).connack.session_present


@states(mqtt5="3.1.2-23 3.1.2-5")
def test_session_expiry_for_ever(lab: Lab, version: int) -> None:
    client = lab.client(clean=False, session_expiry=0xFFFFFFFF)
    client.hang_up()
    again = lab.client(client_id=client.client_id, clean=False)  # from now on it ends with the connection
    assert again.connack.session_present
    again.leave()
    assert not lab.client(client_id=client.client_id, clean=False).connack.session_present


@states(mqtt5="3.1.2-23 4.1.0-2 3.14.4-3")
def test_disconnect_changes_the_session_expiry(lab: Lab, version: int) -> None:
    client = lab.kept()
    client.leave(0, session_expiry=0)
    again = lab.kept(client_id=client.client_id, session_expiry=1)
    assert not again.connack.session_present
    again.leave(0, session_expiry=600)
    assert lab.kept(client_id=client.client_id).connack.session_present


@states(mqtt5="4.13.1-1 3.14.2-1")
def test_session_expiry_cannot_be_raised_from_0_at_disconnect(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client()
    watcher.subscribe(topic)
    client = lab.client(will=wire.Will(topic))
    client.send(wire.disconnect(0, session_expiry=10))
    client.refused(PROTOCOL_ERROR)
    watcher.message(topic)  # it was no DISCONNECT that counts
    assert not lab.client(client_id=client.client_id, clean=False).connack.session_present


@states(mqtt311="4.4.0-1 3.3.1-1 4.6.0-1 4.3.2-1 4.3.3-1", mqtt5="4.4.0-1 3.3.1-1 4.3.2-3 4.3.3-3")
def test_what_is_unacknowledged_comes_again_with_dup_in_order(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 2))
    writer = lab.client(version)
    for number in range(6):
        writer.publish(topic, b"%d" % number, 1 + number % 2)
    first = [client.message(finish=False, dup=False) for _ in range(6)]
    client.send(wire.acknowledge("PUBACK", first[2].packet_id))  # out of order, the others stay
    client.nothing()
    client.hang_up()
    again = lab.kept(version, client.client_id)
    rest = first[:2] + first[3:]
    for one in rest:
        again.expect("PUBLISH", payload=one.payload, packet_id=one.packet_id, qos=one.qos, dup=True)
    again.nothing()


@states(mqtt311="4.4.0-1 4.3.3-1", mqtt5="4.4.0-1 4.3.3-5 4.3.3-6")
def test_pubrel_comes_again_and_publish_does_not(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 2))
    writer = lab.client(version)
    for number in range(3):
        writer.publish(topic, b"%d" % number, 2)
    numbers = [client.message(finish=False).packet_id for _ in range(3)]
    for number in numbers[:2]:
        client.send(wire.acknowledge("PUBREC", number))
        client.expect("PUBREL", packet_id=number)
    client.hang_up()
    again = lab.kept(version, client.client_id)
    found = [again.receive() for _ in range(3)]
    assert sorted((one.kind, one.packet_id, one.dup) for one in found if one) == sorted(
        [("PUBREL", numbers[0], False), ("PUBREL", numbers[1], False), ("PUBLISH", numbers[2], True)]
    )
    for number in numbers[:2]:
        again.send(wire.acknowledge("PUBCOMP", number))
    again.nothing()
    again.hang_up()
    last = lab.kept(version, client.client_id)
    last.expect("PUBLISH", packet_id=numbers[2], dup=True)
    last.nothing()


@states(mqtt5="4.4.0-1 4.3.2-3 4.3.3-3")
def test_nothing_is_sent_again_while_the_connection_is_open(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client()
    client.subscribe((topic, 2))
    writer = lab.client()
    writer.publish(topic, b"1", 1)
    writer.publish(topic, b"2", 2)
    numbers = [client.message(finish=False, dup=False).packet_id for _ in range(2)]
    for _ in range(5):
        client.nothing()
    client.send(wire.acknowledge("PUBREC", numbers[1]))
    client.expect("PUBREL", packet_id=numbers[1])
    for _ in range(5):
        client.nothing()


@states(mqtt311="3.3.1-1 3.3.1-3", mqtt5="3.3.1-1 3.3.1-3")
def test_what_waited_and_was_never_sent_has_no_dup(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 2))
    client.leave()
    writer = lab.client(version)
    writer.publish(topic, b"1", 1, dup=True)
    writer.publish(topic, b"2", 2)
    again = lab.kept(version, client.client_id)
    for qos in (1, 2):
        again.message(topic, qos=qos, dup=False)


@states(mqtt5="4.4.0-2 3.4.2-1 3.5.2-1")
def test_a_refusal_acknowledges(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept()
    client.subscribe((topic, 2))
    writer = lab.client()
    writer.publish(topic, b"1", 1)
    writer.publish(topic, b"2", 2)
    one, two = client.message(finish=False), client.message(finish=False)
    client.send(wire.acknowledge("PUBACK", one.packet_id, 0x80), wire.acknowledge("PUBREC", two.packet_id, 0x97))
    client.nothing()  # no PUBREL for a PUBREC that refuses
    client.hang_up()
    again = lab.kept(client_id=client.client_id)
    assert again.connack.session_present
    again.nothing()


@states(mqtt311="3.1.2-6", mqtt5="3.1.2-4")
def test_qos_2_identifiers_of_a_session_end_with_it(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.kept(version)
    client.send(wire.publish(topic, b"1", 2, 7, version=version))
    client.expect("PUBREC", packet_id=7)
    client.hang_up()
    again = lab.client(version, client.client_id, clean=True)
    again.send(wire.publish(topic, b"2", 2, 7, version=version))  # the same identifier is a new message of a new session
    again.expect("PUBREC", packet_id=7, reason=0)
    again.send(wire.acknowledge("PUBREL", 7))
    again.expect("PUBCOMP", packet_id=7)
    # the first one was never released: a server may deliver a message at PUBLISH or at PUBREL (4.3.3)
    found = watcher.payloads(1)
    assert found + (watcher.payloads(1) if found == [b"1"] else []) in ([b"1", b"2"], [b"2"])


@states(mqtt311="4.3.3-2 4.4.0-1", mqtt5="4.3.3-10 4.4.0-1 3.1.2-23")
def test_qos_2_identifiers_are_kept_over_a_reconnect(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.kept(version)
    client.send(wire.publish(topic, b"once", 2, 7, version=version))
    client.expect("PUBREC", packet_id=7)
    client.hang_up()
    again = lab.kept(version, client.client_id)
    again.send(wire.publish(topic, b"once", 2, 7, dup=True, version=version))
    again.expect("PUBREC", packet_id=7)
    again.send(wire.acknowledge("PUBREL", 7))
    again.expect("PUBCOMP", packet_id=7, reason=0)
    watcher.message(topic, b"once")
    watcher.nothing()


@states(mqtt311="3.1.2-5", mqtt5="3.1.2-23")
def test_qos_0_may_wait_or_be_left_out_but_never_comes_twice(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 1))
    client.leave()
    writer = lab.client(version)
    writer.publish(topic, b"0", 0)
    writer.publish(topic, b"1", 1)
    again = lab.kept(version, client.client_id)
    found = again.message(topic)
    if found.payload == b"0":
        found = again.message(topic)
    assert found.payload == b"1"
    again.nothing()


@states(mqtt311="3.1.2-4", mqtt5="3.1.2-5")
def test_a_session_goes_on_in_the_other_version(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 1))
    client.leave()
    lab.client(version).publish(topic, b"x")
    again = lab.kept(9 - version, client.client_id)
    assert again.connack.session_present
    again.message(topic, b"x", qos=1)
