"""Actions on queues: what operators of another site do, when they are told, and what is refused."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth.roles import Grant, ManagementSettings, Role
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.management.queue_deeds import DEEDS
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish
from support.broker_site import Client, Site, until
from support.management import BELIEVING, EVERYBODY, ask, manager

KEY = "a key of sixteen bytes"


@asynccontextmanager
async def pair(folder: Path, here: ManagementSettings = EVERYBODY, **rules: Rules) -> AsyncIterator[tuple[Site, Site, Client]]:
    """Two sites, the queues at the second one, and an operator who is a client of the first one."""
    async with Site(mesh=(1, MeshSettings("m", KEY)), management=here) as one:
        settings = MeshSettings("m", KEY, peers=[PeerSettings(one.broker.addresses[0])])
        queues = QueueSettings(dict(rules), folder=folder / "queues", durability="os")
        async with Site(mesh=(2, settings), management=BELIEVING, queues=queues) as two:
            await until(lambda: all(sum(m.live for m in site.broker.site.mesh.node.members()) == 2 for site in (one, two)))
            yield one, two, await manager(one)


async def do(client: Client, action: str, **values: Any) -> str:
    """What the second site says."""
    answer = await ask(client, do_=action, at="site2", **values)
    if "error" in answer:
        return str(answer["error"])
    assert not answer["missing"], answer
    return str({**answer.get("done", answer.get("would", {})), **answer["refused"]}["site2"])


async def waiting(client: Client, queue: str = "orders") -> int:
    (row,) = (await ask(client, list="queues", at="site2", where={"name": queue}))["rows"]
    return int(row["waiting"])


async def test_one_message(tmp_path: Path) -> None:
    async with pair(tmp_path, orders=Rules(reveal=False)) as (_, two, client):
        shop, a = await two.client("shop"), await two.client("a")
        for number in range(1, 5):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        assert (
            await do(client, "reveal-message", queue="orders", position=1, dry_run=True) == "message 1 of queue orders is PUT, priority 4"
        )
        assert await do(client, "reveal-message", queue="orders", position=1) == "message 1 of queue orders is REVEALED, priority 4"
        assert "REVEAL" in await do(client, "reveal-message", queue="orders", position=1), "what the tables do not allow is refused"
        assert (
            await do(client, "set-priority", queue="orders", position="2", priority="9") == "message 2 of queue orders is PUT, priority 9"
        )
        assert "0 to 9" in await do(client, "set-priority", queue="orders", position=2, priority=10)
        assert await do(client, "withdraw-message", queue="orders", position=3) == "message 3 of queue orders is UNAVAILABLE, priority 4"
        assert await do(client, "expire-message", queue="orders", position=4) == "message 4 of queue orders is JOURNALLED, priority 4"
        await a.subscribe("$queue/orders", qos=1)
        (taken,) = await a.messages(1, acknowledge=False)
        a.send(Puback(taken.packet_id, 0x99))
        await a.nothing()
        said = await do(client, "redeliver-message", queue="orders", position=1, member="a")
        assert said == "message 1 of queue orders is REVEALED, priority 4"
        assert [one.payload for one in await a.messages(1)] == [b"1"]
        assert "at an end" in await do(client, "expire-message", queue="orders", position=9)


async def test_many_messages(tmp_path: Path) -> None:
    async with pair(tmp_path, orders=Rules(), dead=Rules()) as (_, two, client):
        shop = await two.client("shop")
        for number in range(3):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        assert await do(client, "copy-messages", queue="orders", to="dead", last=2) == "copied from queue orders to $queue/dead: 2 messages"
        assert await waiting(client, "dead") == 2
        assert "another one" in await do(client, "copy-messages", queue="orders", to="orders", last=2)
        payload = b64encode(b"new").decode()
        assert (
            await do(client, "edit-message", queue="orders", position=1, payload=payload)
            == "message 1 of queue orders is replaced by message 4"
        )
        assert await do(client, "redrive-queue", queue="dead", to="orders") == "back from queue dead: 2 messages"
        assert await do(client, "recover-queue", queue="orders") == "queue orders: children 0, revealed 0, cleaned 0"
        assert await do(client, "purge-queue", queue="orders", dry_run=True) == "withdrawn from queue orders: 5 messages"
        assert await waiting(client) == 5
        assert await do(client, "purge-queue", queue="orders") == "withdrawn from queue orders: 5 messages"
        assert await waiting(client) == 0


async def test_queues_come_and_go(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two, client):
        assert await do(client, "declare-queue", queue="new", settings={"deliveries": 3}, dry_run=True) == "queue new is declared"
        assert await do(client, "declare-queue", queue="new", settings='{"deliveries": 3}') == "queue new is declared"
        assert "deliveries" in await do(client, "declare-queue", queue="odd", settings={"deliveries": 0.5})
        shop = await one.client("shop")
        await until(lambda: one.broker.site.queues.name_of("$queue/new") is not None)  # type: ignore[union-attr]
        assert await shop.publish("$queue/new", b"1", qos=1) == 0
        await until(lambda: two.broker.site.queues.store.queues["new"].waiting == 1)  # type: ignore[union-attr]
        assert await do(client, "move-queue", queue="new", store="sqlite", dry_run=True) == "to store sqlite: new"
        assert "not at an end" in await do(client, "delete-queue", queue="new")
        assert await do(client, "delete-queue", queue="new", force=True) == "queue new is deleted, with 1 message"
        assert "there is no queue 'new' at site2" in await do(client, "purge-queue", queue="new")


async def test_members_of_a_paused_queue_get_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async with pair(tmp_path, orders=Rules()) as (one, two, client):
        shop, a, b, puller = await two.client("shop"), await two.client("a"), await one.client("b"), await two.client("puller")
        await a.subscribe("$queue/orders", qos=1)
        await shop.publish("$queue/orders", b"1", qos=1)
        (first,) = await a.messages(1, acknowledge=False)
        assert await do(client, "pause-queue", queue="orders", dry_run=True) == "queue orders is paused"
        assert await do(client, "pause-queue", queue="orders") == "queue orders is paused"
        assert (await ask(client, list="queues", at="site2", where={"paused": True}))["total"] == 1
        assert await shop.publish("$queue/orders", b"2", qos=1) == 0, "who puts is not held up"
        a.send(Puback(first.packet_id))
        await b.subscribe("$queue/orders", qos=1)
        await puller.subscribe("$queue/orders/alerts", qos=1)
        for member in (a, b, puller):
            await member.nothing()
        queue = two.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        assert (queue.waiting, queue.held, queue.counts["done"]) == (1, 0, 1), "what members had may be finished"
        assert await do(client, "resume-queue", queue="orders") == "queue orders is not paused"
        await until(lambda: queue.held == 1)


async def test_a_member_that_asks_is_told_when_a_queue_is_resumed(tmp_path: Path) -> None:
    async with pair(tmp_path, orders=Rules()) as (_, two, client):
        shop, puller = await two.client("shop"), await two.client("puller")
        await puller.subscribe("$queue/orders/alerts", qos=0)
        await puller.subscribe("$mqmesh/queues/answer", qos=0)
        await shop.publish("$queue/orders", b"1", qos=1)
        await puller.expect(Publish, topic="$queue/orders/alerts")
        await do(client, "pause-queue", queue="orders")
        puller.send(Publish("$mqmesh/queues", json.dumps({"do": "get", "name": "orders"}).encode(), 0))
        answer = await puller.expect(Publish, topic="$mqmesh/queues/answer")
        assert json.loads(answer.payload) == {"queue": "orders", "given": 0, "waiting": 1}
        await do(client, "resume-queue", queue="orders")
        await puller.expect(Publish, topic="$queue/orders/alerts")


async def test_a_queue_stays_paused_over_a_restart(tmp_path: Path) -> None:
    def site() -> Site:
        return Site(queues=QueueSettings({"orders": Rules()}, folder=tmp_path / "queues", durability="os"), management=EVERYBODY)

    async with site() as first:
        client, shop = await manager(first), await first.client("shop")
        assert (await ask(client, do_="pause-queue", queue="orders"))["done"] == {"site0": "queue orders is paused"}
        await shop.publish("$queue/orders", b"1", qos=1)
    async with site() as second:
        client, a = await manager(second), await second.client("a")
        await a.subscribe("$queue/orders", qos=1)
        await a.nothing()
        await ask(client, do_="resume-queue", queue="orders")
        assert [one.payload for one in await a.messages(1)] == [b"1"]
    assert json.loads((tmp_path / "queues" / "declared.json").read_text()) == {"queues": {}}


async def test_a_pause_that_cannot_be_kept_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, orders=Rules()) as (_, two, client):
        declared = two.broker.site.queues.declared  # type: ignore[union-attr]
        assert declared is not None

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(declared, "write", full)
        assert "stays as it was" in await do(client, "pause-queue", queue="orders")
        shop, a = await two.client("shop"), await two.client("a")
        await a.subscribe("$queue/orders", qos=1)
        await shop.publish("$queue/orders", b"1", qos=1)
        assert [one.payload for one in await a.messages(1)] == [b"1"]


async def test_each_change_is_an_event(tmp_path: Path) -> None:
    async with pair(tmp_path, orders=Rules()) as (_, two, client):
        two.broker.site.guard.management = EVERYBODY
        listener = await two.client("listener")
        await listener.subscribe("$mqmesh/events/#", qos=0)
        await do(client, "pause-queue", queue="orders")
        seen = [json.loads((await listener.expect(Publish)).payload) for _ in range(2)]
        assert [(one["event"], one.get("queue"), one.get("client")) for one in seen] == [
            ("pause", "orders", None),
            ("pause-queue", None, "manager"),
        ]
        assert seen[1]["sequence"] == seen[0]["sequence"] + 1


async def test_a_role_for_some_queues(tmp_path: Path) -> None:
    here = ManagementSettings(("*",), (Grant(Role.OPERATOR, queues=("orders",)),))
    async with pair(tmp_path, here, orders=Rules(), dead=Rules()) as (_, _, client):
        assert await do(client, "pause-queue", queue="orders", dry_run=True) == "queue orders is paused"
        for action, values in (
            ("pause-queue", {"queue": "dead"}),
            ("redrive-queue", {"queue": "orders", "to": "dead"}),
            ("copy-messages", {"queue": "orders", "to": "dead", "last": 1}),
            ("move-queue", {"queue": "orders", "store": "sqlite"}),
            ("edit-message", {"queue": "orders", "position": 1, "payload": ""}),
        ):
            assert "not permitted" in await do(client, action, **values), action


WRONG: tuple[Any, ...] = ([], {}, -1, 1.5, True, "\0", "\ud800", "x" * 10_000, 2**70, None)


async def test_what_is_no_value_is_refused(tmp_path: Path) -> None:
    """Nothing that an operator can say stops the broker, or goes unanswered."""
    rules = {"orders": Rules(), "others": Rules()}
    async with Site(queues=QueueSettings(rules, folder=tmp_path / "queues", durability="os"), management=EVERYBODY) as site:
        client = await manager(site)
        for deed in DEEDS:
            right = {name: json.loads(text) for name, text in deed.values.items()}
            for name in deed.values:
                for wrong in WRONG:
                    answer = await ask(client, do_=deed.name, **{**right, name: wrong, "dry_run": True})
                    assert "internal error" not in str(answer), (deed.name, name, wrong)


async def test_what_does_not_travel_is_refused_where_it_is_asked(tmp_path: Path) -> None:
    async with pair(tmp_path, orders=Rules()) as (_, _, client):
        for wrong in (2**70, "\ud800"):
            for _ in range(20):  # more than one may have without an answer
                assert "cannot be sent to other sites" in await do(client, "pause-queue", queue=wrong)
        assert await do(client, "pause-queue", queue="orders") == "queue orders is paused"
