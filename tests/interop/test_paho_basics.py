"""paho-mqtt 2 with MQTT 3.1.1 and 5: every QoS, retained messages, wills, persistent sessions, wildcards."""

from __future__ import annotations

import itertools

import pytest
from support.brokers import RunningBroker
from support.paho_client import Paho
from support.services import PATIENCE

VERSIONS = [4, 5]
both = pytest.mark.parametrize("version", VERSIONS)


@pytest.mark.parametrize(("published", "subscribed"), list(itertools.product(range(3), range(3))))
@pytest.mark.parametrize(("sender", "receiver"), list(itertools.product(VERSIONS, VERSIONS)))
def test_delivery_has_the_lower_of_both_qos(
    broker: RunningBroker, name: str, sender: int, receiver: int, published: int, subscribed: int
) -> None:
    with Paho(broker.port, receiver) as subscriber, Paho(broker.port, sender) as publisher:
        assert subscriber.subscribe(name, subscribed) == subscribed
        publisher.publish(name, b"payload \x00\xff", published)
        message = subscriber.next()
        assert (message.topic, message.payload, message.qos, message.retain) == (
            name,
            b"payload \x00\xff",
            min(published, subscribed),
            False,
        )


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_messages_arrive_once_and_in_order(broker: RunningBroker, name: str, version: int, qos: int) -> None:
    with Paho(broker.port, version) as subscriber, Paho(broker.port, version) as publisher:
        subscriber.subscribe(f"{name}/#", qos)
        for number in range(2000):
            publisher.client.publish(f"{name}/{number % 3}", str(number), qos)
        assert [int(subscriber.next().payload) for _ in range(2000)] == list(range(2000))
        subscriber.nothing_until(f"marker/{name}")


@both
def test_empty_and_large_payloads(broker: RunningBroker, name: str, version: int) -> None:
    with Paho(broker.port, version) as client:
        client.subscribe(name, 2)
        for payload in (b"", b"x" * 127, b"x" * 128, b"y" * 70_000, b"z" * 3_000_000):
            client.publish(name, payload, 2)
            assert client.next().payload == payload


@both
def test_wildcards_and_unsubscribe(broker: RunningBroker, name: str, version: int) -> None:
    with Paho(broker.port, version) as client:
        client.subscribe(f"{name}/+/c", 1)
        client.subscribe(f"{name}/x/#", 1)
        for topic in ("a/b/c", "a/c", "x", "x/y/z", "b/c/d", "/c"):
            client.publish(f"{name}/{topic}", topic, 1)
        assert [client.next().payload for _ in range(4)] == [b"a/c", b"x", b"x/y/z", b"/c"]
        client.unsubscribe(f"{name}/x/#")
        client.publish(f"{name}/x/y", b"no more", 1)
        client.nothing_until(f"marker/{name}")


@both
def test_retained_message_is_kept_replaced_and_deleted(broker: RunningBroker, name: str, version: int) -> None:
    with Paho(broker.port, version) as publisher:
        publisher.publish(f"{name}/a", b"first", 1, retain=True)
        publisher.publish(f"{name}/a", b"second", 0, retain=True)
        publisher.publish(f"{name}/b", b"other", 2, retain=True)
    with Paho(broker.port, version) as subscriber:
        subscriber.subscribe(f"{name}/+", 1)
        got = {(m.topic, m.payload, m.retain) for m in (subscriber.next(), subscriber.next())}
        assert got == {(f"{name}/a", b"second", True), (f"{name}/b", b"other", True)}
        subscriber.publish(f"{name}/a", b"", 1, retain=True)
        deletion = subscriber.next()
        assert (deletion.payload, deletion.retain) == (b"", False)
    with Paho(broker.port, version) as later:
        later.subscribe(f"{name}/a", 1)
        later.nothing_until(f"marker/{name}")


@both
def test_will_is_sent_when_the_client_vanishes_and_only_then(broker: RunningBroker, name: str, version: int) -> None:
    will = {"topic": f"{name}/will", "payload": b"gone", "qos": 1, "retain": True}
    with Paho(broker.port, version) as watcher:
        watcher.subscribe(f"{name}/#", 1)
        with Paho(broker.port, version, will=will):
            pass
        Paho(broker.port, version, will=will | {"payload": b"really gone"}).__enter__().vanish()
        message = watcher.next()
        assert (message.payload, message.qos, message.retain) == (b"really gone", 1, False)
    with Paho(broker.port, version) as later:
        later.subscribe(f"{name}/will", 1)
        message = later.next()
        assert (message.payload, message.retain) == (b"really gone", True)


@both
def test_persistent_session_keeps_subscriptions_and_messages(broker: RunningBroker, name: str, version: int) -> None:
    with Paho(broker.port, version, client_id=name, persistent=True) as client:
        assert not client.session_present
        client.subscribe(f"{name}/1", 1)
        client.subscribe(f"{name}/2", 2)
    with Paho(broker.port, version) as publisher:
        for number in range(200):
            publisher.publish(f"{name}/{1 + number % 2}", str(number), 2)
    with Paho(broker.port, version, client_id=name, persistent=True) as client:
        assert client.session_present
        got = [client.next() for _ in range(200)]
        for qos in (1, 2):  # paho hands QoS 2 over at PUBREL, so that order is to be seen for each QoS alone
            assert [int(m.payload) for m in got if m.qos == qos] == list(range(qos - 1, 200, 2))
        client.nothing_until(f"marker/{name}")
    with Paho(broker.port, version, client_id=name) as clean:
        assert not clean.session_present
        clean.publish(f"{name}/1", b"x", 1)
        clean.nothing_until(f"marker/{name}/2")


@both
def test_a_second_connection_takes_the_session_over(broker: RunningBroker, name: str, version: int) -> None:
    first = Paho(broker.port, version, client_id=name, persistent=True).__enter__()
    first.subscribe(name, 1)
    with Paho(broker.port, version, client_id=name, persistent=True) as second:
        from_server, reason = first.disconnects.get(timeout=PATIENCE)
        if version == 5 and broker.kind == "mqmesh":  # [MQTT-3.1.4-3]; Mosquitto 2.0 only closes
            assert (from_server, reason) == (True, 0x8E)
        first.client.loop_stop()
        assert second.session_present
        second.publish(name, b"to the second", 1)
        assert second.next().payload == b"to the second"


@both
def test_unacknowledged_messages_come_again_after_a_reconnect(broker: RunningBroker, name: str, version: int) -> None:
    client = Paho(broker.port, version, client_id=name, persistent=True)
    client.client.manual_ack_set(True)
    with client, Paho(broker.port, version) as publisher:
        client.subscribe(name, 1)
        for number in range(5):
            publisher.publish(name, str(number), 1)
        first = [client.next() for _ in range(5)]
        assert not any(m.dup for m in first)
        for message in first[:2]:
            client.client.ack(message.mid, message.qos)
        client.publish(f"{name}/barrier", b"", 1)  # its PUBACK shows that the broker has read the acknowledgements before it
        client.vanish()
    with Paho(broker.port, version, client_id=name, persistent=True) as again:
        got = [again.next() for _ in range(3)]
        assert [(m.payload, m.dup) for m in got] == [(b"2", True), (b"3", True), (b"4", True)]


def test_invalid_topics_do_not_hurt_other_clients(broker: RunningBroker, name: str) -> None:
    """A raw PUBLISH to a topic with a wildcard closes that connection, with 0x90 for MQTT 5, and no other."""
    with Paho(broker.port) as bystander:
        bystander.subscribe(name, 1)
        bad = Paho(broker.port).open()
        sock = bad.client.socket()
        assert sock is not None
        sock.sendall(b"\x30\x06\x00\x03a/#\x00")
        from_server, reason = bad.disconnects.get(timeout=PATIENCE)
        assert not from_server or reason in (0x82, 0x90, 0x81)
        bad.client.loop_stop()
        bystander.publish(name, b"still here", 1)
        assert bystander.next().payload == b"still here"
