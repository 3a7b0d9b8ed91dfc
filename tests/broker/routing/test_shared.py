"""Shared subscriptions: each message to one member, whoever comes, goes, or does not keep up."""

from __future__ import annotations

from collections import Counter

import pytest
from mqmesh.mqtt.packets import Pingreq, Pingresp, Puback, Publish, Pubrec, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Client, Site


async def payloads(client: Client) -> list[bytes]:
    """What has come, acknowledged."""
    await client_ping(client)
    found = []
    while client.waiting():
        packet = await client.receive()
        if isinstance(packet, Publish):
            found.append(packet.payload)
            if packet.qos == 1:
                client.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                client.send(Pubrec(packet.packet_id))
    return found


async def client_ping(client: Client) -> None:
    client.send(Pingreq())
    packets = []
    while not isinstance(packet := await client.receive(), Pingresp):
        packets.append(packet)
    for packet in packets:
        client._packets.put_nowait(packet)


@pytest.mark.any_loop
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_each_message_goes_to_one_member_and_all_take_turns(qos, alone, version):
    async with Site() as site:
        members = [await site.client(f"m{n}", version) for n in range(3)]
        for member in members:
            await member.subscribe("$share/g/t/+", qos=2)
        outsider = await site.client("o")
        await outsider.subscribe("t/#", qos=0)
        publisher = await site.client("p")
        for n in range(90):
            message = Publish("t/x", b"%02d" % n, qos, packet_id=n + 1 if qos else 0)
            publisher.send(message)
            if alone and not qos:
                await publisher.nothing()
            elif alone:
                await publisher.receive()
        if not alone:
            for _ in range(90 if qos else 0):
                await publisher.receive()
            await publisher.nothing()
        shares = [await payloads(member) for member in members]
        assert sorted(payload for share in shares for payload in share) == [b"%02d" % n for n in range(90)]
        assert [len(share) for share in shares] == [30, 30, 30]
        assert all(share == sorted(share) for share in shares)
        assert await payloads(outsider) == [b"%02d" % n for n in range(90)]


async def test_groups_are_independent_and_mix_with_ordinary_subscriptions():
    async with Site() as site:
        client = await site.client("c")
        await client.subscribe("$share/g/t", qos=1, identifier=1)
        await client.subscribe("$share/h/t", qos=0, identifier=2)
        await client.subscribe("t", qos=1, identifier=3)
        await client.subscribe("$share/g/+", qos=1, identifier=4)
        await (await site.client("p")).publish("t", b"x", 1)
        copies = await client.messages(4)
        assert Counter((m.qos, m.properties[Property.SUBSCRIPTION_IDENTIFIER][0]) for m in copies) == {
            (1, 1): 1,
            (0, 2): 1,
            (1, 3): 1,
            (1, 4): 1,
        }
        await client.nothing()


async def test_no_local_is_forbidden():
    async with Site() as site:
        client = await site.client("c")
        client.send(b"\x82\x10\x00\x01\x00\x00\x0a$share/g/t\x04")
        await client.closed(Reason.PROTOCOL_ERROR)


async def test_a_member_without_connection_is_passed_over():
    async with Site() as site:
        here, away = await site.client("here"), await site.client("away", clean=False, expiry=100)
        for member in (here, away):
            await member.subscribe("$share/g/t", qos=1)
        await away.cut()
        await site.gone("away")
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(9)])
        assert [m.payload for m in await here.messages(9)] == [b"%d" % n for n in range(9)]


@pytest.mark.parametrize("qos", [1, 2])
async def test_when_all_are_away_messages_wait_for_whoever_comes_first(qos):
    async with Site() as site:
        for name in ("a", "b"):
            member = await site.client(name, clean=False, expiry=100)
            await member.subscribe("$share/g/t", qos=2)
            await member.leave()
        publisher = await site.client("p")
        for n in range(10):
            await publisher.publish("t", b"%d" % n, qos)
        await publisher.publish("t", b"QoS 0", 0)
        first = await site.client("b", clean=False, expiry=100)
        assert {m.payload for m in await first.messages(10)} == {b"%d" % n for n in range(10)}
        await (await site.client("a", clean=False, expiry=100)).nothing()
        newcomer = await site.client("new")
        await newcomer.subscribe("$share/g/t", qos=2)
        await newcomer.nothing()


async def test_a_newcomer_takes_what_waits():
    async with Site() as site:
        member = await site.client("a", clean=False, expiry=100)
        await member.subscribe("$share/g/t", qos=1)
        await member.leave()
        await (await site.client("p")).publish("t", b"x", 1)
        newcomer = await site.client("new")
        await newcomer.subscribe("$share/other/t", qos=1)
        await newcomer.nothing()
        newcomer.send(Subscribe(9, [Subscription("$share/g/t", 1)]))
        await newcomer.expect(Suback)
        await newcomer.expect(Publish, payload=b"x")


async def test_a_member_that_leaves_for_good_leaves_its_unacknowledged_qos_1_to_others():
    async with Site() as site:
        leaver = await site.client("leaver")
        await leaver.subscribe("$share/g/t", qos=2)
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 1 + n % 2, packet_id=n + 1) for n in range(6)])
        await leaver.messages(6, acknowledge=False)
        other = await site.client("other")
        await other.subscribe("$share/g/t", qos=2)
        leaver.send(Puback(1))
        await leaver.cut()
        # QoS 2 in flight must not go to anyone else (MQTT-4.8.2-5)
        assert [m.payload for m in await other.messages(2)] == [b"2", b"4"]
        await other.nothing()


async def test_a_member_that_loses_its_connection_keeps_what_it_has_got_and_gives_up_what_it_has_not():
    async with Site() as site:
        leaver = await site.client("leaver", clean=False, expiry=100, receive_maximum=2)
        await leaver.subscribe("$share/g/t", qos=2)
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n + 1) for n in range(5)])
        await leaver.messages(2, acknowledge=False)
        other = await site.client("other")
        await other.subscribe("$share/g/t", qos=2)
        await other.nothing()
        await leaver.cut()
        assert [m.payload for m in await other.messages(3)] == [b"2", b"3", b"4"]
        leaver = await site.client("leaver", clean=False, expiry=100)
        assert [(m.payload, m.dup) for m in await leaver.messages(2)] == [(b"0", True), (b"1", True)]


async def test_a_member_that_is_busy_is_passed_over():
    async with Site() as site:
        busy, free = await site.client("busy", receive_maximum=1), await site.client("free", receive_maximum=100)
        for member in (busy, free):
            await member.subscribe("$share/g/t", qos=1)
        publisher = await site.client("p")
        for n in range(20):
            await publisher.publish("t", b"%d" % n, 1)
        assert len(await payloads(free)) >= 18
        assert busy.waiting() <= 2


@pytest.mark.parametrize("alone", [True, False])
async def test_a_message_that_one_member_has_no_room_for_goes_to_another(alone):
    async with Site(session_queue_messages=5) as site:
        for name in ("a", "b"):
            member = await site.client(name, clean=False, expiry=100)
            await member.subscribe("$share/g/t", qos=1)
            await member.leave()
        publisher = await site.client("p")
        packets = [Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(12)]
        if alone:
            for packet in packets:
                publisher.send(packet)
                await site.until(lambda n=packet.packet_id: site.broker.site.sessions.get("p").connection.received == n)
        else:
            publisher.send(*packets)
        reasons = [(await publisher.expect(Puback)).reason for _ in range(12)]
        assert Counter(reasons) == {0: 10, Reason.QUOTA_EXCEEDED: 2}
        assert site.broker.context.counters.dropped == 2
        member = await site.client("b", clean=False, expiry=100)
        assert len(await member.messages(10)) == 10


async def test_members_of_different_qos():
    async with Site() as site:
        low, high = await site.client("low"), await site.client("high", 4)
        await low.subscribe("$share/g/t", qos=0)
        await high.subscribe("$share/g/t", qos=2)
        publisher = await site.client("p")
        for n in range(10):
            await publisher.publish("t", b"%d" % n, 2)
        assert {m.qos for m in await low.messages(5)} == {0}
        assert {m.qos for m in await high.messages(5)} == {2}


async def test_a_member_may_publish_to_its_group():
    async with Site() as site:
        client = await site.client("c")
        await client.subscribe("$share/g/t", qos=1)
        client.send(Publish("t", b"x", 1, packet_id=1))
        await client.expect(Publish, payload=b"x")


async def test_unsubscribing_keeps_what_is_on_its_way():
    async with Site() as site:
        client = await site.client("c", receive_maximum=1)
        await client.subscribe("$share/g/t", qos=1)
        publisher = await site.client("p")
        publisher.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 1, packet_id=2))
        first = await client.expect(Publish)
        await client.unsubscribe("$share/g/t")
        client.send(Puback(first.packet_id))
        await client.expect(Publish, payload=b"2")
        assert site.broker.site.router.groups == {}
