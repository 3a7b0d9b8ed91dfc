"""PUBLISH: flags, topic names, properties, aliases (3.3). Retained messages stand in test_retained.py, handshakes in test_qos.py."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


@states(mqtt311="3.3.1-4 4.8.0-1", mqtt5="3.3.1-4 4.13.1-1")
def test_qos_3_ends_the_connection(lab: Lab, version: int) -> None:
    for first in (0x36, 0x37, 0x3E):
        client = lab.client(version)
        client.send(bytes((first,)) + wire.publish("t", b"x", 1, 1, version=version)[1:])
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.3.1-2 4.3.1-1", mqtt5="3.3.1-2 4.3.1-1")
def test_dup_at_qos_0_is_not_let_through(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version)
    client.send(wire.publish(topic, b"x", dup=True, version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)
    watcher.nothing()


@states(mqtt311="3.3.1-2 4.3.1-1", mqtt5="3.3.1-2 4.3.1-1")
def test_qos_0_goes_out_at_qos_0_without_dup(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe((topic, 0))
    writer = lab.client(version)
    for qos in range(3):
        writer.publish(topic, b"x", qos, dup=qos > 0)
        watcher.message(topic, b"x", qos=0, dup=False)


@states(mqtt311="3.3.1-3", mqtt5="3.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_not_passed_on(lab: Lab, version: int, qos: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe((topic, 2))
    lab.client(version).publish(topic, b"x", qos, dup=True)
    watcher.message(topic, b"x", qos=qos, dup=False)


@states(mqtt311="3.3.2-2 4.7.1-1 4.8.0-1", mqtt5="3.3.2-2 4.7.0-1 4.13.1-1")
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a#", "+a"])
def test_no_wildcards_in_topic_names(lab: Lab, version: int, topic: str) -> None:
    for qos in (0, 1):
        client = lab.client(version)
        client.send(wire.publish(topic, b"x", qos, qos or None, version=version))
        client.refused(MALFORMED, PROTOCOL_ERROR, 0x90)


@states(mqtt311="4.7.1-1 3.1.4-1", mqtt5="4.7.0-1 3.1.4-1")
def test_no_wildcards_in_will_topics(lab: Lab, version: int) -> None:
    for topic in ("#", "a/+", ""):
        client = lab.dial(version)
        client.send(wire.connect(fresh(), version, will=wire.Will(topic)))
        found = client.rest()
        assert [one.kind for one in found] in ([], ["CONNACK"] if version == 5 else [])
        assert all(one.reason >= 0x80 for one in found)


@states(mqtt311="3.3.2-1 4.7.3-1", mqtt5="3.3.2-1 4.7.3-1")
def test_an_empty_topic_name_ends_the_connection(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(wire.publish("", b"x", version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR, 0x90)


@states(mqtt311="3.3.2-1", mqtt5="3.3.2-1")
def test_a_publish_that_ends_inside_its_header(lab: Lab, version: int) -> None:
    for body in (b"", b"\0", b"\0\5ab", b"\0\1a" + (b"" if version == 5 else b"\0")):
        client = lab.client(version)
        client.send(wire.packet(0x32, body))
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.3.5-2 3.3.4-1", mqtt5="3.3.4-1 3.4.2-1 3.5.2-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_may_not_be_published_is_acknowledged_or_ends_the_connection(lab: Lab, version: int, qos: int) -> None:
    """$SYS is the server's own; whoever publishes there is answered as the QoS says, and nobody gets it."""
    topic = f"$SYS/{fresh()}"
    watcher = lab.client(version)
    watcher.subscribe((topic, 0))
    client = lab.client(version)
    client.send(wire.publish(topic, b"forged", qos, 1 if qos else None, version=version), wire.PINGREQ)
    kinds = [one.kind if one else "" for one in (client.receive(),)]
    if qos == 0 or kinds[0] in ("", "DISCONNECT"):
        assert kinds[0] in ("PINGRESP", "", "DISCONNECT")
    else:
        assert kinds == ["PUBACK" if qos == 1 else "PUBREC"]
        last = client.receive()
        assert last is None or last.kind == "PINGRESP"
    watcher.nothing()


@states(mqtt311="3.3.2-3", mqtt5="3.3.2-3")
def test_what_comes_matches_the_subscription(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    client.subscribe(f"{topic}/+/a", f"{topic}/b/#")
    writer = lab.client(version)
    for rest in ("x/a", "x/b", "b", "b/c/d", "a", "x/a/y", "bb/c", ""):
        writer.publish(f"{topic}/{rest}", rest.encode())
    writer.publish(topic, b"parent")
    assert client.payloads(3) == [b"x/a", b"b", b"b/c/d"]
    client.nothing()


FORWARDED = {
    "payload_format": [0, 1],
    "content_type": ["text/plain", "", "ü/" + wire.BOM],
    "response_topic": ["a/b", "$x/y", "ü"],
    "correlation_data": [b"", b"\0\xff" * 20],
    "user": [[("a", "b")], [("b", "2"), ("a", "1"), ("b", "2"), ("", ""), ("ü", "\U0001f4a1")]],
}


@states(mqtt5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20")
@pytest.mark.parametrize("name", FORWARDED)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_forwarded_as_they_are(lab: Lab, version: int, name: str, qos: int) -> None:
    topic = fresh()
    client, waiting, later = lab.client(), lab.kept(), lab.client()
    client.subscribe(topic)
    waiting.subscribe(topic)
    waiting.leave()
    writer = lab.client()
    for value in FORWARDED[name]:
        writer.publish(topic, b"x", qos or 1, retain=True, **{name: value})
        # at once, retained, and from the queue of a session
        assert client.message(topic).properties == {name: value}
        later.subscribe((topic, 0))
        assert later.message(topic, retain=True).properties == {name: value}
        later.unsubscribe(topic)
    again = lab.kept(client_id=waiting.client_id)
    assert [one.properties[name] for one in again.messages(len(FORWARDED[name]))] == FORWARDED[name]
    writer.publish(topic, b"", retain=True)


@states(mqtt5="3.3.2-4")
def test_the_payload_format_is_checked_or_passed_on(lab: Lab, version: int) -> None:
    """A receiver may check that the payload is the UTF-8 that it is said to be, and say 0x99 in its answer or in DISCONNECT (3.3.2.3.2)."""
    topic = fresh()
    watcher = lab.client()
    watcher.subscribe(topic)
    for qos in (1, 2):
        writer = lab.client()
        writer.send(wire.publish(topic, b"\xff\xfe", qos, 1, payload_format=1))
        answer = writer.receive()
        assert answer is not None
        assert answer.kind in ("PUBACK" if qos == 1 else "PUBREC", "DISCONNECT")
        assert answer.reason in (0, 0x99)
        if answer.reason == 0:
            writer.send(*[wire.acknowledge("PUBREL", 1)] * (qos - 1))
            assert watcher.message(topic, b"\xff\xfe").properties == {"payload_format": 1}
        assert lab.client().publish(topic, "ü".encode(), qos, payload_format=1) == 0
        assert watcher.message(topic, "ü".encode()).properties == {"payload_format": 1}
    watcher.nothing()


@states(mqtt5="3.3.2-14 4.13.1-1")
def test_no_wildcards_in_response_topics(lab: Lab, version: int) -> None:
    for topic in ("#", "a/+/b"):
        client = lab.client()
        client.send(wire.publish("t", b"x", response_topic=topic))
        client.refused(MALFORMED, PROTOCOL_ERROR, 0x90)


@states(mqtt5="4.7.3-1 4.13.1-1")
def test_an_empty_response_topic_is_no_topic_name(lab: Lab, version: int) -> None:
    client = lab.client()
    client.send(wire.publish("t", b"x", 1, 1, response_topic=""))
    client.refused(MALFORMED, PROTOCOL_ERROR, 0x90)
    client = lab.client()
    client.send(wire.publish("t", b"x", response_topic=""))
    client.refused(MALFORMED, PROTOCOL_ERROR, 0x90)
    client = lab.dial()
    client.send(wire.connect(fresh(), will=wire.Will("t", properties={"response_topic": ""})))
    assert client.expect("CONNACK").reason in (MALFORMED, PROTOCOL_ERROR, 0x90)
    assert client.receive() is None


@states(mqtt5="3.3.4-6 4.13.1-1")
def test_a_client_sends_no_subscription_identifier(lab: Lab, version: int) -> None:
    for number in (1, 0):
        client = lab.client()
        client.send(wire.publish("t", b"x", subscription_identifier=number))
        client.refused(MALFORMED, PROTOCOL_ERROR)


# Topic aliases (3.3.2.3.4)


@states(mqtt5="3.3.2-12")
def test_every_alias_up_to_the_maximum_is_taken(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher, client = lab.client(), lab.client()
    watcher.subscribe(f"{topic}/#")
    most = client.connack.properties.get("topic_alias_maximum", 0)
    for alias in range(1, most + 1):
        client.send(wire.publish(f"{topic}/{alias}", b"named", topic_alias=alias))
    for alias in range(most, 0, -1):
        client.send(wire.publish("", b"by alias", 1, alias, topic_alias=alias))
        client.expect("PUBACK", packet_id=alias)
    for alias in [*range(1, most + 1), *range(most, 0, -1)]:
        assert watcher.message(f"{topic}/{alias}").properties == {}  # aliases are between two, and not passed on
    if most:
        client.send(wire.publish(f"{topic}/new", b"x", topic_alias=1), wire.publish("", b"y", topic_alias=1))
        assert [watcher.message(f"{topic}/new").payload for _ in range(2)] == [b"x", b"y"]


@states(mqtt5="3.3.2-8 3.3.2-9 3.2.2-17 3.2.2-18 4.13.1-1")
def test_aliases_that_are_not_granted_end_the_connection(lab: Lab, version: int) -> None:
    for given in (0, 1):
        client = lab.client()
        most = client.connack.properties.get("topic_alias_maximum", 0)
        client.send(wire.publish("t", b"x", topic_alias=given and most + 1))
        client.refused(0x94, PROTOCOL_ERROR, MALFORMED)


@states(mqtt5="4.13.1-1")
def test_an_alias_that_stands_for_nothing_ends_the_connection(lab: Lab, version: int) -> None:
    client = lab.client()
    client.send(wire.publish("", b"x", topic_alias=1))
    client.refused(PROTOCOL_ERROR, 0x94)
    client = lab.client()
    client.send(wire.publish("", b"x"))
    client.refused(PROTOCOL_ERROR, MALFORMED, 0x90)


@states(mqtt5="3.3.2-7")
def test_aliases_do_not_outlive_their_connection(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(topic_alias_maximum=10)
    client.subscribe((topic, 1))
    writer = lab.kept()
    if not writer.connack.properties.get("topic_alias_maximum", 0):
        return
    writer.send(wire.publish(topic, b"1", topic_alias=1), wire.publish("", b"2", topic_alias=1))
    aliases = {}
    for _ in range(2):
        found = client.message()
        alias = found.properties.get("topic_alias")
        aliases.setdefault(alias, found.topic)
        assert found.topic or alias in aliases
    client.hang_up()
    writer.hang_up()
    again = lab.kept(client_id=writer.client_id)
    again.send(wire.publish("", b"3", topic_alias=1))
    again.refused(PROTOCOL_ERROR, 0x94)
    lab.client().publish(topic, b"4")
    once_more = lab.kept(client_id=client.client_id, topic_alias_maximum=10)
    once_more.message(topic, b"4")  # its name in full


@states(mqtt5="3.1.2-26 3.3.2-11")
def test_outgoing_aliases_keep_to_the_client_s_maximum(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(topic_alias_maximum=2)
    client.subscribe((f"{topic}/#", 1))
    writer = lab.client()
    names = [f"{topic}/{number}" for number in (1, 2, 3, 1, 2, 3, 4, 1)]
    for name in names:
        writer.publish(name, name.encode())
    known: dict[int, str] = {}
    for name in names:
        found = client.message()
        alias = found.properties.get("topic_alias")
        if alias is not None:
            assert 1 <= alias <= 2
            if found.topic:
                known[alias] = found.topic
        assert (found.topic or known[alias]) == name
        assert found.payload == name.encode()


@states(mqtt5="3.1.2-27 3.1.2-26")
def test_without_a_maximum_there_are_no_outgoing_aliases(lab: Lab, version: int) -> None:
    topic = fresh()
    for given in ({}, {"topic_alias_maximum": 0}):
        client = lab.client(**given)
        client.subscribe((topic, 1))
        writer = lab.client()
        for _ in range(4):
            writer.publish(topic, b"x")
            assert client.message(topic).properties == {}


@states(mqtt5="3.3.2-12")
def test_a_narrow_broker_s_own_alias_maximum(narrow: Lab, version: int) -> None:
    client = narrow.client()
    most = client.connack.properties.get("topic_alias_maximum", 0)
    if most:
        client.publish("t", b"x", topic_alias=most)
    client.send(wire.publish("t", b"x", topic_alias=most + 1))
    client.refused(0x94, PROTOCOL_ERROR, MALFORMED)


@states(mqtt5="3.2.2-15 4.13.1-1")
def test_a_packet_above_the_broker_s_maximum_packet_size(narrow: Lab, version: int) -> None:
    client = narrow.client()
    most = client.connack.properties.get("maximum_packet_size")
    if most is None:
        return
    topic = fresh()
    room = most - len(wire.publish(topic, b"", 1, 1)) - 1
    client.publish(topic, b"x" * room)
    assert len(wire.publish(topic, b"x" * room, 1, 1)) == most
    client.send(wire.publish(topic, b"x" * (room + 1), 1, 2))
    client.refused(0x95)
