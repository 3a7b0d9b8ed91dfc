"""Retained messages and wills of brokers in a mesh, in one loop: who is told, what is kept, what comes along into a mesh and out of it."""

from __future__ import annotations

import time
from copy import deepcopy
from pathlib import Path
from unittest import mock

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.ledger import DELETED
from mqmesh.broker.ports import Context
from mqmesh.broker.server import StartError
from mqmesh.mesh.node.actions import Deliver, Retained
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription, Will
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.store import Kind, StoreError
from mqmesh.store.memory import MemoryStore
from mqmesh.store.sqlite import SqliteStore
from support.broker_site import Client, Site, until
from support.storage.failing_store import FailingStore

FOREVER = 0xFFFFFFFF
KEY = "a key of sixteen bytes"

FILLING = tuple(f"t/{n}" for n in (1, *range(11, 19)))  # 100,000 bytes each are more than the share of an address in a broker of 1 MiB


def settings(*peers: Site) -> MeshSettings:
    return MeshSettings("m", KEY, peers=[PeerSettings(site.broker.addresses[0]) for site in peers])


def kept(site: Site) -> dict[bytes, bytes]:
    return {bytes(run.topic): run.payloads[0] for run in site.broker.site.retained.all() if not run.topic.startswith(b"$")}


async def linked(*sites: Site) -> None:
    """They know each other and have compared."""

    def ready(site: Site) -> bool:
        status = site.broker.site.mesh.status()
        return sum(one["live"] for one in status["members"]) == len(sites) and not status["retained"]["comparing"]

    await until(lambda: all(ready(site) for site in sites))
    await until(lambda: len({site.broker.site.mesh.status()["retained"]["digest"] for site in sites}) == 1)


async def new_subscriber(site: Site, topic_filter: str = "#") -> dict[str, bytes]:
    """What it gets, once and with RETAIN."""
    count = len(kept(site))
    client = await site.client()
    await client.subscribe(topic_filter, qos=1)
    got = await client.messages(count)
    await client.nothing()
    assert all(message.retain for message in got)
    assert len({message.topic for message in got}) == count
    return {message.topic: message.payload for message in got}


@pytest.mark.parametrize("stored", [True, False])
async def test_who_comes_late_finds_everything_and_ongoing_subscribers_hear_once(stored):
    async with Site(mesh=(1, settings()), store=MemoryStore() if stored else None) as one:
        early, publisher = await one.client(), await one.client()
        await publisher.publish("t/old", b"old", 1, retain=True)
        await publisher.publish("t/gone", b"x", 1, retain=True)
        await publisher.publish("t/gone", b"", 0, retain=True)
        await early.subscribe("t/#", qos=1)
        await early.messages(1)
        async with Site(mesh=(2, settings(one)), store=MemoryStore() if stored else None) as two:
            there = await two.client()
            await there.subscribe("t/#", qos=1)
            (message,) = await there.messages(1)
            assert (message.topic, message.payload, message.retain) == ("t/old", b"old", False), "a comparison brought it"
            await linked(one, two)
            for qos in (0, 1, 2):
                await publisher.publish("t/new", b"%d" % qos, qos, retain=True)
            for client in (early, there):
                assert [(m.payload, m.retain) for m in await client.messages(3)] == [(b"0", False), (b"1", False), (b"2", False)]
            assert await new_subscriber(two) == await new_subscriber(one) == {"t/old": b"old", "t/new": b"2"}
            await (await two.client()).publish("t/old", b"", 1, retain=True)
            assert (await early.messages(1))[0].payload == b""
            await until(lambda: kept(one) == {b"t/new": b"2"})
            await there.messages(1)
            for client in (early, there):
                await client.nothing()


async def test_what_was_kept_without_a_mesh_comes_along_and_stays_when_the_mesh_is_left():
    store = MemoryStore()
    async with Site(store=store) as alone:
        await (await alone.client()).publish("own", b"1", 1, retain=True)
        await (await alone.client()).publish("$own", b"2", 1, retain=True)
    async with Site(mesh=(2, settings())) as other, Site(mesh=(1, settings(other)), store=store) as site:
        assert kept(site) == {b"own": b"1"}
        await linked(site, other)
        assert await new_subscriber(other) == {"own": b"1"}
        await (await other.client()).publish("others", b"3", 1, retain=True)
        await until(lambda: b"others" in kept(site))
    assert not list(store.values("retained"))
    async with Site(store=store) as alone:
        assert await new_subscriber(alone) == {"own": b"1", "others": b"3"}
        await until(lambda: not list(store.values("mesh_retained")) + list(store.values("mesh_retained_state")))
        await (await alone.client()).publish("own", b"", 1, retain=True)
    async with Site(store=store) as alone:
        assert await new_subscriber(alone) == {"others": b"3"}


async def test_a_restart_in_a_mesh_keeps_messages_and_deletions():
    store = MemoryStore()
    async with Site(mesh=(1, settings())) as other:
        async with Site(mesh=(2, settings(other)), store=store) as site:
            await linked(site, other)
            client = await site.client()
            for topic in ("a", "b"):
                await client.publish(topic, b"1", 1, retain=True)
            await until(lambda: len(kept(other)) == 2)
        await (await other.client()).publish("c", b"2", 1, retain=True)
        async with Site(mesh=(2, settings()), store=store) as site:  # it dials nobody
            assert kept(site) == {b"a": b"1", b"b": b"1"}
            assert site.broker.site.mesh.node._retained.sync.members == {1, 2}
            await (await site.client()).publish("a", b"", 1, retain=True)
        async with Site(mesh=(2, settings(other)), store=store) as site:
            await linked(site, other)
            assert kept(site) == kept(other) == {b"b": b"1", b"c": b"2"}


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_jump_of_the_clock_ends_no_message_and_makes_none_last_longer(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """The clock is set while the broker runs, and the broker is started again after that."""
    store = MemoryStore()
    async with Site(store=store, mesh=(1, settings())) as site:
        client = await site.client()
        assert (
            await client.publish("t", b"lives", qos=1, retain=True, properties={Property.MESSAGE_EXPIRY_INTERVAL: 1800})
            == Reason.NO_MATCHING_SUBSCRIBERS
        )
        clock = site.broker.context.clock
        looked = clock._at
        monkeypatch.setattr(Context, "wall", lambda self: time.time() + jump)
        await until(lambda: clock._at != looked)
    async with Site(store=store, mesh=(1, settings())) as site, Site(mesh=(2, settings(site))) as other:
        await linked(site, other)
        for one in (site, other):
            client = await one.client()
            await client.subscribe("t")
            (message,) = await client.messages(1)
            assert message.payload == b"lives"
            assert 1700 < message.properties[Property.MESSAGE_EXPIRY_INTERVAL] <= 1800
        end = site.broker.site.mesh.node._retained.sync._replica.next_end()
        assert 1700 < end - site.broker.context.loop.time() <= 1801


async def test_an_acknowledgement_waits_for_the_record():
    store = FailingStore(MemoryStore())
    async with Site(mesh=(1, settings()), store=store) as site:
        publisher = await site.client()
        store.hold()
        publisher.send(Publish("t", b"x", 1, True, packet_id=1))
        await until(store.entered.is_set)
        await publisher.nothing()
        store.release()
        await publisher.expect(Puback)
        assert [key for key, _ in store.values("mesh_retained")] == [b"t"]


async def test_a_message_between_subscribe_and_its_suback_comes_once():
    store = FailingStore(MemoryStore())
    async with Site(store=store) as site:
        publisher = await site.client()
        await publisher.publish("t/1", b"old", 0, retain=True)
        await publisher.publish("t/2", b"old", 1, retain=True)
        client = await site.client("c", clean=False, expiry=FOREVER)
        store.hold()
        client.send(Subscribe(1, [Subscription("t/#", 1)]))
        await until(store.entered.is_set)
        publisher.send(Publish("t/1", b"new", 0, True), Publish("t/3", b"new", 0, True))
        await publisher.nothing()
        store.release()
        packets = [await client.receive() for _ in range(4)]
        assert sum(isinstance(packet, Suback) for packet in packets) == 1
        got = sorted((p.topic, p.payload, p.retain) for p in packets if isinstance(p, Publish))
        assert got == [("t/1", b"new", False), ("t/2", b"old", True), ("t/3", b"new", False)]
        for packet in packets:
            if isinstance(packet, Publish) and packet.qos:
                client.send(Puback(packet.packet_id))
        await client.nothing()


async def test_who_subscribes_while_a_message_is_coming_gets_it_once():
    """A comparison brought what the origin has in custody for this broker: it comes as a message, when the origin can be reached."""
    async with Site(mesh=(1, settings())) as site:
        before = await site.client("before")
        await before.subscribe("t", qos=1)
        shell = site.broker.site.mesh
        shell.incoming.retained(Retained(Run(b"t", 1, True, [b"x"]), False, b"key", True))
        await before.nothing()
        after = await site.client("after")
        await after.subscribe("t", qos=1)
        await after.expect(Publish, payload=b"x", retain=True)
        shell.incoming.deliver(Deliver(Run(b"t", 1, True, [b"x"]), 2, None, key=b"key"))
        site.broker.context.flush()
        await before.expect(Publish, payload=b"x", retain=False)
        later = await site.client("later")
        await later.subscribe("t", qos=1)
        await later.expect(Publish, payload=b"x", retain=True)
        await after.nothing()


async def test_without_room_nothing_is_kept_anywhere():
    async with Site(mesh=(1, settings()), broker_bytes=2**20) as site, Site(mesh=(2, settings(site))) as other:
        await linked(site, other)
        publisher, listener = await site.client(), await other.client()
        await listener.subscribe("t/#")
        await until(lambda: site.broker.site.mesh.route(b"t/x") is not None)
        for topic in FILLING:
            await publisher.publish(topic, bytes(100_000), 0, retain=True)
            await listener.messages(1)
        assert await publisher.publish("t/2", b"x", 1, retain=True) == Reason.QUOTA_EXCEEDED
        await publisher.publish("t/2", b"x", 0, retain=True)
        assert (await listener.messages(1))[0].payload == b"x"
        assert await publisher.publish("t/3", b"", 1, retain=True) == Reason.QUOTA_EXCEEDED, "to remember it needs room"
        assert set(kept(site)) == set(kept(other)) == {topic.encode() for topic in FILLING}
        assert await publisher.publish("t/1", b"", 1, retain=True) < 0x80
        await until(lambda: b"t/1" not in kept(other))
        assert await publisher.publish("t/2", b"x", 1, retain=True) < 0x80
        await (await other.client()).publish("t/4", bytes(900_000), 0, retain=True)
        await until(lambda: b"t/4" in kept(site))  # what others keep is kept here too


async def test_deletions_of_what_never_was_need_memory_too():
    async with Site(mesh=(1, settings()), broker_bytes=2**20) as site:
        publisher = await site.client(version=4)
        publisher.send(*[Publish(f"never/{n}", b"", 0, True) for n in range(3000)])
        await publisher.nothing()
        assert site.broker.site.mesh.node.buried * 768 == site.broker.context.ledger.held[DELETED]
        assert 0.75 * 2**20 < site.broker.context.ledger.held[DELETED] < 0.85 * 2**20, "as much as one holder may have"


# Wills


async def mortal(site: Site, will: Will) -> Client:
    """A client of a stored session that vanishes with its broker."""
    client = await site.client("mortal", clean=False, expiry=FOREVER, will=will)
    await until(lambda: not site.broker.site.persistence.writer.bytes_pending)
    return client


def crashed(store: MemoryStore) -> MemoryStore:
    """The store as it is at this moment, as a broker that is killed leaves it."""
    copy = MemoryStore()
    for name in ("_runs", "_deliveries", "_values"):
        setattr(copy, name, deepcopy(getattr(store, name)))
    return copy


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_will_found_at_the_start_waits_for_the_mesh_and_reaches_it_once(qos):
    store = MemoryStore()
    async with Site(mesh=(2, settings())) as other:
        listener = await other.client()
        await listener.subscribe("will/#", qos=2)
        async with Site(mesh=(1, settings()), store=store) as site:
            await mortal(site, Will("will/x", b"gone", qos, True))
            store = crashed(store)
        async with Site(mesh=(1, settings(other)), store=store) as site:
            (message,) = await listener.messages(1)
            assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)
            await linked(site, other)
            assert kept(site) == kept(other) == {b"will/x": b"gone"}
            assert site.broker.site.sessions.get("mortal").will is None
            await until(lambda: not site.broker.site.persistence.writer.bytes_pending)
            store = crashed(store)
        async with Site(mesh=(1, settings(other)), store=store) as site:
            await linked(site, other)
            await site.later(6)
            assert kept(site) == kept(other) == {b"will/x": b"gone"}
            await listener.nothing()


async def test_a_will_found_at_the_start_waits_for_nobody_for_long():
    store = MemoryStore()
    async with Site(mesh=(1, settings()), store=store) as site:
        await mortal(site, Will("will/x", b"gone", 1, True))
        store = crashed(store)
    async with Site(mesh=(1, settings()), store=store) as site:
        assert kept(site) == {}
        await site.later(5.1)
        assert kept(site) == {b"will/x": b"gone"}


async def test_a_will_goes_out_though_there_is_no_room_to_retain_it():
    async with Site(mesh=(1, settings()), broker_bytes=2**20) as site:
        listener = await site.client()
        await listener.subscribe("will/#", qos=1)
        client = await site.client("mortal", will=Will("will/x", b"gone", 1, True))
        filler = await site.client()
        for topic in FILLING:
            await filler.publish(topic, bytes(100_000), 0, retain=True)
        await client.cut()
        await listener.expect(Publish, payload=b"gone")
        assert set(kept(site)) == {topic.encode() for topic in FILLING}


async def test_a_client_that_is_back_before_the_mesh_has_not_died():
    store = MemoryStore()
    async with Site(mesh=(1, settings()), store=store) as site:
        await mortal(site, Will("will/x", b"gone", 1, True))
        store = crashed(store)
    async with Site(mesh=(1, settings()), store=store) as site:
        client = await site.client("mortal", clean=False, expiry=FOREVER)
        await site.later(5.1)
        assert kept(site) == {}
        await client.nothing()


async def test_a_will_that_finds_no_room_is_in_the_store_until_it_does():
    store = MemoryStore()
    async with Site(store=store) as site:
        client = await mortal(site, Will("will/x", b"gone", 1, True))
        with mock.patch("mqmesh.broker.server.accept_own", return_value=False):
            await client.cut()
            await site.gone("mortal")
            await until(lambda: list(store.values("wills")) != [])
        copy = crashed(store)
        await site.later(1)
        await until(lambda: list(store.values("wills")) == [])
        assert kept(site) == {b"will/x": b"gone"}
    async with Site(store=copy) as site:
        await site.later(1)
        assert kept(site) == {b"will/x": b"gone"}
        await until(lambda: list(copy.values("wills")) == [])


async def test_the_store_of_another_broker_is_named_and_is_no_damage(tmp_path: Path) -> None:
    """A damaged store may be set aside; one that is whole and another's stays where it is."""
    mesh = MeshSettings("m", KEY, start_wait=0.0)
    async with Site(mesh=(1, mesh), store=SqliteStore(tmp_path / "store.db")) as site:
        await (await site.client("c")).publish("plant", b"1", 1, retain=True)
    with pytest.raises(StartError, match="those of broker 1, this is broker 2: give it the store of its own") as caught:
        async with Site(mesh=(2, mesh), store=SqliteStore(tmp_path / "store.db")):
            pass
    cause = caught.value.__cause__
    assert isinstance(cause, StoreError)
    assert cause.kind is not Kind.CORRUPT
    async with Site(mesh=(1, mesh), store=SqliteStore(tmp_path / "store.db")) as site:
        client = await site.client("c")
        await client.subscribe("plant")
        assert (await client.messages(1))[0].payload == b"1"
