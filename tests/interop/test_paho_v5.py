"""paho-mqtt 2 with what only MQTT 5 has: properties, subscription options, shared subscriptions, expiry, aliases, limits."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from paho.mqtt.packettypes import PacketTypes
from support.brokers import RunningBroker
from support.paho_client import Paho, properties


def test_all_properties_of_a_message_reach_the_subscriber(broker: RunningBroker, name: str) -> None:
    sent = {
        "PayloadFormatIndicator": 1,
        "ContentType": "text/plain",
        "ResponseTopic": "answer/here",
        "CorrelationData": bytes(range(256)),
        "UserProperty": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    with Paho(broker.port) as client:
        client.subscribe(name, 2, identifier=77)
        client.publish(name, "text", 2, MessageExpiryInterval=1000, **sent)
        got = client.next().properties
        assert {key: getattr(got, key) for key in sent} == sent
        assert got.SubscriptionIdentifier == [77]
        assert 990 <= got.MessageExpiryInterval <= 1000


def test_overlapping_subscriptions_carry_all_identifiers_or_come_each(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as client:
        client.subscribe(f"{name}/#", 1, identifier=1)
        client.subscribe(f"{name}/+", 2, identifier=2)
        client.publish(f"{name}/a", b"x", 2)
        seen: Counter[int] = Counter()
        while sum(seen.values()) < 2:  # [MQTT-3.3.4-2]: one message with both, or one for each
            seen.update(client.next().properties.SubscriptionIdentifier)
        assert seen == {1: 1, 2: 1}
        client.nothing_until(f"marker/{name}")


def test_no_local(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as client, Paho(broker.port) as other:
        client.subscribe(name, 1, noLocal=True)
        client.publish(name, b"mine", 1)
        other.publish(name, b"theirs", 1)
        assert client.next().payload == b"theirs"


@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published(broker: RunningBroker, name: str, as_published: bool) -> None:
    with Paho(broker.port) as client:
        client.subscribe(name, 1, retainAsPublished=as_published)
        client.publish(name, b"x", 1, retain=True)
        assert client.next().retain is as_published


@pytest.mark.parametrize(("handling", "expected"), [(0, [True, True]), (1, [True, False]), (2, [False, False])])
def test_retain_handling(broker: RunningBroker, name: str, handling: int, expected: list[bool]) -> None:
    with Paho(broker.port) as client:
        client.publish(f"{name}/t", b"kept", 1, retain=True)
        for round_number, retained_comes in enumerate(expected):
            client.subscribe(f"{name}/t", 1, retainHandling=handling)
            if retained_comes:
                assert client.next().payload == b"kept"
            client.nothing_until(f"marker/{name}/{round_number}")


def test_a_shared_subscription_gives_each_message_to_one_member(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as a, Paho(broker.port) as b, Paho(broker.port) as plain, Paho(broker.port) as publisher:
        for member in (a, b):
            member.subscribe(f"$share/group/{name}/#", 1)
        plain.subscribe(f"{name}/#", 1)
        for number in range(100):
            publisher.publish(f"{name}/{number}", str(number), 1)
        assert [int(plain.next().payload) for _ in range(100)] == list(range(100))
        for member in (a, b):
            member.subscribe(f"marker/{name}", 1)
        publisher.publish(f"marker/{name}", b"end", 1)
        shares = []
        for member in (a, b):
            got = []
            while (message := member.next()).payload != b"end":
                got.append(int(message.payload))
            shares.append(got)
        assert sorted(shares[0] + shares[1]) == list(range(100))
        assert all(share == sorted(share) and share for share in shares)


def test_two_groups_get_each_message_each(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as a, Paho(broker.port) as b:
        a.subscribe(f"$share/one/{name}", 1)
        b.subscribe(f"$share/two/{name}", 1)
        a.publish(name, b"x", 1)
        assert a.next().payload == b.next().payload == b"x"


def test_an_expired_message_is_not_delivered_to_a_returning_session(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port, client_id=name, persistent=True) as client:
        client.subscribe(name, 1)
    with Paho(broker.port) as publisher, Paho(broker.port) as clock:
        publisher.publish(name, b"short", 1, MessageExpiryInterval=1)
        publisher.publish(name, b"long", 1, MessageExpiryInterval=100)
        clock.subscribe(f"{name}/clock", 1)  # a will with a delay of two seconds is the clock of this test
        will = {
            "topic": f"{name}/clock",
            "payload": b"tick",
            "properties": properties(PacketTypes.WILLMESSAGE, WillDelayInterval=2),
        }
        Paho(broker.port, will=will, SessionExpiryInterval=60).__enter__().vanish()
        assert clock.next().payload == b"tick"
    with Paho(broker.port, client_id=name, persistent=True) as client:
        message = client.next()
        assert message.payload == b"long"
        assert message.properties.MessageExpiryInterval <= 98
        client.nothing_until(f"marker/{name}")


def test_a_client_that_returns_before_the_will_delay_is_over_takes_the_will_back(broker: RunningBroker, name: str) -> None:
    for delay in (1, 5, 25):
        will = {"topic": f"{name}/{delay}", "qos": 1, "properties": properties(PacketTypes.WILLMESSAGE, WillDelayInterval=delay)}
        with Paho(broker.port) as watcher:
            watcher.subscribe(f"{name}/{delay}", 1)
            begin = time.monotonic()
            Paho(broker.port, client_id=f"{name}-back", will=will | {"payload": b"gone"}, SessionExpiryInterval=60).__enter__().vanish()
            with Paho(broker.port, client_id=f"{name}-back", persistent=True):
                took = time.monotonic() - begin
                Paho(broker.port, client_id=f"{name}-away", will=will | {"payload": b"away"}, SessionExpiryInterval=60).__enter__().vanish()
                found = watcher.next().payload
        if took < delay:  # else this machine was too slow for that
            break
    assert found == b"away"


def test_server_assigns_a_client_identifier(broker: RunningBroker) -> None:
    with Paho(broker.port) as one, Paho(broker.port) as two:
        assert one.connack.AssignedClientIdentifier != two.connack.AssignedClientIdentifier


def test_topic_alias_from_the_client(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as client:
        assert client.connack.TopicAliasMaximum >= 1
        client.subscribe(f"{name}/#", 1)
        client.publish(f"{name}/a", b"1", 1, TopicAlias=1)
        client.client.publish("", b"2", 1, properties=properties(PacketTypes.PUBLISH, TopicAlias=1))
        client.publish(f"{name}/b", b"3", 1, TopicAlias=1)
        client.client.publish("", b"4", 1, properties=properties(PacketTypes.PUBLISH, TopicAlias=1))
        assert [(m.topic[-1], m.payload) for m in (client.next() for _ in range(4))] == [("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")]


def test_receive_maximum_bounds_what_is_unacknowledged(broker: RunningBroker, name: str) -> None:
    client = Paho(broker.port, ReceiveMaximum=3)
    client.client.manual_ack_set(True)
    with client, Paho(broker.port) as publisher:
        client.subscribe(name, 1)
        for number in range(10):
            publisher.publish(name, str(number), 1)
        waiting = [client.next() for _ in range(3)]
        client.subscribe(f"{name}/other", 0)
        publisher.publish(f"{name}/other", b"qos 0 passes", 0)
        assert client.next().payload == b"qos 0 passes"
        assert client.messages.empty()
        expected = 0
        while expected < 10:
            message = waiting.pop(0) if waiting else client.next()
            assert int(message.payload) == expected
            expected += 1
            client.client.ack(message.mid, message.qos)


def test_a_message_beyond_the_clients_maximum_packet_size_is_left_out(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port, MaximumPacketSize=200) as client, Paho(broker.port) as publisher:
        client.subscribe(name, 1)
        publisher.publish(name, b"x" * 500, 1)
        publisher.publish(name, b"small", 1)
        assert client.next().payload == b"small"


def test_request_and_response(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as service, Paho(broker.port) as caller:
        service.subscribe(f"{name}/request", 1)
        caller.subscribe(f"{name}/answer/7", 1)
        caller.publish(f"{name}/request", b"2+2", 1, ResponseTopic=f"{name}/answer/7", CorrelationData=b"\x00\x01")
        request = service.next()
        service.publish(request.properties.ResponseTopic, b"4", 1, CorrelationData=request.properties.CorrelationData)
        answer = caller.next()
        assert (answer.payload, answer.properties.CorrelationData) == (b"4", b"\x00\x01")


def test_a_session_ends_when_its_expiry_is_over(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port, client_id=name, persistent=True, SessionExpiryInterval=0) as client:
        client.subscribe(name, 1)
    with Paho(broker.port, client_id=name, persistent=True) as client:
        assert not client.session_present


def test_puback_tells_that_nobody_subscribes(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as client:
        assert client.publish(name, b"x", 1) in (0x00, 0x10)  # [MQTT-3.4.2.1]: 0x10 may be used
