"""Recipients and restarts: states, since when, the probe, and every message survive a kill of the broker (row F19)."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any

import pytest
from mqmesh.broker.ports import Context
from mqmesh.mqtt.packets import Puback, Pubcomp, Publish, Pubrel
from mqmesh.mqtt.reasons import Reason
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site

from .test_recipients import application, served, site, state


def crashed(store: MemoryStore) -> MemoryStore:
    """The store as a broker that is killed leaves it."""
    copy = MemoryStore()
    for name in ("_runs", "_deliveries", "_values"):
        setattr(copy, name, deepcopy(getattr(store, name)))
    return copy


async def kept(at: Site) -> None:
    """All that was changed is in the store."""
    persistence = at.broker.site.persistence
    assert persistence is not None
    at.broker.context.flush()
    await at.until(lambda: not persistence.mark())


async def test_f19_state_since_and_probe_survive() -> None:
    apps: dict[str, Any] = {"application": [application("orders", "backup"), application("backup")]}
    store = MemoryStore()
    async with site(store, **apps) as at:
        orders, backup = await served(at, "orders", clean=False, expiry=1000), await served(at, "backup")
        sender = await at.client("shop")
        for number in range(3):
            await sender.publish("app/orders/new", b"%d" % number, 1)
        await orders.messages(3, acknowledge=False)
        await at.later(3.1)
        await at.until(lambda: state(at, "orders") == "fault")
        assert [one.payload for one in await backup.messages(2)] == [b"1", b"2"]
        await backup.nothing()
        await kept(at)
        copy = crashed(store)
        recipients = at.broker.site.recipients
        assert recipients is not None
        before = recipients.describe("orders")[0]
    async with site(copy, **apps) as at:
        recipients = at.broker.site.recipients
        assert recipients is not None
        after = recipients.describe("orders")[0]
        assert (after["state"], after["probe"]) == ("fault", True)
        assert [(one["from"], one["to"]) for one in after["history"]] == [(one["from"], one["to"]) for one in before["history"]]
        backup = await served(at, "backup")
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"3", 1)
        assert (await backup.messages(1))[0].payload == b"3"
        orders = await at.client("orders", clean=False, expiry=1000)
        assert state(at, "orders") == "operational"
        (got,) = await orders.messages(1)
        assert (got.payload, got.dup) == (b"0", True)


async def test_f19_the_defunct_interval_goes_on() -> None:
    apps: dict[str, Any] = {"application": [application("orders", "backup"), application("backup")]}
    store = MemoryStore()
    async with site(store, **apps) as at:
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        await at.later(0.5)
        await sender.publish("app/orders/new", b"2", 1)
        await at.later(2.6)
        await at.until(lambda: state(at, "orders") == "fault")
        await kept(at)
        copy = crashed(store)
    async with site(copy, **apps) as at:
        assert state(at, "orders") == "fault"
        backup = await served(at, "backup")
        assert (await backup.messages(1))[0].payload == b"2"
        await at.later(10.1)
        await at.until(lambda: state(at, "orders") == "defunct")
        assert (await backup.messages(1))[0].payload == b"1"


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_clock_that_is_set_ends_no_defunct_interval(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    apps: dict[str, Any] = {"application": [application("orders", "backup"), application("backup")]}
    store = MemoryStore()
    async with site(store, **apps) as at:
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        await at.later(3.1)
        await at.until(lambda: state(at, "orders") == "fault")
        clock = at.broker.context.clock
        looked = clock._at
        monkeypatch.setattr(Context, "wall", lambda self: time.time() + jump)
        await at.until(lambda: clock._at != looked)
    async with site(store, **apps) as at:
        machine = at.broker.site.recipients.local["orders"].machine  # type: ignore[union-attr]
        assert 0 <= at.broker.context.loop.time() - machine.since < 5
        assert state(at, "orders") == "fault"
        await at.later(10.1)
        await at.until(lambda: state(at, "orders") == "defunct")


@pytest.mark.parametrize("count", [1, 50])
async def test_a_clean_session_in_the_middle_of_its_messages_loses_nothing_in_a_crash(count: int) -> None:
    apps: dict[str, Any] = {"message_interval": 1000, "fault_interval": 1000, "application": [application("orders")]}
    store = MemoryStore()
    async with site(store, **apps) as at:
        orders = await served(at, "orders")
        sender = await at.client("shop")
        for number in range(count):
            await sender.publish("app/orders/new", b"%d" % number, 1)
        await orders.messages(count, acknowledge=False)
        await kept(at)
        copy = crashed(store)
    async with site(copy, **apps) as at:
        orders = await served(at, "orders")
        assert [one.payload for one in await orders.messages(count)] == [b"%d" % number for number in range(count)]
        await orders.nothing()


async def test_f10_a_late_acknowledgement_frees_its_identifier_and_counts_for_nothing_else() -> None:
    async with site(MemoryStore(), application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup = await served(at, "orders"), await served(at, "backup")
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        (late,) = await orders.messages(1, acknowledge=False)
        await at.later(1.1)
        assert (await backup.messages(1))[0].payload == b"1"
        session = at.broker.site.sessions.get("orders")
        assert session is not None
        assert session.outbound.in_flight == 1
        orders.send(Puback(late.packet_id))
        await orders.nothing()
        assert session.outbound.in_flight == 0
        await sender.publish("app/orders/new", b"2", 1)
        assert (await orders.messages(1))[0].payload == b"2"
        await backup.nothing()


async def test_a_spilled_queue_fails_over_in_order() -> None:
    """Messages that only the store has are read back, in order; the probe is the first."""
    apps = [application("orders", "backup"), application("backup")]
    made = site(MemoryStore(), message_interval=3, application=apps)
    made.broker.config.limits.session_memory_bytes = 2000
    async with made as at:
        backup = await served(at, "backup")
        orders = await served(at, "orders", receive_maximum=2)
        sender = await at.client("shop")
        for number in range(200):
            await sender.publish("app/orders/new", b"%03d" % number + bytes(100), 1)
        await orders.messages(2, acknowledge=False)
        await at.later(3.1)
        await at.until(lambda: state(at, "orders") == "fault")
        got = await backup.messages(199)
        assert [one.payload[:3] for one in got] == [b"%03d" % number for number in range(1, 200)]


async def mqtt311(at: Site, name: str) -> Client:
    return await served(at, name, version=4)


@pytest.mark.parametrize("qos", [1, 2])
async def test_mqtt_3_1_1_clients_take_part_by_file(qos: int) -> None:
    async with site(application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup = await mqtt311(at, "orders"), await mqtt311(at, "backup")
        sender = await at.client("shop", version=4)
        assert await sender.publish("app/orders/new", b"1", qos) == 0
        await orders.messages(1, acknowledge=False)
        await at.later(1.1)
        assert (await backup.messages(1))[0].payload == b"1"


@pytest.mark.parametrize("killed", [False, True])
async def test_an_identifier_of_qos_2_is_released_before_it_stands_for_another_message(killed: bool) -> None:
    """Else a client that has the first message takes the other one for the same, and drops it [MQTT-4.3.3-9]."""
    apps: dict[str, Any] = {"application": [application("orders", "backup"), application("backup")]}
    store = MemoryStore()
    async with site(store, **apps) as at:
        orders, backup = await served(at, "orders", clean=False, expiry=1000), await served(at, "backup")
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 2)
        first = await orders.expect(Publish, payload=b"1")
        await at.later(1.1)
        assert [one.payload for one in await backup.messages(1)] == [b"1"]
        await kept(at)
        copy = crashed(store)
        if not killed:
            await orders.cut()
            again = await at.client("orders", clean=False, expiry=1000)
            await released(again, first.packet_id)
    if killed:
        async with site(copy, **apps) as at:
            await released(await at.client("orders", clean=False, expiry=1000), first.packet_id)


async def released(client: Client, packet_id: int) -> None:
    """The client is told that an identifier means nothing any more; then it may mean something else."""
    await client.expect(Pubrel, packet_id=packet_id)
    client.send(Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))
    await client.nothing()
