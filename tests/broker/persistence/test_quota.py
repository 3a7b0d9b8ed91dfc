"""One bound for everything that a broker's store keeps: who is refused when it is reached, who is served, and how it ends."""

from __future__ import annotations

import logging

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings, parse
from mqmesh.broker.persistence.quota import StoreQuota
from mqmesh.broker.program import reload_files
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Will
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from mqmesh.store.records import DELIVERY_WEIGHT, EXTRA, VALUE_WEIGHT
from support.broker_site import Client, Site, until

FOREVER = 0xFFFFFFFF
KEY = "a key of sixteen bytes"
LIMIT = 64 * 1024
BIG = bytes(4096)


def full_site(kept: MemoryStore | None = None, **more: object) -> Site:
    """A broker whose store may hold `LIMIT` bytes."""
    return Site(store=kept or MemoryStore(), **{"stored_bytes": LIMIT, **more})  # type: ignore[arg-type]


async def away(site: Site, name: str = "away", topic: str = "t") -> None:
    """A subscriber with a session that is gone."""
    client = await site.client(name, clean=False, expiry=FOREVER)
    await client.subscribe(topic, qos=1)
    await client.leave()
    await site.gone(name)


async def fill(publisher: Client, topic: str = "t") -> int:
    """Publish until it is refused: how many messages were taken."""
    taken = 0
    while await publisher.publish(topic, b"%d " % taken + BIG, 1) == 0:
        taken += 1
        assert taken < 100
    return taken


def weight(store: MemoryStore) -> int:
    """What is in a store, weighed anew."""
    rows = list(store.deliveries())
    return (
        sum(DELIVERY_WEIGHT + max(EXTRA, len(row.extra)) for row in rows)
        + sum(run.weight for run in store.runs({row.run for row in rows}).values())
        + sum(VALUE_WEIGHT + len(key) + size for _, key, size in store.value_sizes())
    )


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_would_have_to_be_kept_is_refused_and_what_was_taken_comes(qos: int) -> None:
    kept = MemoryStore()
    async with full_site(kept) as site:
        await away(site)
        publisher = await site.client()
        taken = await fill(publisher)
        assert LIMIT // 5000 <= taken <= LIMIT // 4096
        packet = Publish("t", BIG, qos, packet_id=9)
        publisher.send(packet)
        answer = await publisher.receive()
        assert answer.reason == 0x97
        assert "limits.stored_bytes" in answer.properties[Property.REASON_STRING]
        await until(lambda: not site.broker.site.persistence.writer.bytes_pending)
        assert site.broker.site.persistence.quota.stored == weight(kept)
    async with full_site(kept) as site:
        bound = site.broker.site.persistence.quota
        assert bound.full  # right after a restart, before anything was published
        assert bound.stored == weight(kept)
        publisher = await site.client()
        assert await publisher.publish("t", BIG, 1) == 0x97
        back = await site.client("away", clean=False, expiry=FOREVER)
        numbers = [int(message.payload.split()[0]) for message in await back.messages(taken)]
        assert numbers == list(range(taken))
        await until(lambda: not bound.full)
        assert await publisher.publish("t", b"again", 1) == 0
        assert [message.payload for message in await back.messages(1)] == [b"again"]


async def test_those_who_listen_are_served() -> None:
    async with full_site() as site:
        await away(site)
        publisher = await site.client()
        await fill(publisher)
        durable, plain = await site.client("here", clean=False), await site.client("plain")
        assert (await plain.subscribe("live/#", "t", qos=1)).reasons == [1, 1]
        for qos in (0, 1, 2):
            assert await publisher.publish("live/1", b"x", qos) == 0
            assert (await plain.messages(1))[0].payload == b"x"
        assert await publisher.publish("t", b"to those who are here", 0) == 0
        assert (await plain.messages(1))[0].payload == b"to those who are here"
        assert await publisher.publish("nobody", BIG, 1) == 0x10
        await durable.nothing()


async def test_a_stored_session_that_keeps_up_is_served_and_one_that_is_away_is_not() -> None:
    async with full_site() as site:
        here = await site.client("here", clean=False, expiry=FOREVER)
        await here.subscribe("live", qos=1)
        await away(site)
        publisher = await site.client()
        await fill(publisher)
        for number in range(30):  # more than there is room for
            assert await publisher.publish("live", b"%d" % number + BIG, 1) == 0
            assert len(await here.messages(1)) == 1
        await here.leave()
        await site.gone("here")
        assert await publisher.publish("live", BIG, 1) == 0x97


async def test_a_publisher_without_reason_codes_is_not_read_until_there_is_room() -> None:
    async with full_site() as site:
        await away(site)
        taken = await fill(await site.client())
        old = await site.client("old", 4)
        old.send(Publish("t", b"99 waits", 1, packet_id=1))
        await until(lambda: site.broker.site.sessions.get("old").connection.held)
        await site.later(60)
        assert site.broker.site.sessions.get("old").connection.held
        back = await site.client("away", clean=False, expiry=FOREVER)
        numbers = [int(message.payload.split()[0]) for message in await back.messages(taken + 1)]
        assert numbers == [*range(taken), 99]
        await old.expect(Puback, packet_id=1)


async def test_sessions_subscriptions_and_retained_messages_are_not_kept_beyond() -> None:
    async with full_site() as site:
        kept = await site.client("kept", clean=False, expiry=FOREVER)
        await kept.subscribe("a", qos=1)
        await away(site)
        publisher = await site.client()
        assert await publisher.publish("r/1", bytes(100), 0, retain=True) == 0
        await fill(publisher)
        assert (await kept.subscribe("a", "b", qos=0)).reasons == [0, 0x97]
        for version, code in ((5, 0x97), (4, 3)):
            late = await site.dial(version)
            late.send(Connect("late", version, False, properties={Property.SESSION_EXPIRY_INTERVAL: 60} if version == 5 else {}))
            await late.expect(Connack, reason=code)
            await late.closed()
        await kept.leave()
        again = await site.client("kept", clean=False, expiry=FOREVER)
        assert again.connack is not None
        assert again.connack.session_present
        retained = site.broker.site.retained
        assert await publisher.publish("r/2", b"x", 1, retain=True) == 0x97
        assert await publisher.publish("r/2", b"x", 0, retain=True) == 0
        assert await publisher.publish("r/1", b"smaller", 1, retain=True) in (0, 0x10)
        assert [(run.topic, run.payloads[-1]) for run in retained.all()] == [(b"r/1", b"smaller")]
        assert await publisher.publish("r/1", b"", 1, retain=True) in (0, 0x10)
        assert not retained.all()


async def test_a_will_that_has_no_room_waits_for_it() -> None:
    async with full_site() as site:
        await away(site)
        dying = await site.client("dying", will=Will("t", b"7777 the last word", 1))
        taken = await fill(await site.client())
        await dying.cut()
        await site.gone("dying")
        back = await site.client("away", clean=False, expiry=FOREVER)
        await back.messages(taken)
        await until(lambda: not site.broker.site.persistence.quota.full)
        await site.later(1)
        assert (await back.messages(1))[0].payload == b"7777 the last word"


async def test_a_session_that_ends_makes_room() -> None:
    async with full_site() as site:
        await away(site)
        await away(site, "other", "u")
        publisher = await site.client()
        await fill(publisher)
        assert await publisher.publish("u", b"x", 1) == 0x97
        ending = await site.client("away", clean=True)
        assert ending.connack is not None
        await until(lambda: not site.broker.site.persistence.quota.full)
        assert await publisher.publish("u", b"x", 1) == 0


async def test_a_refusal_with_a_long_reason_is_well_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with full_site(stored_bytes=10**17) as site:
        await away(site)
        site.broker.site.persistence.quota.full = site.broker.site.persistence.closed = True
        monkeypatch.setattr(StoreQuota, "text", "x" * 300)
        answer_of = await site.client()
        answer_of.send(Publish("t", b"x", 1, packet_id=1))
        answer = await answer_of.expect(Puback, reason=0x97)
        assert len(answer.properties[Property.REASON_STRING]) > 300


async def test_a_larger_bound_needs_no_restart() -> None:
    for larger in (2 * LIMIT, 0):
        async with full_site(stored_sessions=1) as site:
            await away(site)
            bound = site.broker.site.persistence.quota
            publisher = await site.client()
            await fill(publisher)
            reload_files(site.broker, lambda larger=larger: parse({"limits": {"stored_bytes": larger, "stored_sessions": larger}}))
            assert not bound.full
            assert not bound.sessions_full
            assert await publisher.publish("t", BIG, 1) == 0
            await site.client("another", clean=False, expiry=FOREVER)
            assert bound.sessions == 2


async def test_each_change_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with full_site(sys_interval=10) as site:
        await away(site)
        publisher, watcher = await site.client(), await site.client()
        await watcher.subscribe("$SYS/broker/store/state")
        assert (await watcher.messages(1))[0].payload == b"ok"
        await fill(publisher)
        assert b"limits.stored_bytes" in (await watcher.messages(1))[0].payload
        for _ in range(5):
            assert await publisher.publish("t", BIG, 1) == 0x97
        assert site.broker.site.persistence.quota.refused == 6
        ending = await site.client("away", clean=True)
        assert (await watcher.messages(1))[0].payload == b"ok"
        await ending.nothing()
    lines = [one.getMessage().split()[0] for one in caplog.records if one.levelno == logging.WARNING and "event=store-" in one.getMessage()]
    assert lines == ["event=store-bound", "event=store-room"]


@pytest.mark.parametrize(("version", "code"), [(5, 0x97), (4, 3)])
async def test_as_many_sessions_as_may_be(version: int, code: int, caplog: pytest.LogCaptureFixture) -> None:
    kept = MemoryStore()
    async with full_site(kept, stored_sessions=2) as site:
        await away(site, "a")
        await away(site, "b")
        for _ in range(2):
            late = await site.dial(version)
            late.send(Connect("c", version, False, properties={Property.SESSION_EXPIRY_INTERVAL: 60} if version == 5 else {}))
            await late.expect(Connack, reason=code)
            await late.closed()
        await site.client("c")  # nothing of it is kept
        again = await site.client("a", clean=False, expiry=FOREVER)
        assert again.connack is not None
        assert again.connack.session_present
        await site.client("a", clean=True, expiry=FOREVER)  # another one in its place
        assert site.broker.site.persistence.quota.sessions == 2
    async with full_site(kept, stored_sessions=2) as site:
        bound = site.broker.site.persistence.quota
        assert (bound.sessions, bound.sessions_full) == (2, True)
        ending = await site.client("b", clean=True)
        await ending.nothing()
        assert (bound.sessions, bound.sessions_full) == (1, False)
        await site.client("c", clean=False, expiry=FOREVER)
        assert bound.sessions == 2
    lines = [one.getMessage().split()[0] for one in caplog.records if "event=sessions-" in one.getMessage()]
    bound_again = ["event=sessions-bound", "event=sessions-room", "event=sessions-bound"]
    assert lines == 2 * bound_again  # each time one went and another one came


@pytest.mark.parametrize("topics", [["t"], ["t/1", "t/2", "t/3"]], ids=["run", "span"])
async def test_what_another_site_sends_stays_there_until_there_is_room(topics: list[str]) -> None:
    async with Site(mesh=(1, MeshSettings("m", KEY))) as origin:
        peer = PeerSettings(origin.broker.addresses[0])
        async with full_site(mesh=(2, MeshSettings("m", KEY, peers=[peer]))) as site:
            await away(site, topic="t/#")
            listener = await site.client()
            await listener.subscribe("t/#", qos=1)
            await until(lambda: origin.broker.site.mesh.route(b"t") is not None)
            taken = await fill(await site.client())
            await listener.messages(taken)
            publisher = await origin.client()
            for number in range(3):
                packets = [Publish(topic, b"%d" % (1000 + number), 1, packet_id=publisher.next_id()) for topic in topics]
                publisher.send(*packets)
                for packet in packets:
                    await publisher.expect(Puback, packet_id=packet.packet_id, reason=0)
            await until(lambda: site.broker.site.mesh.incoming.held == 3 * len(topics))
            assert origin.broker.site.mesh.node.custody()[0] == 3 * len(topics)
            await listener.nothing()
            back = await site.client("away", clean=False, expiry=FOREVER)
            await back.messages(taken)
            await until(lambda: not site.broker.site.persistence.quota.full)
            await site.later(1)
            wanted = [b"%d" % (1000 + number) for number in range(3) for _ in topics]
            assert [message.payload for message in await back.messages(len(wanted))] == wanted
            assert [message.payload for message in await listener.messages(len(wanted))] == wanted
            await until(lambda: not origin.broker.site.mesh.node.custody()[0])


async def test_custody_is_bounded_with_the_rest() -> None:
    """The other site is gone: what is for it would have to be kept here, and may take half."""
    async with full_site(mesh=(1, MeshSettings("m", KEY))) as origin:
        peer = PeerSettings(origin.broker.addresses[0])
        async with Site(mesh=(2, MeshSettings("m", KEY, peers=[peer])), store=MemoryStore()) as site:
            subscriber = await site.client("s", clean=False, expiry=FOREVER)
            await subscriber.subscribe("t", qos=1)
            await until(lambda: origin.broker.site.mesh.route(b"t") is not None)
        publisher = await origin.client()
        taken = await fill(publisher)
        assert LIMIT // 2 // 5000 <= taken <= LIMIT // 2 // 4096 + 1
        assert origin.broker.site.mesh.node.custody()[0] == taken
        assert await publisher.publish("elsewhere", b"x", 1) == 0x10
