"""Recipients at one broker: states, fail-over, return. Tests are named by the rows that they show (docs/recipients.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.config import parse
from mqmesh.broker.journal.kinds import Kind, name_id
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.mqtt.packets import Puback, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site


def site(store: Any = None, journal: Path | None = None, **table: Any) -> Site:
    """A broker with a table `[recipients]`: intervals of 1, 3 and 10 seconds, unless it says otherwise. journal: its folder."""
    table = {"message_interval": 1, "fault_interval": 3, "defunct_interval": 10, **table}
    made = Site(store=store, journal=None if journal is None else JournalSettings(str(journal)))
    made.broker.config.recipients = parse({"recipients": table}).recipients
    return made


def application(name: str, *alternatives: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "alternatives": list(alternatives), **more}


async def served(at: Site, name: str, version: int = 5, **more: Any) -> Client:
    """A client that is the application `name` and has subscribed to what is addressed to it."""
    client = await at.client(name, version=version, **more)
    client.send(Subscribe(client.next_id(), [Subscription(f"app/{name}/#", 2)]))
    early = []
    while not isinstance(packet := await client.receive(), Suback):  # messages may come before it (MQTT 5: 3.8.4)
        early.append(packet)
    for one in early:
        client._packets.put_nowait(one)
    return client


def users(packet: Any) -> dict[str, str]:
    return dict(packet.properties.get(Property.USER_PROPERTY, []))


def state(at: Site, name: str) -> str:
    recipients = at.broker.site.recipients
    assert recipients is not None
    return recipients.local[name].state.value


async def test_f15_addressed_messages_reach_their_application_and_say_where_they_come_from() -> None:
    async with site(application=[application("orders")]) as at:
        orders = await served(at, "orders")
        sender = await at.client("shop")
        properties = {Property.USER_PROPERTY: [("mqmesh-originator", "forged"), ("own", "kept")]}
        assert await sender.publish("app/orders/new", b"1", 1, properties=properties) == 0
        (got,) = await orders.messages(1)
        assert (got.topic, got.payload, got.qos) == ("app/orders/new", b"1", 1)
        assert got.properties[Property.USER_PROPERTY] == [("own", "kept"), ("mqmesh-originator", "shop"), ("mqmesh-site", "0")]


@pytest.mark.parametrize("qos", [1, 2])
async def test_f15_an_unknown_name_is_refused(qos: int) -> None:
    async with site() as at:
        sender = await at.client("shop")
        assert await sender.publish("app/nobody/new", b"1", qos) == 0x90


async def test_without_the_table_the_topics_are_ordinary() -> None:
    async with Site() as at:
        reader = await at.client("reader")
        await reader.subscribe("app/#", qos=1)
        sender = await at.client("shop")
        assert await sender.publish("app/nobody/new", b"1", 1) == 0
        assert (await reader.messages(1))[0].payload == b"1"


async def test_f21_messages_wait_for_an_application_that_is_away_and_clean_sessions_lose_nothing() -> None:
    async with site(MemoryStore(), message_interval=1000, fault_interval=1000, application=[application("orders")]) as at:
        sender = await at.client("shop")
        for number in range(3):
            await sender.publish("app/orders/new", b"%d" % number, 1)
        orders = await served(at, "orders")
        assert [one.payload for one in await orders.messages(3)] == [b"0", b"1", b"2"]
        await sender.publish("app/orders/new", b"3", 1)
        await orders.messages(1, acknowledge=False)
        await orders.cut()
        await sender.publish("app/orders/new", b"4", 1)
        again = await served(at, "orders")
        assert [one.payload for one in await again.messages(2)] == [b"3", b"4"]


async def test_f1_a_message_that_uses_up_its_interval_fails_over_by_itself() -> None:
    async with site(application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup = await served(at, "orders"), await served(at, "backup")
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        await orders.messages(1, acknowledge=False)
        await at.later(1.1)
        (got,) = await backup.messages(1)
        assert got.payload == b"1"
        assert users(got)["mqmesh-failed-over"] == "orders"
        assert users(got)["mqmesh-repeated"] == "1"
        assert state(at, "orders") == "operational"
        await backup.nothing()


async def test_f1_each_message_has_an_interval_of_its_own_also_while_a_fault_interval_runs() -> None:
    async with site(fault_interval=100, application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup = await served(at, "orders"), await served(at, "backup")
        sender = await at.client("shop")
        for number in (b"1", b"2"):
            await sender.publish("app/orders/new", number, 1)
            await orders.messages(1, acknowledge=False)
            await at.later(1.1)
            assert (await backup.messages(1))[0].payload == number
        assert state(at, "orders") == "operational"


async def test_f3_f4_f5_f11_fault_the_probe_and_the_return() -> None:
    async with site(message_interval=3, application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup = await served(at, "orders"), await served(at, "backup")
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        (first,) = await orders.messages(1, acknowledge=False)
        await at.later(2)
        await sender.publish("app/orders/new", b"2", 1)
        await orders.messages(1, acknowledge=False)
        await at.later(1.1)
        await at.until(lambda: state(at, "orders") == "fault")
        await sender.publish("app/orders/new", b"3", 1)
        assert [one.payload for one in await backup.messages(2)] == [b"2", b"3"]
        orders.send(Puback(first.packet_id))
        await at.until(lambda: state(at, "orders") == "operational")
        await sender.publish("app/orders/new", b"4", 1)
        assert (await orders.messages(1))[0].payload == b"4"


async def test_f9_f10_defunct_closes_the_connection() -> None:
    async with site(application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup = await served(at, "orders"), await served(at, "backup")
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        await orders.messages(1, acknowledge=False)
        await at.later(3.1)
        await at.until(lambda: state(at, "orders") == "fault")
        await at.later(10.1)
        await orders.closed(0x98)
        assert state(at, "orders") == "defunct"
        assert (await backup.messages(1))[0].payload == b"1"
        again = await served(at, "orders")
        assert state(at, "orders") == "operational"
        await sender.publish("app/orders/new", b"2", 1)
        assert (await again.messages(1))[0].payload == b"2"


async def test_each_change_of_state_is_an_event() -> None:
    async with site(application=[application("orders")]) as at:
        orders, watcher, sender = await served(at, "orders"), await at.client("watcher"), await at.client("shop")
        await watcher.subscribe("$mqmesh/events/recipients")
        await sender.publish("app/orders/new", b"1", 1)
        await orders.messages(1, acknowledge=False)
        await at.later(3.1)
        await at.until(lambda: state(at, "orders") == "fault")
        await at.later(10.1)
        await orders.closed(0x98)
        await served(at, "orders")
        changes = [json.loads(event.payload) for event in await watcher.messages(3)]
        assert [one["to"] for one in changes] == ["fault", "defunct", "operational"]
        assert {one["name"] for one in changes} == {"orders"}
        await watcher.nothing()


async def test_f8_f16_no_alternative_left_returns_the_message() -> None:
    chain = [application("a", "b"), application("b", "c", "a"), application("c")]
    async with site(application=chain) as at:
        sender = await at.client("shop")
        await sender.subscribe("app/shop/returned", qos=1)
        await sender.publish("app/a/x", b"1", 1, properties={Property.CONTENT_TYPE: "text"})
        for _ in range(4):
            await at.later(1.1)
        (got,) = await sender.messages(1)
        assert (got.topic, got.payload) == ("app/shop/returned", b"1")
        found = users(got)
        assert got.properties[Property.CONTENT_TYPE] == "text"
        assert found["mqmesh-tried"] == "a,b,c"
        assert found["mqmesh-topic"] == "app/a/x"
        assert found["mqmesh-returned"] == "message-interval"
        assert found["mqmesh-returned-at"].endswith("Z")


async def test_f8_dead_letters_wait_for_somebody() -> None:
    async with site(application=[application("a")]) as at:
        sender = await at.client("shop")
        await sender.publish("app/a/x", b"1", 1)
        await at.later(1.1)
        recipients = at.broker.site.recipients
        assert recipients is not None
        await at.until(lambda: recipients.failover.counts["dead_lettered"] == 1)
        reader = await at.client("reader")
        await reader.subscribe("dead/+", qos=1)
        (got,) = await reader.messages(1)
        assert (got.topic, users(got)["mqmesh-tried"]) == ("dead/site0", "a")


async def test_the_journal_follows_a_message_that_fails_over(tmp_path: Path) -> None:
    async with site(MemoryStore(), journal=tmp_path, application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup = await served(at, "orders"), await served(at, "backup")
        sender = await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        await orders.messages(1, acknowledge=False)
        await at.later(1.1)
        await backup.messages(1)
        await backup.nothing()
    found = [row for table in Journal(str(tmp_path)).tables() for row in table.to_pylist()]
    (published,) = [row for row in found if row["kind"] == Kind.PUBLISHED]
    same = [row for row in found if (row["origin"], row["stream"], row["sequence"]) == (0, published["stream"], published["sequence"])]
    assert {Kind.RECEIVED, Kind.DELIVERED, Kind.FAILED_OVER} <= {row["kind"] for row in same}
    clients = [name_id("orders"), name_id("backup")]
    assert [row["client"] for row in same if row["kind"] == Kind.DELIVERED] == clients
    assert [row["client"] for row in same if row["kind"] == Kind.ACKNOWLEDGED] == clients[1:]
    (over,) = [row for row in same if row["kind"] == Kind.FAILED_OVER]
    assert over["recipient"] == clients[0]


async def test_who_takes_a_long_topic_is_not_remembered() -> None:
    async with site(application=[application("orders")]) as at:
        orders, shop = await served(at, "orders"), await at.client("shop")
        for topic in (f"app/orders/{'t' * 10_000}", "app/orders/short"):
            assert await shop.publish(topic, b"1", 1) == 0
            assert [one.topic for one in await orders.messages(1)] == [topic]
        assert list(at.broker.site.recipients.local["orders"]._serving) == [b"app/orders/short"]
