"""Topic names and filters, matching, order (4.5 to 4.7)."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82

# filter -> names that it matches, names that it does not; $T is a word of the test's own
MATCHES = {
    "$T": (["$T"], ["$T/", "/$T", "$T/a"]),
    "$T/#": (["$T", "$T/", "$T/a", "$T/a/b/c", "$T//"], ["a/$T", "$Ta"]),
    "$T/+": (["$T/", "$T/a"], ["$T", "$T/a/b", "$T//"]),
    "$T/+/#": (["$T/a", "$T/", "$T/a/b", "$T//b/c"], ["$T"]),
    "$T/+/b": (["$T/a/b", "$T//b"], ["$T/b", "$T/a/b/c", "$T/a/B"]),
    "+/$T": (["/$T", "a/$T"], ["$T", "a/b/$T"]),
    "/$T": (["/$T"], ["$T", "//$T"]),
    "/+/$T": (["/a/$T", "//$T"], ["/$T", "a//$T"]),
    "$T//a": (["$T//a"], ["$T/a", "$T/x/a"]),
    "+/+/$T/#": (["a/b/$T", "//$T/x"], ["a/$T"]),
    "$T/ü": (["$T/ü"], ["$T/u\u0308", "$T/Ü"]),
    "$T/a b": (["$T/a b"], ["$T/a  b", "$T/a%20b", "$T/a+b"[:-2]]),
    "$T/\U0001f4a1": (["$T/\U0001f4a1"], ["$T/\U0001f4a2", "$T/\u26a1"]),
}


@states(
    mqtt311="4.7.1-2 4.7.1-3 4.7.3-4 3.3.2-3 4.5.0-1",
    mqtt5="4.7.1-1 4.7.1-2 4.7.3-4 3.3.2-3 4.5.0-1",
)
@pytest.mark.parametrize("pattern", MATCHES)
def test_what_a_filter_matches(lab: Lab, version: int, pattern: str) -> None:
    word = fresh()
    client, writer = lab.client(version), lab.client(version)
    assert client.subscribe((pattern.replace("$T", word), 1)) == [1]
    good, bad = MATCHES[pattern]
    for name in bad:
        writer.publish(name.replace("$T", word), b"no")
    for name in good:
        writer.publish(name.replace("$T", word), b"yes")
        client.message(name.replace("$T", word), b"yes")
    client.nothing()


@states(mqtt311="4.7.1-2 4.7.1-3 4.8.0-1", mqtt5="4.7.1-1 4.7.1-2 4.13.1-1")
@pytest.mark.parametrize("pattern", ["a#", "a/b#", "#/a", "a/#/b", "##", "a+", "+a", "a/+b", "a/b+/c", "++", "+#", "#+"])
def test_wildcards_out_of_place(lab: Lab, version: int, pattern: str) -> None:
    for packet in (wire.subscribe(1, (pattern, 0), version=version), wire.unsubscribe(1, pattern, version=version)):
        client = lab.client(version)
        client.send(packet, wire.PINGREQ)
        first = client.receive()
        if first is not None and first.kind in ("SUBACK", "UNSUBACK"):  # MQTT 5 may say so there: 0x8F
            assert version == 5
            assert first.reasons[0] in (0x80, 0x8F, 0x11)
        else:
            assert first is None or first.reason in (MALFORMED, PROTOCOL_ERROR, 0x8F)


@states(mqtt311="4.7.3-1 4.8.0-1", mqtt5="4.7.3-1 4.13.1-1")
def test_an_empty_filter(lab: Lab, version: int) -> None:
    for packet in (wire.subscribe(1, ("", 0), version=version), wire.unsubscribe(1, "", version=version)):
        client = lab.client(version)
        client.send(packet)
        client.refused(MALFORMED, PROTOCOL_ERROR, 0x8F)


@states(mqtt311="4.7.3-1", mqtt5="4.7.3-1")
def test_a_topic_of_one_slash(lab: Lab, version: int) -> None:
    client = lab.client(version)
    payload = fresh().encode()
    for pattern in ("/", "+/+", "/+", "#"):
        client.subscribe((pattern, 0))
        writer = lab.client(version)
        writer.publish("/", payload)
        while client.expect("PUBLISH").payload != payload:
            pass
        client.unsubscribe(pattern)


@states(mqtt311="4.7.2-1", mqtt5="4.7.2-1")
def test_wildcards_in_front_match_no_dollar_topics(lab: Lab, version: int) -> None:
    word = fresh()
    client = lab.client(version)
    client.subscribe(("#", 0), ("+/+/#", 0), ("+/" + word, 0), ("+", 0))
    exact = lab.client(version)
    exact.subscribe((f"${word}/{word}", 0), (f"${word}/#", 0))
    writer = lab.client(version)
    for name in (f"${word}/{word}", f"${word}", "$"):
        writer.publish(name, b"hidden")
    writer.publish(word, b"end")
    while (found := client.expect("PUBLISH")).payload != b"end":
        assert not found.topic.startswith("$"), found
    # a server may keep such names for itself (4.7.2); if it takes them, an exact filter gets them
    exact.send(wire.PINGREQ)
    while (one := exact.receive()) is not None and one.kind == "PUBLISH":
        assert one.topic.startswith(f"${word}")


@states(mqtt311="4.7.2-1", mqtt5="4.7.2-1")
def test_sys_topics_match_no_wildcard_in_front(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.subscribe(("+/#", 0), ("#", 0), ("+/broker/#", 0))
    client.send(wire.PINGREQ)
    while (one := client.receive()) is not None and one.kind == "PUBLISH":
        assert not one.topic.startswith("$"), one


@states(mqtt311="4.7.3-4", mqtt5="4.7.3-4")
def test_names_are_not_normalised(lab: Lab, version: int) -> None:
    word = fresh()
    names = [
        f"{word}/é",
        f"{word}/e\u0301",
        f"{word}/É",
        f"{word}/\ufb01",
        f"{word}/fi",
        f"{word}//fi",
        f"{word}/./fi",
        f"{word}/fi ",
        f"{word}/\u200bfi",
    ]
    clients = []
    for name in names:
        clients.append(lab.client(version))
        clients[-1].subscribe((name, 1))
    writer = lab.client(version)
    for name in names:
        writer.publish(name, name.encode())
    for name, client in zip(names, clients, strict=True):
        client.message(name, name.encode())
        client.nothing()


@states(mqtt311="4.6.0-5 4.6.0-6", mqtt5="4.6.0-5 4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_in_the_order_in_which_they_were_sent(lab: Lab, version: int, qos: int) -> None:
    topic = fresh()
    plain, wild, slow = lab.client(version), lab.client(version), lab.kept(version)
    plain.subscribe((topic, 2))
    wild.subscribe((f"{topic}/#", 1))
    slow.subscribe((topic, 2))
    slow.leave()
    writer = lab.client(version)
    sent = [b"%d" % number for number in range(300)]
    for begin in range(0, 300, 10):
        numbers = range(begin + 1, begin + 11)
        writer.send(*[wire.publish(topic, sent[number - 1], qos, number if qos else None, version=version) for number in numbers])
        for number in numbers if qos else ():
            writer.expect("PUBACK" if qos == 1 else "PUBREC", packet_id=number)
        if qos == 2:
            writer.send(*[wire.acknowledge("PUBREL", number) for number in numbers])
            for number in numbers:
                writer.expect("PUBCOMP", packet_id=number)
    assert plain.payloads(300) == sent
    assert wild.payloads(300) == sent
    if qos:
        assert lab.kept(version, slow.client_id).payloads(300) == sent


@states(mqtt311="4.6.0-6", mqtt5="4.6.0-5")
def test_queued_messages_come_before_new_ones(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 1))
    client.leave()
    writer = lab.client(version)
    for number in range(50):
        writer.publish(topic, b"%d" % number)
    again = lab.dial(version)
    again.send(wire.connect(client.client_id, version, clean=False, **({"session_expiry": 600} if version == 5 else {})))
    for number in range(50, 100):
        writer.publish(topic, b"%d" % number)
    again.expect("CONNACK", session_present=True)
    assert again.payloads(100) == [b"%d" % number for number in range(100)]


@states(mqtt311="4.6.0-2 4.6.0-3 4.6.0-4 4.6.0-6", mqtt5="4.6.0-2 4.6.0-3 4.6.0-4 4.6.0-5")
def test_the_broker_answers_in_order(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    numbers = [9, 3, 7, 1, 65535, 2]
    client.send(*[wire.publish(topic, b"x", 1, number, version=version) for number in numbers])
    assert [client.expect("PUBACK").packet_id for _ in numbers] == numbers
    client.send(*[wire.publish(topic, b"x", 2, number, version=version) for number in numbers])
    assert [client.expect("PUBREC").packet_id for _ in numbers] == numbers
    client.send(*[wire.acknowledge("PUBREL", number) for number in numbers])
    assert [client.expect("PUBCOMP").packet_id for _ in numbers] == numbers
    client.subscribe((topic, 2))
    writer = lab.client(version)
    for _ in numbers:
        writer.publish(topic, b"x", 2)
    got = [client.message(finish=False).packet_id for _ in numbers]
    order = got[::-1]
    client.send(*[wire.acknowledge("PUBREC", number) for number in order])
    assert [client.expect("PUBREL").packet_id for _ in order] == order


@states(mqtt311="4.5.0-1", mqtt5="4.5.0-1")
def test_everybody_whose_subscription_matches_gets_it(lab: Lab, version: int) -> None:
    topic = fresh()
    online = [lab.client(version) for _ in range(3)]
    away = [lab.kept(version) for _ in range(3)]
    for number, client in enumerate(online + away):
        client.subscribe((f"{topic}/#" if number % 2 else f"{topic}/a", 2))
    for client in away:
        client.leave()
    lab.client(version).publish(f"{topic}/a", b"x", 2)
    for client in online:
        client.message(f"{topic}/a", b"x")
    for client in away:
        lab.kept(version, client.client_id).message(f"{topic}/a", b"x", qos=2)
