"""Messages from publisher to subscriber: every QoS, every pair of versions, every size."""

from __future__ import annotations

import pytest
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site

CONTENT = {Property.CONTENT_TYPE: "text/plain", Property.USER_PROPERTY: [("a", "1"), ("b", "2"), ("a", "3")]}


@pytest.mark.any_loop
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("to", [4, 5])
@pytest.mark.parametrize("come", [4, 5])
async def test_each_qos_and_version_to_each(come, to, qos, granted):
    async with Site() as site:
        subscriber = await site.client("s", to)
        publisher = await site.client("p", come)
        assert (await subscriber.subscribe("a/+", qos=granted)).reasons == [granted]
        assert await publisher.publish("a/b", b"hello", qos, properties=CONTENT if come == 5 else {}) == 0
        (message,) = await subscriber.messages(1)
        assert (message.topic, message.payload, message.qos, message.retain, message.dup) == (
            "a/b",
            b"hello",
            min(qos, granted),
            False,
            False,
        )
        assert message.properties == (CONTENT if come == to == 5 else {})
        await subscriber.nothing()
        session = site.broker.site.sessions.get("s")
        assert session.outbound.in_flight == 0
        assert site.broker.site.sessions.get("p").inbound.open == set()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000, 1_500_000])
async def test_each_size(qos, size):
    async with Site(max_packet_size=2_000_000) as site:
        subscriber = await site.client("s")
        publisher = await site.client("p", 4)
        await subscriber.subscribe("t", qos=2)
        payload = bytes(n % 251 for n in range(size))
        await publisher.publish("t", payload, qos)
        (message,) = await subscriber.messages(1)
        assert message.payload == payload


@pytest.mark.parametrize("version", [4, 5])
async def test_packets_may_be_split_at_every_byte(version):
    async with Site() as site:
        subscriber = await site.client("s", version)
        await subscriber.subscribe("t/#", qos=2)
        publisher = await site.client("p", version)
        stream = b"".join(
            encode(one, version)
            for one in (
                Publish("t/0", b"zero"),
                Publish("t/1", b"one" * 50, 1, packet_id=1),
                Publish("t/2", b"two", 2, packet_id=2),
                Pubrel(2),
                Publish("t/1", b"x" * 200, 1, True, packet_id=3),
            )
        )
        for at in range(len(stream)):
            publisher.send(stream[:at])
            taken = site.broker.context.counters.bytes_received
            await site.until(lambda taken=taken: site.broker.context.counters.bytes_received >= taken)
            publisher.send(stream[at:])
            await publisher.expect(Puback, packet_id=1)
            await publisher.expect(Pubrec, packet_id=2)
            await publisher.expect(Pubcomp, packet_id=2)
            await publisher.expect(Puback, packet_id=3)
            payloads = [message.payload for message in await subscriber.messages(4)]
            assert payloads == [b"zero", b"one" * 50, b"two", b"x" * 200]


async def test_one_byte_at_a_time():
    async with Site() as site:
        client = await site.dial(5)
        from mqmesh.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Suback, Subscribe, Subscription

        packets = [Connect("c"), Subscribe(1, [Subscription("t", 1)]), Publish("t", b"payload", 1, packet_id=1), Pingreq()]
        for byte in b"".join(encode(one, 5) for one in packets):
            before = site.broker.context.counters.bytes_received
            client.send(bytes((byte,)))
            await site.until(lambda before=before: site.broker.context.counters.bytes_received > before)
        for kind in (Connack, Suback, Publish, Puback, Pingresp):
            await client.expect(kind)


async def test_dup_is_not_passed_on():
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t", qos=1)
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"x", 1, dup=True, packet_id=n) for n in (7, 8)])
        for message in await subscriber.messages(2):
            assert not message.dup


async def test_a_qos_1_identifier_used_again_is_a_new_message():
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t", qos=1)
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 1, packet_id=5) for n in range(3)])
        assert [message.payload for message in await subscriber.messages(3)] == [b"0", b"1", b"2"]
        for _ in range(3):
            await publisher.expect(Puback, packet_id=5)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_qos_2_message_sent_again_before_its_release_is_delivered_once(version):
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t", qos=2)
        publisher = await site.client("p", version)
        publisher.send(Publish("t", b"a", 2, packet_id=5), Publish("t", b"a", 2, dup=True, packet_id=5))
        await publisher.expect(Pubrec, packet_id=5, reason=0)
        await publisher.expect(Pubrec, packet_id=5, reason=0)
        # new and repeated ones in one run
        publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n) for n in (4, 5, 6)])
        for n in (4, 5, 6):
            await publisher.expect(Pubrec, packet_id=n, reason=0)
        publisher.send(Pubrel(5))
        await publisher.expect(Pubcomp, packet_id=5, reason=0)
        publisher.send(Publish("t", b"b", 2, packet_id=5))
        await publisher.expect(Pubrec, packet_id=5)
        assert [message.payload for message in await subscriber.messages(4)] == [b"a", b"4", b"6", b"b"]
        await subscriber.nothing()


async def test_unknown_identifiers_are_answered_as_the_version_can():
    async with Site() as site:
        new, old = await site.client("new", 5), await site.client("old", 4)
        for client, reason in ((new, Reason.PACKET_IDENTIFIER_NOT_FOUND), (old, 0)):
            client.send(Pubrel(3), Pubrel(4))
            await client.expect(Pubcomp, packet_id=3, reason=reason)
            await client.expect(Pubcomp, packet_id=4, reason=reason)
            client.send(Pubrec(9))
            await client.expect(Pubrel, packet_id=9, reason=reason)
            client.send(Puback(9), Pubcomp(9), Puback(65535))
            await client.nothing()


async def test_released_and_unreleased_identifiers_in_one_block():
    async with Site() as site:
        client = await site.client("c", 5)
        client.send(Publish("t", b"", 2, packet_id=2), Pubrel(1), Pubrel(2), Pubrel(3))
        await client.expect(Pubrec, packet_id=2)
        for packet_id, reason in ((1, 0x92), (2, 0), (3, 0x92)):
            await client.expect(Pubcomp, packet_id=packet_id, reason=reason)


async def test_nobody_wants_it():
    async with Site() as site:
        publisher = await site.client("p", 5)
        assert await publisher.publish("t", b"", 1) == Reason.NO_MATCHING_SUBSCRIBERS
        assert await publisher.publish("t", b"", 2) == Reason.NO_MATCHING_SUBSCRIBERS
        assert await (await site.client("q", 4)).publish("t", b"", 1) == 0


@pytest.mark.parametrize("order", ["forwards", "backwards", "odd ones first", "in two halves"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_acknowledgements_in_any_order(qos, order):
    async with Site(in_flight=100) as site:
        subscriber = await site.client("s", 4)
        await subscriber.subscribe("t", qos=2)
        publisher = await site.client("p", 4)
        publisher.send(*[Publish("t", b"%03d" % n, qos, packet_id=n) for n in range(1, 251)])
        taken: list[bytes] = []
        while len(taken) < 250:
            messages = [await subscriber.receive() for _ in range(min(100, 250 - len(taken)))]
            taken += [message.payload for message in messages]
            ids = [message.packet_id for message in messages]
            ids = {
                "forwards": ids,
                "backwards": ids[::-1],
                "odd ones first": ids[1::2] + ids[::2],
                "in two halves": ids[len(ids) // 2 :] + ids[: len(ids) // 2],
            }[order]
            if qos == 1:
                subscriber.send(*[Puback(packet_id) for packet_id in ids])
                continue
            subscriber.send(*[Pubrec(packet_id) for packet_id in ids])
            for packet_id in ids:
                await subscriber.expect(Pubrel, packet_id=packet_id)
            subscriber.send(*[Pubcomp(packet_id) for packet_id in reversed(ids)])
        assert taken == [b"%03d" % n for n in range(1, 251)]
        await subscriber.nothing()
        assert site.broker.site.sessions.get("s").outbound.in_flight == 0


async def test_a_pubrec_that_refuses_ends_the_message():
    async with Site() as site:
        subscriber = await site.client("s", receive_maximum=1)
        await subscriber.subscribe("t", qos=2)
        publisher = await site.client("p")
        publisher.send(Publish("t", b"a", 2, packet_id=1), Publish("t", b"b", 2, packet_id=2))
        first = await subscriber.expect(Publish, payload=b"a")
        subscriber.send(Pubrec(first.packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
        await subscriber.expect(Publish, payload=b"b")
        assert site.broker.site.sessions.get("s").outbound.in_flight == 1


async def test_acknowledgements_with_reason_codes_and_properties():
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t", qos=2)
        publisher = await site.client("p")
        publisher.send(Publish("t", b"a", 1, packet_id=1), Publish("t", b"b", 2, packet_id=2))
        one = await subscriber.expect(Publish, payload=b"a")
        two = await subscriber.expect(Publish, payload=b"b")
        why = {Property.REASON_STRING: "so"}
        subscriber.send(Puback(one.packet_id, Reason.UNSPECIFIED_ERROR, why), Pubrec(two.packet_id, properties=why))
        await subscriber.expect(Pubrel, packet_id=two.packet_id)
        subscriber.send(Pubcomp(two.packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND, why))
        await subscriber.nothing()
        assert site.broker.site.sessions.get("s").outbound.in_flight == 0
