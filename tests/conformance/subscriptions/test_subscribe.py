"""SUBSCRIBE and SUBACK, UNSUBSCRIBE and UNSUBACK (3.8 to 3.11)."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


@states(mqtt311="3.8.1-1 4.8.0-1", mqtt5="3.8.1-1 4.13.1-1")
def test_reserved_flags_of_subscribe(lab: Lab, version: int) -> None:
    for flags in (0, 1, 3, 6, 10, 15):
        client = lab.client(version)
        client.send(bytes((0x80 | flags,)) + wire.subscribe(1, ("t", 0), version=version)[1:])
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.10.1-1 4.8.0-1", mqtt5="3.10.1-1 4.13.1-1")
def test_reserved_flags_of_unsubscribe(lab: Lab, version: int) -> None:
    for flags in (0, 1, 3, 6, 10, 15):
        client = lab.client(version)
        client.send(bytes((0xA0 | flags,)) + wire.unsubscribe(1, "t", version=version)[1:])
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.8.3-3 4.8.0-1", mqtt5="3.8.3-2 4.13.1-1")
def test_subscribe_without_a_filter(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(wire.subscribe(1, version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.10.3-2 4.8.0-1", mqtt5="3.10.3-2 4.13.1-1")
def test_unsubscribe_without_a_filter(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(wire.unsubscribe(1, version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.8.3-4 4.8.0-1", mqtt5="3.8.3-5 4.13.1-1")
def test_reserved_bits_of_the_subscription_options(lab: Lab, version: int) -> None:
    for options in (3, 0x40, 0x80, 0xC0, *((0x30,) if version == 5 else (4, 8, 0x10, 0x20))):
        client = lab.client(version)
        client.send(wire.subscribe(1, ("good", 0), ("t", options), version=version))
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.8.3-1 3.10.3-1 4.8.0-1", mqtt5="3.8.3-1 3.10.3-1 4.13.1-1")
def test_packets_that_end_inside_a_filter(lab: Lab, version: int) -> None:
    empty = b"\0" if version == 5 else b""
    for first, rest in ((0x82, b"\0\1t"), (0x82, b"\0\5t\0"), (0xA2, b"\0\5t"), (0xA2, b"\0"), (0x82, b"\0\1t\0\0\1u")):
        client = lab.client(version)
        client.send(wire.packet(first, b"\0\1", empty, rest))
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.8.4-1 3.8.4-2 3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2", mqtt5="3.8.4-1 3.8.4-2 3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2")
def test_one_suback_with_a_code_for_each_filter_in_order(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    wanted = [2, 0, 1, 1, 0, 2, 2]
    assert client.subscribe(*[(f"{topic}/{number}", qos) for number, qos in enumerate(wanted)]) == wanted
    writer = lab.client(version)
    for number, qos in enumerate(wanted):
        writer.publish(f"{topic}/{number}", b"x", 2)
        client.message(f"{topic}/{number}", qos=qos)


@states(mqtt311="3.8.4-4", mqtt5="3.8.4-5")
def test_the_same_filter_several_times_in_one_subscribe(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    assert client.subscribe((topic, 2), (topic, 0), (topic, 1)) == [2, 0, 1]
    lab.client(version).publish(topic, b"x", 2)
    client.message(topic, qos=1)  # the last one counts, as in a sequence
    client.nothing()


@states(mqtt311="3.8.4-6", mqtt5="3.8.4-8")
def test_the_lower_of_two_qos(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    for granted in range(3):
        client.subscribe((topic, granted))
        for sent in range(3):
            writer.publish(topic, b"x", sent)
            client.message(topic, qos=min(sent, granted))


@states(mqtt311="3.8.4-3", mqtt5="3.8.4-3")
def test_the_same_filter_again_replaces_the_subscription(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    for qos in (2, 0, 1):
        client.subscribe((f"{topic}/#", qos))
        writer.publish(topic, b"x", 2)
        client.message(topic, qos=qos)
        client.nothing()
    assert client.unsubscribe(f"{topic}/#") == ([0] if version == 5 else [])
    writer.publish(topic, b"x", 2)
    client.nothing()


@states(mqtt5="3.8.4-3 3.8.4-4 3.3.4-3")
def test_options_and_identifier_are_replaced_too(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(), lab.client()
    client.subscribe((topic, 2 | 4 | 8), subscription_identifier=5)
    writer.publish(topic, b"x", retain=True)
    assert client.message(topic, retain=True).properties == {"subscription_identifier": [5]}
    client.subscribe((topic, 1))
    assert client.message(topic, retain=True).properties == {}  # retained, for the new one
    writer.publish(topic, b"y", 2, retain=True)
    assert client.message(topic, b"y", retain=False, qos=1).properties == {}
    client.send(wire.publish(topic, b"", 0, retain=True))  # No Local is gone
    client.message(topic, b"")


@states(mqtt311="3.8.4-3", mqtt5="3.8.4-4")
def test_nothing_is_lost_while_a_subscription_is_replaced(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    client.subscribe((topic, 1))
    writer.send(*[wire.publish(topic, b"%d" % number, 1, 1 + number, version=version) for number in range(200)])
    for number in range(20):
        client.send(wire.subscribe(100 + number, (topic, 1), version=version))
    found = []
    subacks = 0
    while len(found) < 200 or subacks < 20:
        one = client.receive()
        assert one is not None
        if one.kind == "SUBACK":
            subacks += 1
        else:
            found.append(one.payload)
            client.send(wire.acknowledge("PUBACK", one.packet_id))
    assert found == [b"%d" % number for number in range(200)]


@states(mqtt311="3.8.3-2", mqtt5="3.8.4-7")
def test_wildcards_are_served_or_refused(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    available = (client.connack.properties or {}).get("wildcard_available", 1)
    reasons = client.subscribe((f"{topic}/+/#", 1))
    assert (reasons[0] < 0x80) == bool(available)
    if available:
        lab.client(version).publish(f"{topic}/a/b", b"x")
        client.message(f"{topic}/a/b")


@states(mqtt311="3.3.5-1", mqtt5="3.3.4-2")
def test_overlapping_subscriptions_at_the_highest_qos(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    client.subscribe((f"{topic}/#", 0), (f"{topic}/+", 2), (f"{topic}/a", 1))
    for sent in range(3):
        writer.publish(f"{topic}/a", b"x", sent)
        found = [client.message(f"{topic}/a", finish=False)]
        client.send(wire.PINGREQ)
        while (one := client.receive()) is not None and one.kind != "PINGRESP":
            found.append(one)
        assert max(one.qos for one in found) == min(2, sent)
        assert len(found) <= 3  # one copy, or one for each subscription


@states(mqtt5="3.3.4-3 3.3.4-4 3.3.4-5")
def test_subscription_identifiers_of_all_that_match(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(), lab.client()
    client.subscribe((f"{topic}/#", 0), subscription_identifier=1)
    client.subscribe((f"{topic}/+", 2), subscription_identifier=268435455)
    client.subscribe((f"{topic}/a", 1))
    client.subscribe((f"{topic}/b", 1), (f"{topic}/+/c", 1), subscription_identifier=3)
    for name, wanted in (("a", {1, 268435455}), ("b", {1, 268435455, 3}), ("x/c", {1, 3}), ("x/y", {1})):
        writer.publish(f"{topic}/{name}", b"x", 2)
        found = [client.message(f"{topic}/{name}")]
        client.send(wire.PINGREQ)
        while (one := client.receive()) is not None and one.kind != "PINGRESP":
            found.append(one)
        assert {number for one in found for number in one.properties.get("subscription_identifier", [])} == wanted


@states(mqtt5="3.3.4-3")
def test_subscription_identifiers_are_part_of_the_session(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept()
    client.subscribe((topic, 1), subscription_identifier=9)
    client.leave()
    writer = lab.client()
    writer.publish(topic, b"1")
    again = lab.kept(client_id=client.client_id)
    assert again.message(topic, b"1").properties == {"subscription_identifier": [9]}
    writer.publish(topic, b"2")
    assert again.message(topic, b"2").properties == {"subscription_identifier": [9]}


@states(mqtt5="3.8.3-3")
def test_no_local(lab: Lab, version: int) -> None:
    topic = fresh()
    client, other = lab.client(), lab.client()
    client.subscribe((f"{topic}/#", 2 | 4))
    for qos in range(3):
        client.publish(topic, b"mine", qos)
        client.nothing()
        other.publish(topic, b"theirs", qos)
        client.message(topic, b"theirs")
    client.subscribe((topic, 1))  # another subscription without it
    client.send(wire.publish(topic, b"mine", 0))
    client.message(topic, b"mine")


@states(mqtt5="3.8.3-3")
def test_no_local_through_a_queue(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept()
    client.subscribe((topic, 2 | 4))
    client.send(wire.publish(topic, b"mine", 1, 7))
    client.expect("PUBACK")
    client.leave()
    lab.client().publish(topic, b"theirs")
    again = lab.kept(client_id=client.client_id)
    again.message(topic, b"theirs")
    again.nothing()


@states(mqtt5="3.8.3-4 4.13.1-1")
def test_no_local_on_a_shared_subscription(lab: Lab, version: int) -> None:
    client = lab.client()
    client.send(wire.subscribe(1, (f"$share/{fresh('g')}/t", 4)))
    client.refused(PROTOCOL_ERROR, MALFORMED)


@states(mqtt311="3.10.4-1 3.10.4-2 3.10.4-4", mqtt5="3.10.4-1 3.10.4-2 3.10.4-4 3.11.3-2")
def test_filters_are_compared_character_by_character(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    client.subscribe(f"{topic}/+", f"{topic}/a", f"{topic}/A")
    for other in (f"{topic}/#", f"{topic}/b", f"{topic}/+/", topic.upper() + "/a"):
        assert client.unsubscribe(other) == ([0x11] if version == 5 else [])
    assert client.unsubscribe(f"{topic}/+") == ([0] if version == 5 else [])
    writer.publish(f"{topic}/b", b"x")
    client.nothing()
    for name in "aA":
        writer.publish(f"{topic}/{name}", b"x")
        client.message(f"{topic}/{name}")
    assert client.unsubscribe(f"{topic}/a") == ([0] if version == 5 else [])
    writer.publish(f"{topic}/a", b"x")
    client.nothing()


@states(mqtt311="3.10.4-3", mqtt5="3.10.4-3")
def test_a_delivery_that_has_begun_is_brought_to_its_end(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 2))
    writer = lab.client(version)
    for qos in (1, 2, 2):
        writer.publish(topic, b"x", qos)
    one, two, three = (client.message(finish=False) for _ in range(3))
    client.send(wire.acknowledge("PUBREC", two.packet_id))
    client.expect("PUBREL", packet_id=two.packet_id)
    client.unsubscribe(topic)
    client.send(wire.acknowledge("PUBCOMP", two.packet_id), wire.acknowledge("PUBREC", three.packet_id))
    client.expect("PUBREL", packet_id=three.packet_id)
    client.hang_up()
    again = lab.kept(version, client.client_id)
    found = [again.receive(), again.receive()]
    assert sorted((each.kind, each.packet_id) for each in found if each) == [("PUBLISH", one.packet_id), ("PUBREL", three.packet_id)]
    again.nothing()


@states(mqtt311="3.10.4-4 3.10.4-5 3.10.4-6", mqtt5="3.10.4-4 3.10.4-5 3.10.4-6 3.11.3-1 3.11.3-2")
def test_one_unsuback_with_a_code_for_each_filter_in_order(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    client.subscribe(f"{topic}/a", f"{topic}/c/#")
    filters = [f"{topic}/b", f"{topic}/a", f"{topic}/a", f"{topic}/c/#", f"{topic}/c"]
    assert client.unsubscribe(*filters) == ([0x11, 0, 0x11, 0, 0x11] if version == 5 else [])
    lab.client(version).publish(f"{topic}/a", b"x")
    client.nothing()


@states(mqtt311="3.10.4-2", mqtt5="3.10.4-2")
def test_unsubscribe_takes_nothing_from_overlapping_subscriptions(lab: Lab, version: int) -> None:
    topic = fresh()
    client, writer = lab.client(version), lab.client(version)
    client.subscribe((f"{topic}/#", 1), (f"{topic}/a", 2))
    client.unsubscribe(f"{topic}/a")
    writer.publish(f"{topic}/a", b"x", 2)
    client.message(f"{topic}/a", qos=1)
    client.nothing()


@states(mqtt5="3.8.4-7 3.9.3-2")
def test_a_filter_that_is_too_deep_is_refused_alone(lab: Lab, version: int) -> None:
    """A server may refuse a filter in SUBACK (3.9.3); the others of the packet are not touched by that."""
    topic = fresh()
    client = lab.client()
    number = client.next_id()
    client.send(wire.subscribe(number, (f"{topic}/a", 1), ("/".join(["a"] * 1000), 1), (f"{topic}/b", 2)))
    answer = client.receive()
    if answer is None or answer.kind == "DISCONNECT":
        return  # it is malformed to a server that limits the levels of all filters
    reasons = answer.reasons
    assert reasons[0] == 1
    assert reasons[2] == 2
    assert reasons[1] in (0, 1, 0x80, 0x83, 0x8F, 0x97)
    writer = lab.client()
    for name in "ab":
        writer.publish(f"{topic}/{name}", b"x")
        client.message(f"{topic}/{name}")


@pytest.mark.parametrize("word", ["SUBSCRIBE", "UNSUBSCRIBE"])
@states(mqtt5="4.13.1-1")
def test_user_properties_are_taken(lab: Lab, version: int, word: str) -> None:
    client = lab.client()
    write = wire.subscribe(5, ("t", 0), user=[("a", "b"), ("a", "b")]) if word == "SUBSCRIBE" else wire.unsubscribe(5, "t", user=("a", "b"))
    client.send(write)
    client.expect("SUBACK" if word == "SUBSCRIBE" else "UNSUBACK", packet_id=5)
