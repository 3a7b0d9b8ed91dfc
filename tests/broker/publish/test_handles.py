"""Messages with a handle of their publisher's: a repeat is answered as the first one was, and nobody gets it again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.config import PeerSettings
from mqmesh.broker.persistence.handles import NOWHERE, HandleWindow, key_of
from mqmesh.broker.publish.handles import handle_of
from mqmesh.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.storage.failing_store import FailingStore

FOREVER = 0xFFFFFFFF


def handled(handle: str, payload: bytes = b"x", qos: int = 1, packet_id: int = 7, topic: str = "t") -> Publish:
    return Publish(topic, payload, qos, packet_id=packet_id if qos else 0, properties={Property.USER_PROPERTY: [("mqmesh-handle", handle)]})


async def answers(client: Client, kind: type, count: int) -> list[dict[str, str]]:
    found = [await client.expect(kind) for _ in range(count)]
    assert all(packet.reason < 0x80 for packet in found)
    return [dict(packet.properties.get(Property.USER_PROPERTY, ())) for packet in found]


async def test_a_repeat_is_answered_and_not_delivered():
    async with Site() as site:
        subscriber, publisher = await site.client("s"), await site.client("p")
        await subscriber.subscribe("t", qos=1)
        publisher.send(handled("a"), handled("a", packet_id=8), handled("b", b"y", packet_id=9))
        assert await answers(publisher, Puback, 3) == [{}, {"mqmesh-repeat": "1"}, {}]
        assert [packet.payload for packet in await subscriber.messages(2)] == [b"x", b"y"]
        await subscriber.nothing()


async def test_repeats_are_answered_while_nothing_is_to_be_written():
    async with Site(store=MemoryStore()) as site:
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        publisher.send(handled("a"))
        await answers(publisher, Puback, 1)
        for packet_id in range(8, 12):
            publisher.send(handled("a", packet_id=packet_id))
            assert await answers(publisher, Puback, 1) == [{"mqmesh-repeat": "1"}]


async def test_another_connection_and_client_may_repeat():
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t", qos=1)
        for name in "pq":
            publisher = await site.client(name)
            publisher.send(handled("a"))
            await publisher.expect(Puback, reason=0)
        assert len(await subscriber.messages(1)) == 1
        await subscriber.nothing()


async def test_qos_0_and_2():
    async with Site() as site:
        subscriber, publisher = await site.client("s"), await site.client("p")
        await subscriber.subscribe("t", qos=2)
        publisher.send(handled("a", b"0", 0), handled("a", b"0", 0), handled("b", b"2", 2), handled("b", b"2", 2, packet_id=8))
        assert await answers(publisher, Pubrec, 2) == [{}, {"mqmesh-repeat": "1"}]
        publisher.send(Pubrel(7), Pubrel(8))
        await publisher.expect(Pubcomp, packet_id=7, reason=0)
        await publisher.expect(Pubcomp, packet_id=8, reason=0)
        assert [packet.payload for packet in await subscriber.messages(2)] == [b"0", b"2"]
        await subscriber.nothing()
        assert site.broker.site.handles.repeats == 2


async def test_what_was_refused_may_be_sent_again():
    async with Site(session_queue_messages=1) as site:
        subscriber = await site.client("s", clean=False, expiry=FOREVER)
        await subscriber.subscribe("t", qos=1)
        await subscriber.leave()
        await site.gone("s")
        publisher = await site.client("p")
        publisher.send(handled("a"), handled("b", b"y", packet_id=8))
        await publisher.expect(Puback, reason=0)
        await publisher.expect(Puback, reason=0x97)
        subscriber = await site.client("s", clean=False, expiry=FOREVER)
        await subscriber.messages(1)
        publisher.send(handled("b", b"y"))
        assert await answers(publisher, Puback, 1) == [{}]
        assert [packet.payload for packet in await subscriber.messages(1)] == [b"y"]


@pytest.mark.parametrize(("qos", "kind"), [(1, Puback), (2, Pubrec)])
async def test_both_answers_wait_for_the_commit_of_the_first(qos, kind):
    store = FailingStore(MemoryStore())
    async with Site(store=store) as site:
        publisher = await site.client("p")
        await until(lambda: not site.broker.site.persistence.writer.bytes_pending)
        store.hold()
        publisher.send(handled("a", qos=qos), handled("a", qos=qos, packet_id=8))
        await until(store.entered.is_set)
        await publisher.nothing()
        store.release()
        assert await answers(publisher, kind, 2) == [{}, {"mqmesh-repeat": "1"}]


async def test_handles_outlive_the_broker():
    store = MemoryStore()
    async with Site(store=store) as site:
        publisher = await site.client("p")
        publisher.send(handled("a"))
        await publisher.expect(Puback)
    async with Site(store=store) as site:
        publisher = await site.client("p")
        publisher.send(handled("a"))
        assert await answers(publisher, Puback, 1) == [{"mqmesh-repeat": "1"}]


async def test_the_repeat_is_told_the_identifier_of_the_first():
    from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings
    from mqmesh.broker.server import Broker

    async with Site(mesh=(2, MeshSettings("m", "a key of sixteen bytes", start_wait=0.0))) as lyon:
        porto = Site()
        peer = PeerSettings(lyon.broker.addresses[0])
        settings = MeshSettings("m", "a key of sixteen bytes", peers=[peer], start_wait=0.0)
        porto.broker = Broker(BrokerConfig("porto", 1, ["mqtt://127.0.0.1:0"], None, settings, Limits(sys_interval=0)))
        async with porto:
            subscriber, publisher = await lyon.client("s"), await porto.client("p")
            await subscriber.subscribe("t", qos=1)
            node = porto.broker.site.mesh.node
            await until(lambda: node.route(b"t") is not None)
            publisher.send(handled("a"), handled("a", packet_id=8), handled("b", packet_id=9))
            first, again, other = await answers(publisher, Puback, 3)
            assert first["mqmesh-id"].startswith(f"1:{node.identity.epoch}:")
            assert again == {**first, "mqmesh-repeat": "1"}
            assert int(other["mqmesh-id"].split(":")[2]) == int(first["mqmesh-id"].split(":")[2]) + 1
            assert len(await subscriber.messages(2)) == 2
            await subscriber.nothing()


def test_a_handle_is_of_one_user():
    assert len({key_of(None, "a"), key_of("", "a"), key_of("u", "a"), key_of("u", "b")}) == 4
    assert handle_of((("other", "x"), ("mqmesh-handle", "a"), ("mqmesh-handle", "b"))) == "a"
    assert handle_of((("mqmesh-handle", ""),)) is None


@given(st.lists(st.tuples(st.sampled_from("uvw"), st.integers(0, 400)), max_size=300), st.integers(1, 200))
def test_the_window_is_bounded_and_keeps_the_newest(came, room):
    window, order = HandleWindow(room), {}
    for user, number in came:
        key = key_of(user, str(number))
        if window.find(key) is None:
            window.keep(key, NOWHERE)
            order.setdefault(user, []).append(key)
            assert window.find(key) == NOWHERE or room < 64
        assert len(window) <= room
    for keys in order.values():
        remembered = [window.find(key) is not None for key in keys]
        newest = list(reversed(remembered))
        assert newest == sorted(newest, reverse=True) or len(set(keys)) < len(keys)
