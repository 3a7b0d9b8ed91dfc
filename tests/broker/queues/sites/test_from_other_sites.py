"""Clients at other sites than a queue's home ask for messages, and look into the queue (docs/queues.md, "Across sites")."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth import rules as rules_of_access
from mqmesh.broker.auth.roles import ManagementSettings
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.shell import Queues
from mqmesh.client import ConnectionFactory
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

KEY = "0123456789abcdef"
ALERTS = "$queue/orders/alerts"
ANSWER = "$mqmesh/queues/answer"
ALL = rules_of_access.Rules((rules_of_access.Rule(1, True, frozenset(("publish", "subscribe")), ("#", "$queue/#", "$mqmesh/#")),))


def shell(site: Site) -> Queues:
    queues = site.broker.site.queues
    assert queues is not None
    return queues


async def two(stack: AsyncExitStack, folder: Path, store: MemoryStore | None = None, **home: Any) -> tuple[Site, Site]:
    """The home of `orders`, and another site."""
    settings = QueueSettings({"orders": Rules(retention=3600)}, folder=folder / "queues", durability="os")
    first = Site(mesh=(1, MeshSettings("m", KEY, silence=1000, start_wait=0.0)), store=MemoryStore(), queues=settings, **home)
    await stack.enter_async_context(first)
    peers = [PeerSettings(first.broker.addresses[0])]
    second = Site(mesh=(2, MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)), store=store or MemoryStore())
    await stack.enter_async_context(second)
    await until(lambda: shell(second).name_of("$queue/orders") is not None)
    return first, second


async def puller(site: Site, name: str, qos: int = 1, **more: Any) -> Client:
    client = await site.client(name, **more)
    await client.subscribe(ANSWER, qos=0)
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
    return int(json.loads(one.payload)["waiting"])


async def ask(client: Client, **asked: Any) -> tuple[list[Publish], dict[str, Any]]:
    """The messages that come, and the answer after them."""
    client.send(Publish("$mqmesh/queues", json.dumps({"name": "orders"} | asked).encode(), 0))
    got: list[Publish] = []
    while True:
        (one,) = await client.messages(1, acknowledge=False)
        if one.topic == ANSWER:
            return got, json.loads(one.payload)
        got.append(one)


@pytest.mark.parametrize("qos", [0, 1])
async def test_q12_a_member_at_another_site_is_told_once_until_it_takes(tmp_path: Path, qos: int) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        a = await puller(away, "a", qos)
        await put(home, b"1", b"2", b"3")
        assert await alert(a) == 1
        await a.nothing()
        got, answer = await ask(a, do="get", most=2)
        assert [one.payload for one in got] == [b"1", b"2"]
        assert answer == {"queue": "orders", "given": 2, "waiting": 1}
        assert await alert(a) == 1
        for one in got if qos else ():
            a.send(Puback(one.packet_id))
        queue = shell(home).store.queues["orders"]
        await until(lambda: queue.counts["done"] == 2)
        assert [one.payload for one in (await ask(a, do="get", most=9))[0]] == [b"3"]
        assert (await ask(a, do="get"))[1] == {"queue": "orders", "given": 0, "waiting": 0}
        await a.nothing()


async def test_q12_what_a_lost_member_at_another_site_had_goes_to_others(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        a, b = await puller(away, "a", clean=False, expiry=100), await puller(home, "b")
        await put(home, b"1")
        assert (await alert(a), await alert(b)) == (1, 1)
        assert [one.payload for one in (await ask(a, do="get"))[0]] == [b"1"]
        assert not (await ask(b, do="get"))[0]
        await a.cut()
        assert await alert(b) == 1
        a = await away.client("a", clean=False, expiry=100)
        assert await alert(a) == 1
        assert [one.payload for one in (await ask(b, do="get"))[0]] == [b"1"]


async def test_q12_a_member_at_another_site_that_gets_everything_gets_no_alerts(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        a = await puller(away, "a")
        await a.subscribe("$queue/orders", qos=1)
        await put(home, b"1")
        assert [one.topic for one in await a.messages(1)] == ["$queue/orders"]
        await a.unsubscribe("$queue/orders")
        await put(home, b"2")
        assert await alert(a) == 1
        await a.unsubscribe(ALERTS)
        answer = (await ask(a, do="get"))[1]
        assert "subscribe to $queue/orders/alerts" in answer["error"]


async def test_a_queue_is_looked_into_from_another_site(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        a, worker = await away.client("a"), await home.client("worker")
        await a.subscribe(ANSWER, qos=0)
        await worker.subscribe("$queue/orders", qos=1)
        await put(home, b"worked")
        await worker.messages(1)
        queue = shell(home).store.queues["orders"]
        await until(lambda: queue.counts["done"] == 1)
        await worker.unsubscribe("$queue/orders")
        await put(home, b"waits")
        (row,) = (await ask(a, do="peek", whole=True))[1]["messages"]
        assert (b64decode(row["payload"]), row["waits"]) == (b"waits", True)
        read = (await ask(a, do="read", **{"from": 1}))[1]
        assert [b64decode(one["payload"]) for one in read["messages"]] == [b"worked", b"waits"]
        put_at = read["messages"][1]["put"]
        assert [one["position"] for one in (await ask(a, do="read", since=put_at))[1]["messages"]][-1] == 2
        assert (await ask(a, do="trace", position=1))[1]["states"][0]["state"] == "PUT"
        assert (await ask(a, do="needed"))[1]["needed"]["any member"]["waits"] == [[2, 2]]
        assert (await ask(a, do="show"))[1]["queue"]["waiting"] == 1
        assert (queue.waiting, queue.held, queue.counts["returned"]) == (1, 0, 0)


@pytest.mark.parametrize("believed", [False, True])
async def test_a_home_with_rules_believes_the_sites_that_it_names(tmp_path: Path, believed: bool) -> None:
    management = ManagementSettings(accept=("site2",) if believed else ())
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path, access=AccessSettings(anonymous=True, rules=ALL), management=management)
        a = await away.client("a")
        await a.subscribe(ANSWER, qos=0)
        await put(home, b"1")
        answer = (await ask(a, do="read", payloads=True))[1]
        if believed:
            assert b64decode(answer["messages"][0]["payload"]) == b"1"
        else:
            assert answer["error"].startswith("this site does not believe site2")


async def test_a_site_with_rules_asks_other_sites_for_those_with_a_role_only(tmp_path: Path) -> None:
    settings = QueueSettings({"orders": Rules()}, folder=tmp_path / "queues", durability="os")
    async with Site(mesh=(1, MeshSettings("m", KEY, silence=1000, start_wait=0.0)), store=MemoryStore(), queues=settings) as home:
        peers = [PeerSettings(home.broker.addresses[0])]
        mesh = (2, MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0))
        async with Site(mesh=mesh, store=MemoryStore(), access=AccessSettings(anonymous=True, rules=ALL)) as away:
            await until(lambda: shell(away).name_of("$queue/orders") is not None)
            a = await away.client("a")
            await a.subscribe(ANSWER, qos=0)
            for asked in ({"do": "peek"}, {"do": "read", "payloads": True}):
                assert (await ask(a, **asked))[1]["error"].startswith("not permitted")


async def test_the_api_browses_a_queue_of_another_site(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        await put(home, b"1", b"2")

        def browse() -> list[bytes]:
            factory = ConnectionFactory(str(away.broker.addresses[0]))
            with factory.create_context() as context, context.create_browser(context.create_queue("orders")) as browser:
                return [bytes(one.body) for one in browser]

        assert await asyncio.to_thread(browse) == [b"1", b"2"]


async def test_a_client_of_another_site_says_nothing_for_a_member_of_its_name(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        member, other = await home.client("worker"), await away.client("worker")
        await member.subscribe("$queue/orders", qos=1)
        await other.subscribe(ANSWER)
        await put(home, b"1")
        (message,) = await member.messages(1, acknowledge=False)
        for do in ("done", "unusable", "return", "expire"):
            assert "error" in (await ask(other, do=do, position=1))[1]
        member.send(Puback(message.packet_id))
        await until(lambda: shell(home).store.queues["orders"].counts["done"] == 1)
