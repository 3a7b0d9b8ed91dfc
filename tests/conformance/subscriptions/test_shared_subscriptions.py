"""Shared subscriptions (4.8)."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Client, Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


def waiting(client: Client) -> list[wire.Packet]:
    """What has come to a client and what is on the way; nothing is acknowledged."""
    client.send(wire.PINGREQ)
    found = []
    while (one := client.receive()) is not None and one.kind != "PINGRESP":
        found.append(one)
    return found


@states(mqtt5="4.8.2-1 4.8.2-2 4.7.3-1 4.13.1-1")
@pytest.mark.parametrize(
    "pattern", ["$share/", "$share//t", "$share/g", "$share/g/", "$share/g+/t", "$share/#/t", "$share/+/t", "$share/g#/t", "$share/g/a#"]
)
def test_forms_that_are_no_shared_subscription(lab: Lab, version: int, pattern: str) -> None:
    client = lab.client()
    client.send(wire.subscribe(1, (pattern, 0)), wire.PINGREQ)
    first = client.receive()
    if first is not None and first.kind == "SUBACK":
        assert first.reasons[0] in (0x80, 0x8F)
    else:
        assert first is None or first.reason in (MALFORMED, PROTOCOL_ERROR, 0x8F)


@states(mqtt5="4.8.2-1 4.8.2-2")
def test_each_message_goes_to_one_member_of_each_group(lab: Lab, version: int) -> None:
    topic = fresh()
    groups = [fresh("g"), fresh("h")]
    members = {group: [lab.client() for _ in range(3)] for group in groups}
    alone = lab.client()
    alone.subscribe((topic, 0))
    for group, clients in members.items():
        for client in clients:
            client.subscribe((f"$share/{group}/{topic}", 0))
    writer = lab.client()
    for number in range(12):
        writer.publish(topic, b"%d" % number, 1)
    everything = sorted(b"%d" % number for number in range(12))
    for clients in members.values():
        assert sorted(one.payload for client in clients for one in waiting(client)) == everything
    assert sorted(one.payload for one in waiting(alone)) == everything


@states(mqtt5="4.8.2-1 3.10.4-1")
def test_a_shared_subscription_is_another_than_the_plain_one(lab: Lab, version: int) -> None:
    topic, group = fresh(), fresh("g")
    client = lab.client()
    client.subscribe((topic, 0), (f"$share/{group}/{topic}", 0))
    writer = lab.client()
    writer.publish(topic, b"1")
    assert len(waiting(client)) in (1, 2)
    assert client.unsubscribe(f"$share/{group}/other", f"$share/{group}x/{topic}", topic) == [0x11, 0x11, 0]
    writer.publish(topic, b"2")
    client.message(topic, b"2")
    assert client.unsubscribe(f"$share/{group}/{topic}") == [0]
    writer.publish(topic, b"3")
    client.nothing()


@states(mqtt5="4.8.2-1 4.7.2-1")
def test_wildcards_in_a_shared_subscription(lab: Lab, version: int) -> None:
    topic, group = fresh(), fresh("g")
    client = lab.client()
    client.subscribe((f"$share/{group}/{topic}/+/b", 0), (f"$share/{group}/+/{topic}", 0))
    writer = lab.client()
    for name in (f"{topic}/a/b", f"{topic}/a/c", f"$x/{topic}", f"x/{topic}"):
        writer.publish(name, b"x")
    assert [one.topic for one in waiting(client)] == [f"{topic}/a/b", f"x/{topic}"]


@states(mqtt5="4.8.2-3")
def test_the_qos_granted_to_the_member_that_gets_it(lab: Lab, version: int) -> None:
    topic, group = fresh(), fresh("g")
    members = {qos: lab.client() for qos in range(3)}
    for qos, client in members.items():
        client.subscribe((f"$share/{group}/{topic}", qos))
    writer = lab.client()
    for _ in range(9):
        writer.publish(topic, b"x", 2)
    found = {qos: waiting(client) for qos, client in members.items()}
    assert sum(map(len, found.values())) == 9
    for qos, messages in found.items():
        assert all(one.qos == qos for one in messages)


@states(mqtt5="4.8.2-4")
def test_qos_2_is_completed_to_the_member_that_was_chosen(lab: Lab, version: int) -> None:
    topic, group = fresh(), fresh("g")
    members = [lab.kept() for _ in range(2)]
    for client in members:
        client.subscribe((f"$share/{group}/{topic}", 2))
    lab.client().publish(topic, b"x", 2)
    found = [waiting(client) for client in members]
    assert sorted(map(len, found)) == [0, 1]
    chosen, other = members if found[0] else members[::-1]
    number = (found[0] or found[1])[0].packet_id
    chosen.hang_up()
    other.nothing()
    again = lab.kept(client_id=chosen.client_id)
    again.expect("PUBLISH", payload=b"x", packet_id=number, dup=True)
    again.send(wire.acknowledge("PUBREC", number))
    again.expect("PUBREL", packet_id=number)
    again.send(wire.acknowledge("PUBCOMP", number))
    again.nothing()
    other.nothing()


@states(mqtt5="4.8.2-5")
@pytest.mark.parametrize("how", ["the session ends with the connection", "a clean start"])
def test_qos_2_goes_to_nobody_else_when_the_session_ends(lab: Lab, version: int, how: str) -> None:
    topic, group = fresh(), fresh("g")
    kept = how == "a clean start"
    members = [lab.kept() if kept else lab.client() for _ in range(2)]
    for client in members:
        client.subscribe((f"$share/{group}/{topic}", 2))
    lab.client().publish(topic, b"x", 2)
    found = [waiting(client) for client in members]
    chosen, other = members if found[0] else members[::-1]
    chosen.hang_up()
    if kept:
        lab.client(client_id=chosen.client_id, clean=True)
    other.nothing()


@states(mqtt5="4.8.2-6 4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_refuses_goes_to_nobody_else(lab: Lab, version: int, qos: int) -> None:
    topic, group = fresh(), fresh("g")
    members = [lab.kept() for _ in range(2)]
    for client in members:
        client.subscribe((f"$share/{group}/{topic}", 2))
    lab.client().publish(topic, b"x", qos)
    found = [waiting(client) for client in members]
    chosen, other = members if found[0] else members[::-1]
    number = (found[0] or found[1])[0].packet_id
    chosen.send(wire.acknowledge("PUBACK" if qos == 1 else "PUBREC", number, 0x80))
    chosen.nothing()
    other.nothing()
    chosen.hang_up()
    lab.kept(client_id=chosen.client_id).nothing()
    other.nothing()


@states(mqtt5="4.8.2-3")
def test_qos_1_is_not_lost_when_a_member_goes(lab: Lab, version: int) -> None:
    """Section 4.8.2: the server should hand it to another member when the session ends."""
    topic, group = fresh(), fresh("g")
    members = [lab.client() for _ in range(2)]
    for client in members:
        client.subscribe((f"$share/{group}/{topic}", 1))
    writer = lab.client()
    for number in range(4):
        writer.publish(topic, b"%d" % number)
    first, second = (waiting(client) for client in members)
    members[0].hang_up()
    left = waiting(members[1])
    assert sorted(one.payload for one in first + second) == [b"0", b"1", b"2", b"3"]
    assert sorted(one.payload for one in left) == sorted(one.payload for one in first)


@states(mqtt5="3.3.4-3 4.8.2-3")
def test_subscription_identifiers_of_shared_subscriptions(lab: Lab, version: int) -> None:
    topic, group = fresh(), fresh("g")
    client = lab.client()
    client.subscribe((f"$share/{group}/{topic}", 1), subscription_identifier=11)
    lab.client().publish(topic, b"x")
    assert client.message(topic).properties == {"subscription_identifier": [11]}


@states(mqtt5="4.8.2-3")
def test_a_publisher_is_a_member_like_others(lab: Lab, version: int) -> None:
    topic, group = fresh(), fresh("g")
    client = lab.client()
    client.subscribe((f"$share/{group}/{topic}", 0))
    client.send(wire.publish(topic, b"mine"))
    client.message(topic, b"mine")
