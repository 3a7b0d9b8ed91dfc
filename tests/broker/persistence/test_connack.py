"""CONNACK and the end of a connection after DISCONNECT wait for the disk, where there is something to keep."""

from __future__ import annotations

import pytest
from mqmesh.mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, Suback, Subscribe, Subscription, Will
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.store.base import Kind
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.storage.failing_store import FailingStore

FOREVER = 0xFFFFFFFF
WILL = Will("wills/porto", b"gone", 1)


def held_store() -> FailingStore:
    return FailingStore(MemoryStore())


def connect(name: str, version: int = 5, clean: bool = True, expiry: int = FOREVER, will: Will | None = None) -> Connect:
    properties = {Property.SESSION_EXPIRY_INTERVAL: expiry} if version == 5 and expiry else {}
    return Connect(name, version, clean, 0, None, None, will, properties)


async def silent(client: Client, other: Client) -> None:
    """Nothing has come for a client, though the broker has answered another one since."""
    await other.nothing()
    await other.nothing()
    assert not client.raw
    assert not client.lost


@pytest.mark.parametrize(("version", "clean"), [(5, True), (5, False), (4, False)])
async def test_connack_waits_until_session_and_will_are_kept(version: int, clean: bool) -> None:
    store = held_store()
    async with Site(store=store) as site:
        other = await site.client()
        store.hold()
        client = await site.dial(version)
        client.send(connect("porto", version, clean, will=WILL))
        await until(store.entered.is_set)
        await silent(client, other)
        assert store.value("sessions", b"porto") is None
        store.release()
        await client.expect(Connack, reason=0)
        assert b"wills/porto" in (store.value("sessions", b"porto") or b"")


async def test_connack_of_a_session_that_goes_on_waits_for_its_new_will() -> None:
    store = held_store()
    async with Site(store=store) as site:
        other = await site.client()
        await (await site.client("porto", expiry=FOREVER)).leave()
        store.hold()
        client = await site.dial()
        client.send(connect("porto", clean=False, will=WILL))
        await until(store.entered.is_set)
        await silent(client, other)
        store.release()
        await client.expect(Connack, reason=0, session_present=True)
        assert b"wills/porto" in (store.value("sessions", b"porto") or b"")


async def test_connack_waits_until_the_earlier_session_is_gone() -> None:
    """Else it would come back after a crash, though the client was told that there is none."""
    store = held_store()
    async with Site(store=store) as site:
        other = await site.client()
        await (await site.client("porto", expiry=FOREVER)).leave()
        store.hold()
        client = await site.dial()
        client.send(connect("porto", clean=True, expiry=0))
        await until(store.entered.is_set)
        await silent(client, other)
        store.release()
        await client.expect(Connack, reason=0, session_present=False)
        assert store.value("sessions", b"porto") is None


async def test_a_session_that_ends_with_its_connection_waits_for_nothing() -> None:
    store = held_store()
    async with Site(store=store) as site:
        store.hold()
        await site.client("porto", will=WILL)
        assert not store.entered.is_set()
        store.release()


async def test_what_comes_behind_connect_is_answered_behind_connack() -> None:
    store = held_store()
    async with Site(store=store) as site:
        publisher = await site.client()
        away = await site.client("porto", expiry=FOREVER)
        await away.subscribe("t", qos=1)
        await away.leave()
        store.hold()
        client = await site.dial()
        client.send(connect("porto", clean=False), Subscribe(7, [Subscription("u", 1)]), Pingreq())
        await until(store.entered.is_set)
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        await silent(client, publisher)
        store.release()
        await client.expect(Connack, reason=0, session_present=True)
        kinds = {type(await client.receive()) for _ in range(3)}
        assert kinds == {Suback, Pingresp, Publish}


async def test_a_connection_that_is_taken_over_before_its_connack_gets_none() -> None:
    store = held_store()
    async with Site(store=store) as site:
        other = await site.client()
        store.hold()
        first, second = await site.dial(), await site.dial()
        first.send(connect("porto", clean=False))
        await until(store.entered.is_set)
        second.send(connect("porto", clean=False))
        await first.closed()
        await silent(second, other)
        store.release()
        await second.expect(Connack, reason=0)
        assert not first.raw


async def test_a_store_that_does_not_answer_in_time_ends_the_connection() -> None:
    store = held_store()
    async with Site(store=store, connect_timeout=10.0) as site:
        store.hold()
        client = await site.dial()
        client.send(connect("porto"))
        await until(store.entered.is_set)
        await site.later(11)
        await client.closed()
        assert not client.raw
        store.release()


async def test_while_the_store_fails_nothing_new_is_promised() -> None:
    store = held_store()
    async with Site(store=store) as site:
        await (await site.client("porto", expiry=FOREVER)).leave()
        store.fail_next(Kind.FULL, times=1000)
        publisher = await site.dial()
        publisher.send(connect("lyon"))
        await until(lambda: site.broker.site.persistence.error is not None)
        for packet in (connect("new"), connect("porto", clean=False, will=WILL), connect("porto", clean=True, expiry=0)):
            refused = await site.dial()
            refused.send(packet)
            await refused.expect(Connack, reason=Reason.QUOTA_EXCEEDED)
        await site.client("porto", clean=False, expiry=FOREVER)  # what it has is kept
        store.recover()
        await publisher.expect(Connack, reason=0)


async def test_the_connection_ends_after_disconnect_once_the_will_is_gone() -> None:
    store = held_store()
    async with Site(store=store) as site:
        other = await site.client()
        client = await site.client("porto", expiry=FOREVER, will=WILL)
        client.raw.clear()
        store.hold()
        client.send(Disconnect(0))
        await until(store.entered.is_set)
        await silent(client, other)
        store.release()
        await client.closed()
        assert b"wills/porto" not in (store.value("sessions", b"porto") or b"wills/porto")


async def test_the_connection_ends_after_disconnect_once_the_session_is_gone() -> None:
    store = held_store()
    async with Site(store=store) as site:
        other = await site.client()
        client = await site.client("porto", expiry=FOREVER)
        client.raw.clear()
        store.hold()
        client.send(Disconnect(0, {Property.SESSION_EXPIRY_INTERVAL: 0}))
        await until(store.entered.is_set)
        await silent(client, other)
        store.release()
        await client.closed()
        assert store.value("sessions", b"porto") is None
