"""Members that ask for messages: `$queue/NAME/alerts` and the request `get` (row Q12; docs/queues.md, "Alerts")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth import rules as rules_of_access
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.plan import ALL
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Publish
from support.broker_site import Client, Site

ALERTS = "$queue/orders/alerts"
BOTH = frozenset(("publish", "subscribe"))


def queues(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(dict(rules), folder=folder / "queues", durability="os")


async def puller(site: Site, name: str, qos: int = 1, **more: Any) -> Client:
    client = await site.client(name, **more)
    await client.subscribe("$mqmesh/queues/answer", qos=0)
    assert [int(one) for one in (await client.subscribe(ALERTS, qos=qos)).reasons] == [qos]
    return client


async def put(site: Site, *payloads: bytes) -> None:
    shop = await site.client("shop")
    for payload in payloads:
        assert await shop.publish("$queue/orders", payload, qos=1) == 0


async def alert(client: Client) -> int:
    """How many messages wait, as an alert says."""
    (one,) = await client.messages(1)
    assert one.topic == ALERTS
    found = json.loads(one.payload)
    assert found["queue"] == "orders"
    return int(found["waiting"])


def ask(client: Client, most: int, name: str = "orders") -> None:
    client.send(Publish("$mqmesh/queues", json.dumps({"do": "get", "name": name, "most": most}).encode(), 0))


async def get(client: Client, most: int, acknowledge: bool = True) -> tuple[list[bytes], dict[str, Any]]:
    """The messages that come, and the answer behind them."""
    ask(client, most)
    got: list[bytes] = []
    while True:
        (one,) = await client.messages(1, acknowledge=acknowledge)
        if one.topic == "$mqmesh/queues/answer":
            return got, json.loads(one.payload)
        assert one.topic == "$queue/orders"
        got.append(one.payload)


@pytest.mark.parametrize("qos", [0, 1])
async def test_q12_a_member_is_told_once_until_it_takes(tmp_path: Path, qos: int) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        a = await puller(site, "a", qos)
        await a.nothing()
        await put(site, b"1")
        assert await alert(a) == 1
        await put(site, b"2", b"3", b"4")
        await a.nothing()
        assert await get(a, 2) == ([b"1", b"2"], {"queue": "orders", "given": 2, "waiting": 2})
        assert await alert(a) == 2
        assert (await get(a, 10))[0] == [b"3", b"4"]
        assert await get(a, 10) == ([], {"queue": "orders", "given": 0, "waiting": 0})
        await a.nothing()
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        await site.until(lambda: queue.counts["done"] == 4)
        await put(site, b"5")
        assert await alert(a) == 1


async def test_q12_each_eligible_member_is_told_and_the_first_one_takes(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        a, b = await puller(site, "a"), await puller(site, "b", version=4)
        await put(site, b"1")
        assert (await alert(a), await alert(b)) == (1, 1)
        assert (await get(b, 5))[0] == [b"1"]
        assert (await get(a, 5))[0] == []
        await put(site, b"2")
        assert (await alert(a), await alert(b)) == (1, 1)


async def test_q12_what_a_lost_member_had_goes_to_another_and_it_is_told_again(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        a, b = await puller(site, "a", clean=False, expiry=100), await puller(site, "b")
        await put(site, b"1")
        await alert(a)
        await alert(b)
        assert (await get(a, 1, acknowledge=False))[0] == [b"1"]
        assert (await get(b, 1))[0] == []
        await a.cut()
        assert await alert(b) == 1
        a = await site.client("a", clean=False, expiry=100)
        assert await alert(a) == 1
        assert (await get(b, 1))[0] == [b"1"]


async def test_q12_who_is_subscribed_to_the_queue_gets_messages_and_no_alerts(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(plan=ALL))) as site:
        a = await puller(site, "a")
        await a.subscribe("$queue/orders", qos=1)
        await put(site, b"1")
        assert [one.topic for one in await a.messages(1)] == ["$queue/orders"]
        await a.unsubscribe("$queue/orders")
        await put(site, b"2")
        assert await alert(a) == 1
        await a.unsubscribe(ALERTS)
        answer = (await get(a, 1))[1]
        assert "subscribe to $queue/orders/alerts" in answer["error"]
        assert not site.broker.site.queues.store.queues["orders"].subscribers  # type: ignore[union-attr]


async def test_alerts_of_no_queue_are_refused_and_nobody_else_writes_there(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        a = await puller(site, "a")
        assert [int(one) for one in (await a.subscribe("$queue/none/alerts", "$share/x/" + ALERTS, qos=1)).reasons] == [0x8F, 0x8F]
        assert await a.publish(ALERTS, b"{}", qos=1) == 0x90
        ask(a, 1, "none")
        assert "there is no queue 'none'" in (await a.messages(1))[0].payload.decode()
        await a.nothing()


def test_available_is_what_take_gives() -> None:
    queue = Queue("q", Rules())
    a, b = queue.join("a"), queue.join("b")

    def put_one(group: str) -> None:
        queue.put([b"1"], Meta("shop", b"", "", group), 1)
        for block in queue.seal(1):
            queue.committed(block, 1)

    assert not queue.available(a)
    put_one("x")
    assert queue.available(a)
    assert queue.available(b)
    assert len(queue.take(a, 1, 1)) == 1
    put_one("x")
    assert (queue.available(a), queue.available(b)) == (True, False)
    assert not queue.take(b, 1, 1)
    queue.leave(a, 1)
    assert queue.available(b)


async def test_who_may_not_be_a_member_gets_no_alerts_either(tmp_path: Path) -> None:
    rules = rules_of_access.Rules(
        (
            rules_of_access.Rule(1, True, BOTH, ("$queue/#",), clients=("a", "shop")),
            rules_of_access.Rule(2, True, BOTH, (ALERTS,)),
            rules_of_access.Rule(3, True, BOTH, ("$mqmesh/#",)),
        )
    )
    async with Site(queues=queues(tmp_path, orders=Rules()), access=AccessSettings(anonymous=True, rules=rules)) as site:
        a, b = await puller(site, "a"), await site.client("b")
        assert [int(one) for one in (await b.subscribe(ALERTS, qos=1)).reasons] == [0x87]
        await b.subscribe("$mqmesh/queues/answer", qos=0)
        assert "not permitted" in (await get(b, 1))[1]["error"]
        await put(site, b"1")
        assert await alert(a) == 1
