"""Retained messages (3.3.1.3, 3.8.3.1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance import wire
from conformance.lab import Client, Lab, fresh
from conformance.statements import states


@pytest.fixture
def topic(lab: Lab) -> Iterator[str]:
    """A topic for what is retained; nothing is afterwards."""
    name = fresh()
    yield name
    for one in lab.retained(f"{name}/#"):
        lab.client().publish(one.topic, b"", retain=True)


@states(mqtt311="3.3.1-5 3.3.1-6 3.3.1-8 3.8.4-6", mqtt5="3.3.1-5 3.3.1-9 3.8.4-8")
def test_a_retained_message_comes_to_later_subscribers_with_its_qos(lab: Lab, version: int, topic: str) -> None:
    writer = lab.client(version)
    for qos in range(3):
        writer.publish(topic, b"%d" % qos, qos, retain=True)
        for wanted in range(3):
            client = lab.client(version)
            client.subscribe((topic, wanted))
            client.message(topic, b"%d" % qos, qos=min(qos, wanted), retain=True, dup=False)
            client.nothing()


@states(mqtt311="3.3.1-6 3.3.1-8", mqtt5="3.3.1-9")
def test_the_last_one_of_each_topic_comes(lab: Lab, version: int, topic: str) -> None:
    writer = lab.client(version)
    for number in range(3):
        for level in "abc":
            writer.publish(f"{topic}/{level}", b"%d" % number, number % 3, retain=True)
    client = lab.client(version)
    client.subscribe(f"{topic}/+")
    found = [client.receive() for _ in range(3)]
    assert sorted((one.topic, one.payload, one.retain) for one in found if one) == [(f"{topic}/{level}", b"2", True) for level in "abc"]


@states(mqtt311="3.3.1-7", mqtt5="3.3.1-5")
def test_qos_0_takes_the_place_of_what_was_retained(lab: Lab, version: int, topic: str) -> None:
    writer = lab.client(version)
    writer.publish(topic, b"old", 2, retain=True)
    writer.publish(topic, b"new", 0, retain=True)
    assert [one.payload for one in lab.retained(topic)] in ([b"new"], [])


@states(mqtt311="3.3.1-9", mqtt5="3.3.1-12")
def test_an_established_subscription_gets_it_without_retain(lab: Lab, version: int, topic: str) -> None:
    client = lab.client(version)
    client.subscribe(topic)
    writer = lab.client(version)
    for qos in range(3):
        writer.publish(topic, b"x", qos, retain=True)
        client.message(topic, b"x", retain=False, qos=qos)


@states(mqtt311="3.3.1-10 3.3.1-11", mqtt5="3.3.1-6 3.3.1-7")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_message_removes_and_is_delivered(lab: Lab, version: int, topic: str, qos: int) -> None:
    client, writer = lab.client(version), lab.client(version)
    client.subscribe(topic)
    writer.publish(topic, b"kept", 1, retain=True)
    writer.publish(topic, b"", qos, retain=True)
    client.message(topic, b"kept", retain=False)
    client.message(topic, b"", retain=False, qos=qos)
    client.nothing()
    assert lab.retained(topic) == []
    later = lab.client(version)
    later.subscribe(topic)
    later.nothing()


@states(mqtt311="3.3.1-12", mqtt5="3.3.1-8")
def test_without_retain_nothing_retained_changes(lab: Lab, version: int, topic: str) -> None:
    writer = lab.client(version)
    writer.publish(topic, b"first", 1)
    assert lab.retained(topic) == []
    writer.publish(topic, b"kept", 1, retain=True)
    writer.publish(topic, b"other", 1)
    writer.publish(topic, b"", 1)
    assert [one.payload for one in lab.retained(topic)] == [b"kept"]


@states(mqtt311="3.8.4-3 3.3.1-6", mqtt5="3.8.4-3 3.8.4-4 3.3.1-9")
def test_subscribing_again_brings_it_again_and_loses_nothing(lab: Lab, version: int, topic: str) -> None:
    writer = lab.client(version)
    writer.publish(topic, b"kept", 1, retain=True)
    client = lab.client(version)
    for qos in (0, 1, 2):
        client.subscribe((topic, qos))
        client.message(topic, b"kept", retain=True, qos=min(1, qos))
        writer.publish(topic, b"flows", 2)
        client.message(topic, b"flows", qos=qos)
    client.nothing()


def with_handling(client: Client, topic: str, handling: int, qos: int = 1) -> None:
    client.subscribe((topic, qos | handling << 4))


@states(mqtt5="3.3.1-9 3.3.1-10 3.3.1-11")
def test_retain_handling(lab: Lab, version: int, topic: str) -> None:
    lab.client().publish(topic, b"kept", retain=True)
    client = lab.client()
    with_handling(client, topic, 0)
    client.message(topic, b"kept")
    with_handling(client, topic, 0)
    client.message(topic, b"kept")
    with_handling(client, topic, 1)  # it exists
    client.nothing()
    with_handling(client, topic, 2)
    client.nothing()
    client.unsubscribe(topic)
    with_handling(client, topic, 2)
    client.nothing()
    client.unsubscribe(topic)
    with_handling(client, topic, 1)
    client.message(topic, b"kept")
    with_handling(client, f"{topic}/#", 1)  # another filter: a new subscription
    client.message(topic, b"kept")
    client.nothing()


@states(mqtt5="3.3.1-10")
def test_retain_handling_1_on_a_resumed_session(lab: Lab, version: int, topic: str) -> None:
    lab.client().publish(topic, b"kept", retain=True)
    client = lab.kept()
    with_handling(client, topic, 1)
    client.message(topic, b"kept")
    client.leave()
    again = lab.kept(client_id=client.client_id)
    with_handling(again, topic, 1)  # it still exists
    again.nothing()


@states(mqtt5="3.3.1-12 3.3.1-13")
def test_retain_as_published(lab: Lab, version: int, topic: str) -> None:
    with_it, without = lab.client(), lab.client()
    with_it.subscribe((topic, 2 | 8))
    without.subscribe((topic, 2))
    writer = lab.client()
    for retain in (True, False):
        for qos in range(3):
            writer.publish(topic, b"x", qos, retain=retain)
            with_it.message(topic, qos=qos, retain=retain)
            without.message(topic, qos=qos, retain=False)
    later = lab.client()
    later.subscribe((topic, 2))  # what comes because of a subscription is marked in any case
    later.message(topic, retain=True)


@states(mqtt5="3.3.1-13")
def test_retain_as_published_through_a_queue(lab: Lab, version: int, topic: str) -> None:
    client = lab.kept()
    client.subscribe((topic, 1 | 8))
    client.leave()
    writer = lab.client()
    writer.publish(topic, b"1", retain=True)
    writer.publish(topic, b"2")
    again = lab.kept(client_id=client.client_id)
    assert [(one.payload, one.retain) for one in (again.message(), again.message())] == [(b"1", True), (b"2", False)]


@states(mqtt5="4.8.2-3")
def test_a_shared_subscription_gets_nothing_that_is_retained(lab: Lab, version: int, topic: str) -> None:
    """Section 4.8.2: no retained messages when a shared subscription is made."""
    lab.client().publish(topic, b"kept", retain=True)
    client = lab.client()
    client.subscribe(f"$share/{fresh('g')}/{topic}")
    client.nothing()
    lab.client().publish(topic, b"new", retain=True)
    client.message(topic, b"new", retain=False)


@states(mqtt5="3.3.4-3 3.3.1-9")
def test_a_retained_message_names_the_subscription_that_it_comes_for(lab: Lab, version: int, topic: str) -> None:
    lab.client().publish(topic, b"kept", retain=True)
    client = lab.client()
    client.subscribe((topic, 1), subscription_identifier=7)
    assert client.message(topic).properties == {"subscription_identifier": [7]}
    client.subscribe((f"{topic}/#", 1), subscription_identifier=268435455)
    found = client.message(topic).properties["subscription_identifier"]
    assert 268435455 in found


@states(mqtt311="3.3.1-6 4.7.2-1", mqtt5="3.3.1-9 4.7.2-1")
def test_retained_messages_of_dollar_topics_match_no_wildcard_in_front(lab: Lab, version: int, topic: str) -> None:
    name = f"${topic}/x"
    writer = lab.client(version)
    writer.publish(name, b"kept", retain=True)
    client = lab.client(version)
    client.subscribe("+/x")
    client.nothing()
    client.subscribe(f"${topic}/#")
    found = client.receive() if [one.payload for one in lab.retained(f"${topic}/#")] else None  # a server may refuse to keep it
    assert found is None or found.topic == name
    client.nothing()
    writer.publish(name, b"", retain=True)


@states(mqtt311="3.1.2-7", mqtt5="3.3.1-9")
def test_what_is_retained_is_not_the_publisher_s_session(lab: Lab, version: int, topic: str) -> None:
    writer = lab.client(version)
    writer.send(wire.publish(topic, b"kept", retain=True, version=version))
    writer.hang_up()
    assert [one.payload for one in lab.retained(topic)] == [b"kept"]
