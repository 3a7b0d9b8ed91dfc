"""Topic aliases in both directions; the lifetime of messages, counted down wherever they wait."""

from __future__ import annotations

import pytest
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site

ALIAS = Property.TOPIC_ALIAS
EXPIRY = Property.MESSAGE_EXPIRY_INTERVAL


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_aliases_of_a_publisher(version, qos):
    async with Site() as site:
        subscriber = await site.client("s", version)
        await subscriber.subscribe("#", qos=2)
        publisher = await site.client("p")
        keep = {Property.CONTENT_TYPE: "x"}
        for n, (topic, alias) in enumerate((("a/b", 1), ("", 1), ("c", 64), ("", 64), ("", 1), ("d", 1), ("", 1))):
            await publisher.publish(topic, b"%d" % n, qos, properties={ALIAS: alias, **keep})
        messages = await subscriber.messages(7)
        assert [message.topic for message in messages] == ["a/b", "a/b", "c", "c", "a/b", "d", "d"]
        assert all(message.properties == (keep if version == 5 else {}) for message in messages)


@pytest.mark.parametrize(
    ("topic", "alias", "reason"),
    [
        ("t", 65, Reason.TOPIC_ALIAS_INVALID),
        ("t", 0, Reason.TOPIC_ALIAS_INVALID),
        ("", 3, Reason.PROTOCOL_ERROR),
        ("", 65, Reason.TOPIC_ALIAS_INVALID),
    ],
)
async def test_wrong_aliases(topic, alias, reason):
    async with Site() as site:
        client = await site.client("c")
        client.send(
            b"".join(
                (b"\x30", bytes((6 + len(topic),)), len(topic).to_bytes(2, "big"), topic.encode(), b"\x03\x23", alias.to_bytes(2, "big"))
            )
        )
        await client.closed(reason)


async def test_a_broker_that_takes_no_aliases():
    async with Site(topic_alias_maximum=0) as site:
        client = await site.client("c")
        client.send(Publish("t", b"", properties={ALIAS: 1}))
        await client.closed(Reason.TOPIC_ALIAS_INVALID)


async def test_aliases_end_with_the_connection():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=100)
        await client.publish("t", b"", properties={ALIAS: 1})
        await client.cut()
        client = await site.client("c", clean=False, expiry=100)
        client.send(Publish("", b"", properties={ALIAS: 1}))
        await client.closed(Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_aliases_towards_a_subscriber(qos):
    async with Site() as site:
        client = await site.client("c", topic_alias_maximum=2)
        await client.subscribe("#", qos=2)
        publisher = await site.client("p")
        topics = ["first", "second", "third", "first", "second", "third", "abc"]
        for topic in topics:
            await publisher.publish(topic, topic.encode(), qos)
        seen = [(message.topic, message.properties.get(ALIAS)) for message in await client.messages(7)]
        assert seen == [("first", 1), ("second", 2), ("third", None), ("", 1), ("", 2), ("third", None), ("abc", None)]
        publisher.send(*[Publish("second", b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(3)])
        assert [(message.topic, message.payload) for message in await client.messages(3)] == [("", b"0"), ("", b"1"), ("", b"2")]


async def test_the_first_of_a_run_names_the_topic():
    async with Site() as site:
        client = await site.client("c", topic_alias_maximum=5, receive_maximum=2)
        await client.subscribe("#", qos=1)
        publisher = await site.client("p")
        publisher.send(*[Publish("topic", b"%d" % n, 1, packet_id=n + 1) for n in range(5)])
        messages = await client.messages(5)
        assert [(message.topic, message.payload) for message in messages] == [
            ("topic", b"0"),
            ("", b"1"),
            ("", b"2"),
            ("", b"3"),
            ("", b"4"),
        ]
        assert {message.properties[ALIAS] for message in messages} == {1}


async def test_redelivery_on_a_new_connection_names_the_topic_again():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=100, topic_alias_maximum=5)
        await client.subscribe("#", qos=1)
        publisher = await site.client("p")
        publisher.send(*[Publish("topic", b"%d" % n, 1, packet_id=n + 1) for n in range(3)])
        await client.messages(3, acknowledge=False)
        await client.cut()
        client = await site.client("c", clean=False, expiry=100, topic_alias_maximum=5)
        messages = await client.messages(3)
        assert [(m.topic, m.payload, m.dup, m.properties[ALIAS]) for m in messages] == [
            ("topic", b"0", True, 1),
            ("", b"1", True, 1),
            ("", b"2", True, 1),
        ]
        await client.cut()
        client = await site.client("c", clean=False, expiry=100)
        await client.nothing()


async def test_a_message_too_large_with_its_topic_sets_no_alias():
    async with Site() as site:
        client = await site.client("c", topic_alias_maximum=5, maximum_packet_size=40)
        await client.subscribe("#", qos=1)
        publisher = await site.client("p")
        topic = "a/long/topic/of/27/characters"
        await publisher.publish(topic, bytes(20), 1)  # with the topic it is too large
        await publisher.publish(topic, b"", 1)
        await publisher.publish(topic, bytes(20), 1)  # with the alias it is not
        seen = [(message.topic, len(message.payload)) for message in await client.messages(2)]
        assert seen == [(topic, 0), ("", 20)]
        await client.nothing()
        assert site.broker.site.sessions.get("c").outbound.in_flight == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_a_message_that_waited_says_how_long_it_still_lives(version):
    async with Site() as site:
        client = await site.client("c", version, clean=False, expiry=1000)
        await client.subscribe("t", qos=2)
        await client.cut()
        await site.gone("c")
        publisher = await site.client("p")
        for seconds in (10, 100, None):
            await publisher.publish("t", str(seconds).encode(), 1, properties={EXPIRY: seconds} if seconds else {})
        await site.later(20.5)
        client = await site.client("c", version, clean=False, expiry=1000)
        seen = [(message.payload, message.properties.get(EXPIRY)) for message in await client.messages(2)]
        assert seen == [(b"100", 80 if version == 5 else None), (b"None", None)]
        assert site.broker.context.counters.expired == 1
        await client.nothing()
        assert site.broker.site.sessions.get("c").outbound.in_flight == 0


async def test_a_message_that_waits_for_the_window_expires_too():
    async with Site() as site:
        client = await site.client("c", receive_maximum=1)
        await client.subscribe("t", qos=1)
        publisher = await site.client("p")
        for n in range(3):
            await publisher.publish("t", b"%d" % n, 1, properties={EXPIRY: 10 + 10 * n})
        first = await client.expect(Publish, payload=b"0")
        await site.later(25)
        client.send(Puback(first.packet_id))
        await client.expect(Publish, payload=b"2", properties={EXPIRY: 5})


async def test_a_delivery_that_has_begun_goes_on():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=1000)
        await client.subscribe("t", qos=1)
        publisher = await site.client("p")
        await publisher.publish("t", b"x", 1, properties={EXPIRY: 10})
        await client.expect(Publish)
        await client.cut()
        await site.gone("c")
        await site.later(20)
        client = await site.client("c", clean=False, expiry=1000)
        await client.expect(Publish, dup=True, payload=b"x", properties={EXPIRY: 0})


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_lifetime_of_0_is_for_those_who_are_there(qos):
    async with Site() as site:
        here, away = await site.client("here"), await site.client("away", clean=False, expiry=100)
        for client in (here, away):
            await client.subscribe("t", qos=1)
        await away.cut()
        await site.gone("away")
        await (await site.client("p")).publish("t", b"x", qos, properties={EXPIRY: 0})
        await here.expect(Publish, properties={EXPIRY: 0})
        await site.later(1)
        await (await site.client("away", clean=False, expiry=100)).nothing()


async def test_expired_messages_make_room_in_a_full_queue():
    async with Site(session_queue_messages=5) as site:
        client = await site.client("c", 4, clean=False)
        await client.subscribe("t", qos=1)
        await client.cut()
        await site.gone("c")
        publisher = await site.client("p")
        for n in range(5):
            assert await publisher.publish("t", b"%d" % n, 1, properties={EXPIRY: 10} if n < 3 else {}) == 0
        assert await publisher.publish("t", b"full", 1) == Reason.QUOTA_EXCEEDED
        await site.later(11)
        assert await publisher.publish("t", b"5", 1) == 0
        client = await site.client("c", 4, clean=False)
        assert [message.payload for message in await client.messages(3)] == [b"3", b"4", b"5"]


async def test_payload_format():
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t")
        publisher = await site.client("p")
        publisher.send(*[Publish("t", "é".encode(), properties={Property.PAYLOAD_FORMAT_INDICATOR: 1})] * 3)
        for message in await subscriber.messages(3):
            assert message.properties == {Property.PAYLOAD_FORMAT_INDICATOR: 1}
        publisher.send(Publish("t", b"\xc3\xa9", properties={Property.PAYLOAD_FORMAT_INDICATOR: 1}))
        publisher.send(Publish("t", b"\xc3\xc3", properties={Property.PAYLOAD_FORMAT_INDICATOR: 1}))
        await publisher.closed(Reason.PAYLOAD_FORMAT_INVALID)


@pytest.mark.parametrize("qos", [1, 2])
async def test_payload_format_in_the_middle_of_a_run(qos):
    """What is not the UTF-8 that it says is refused alone, and its publisher, who would send it again for ever, stays connected."""
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t", qos=qos)
        publisher = await site.client("p")
        payloads = [b"ab", b"\xc3\xa9", b"\xc3\xc3", b"cd", b"\xff\xff", b"ef"]
        marked = {Property.PAYLOAD_FORMAT_INDICATOR: 1}
        publisher.send(*[Publish("t", payload, qos, packet_id=1 + index, properties=marked) for index, payload in enumerate(payloads)])
        answers = {}
        for _ in payloads:
            answer = await publisher.receive()
            answers[answer.packet_id] = answer.reason
        assert answers == {1: 0, 2: 0, 3: 0x99, 4: 0, 5: 0x99, 6: 0}
        assert [message.payload for message in await subscriber.messages(4)] == [b"ab", b"\xc3\xa9", b"cd", b"ef"]
        publisher.send(Publish("t", b"new", qos, packet_id=3, properties=marked))  # its identifier is free again (MQTT-4.3.3-9)
        assert (await publisher.receive()).reason == 0
        await subscriber.messages(1)
