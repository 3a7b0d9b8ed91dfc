"""A broker with a store: what waits for a commit and what does not, and what happens while commits fail."""

from __future__ import annotations

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.ledger import IN_FLIGHT
from mqmesh.mqtt.packets import Puback, Publish, Pubrec, Pubrel, Suback, Subscribe, Subscription
from mqmesh.store.base import Kind
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.storage.failing_store import FailingStore

FOREVER = 0xFFFFFFFF
KEY = "a key of sixteen bytes"


def slow_store() -> FailingStore:
    return FailingStore(MemoryStore())


async def away(site: Site, topic: str = "t") -> None:
    """A subscriber with a session that is gone."""
    client = await site.client("away", clean=False, expiry=FOREVER)
    await client.subscribe(topic, qos=2)
    await client.leave()
    await site.gone("away")


async def held_back(client: Client, store: FailingStore, kind: type) -> None:
    """Nothing comes while a commit is held; with its end this packet comes."""
    await until(store.entered.is_set)
    await client.nothing()
    store.release()
    await client.expect(kind)


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_acknowledgement_waits_for_its_commit(qos):
    store = slow_store()
    async with Site(store=store) as site:
        await away(site)
        publisher = await site.client()
        store.hold()
        publisher.send(Publish("t", b"x", qos, packet_id=1))
        await held_back(publisher, store, Puback if qos == 1 else Pubrec)
        assert site.broker.site.persistence.store.count("session/1") == 1


async def test_what_needs_no_store_waits_for_nothing():
    store = slow_store()
    async with Site(store=store) as site:
        subscriber, publisher = await site.client(), await site.client()
        await subscriber.subscribe("t", qos=2)
        store.hold()
        for qos in (1, 2):
            assert await publisher.publish("t", b"x", qos) == 0
        assert [message.qos for message in await subscriber.messages(2)] == [1, 2]
        store.release()


@pytest.mark.parametrize("topics", [["t"], ["t", "t/2", "t", "t/3"]], ids=["run", "span"])
async def test_qos_2_leaves_behind_the_commit_of_its_identifier(topics):
    """Else a publisher that repeats it behind a crash would have it delivered again, to whatever session the subscriber has then."""
    store = slow_store()
    async with Site(store=store) as site:
        subscriber = await site.client()
        await subscriber.subscribe("t/#", qos=2)
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        store.hold()
        publisher.send(*[Publish(topic, b"x", 2, packet_id=number) for number, topic in enumerate(topics, 1)])
        await until(store.entered.is_set)
        await subscriber.nothing()
        store.release()
        assert [message.topic for message in await subscriber.messages(len(topics))] == topics


async def test_qos_1_overtakes_no_qos_2_that_waits():
    store = slow_store()
    async with Site(store=store) as site:
        subscriber = await site.client()
        await subscriber.subscribe("t", qos=2)
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        store.hold()
        publisher.send(Publish("t", b"1", 2, packet_id=1), Publish("t", b"2", 1, packet_id=2), Publish("t", b"3", 0))
        await until(store.entered.is_set)
        await subscriber.expect(Publish, payload=b"3")  # QoS 0 is not in their order
        await subscriber.nothing()
        store.release()
        await subscriber.expect(Publish, payload=b"1")
        await subscriber.expect(Publish, payload=b"2")


async def test_a_full_queue_keeps_what_waits_for_a_commit_in_order():
    """What waited for room and not for the commit goes as soon as there is room."""
    store = slow_store()
    async with Site(store=store) as site:
        subscriber = await site.client(receive_maximum=1)
        await subscriber.subscribe("t", qos=2)
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        publisher.send(*[Publish("t", b"%d" % number, 2, packet_id=number) for number in (1, 2, 3)])
        for _ in range(3):
            await publisher.expect(Pubrec)
        assert [message.payload for message in await subscriber.messages(3)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_qos_2_from_elsewhere_leaves_behind_the_commit_of_its_window(qos):
    """QoS 1 does not wait: a broker that dies in between delivers it again. Nothing of it is stored for a sole subscriber whose session is
    clean, so that its receipt waits for no commit either; where there are two it does."""
    store = slow_store()
    async with Site(mesh=(1, MeshSettings("m", KEY))) as origin:
        peer = PeerSettings(origin.broker.addresses[0])
        async with Site(store=store, mesh=(2, MeshSettings("m", KEY, peers=[peer]))) as site:
            subscriber = await site.client()
            await subscriber.subscribe("t", qos=2)
            await until(lambda: origin.broker.site.mesh.route(b"t") is not None)
            publisher = await origin.client()
            await publisher.publish("t", b"first", 1)  # the tree is announced and joined
            await subscriber.messages(1)
            await until(lambda: not origin.broker.site.mesh.node.custody()[0])
            store.hold()
            await publisher.publish("t", b"x", qos)
            await until(store.entered.is_set)
            if qos == 2:
                await subscriber.nothing()
                store.release()
            await subscriber.expect(Publish, payload=b"x", qos=qos)
            if qos == 1:
                await until(lambda: not origin.broker.site.mesh.node.custody()[0])
                other = await site.client()
                other.send(Subscribe(1, [Subscription("t", 1)], {}))
                await other.expect(Suback)
                await publisher.publish("t", b"y", 1)
                await subscriber.expect(Publish, payload=b"y", qos=1)
                await other.expect(Publish, payload=b"y", qos=1)
                await publisher.nothing()
                assert origin.broker.site.mesh.node.custody()[0]
                store.release()
            await until(lambda: not origin.broker.site.mesh.node.custody()[0])


async def test_a_failing_store_refuses_who_needs_it_and_serves_the_others():
    store = slow_store()
    async with Site(store=store) as site:
        await away(site)
        first, publisher, old = await site.client(), await site.client("p", clean=False, expiry=FOREVER), await site.client("old", 4)
        store.fail_next(Kind.FULL, times=1000)
        first.send(Publish("t", b"kept in the end", 1, packet_id=9))
        await until(lambda: site.broker.site.persistence.error is not None)
        assert await publisher.publish("t", b"refused", 1) == 0x97
        assert await publisher.publish("t", b"refused", 2) == 0x97
        assert await publisher.publish("elsewhere", b"x", 1) == 0x10
        old.send(Publish("t", b"not read", 1, packet_id=1))
        await until(lambda: site.broker.site.sessions.get("old").connection.held)
        store.recover()
        await site.later(5)
        await first.expect(Puback, packet_id=9)
        await old.expect(Puback, packet_id=1)
        client = await site.client("away", clean=False, expiry=FOREVER)
        assert [message.payload for message in await client.messages(2)] == [b"kept in the end", b"not read"]


async def test_another_life_goes_on_where_the_last_one_was():
    kept = MemoryStore()
    async with Site(store=kept) as site:
        await away(site)
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        publisher.send(Publish("t", b"1", 2, packet_id=7))
        await publisher.expect(Pubrec)
    async with Site(store=kept) as site:
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        assert publisher.connack.session_present
        publisher.send(Publish("t", b"1", 2, packet_id=7, dup=True))
        await publisher.expect(Pubrec)
        publisher.send(Pubrel(7))
        client = await site.client("away", clean=False, expiry=FOREVER)
        assert [message.payload for message in await client.messages(1)] == [b"1"]
        await client.nothing()


async def test_what_a_callback_writes_is_waited_for_as_well():
    """The batch is empty when the callback is called: what the callback puts into it is not kept yet."""
    store = slow_store()
    async with Site(store=store) as site:
        persistence, said = site.broker.site.persistence, []

        def write(key: bytes, then) -> None:
            persistence.writer.put_value("broker", key, b"x")
            persistence.when(persistence.mark(), then)

        def first() -> None:
            said.append("first")
            store.hold()
            write(b"second", lambda: said.append("second"))

        write(b"first", first)
        site.broker.context.flush()
        await until(lambda: bool(said) and store.entered.is_set())
        assert (said, store.value("broker", b"second")) == (["first"], None)
        store.release()
        await until(lambda: len(said) > 1)
        assert (said, store.value("broker", b"second")) == (["first", "second"], b"x")


async def test_what_changes_while_a_change_is_written_is_in_the_same_batch():
    """Posts that cannot go any more are given back to who sent them, and who does something about it may change a session."""
    async with Site(store=slow_store()) as site:
        persistence = site.broker.site.persistence

        class Change:
            def __init__(self, key: bytes, following: Change | None) -> None:
                self.key, self.following = key, following

            def write_state(self) -> None:
                persistence.writer.put_value("broker", self.key, b"x")
                if self.following is not None:
                    persistence.dirty[self.following] = None

        persistence.dirty[Change(b"first", Change(b"second", None))] = None
        said = []
        persistence.flush()
        persistence.when(persistence.mark(), lambda: said.append("kept"))
        site.broker.context.flush()
        await until(lambda: bool(said))
        assert not persistence.dirty
        assert [persistence.store.value("broker", key) for key in (b"first", b"second")] == [b"x", b"x"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_a_stored_session_has_in_flight_is_in_the_ledger(qos):
    """As long as it is in memory: while its client is away the store has it."""
    async with Site(store=MemoryStore()) as site:
        held, persistence = site.broker.context.ledger.held, site.broker.site.persistence
        client, publisher = await site.client("s", clean=False, expiry=FOREVER, receive_maximum=2), await site.client()
        await client.subscribe("t", qos=qos)
        for _ in range(3):
            assert await publisher.publish("t", b"x" * 1000, qos) == 0
        for _ in range(2):
            await client.expect(Publish, qos=qos)
        session = site.broker.site.sessions.get("s")
        session.connection.settle()
        assert held[IN_FLIGHT] == session.outbound.bytes > 2000
        assert session.waiting.value == "in-flight window full"
        await client.cut()
        await site.gone("s")
        await persistence.settle(10)
        assert (held[IN_FLIGHT], session.outbound.bytes, session.unloaded) == (0, 0, True)
        again = await site.client("s", clean=False, expiry=FOREVER)
        await again.messages(3)
        await until(lambda: not session.outbound.in_flight)
        session.connection.settle()
        assert held[IN_FLIGHT] == 0
