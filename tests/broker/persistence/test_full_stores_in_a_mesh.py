"""Sites whose stores have all that they may: what still goes between them, who is refused, what publishers are told; clients that roam."""

from __future__ import annotations

import json

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

FOREVER = 0xFFFFFFFF
KEY = "a key of sixteen bytes"
LIMIT = 64 * 1024
BIG = bytes(4096)
WISH = {Property.USER_PROPERTY: [("mqmesh-ack", "receipts")]}


def member(number: int, *peers: Site, stored: int = 0, store: MemoryStore | None = None, **mesh: object) -> Site:
    """A broker of the mesh. stored: what its store may hold."""
    settings = MeshSettings("m", KEY, peers=[PeerSettings(peer.broker.addresses[0]) for peer in peers], **mesh)  # type: ignore[arg-type]
    return Site(store=store or MemoryStore(), mesh=(number, settings), stored_bytes=stored)


async def away(site: Site, topic: str, name: str = "away") -> None:
    """A subscriber with a session that is gone."""
    client = await site.client(name, clean=False, expiry=FOREVER)
    await client.subscribe(topic, qos=1)
    await client.leave()
    await site.gone(name)


async def fill(publisher: Client, topic: str) -> int:
    """Publish until it is refused: how many messages were taken."""
    taken = 0
    while await publisher.publish(topic, b"%d " % taken + BIG, 1) == 0:
        taken += 1
        assert taken < 100
    return taken


async def wanted(origin: Site, topic: bytes, brokers: int = 1) -> None:
    """Wait until an origin knows that so many others want a topic."""
    await until(lambda: (route := origin.broker.site.mesh.route(topic)) is not None and route.match.mask.bit_count() == brokers)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_full_queue_of_sessions_does_not_stop_what_is_for_sites_in_reach(qos: int) -> None:
    async with member(1, stored=LIMIT) as origin, member(2, origin) as site:
        await away(origin, "kept")
        listener = await site.client()
        await listener.subscribe("u", qos=2)
        await wanted(origin, b"u")
        publisher = await origin.client()
        await fill(publisher, "kept")
        assert origin.broker.site.persistence.quota.full
        bodies = [b"%d " % number + BIG for number in range(40)]
        packets = [Publish("u", body, qos, packet_id=publisher.next_id()) for body in bodies]
        publisher.send(*packets)  # far more than may be on its way
        for packet in packets:
            answer = await publisher.receive()
            assert (answer.packet_id, answer.reason) == (packet.packet_id, 0)
        assert [message.payload for message in await listener.messages(len(bodies))] == bodies
        assert await publisher.publish("kept", b"x", 1) == 0x97
        await until(lambda: not origin.broker.site.mesh.node.custody()[0])
        assert origin.broker.site.persistence.quota.full


async def test_what_is_for_a_site_out_of_reach_is_refused_at_once_until_it_is_back() -> None:
    async with member(1, stored=LIMIT) as origin:
        await away(origin, "kept")
        publisher = await origin.client()
        async with member(2, origin) as site:
            await away(site, "u")
            await wanted(origin, b"u")
            await fill(publisher, "kept")
            assert await publisher.publish("u", b"1", 1) == 0
        await until(lambda: not origin.broker.site.mesh.node.live())
        assert await publisher.publish("u", b"2", 1) == 0x97
        assert origin.broker.site.persistence.quota.refused


async def test_a_site_that_is_gone_leaves_half_of_the_store_to_the_sessions_here() -> None:
    async with member(1, stored=LIMIT) as origin, member(3, origin) as other:
        listener = await other.client()
        await listener.subscribe("u", qos=1)
        async with member(2, origin) as site:
            await away(site, "t")
            await wanted(origin, b"t")
        await wanted(origin, b"u")
        await until(lambda: origin.broker.site.mesh.node.live() == 1 << 3)
        bound = origin.broker.site.persistence.quota
        publisher = await origin.client()
        gone = await fill(publisher, "t")
        assert LIMIT // 2 // 5000 <= gone <= LIMIT // 2 // 4096 + 1
        assert (bound.full, bound.custody_full) == (False, True)
        assert "other sites" in bound.state
        assert await publisher.publish("u", b"in reach", 1) == 0
        assert (await listener.messages(1))[0].payload == b"in reach"
        await away(origin, "v")
        here = await fill(publisher, "v")
        assert LIMIT // 2 // 5000 - 1 <= here <= LIMIT // 2 // 4096
        assert (bound.full, bound.custody_full) == (True, True)
        assert await publisher.publish("u", b"still", 1) == 0
        assert (await listener.messages(1))[0].payload == b"still"


async def test_a_retained_message_is_deleted_though_a_site_is_gone() -> None:
    async with member(1, stored=LIMIT) as origin:
        publisher = await origin.client()
        async with member(2, origin) as site:
            await away(site, "r/#")
            await wanted(origin, b"r/1")
            assert await publisher.publish("r/1", b"x", 1, retain=True) == 0
        await until(lambda: not origin.broker.site.mesh.node.live())
        await fill(publisher, "r/2")
        assert await publisher.publish("r/1", b"", 1, retain=True) == 0
        assert not [run for run in origin.broker.site.retained.all() if not run.topic.startswith(b"$SYS/")]  # that comes at times


async def test_receipts_name_a_site_that_is_full() -> None:
    async with member(1) as origin, member(2, origin, stored=LIMIT) as site:
        await away(site, "t/#")
        taken = await fill(await site.client(), "t/own")
        await wanted(origin, b"t/1")
        publisher = await origin.client()
        packet = Publish("t/1", b"x", 1, packet_id=publisher.next_id(), properties=dict(WISH))
        publisher.send(packet)
        await until(lambda: site.broker.site.mesh.incoming.held == 1)
        await publisher.nothing()  # it is kept here, and the other one is in reach
        assert await states(publisher, packet.packet_id) == ("open", [], [("site2", True)])
        await origin.later(31)
        answer = await publisher.expect(Puback, packet_id=packet.packet_id, reason=0)
        assert ("mqmesh-awaited", "site2") in answer.properties[Property.USER_PROPERTY]
        back = await site.client("away", clean=False, expiry=FOREVER)
        await back.messages(taken)
        await until(lambda: not site.broker.site.persistence.quota.full)
        await site.later(1)
        assert (await back.messages(1))[0].payload == b"x"
        await until(lambda: not origin.broker.site.mesh.node.custody()[0])
        assert await states(publisher, packet.packet_id) == ("done", ["site2"], [])


async def test_receipts_of_a_full_site_whose_own_store_is_full() -> None:
    """What a full origin gives to a site in reach is confirmed as ever."""
    async with member(1, stored=LIMIT, ack="receipts") as origin, member(2, origin) as site:
        listener = await site.client()
        await listener.subscribe("t", qos=1)
        await away(origin, "own")
        await wanted(origin, b"t")
        publisher = await origin.client()
        await fill(publisher, "own")
        packet = Publish("t", b"x", 1, packet_id=publisher.next_id())
        publisher.send(packet)
        answer = await publisher.expect(Puback, packet_id=packet.packet_id, reason=0)
        assert ("mqmesh-received", "site2") in answer.properties[Property.USER_PROPERTY]
        assert (await listener.messages(1))[0].payload == b"x"


async def states(client: Client, packet_id: int) -> tuple[str, list[str], list[tuple[str, bool]]]:
    """What the request topic says of a message: its state, who has it, who is awaited and whether each can be reached."""
    await client.subscribe("answers", qos=1)
    client.send(Publish("$mqmesh/receipts", b"packet:%d" % packet_id, properties={Property.RESPONSE_TOPIC: "answers"}))
    found = json.loads((await client.messages(1))[0].payload)
    return found["state"], [one["name"] for one in found["received"]], [(one["name"], one["reachable"]) for one in found["awaited"]]


async def subscriber(site: Site, name: str, topic: str) -> None:
    """A client that may roam, away."""
    client = await site.client(name, clean=False, expiry=FOREVER)
    await client.subscribe(topic, qos=1)
    await client.leave()
    await site.gone(name)


@pytest.mark.parametrize("waits", [False, True], ids=["", "behind what waits for room"])
async def test_a_client_comes_to_a_site_that_is_full_with_all_that_it_has(waits: bool) -> None:
    async with member(1, clients="roam") as old, member(2, old, stored=LIMIT, clients="roam") as new:
        await away(new, "kept/#")
        await subscriber(old, "roamer", "mine")
        await wanted(old, b"kept/1")
        publisher = await old.client()
        bodies = [b"%d " % number + BIG for number in range(20)]
        for body in bodies:
            assert await publisher.publish("mine", body, 1) == 0
        taken = await fill(await new.client(), "kept/own")
        if waits:
            assert await publisher.publish("kept/1", b"waits", 1) == 0
            await until(lambda: new.broker.site.mesh.incoming.held == 1)
        roamer = await new.client("roamer", clean=False, expiry=FOREVER)
        assert roamer.connack is not None
        assert roamer.connack.session_present
        assert [message.payload for message in await roamer.messages(len(bodies))] == bodies
        assert new.broker.site.mesh.incoming.held == waits
        back = await new.client("away", clean=False, expiry=FOREVER)
        await back.messages(taken)
        await until(lambda: not new.broker.site.persistence.quota.full)
        await new.later(1)
        if waits:
            assert (await back.messages(1))[0].payload == b"waits"
        assert await publisher.publish("mine", b"later", 1) == 0
        assert (await roamer.messages(1))[0].payload == b"later"
        await until(lambda: not old.broker.site.mesh.node.custody()[0])


async def test_a_client_leaves_a_full_site_and_makes_room() -> None:
    async with member(1, stored=LIMIT, clients="roam") as old, member(2, old, clients="roam") as new:
        await subscriber(old, "roamer", "mine")
        await wanted(new, b"mine")
        taken = await fill(await old.client(), "mine")
        publisher = await new.client()
        assert await publisher.publish("mine", b"waits", 1) == 0  # so what the other site says to this one comes behind it
        await until(lambda: old.broker.site.mesh.incoming.held == 1)
        roamer = await new.client("roamer", clean=False, expiry=FOREVER)
        assert roamer.connack is not None
        assert roamer.connack.session_present
        got = [int(message.payload.split()[0]) for message in await roamer.messages(taken)]
        assert got == list(range(taken))
        await until(lambda: not old.broker.site.persistence.quota.full)
        await old.later(1)
        assert (await roamer.messages(1))[0].payload == b"waits"


async def test_what_went_ahead_of_messages_that_wait_is_not_done_again_by_the_next_life() -> None:
    kept = MemoryStore()
    bodies = [b"%d " % number + BIG for number in range(20)]
    async with member(1, clients="roam") as old:
        async with member(2, old, stored=LIMIT, store=kept, clients="roam") as new:
            await away(new, "kept/#")
            await subscriber(old, "roamer", "mine")
            await wanted(old, b"kept/1")
            publisher = await old.client()
            for body in bodies:
                assert await publisher.publish("mine", body, 1) == 0
            taken = await fill(await new.client(), "kept/own")
            assert await publisher.publish("kept/1", b"waits", 1) == 0
            await until(lambda: new.broker.site.mesh.incoming.held == 1)
            roamer = await new.client("roamer", clean=False, expiry=FOREVER, receive_maximum=1)
            await until(lambda: not old.broker.site.mesh.roaming.roamer.leaves.of)  # all of it is here
            await until(lambda: new.broker.site.sessions.get("roamer").queued == len(bodies) - 1)
            await roamer.cut()
            await new.gone("roamer")
        async with member(2, old, stored=LIMIT, store=kept, clients="roam") as new:
            await until(lambda: new.broker.site.mesh.incoming.held == 1)
            roamer = await new.client("roamer", clean=False, expiry=FOREVER)
            assert [message.payload for message in await roamer.messages(len(bodies))] == bodies
            await roamer.nothing()
            back = await new.client("away", clean=False, expiry=FOREVER)
            await back.messages(taken)
            await until(lambda: not new.broker.site.persistence.quota.full)
            await new.later(1)
            assert (await back.messages(1))[0].payload == b"waits"
            await until(lambda: not old.broker.site.mesh.node.custody()[0])
            await roamer.nothing()
