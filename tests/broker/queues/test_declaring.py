"""Queues that are declared and deleted by requests: what is there afterwards, also after a restart, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.plan import ALL
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.declared.declaring import Declared
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.client import ConnectionFactory, JMSError
from mqmesh.mqtt.packets import Publish
from support.broker_site import Client, Site, until
from support.management import EVERYBODY, role

KEY = "a key of sixteen bytes"


def broker(folder: Path, management: Any = EVERYBODY, **rules: Rules) -> Site:
    queues = QueueSettings(dict(rules), folder=folder / "queues", durability="os")
    return Site(queues=queues, management=management)


async def asking(site: Site, name: str = "operator") -> Client:
    client = await site.client(name)
    await client.subscribe("$mqmesh/queues/answer", qos=0)
    return client


async def ask(client: Client, do: str, name: str | None = None, **request: Any) -> dict[str, Any]:
    asked = {"do": do, **({"name": name} if name is not None else {}), **request}
    client.send(Publish("$mqmesh/queues", json.dumps(asked).encode(), 0))
    answer = await client.expect(Publish, topic="$mqmesh/queues/answer")
    found: dict[str, Any] = json.loads(answer.payload)
    return found


async def names(client: Client) -> list[str]:
    return [one["name"] for one in (await ask(client, "list")).get("queues", [])]


async def test_the_api_sees_the_first_queue_that_is_declared(tmp_path: Path) -> None:
    async with broker(tmp_path) as site:
        operator = await asking(site)
        context = await asyncio.to_thread(ConnectionFactory(str(site.broker.addresses[0])).create_context)
        producer, orders = context.create_producer(), context.create_queue("orders")
        with pytest.raises(JMSError, match="needs an mqmesh broker with queues"):
            await asyncio.to_thread(producer.send, orders, "early")
        await ask(operator, "declare", "orders")
        await asyncio.to_thread(producer.send, orders, "1")
        consumer = await asyncio.to_thread(context.create_consumer, orders)
        message = await asyncio.to_thread(consumer.receive)
        assert message is not None
        assert message.body == "1"
        await asyncio.to_thread(context.close)


async def test_a_declared_queue_is_there_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with broker(tmp_path, dead=Rules()) as site:
        operator, shop, a = await asking(site), await site.client("shop"), await site.client("a")
        assert await shop.publish("$queue/orders", b"early", qos=1) == 0x90
        settings = {"deliveries": 3, "dead_letters": "dead", "age": "1d"}
        dry = await ask(operator, "declare", "orders", settings=settings, dry_run=True)
        assert dry == {"queue": "orders", "declared": True, "dry_run": True}
        assert await names(operator) == ["dead"]
        assert await ask(operator, "declare", "orders", settings=settings) == {**dry, "dry_run": False}
        assert await ask(operator, "declare", "orders", settings=settings) == {**dry, "dry_run": False}, "the same again changes nothing"
        assert await names(operator) == ["dead", "orders"]
        for payload in (b"1", b"2"):
            assert await shop.publish("$queue/orders", payload, qos=1) == 0
        await a.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await a.messages(2, acknowledge=False)] == [b"1", b"2"]
        shown = (await ask(operator, "show", "orders"))["queue"]
        assert (shown["declared"], shown["settings"]["deliveries"], shown["settings"]["age"]) == ("by a request", 3, 86400.0)
    async with broker(tmp_path, dead=Rules()) as site:
        operator, b = await asking(site), await site.client("b")
        await b.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await b.messages(2)] == [b"1", b"2"]
        assert (await ask(operator, "show", "orders"))["queue"]["dead_letters"] == "dead"
        assert (await ask(operator, "show", "dead"))["queue"]["declared"] == "in the file"


async def test_the_first_queue_of_a_broker_and_its_waiting_members(tmp_path: Path) -> None:
    async with broker(tmp_path) as site:
        operator, shop, a = await asking(site), await site.client("shop"), await site.client("a")
        await a.subscribe("$queue/orders", qos=1)  # as any other topic, until there is such a queue
        await shop.publish("$queue/orders", b"plain", qos=1)
        assert (await a.messages(1))[0].payload == b"plain"
        assert (await ask(operator, "declare", "orders"))["declared"]
        assert await shop.publish("$queue/orders", b"queued", qos=1) == 0
        assert (await a.messages(1))[0].payload == b"queued"
        assert (await ask(operator, "show", "orders"))["queue"]["done"] == 1
        assert await shop.publish("$queue/other", b"x", qos=1) == 0x90


async def test_delete_refuses_while_messages_wait(tmp_path: Path) -> None:
    async with broker(tmp_path) as site:
        operator, shop, a = await asking(site), await site.client("shop"), await site.client("a")
        await ask(operator, "declare", "orders", settings={"plan": "all", "subscribers": ["a"]})
        await a.subscribe("$queue/orders", qos=1)
        for payload in (b"1", b"2", b"3"):
            await shop.publish("$queue/orders", payload, qos=1)
        await a.messages(3, acknowledge=False)
        assert "3 messages of queue 'orders' are not at an end" in (await ask(operator, "delete", "orders"))["error"]
        assert (await ask(operator, "delete", "orders", force=True, dry_run=True))["deleted"] == 3
        assert await ask(operator, "delete", "orders", force=True) == {"queue": "orders", "deleted": 3, "dry_run": False}
        assert await names(operator) == []
        await ask(operator, "declare", "other")
        assert await shop.publish("$queue/orders", b"late", qos=1) == 0x90
        assert (await ask(operator, "declare", "orders", settings={"plan": "all"}))["declared"]
        await shop.publish("$queue/orders", b"new", qos=1)
        (one,) = await a.messages(1)
        assert one.payload == b"new", "who is still subscribed is a member of the new queue"
        traced = await ask(operator, "trace", "orders", position=1)
        assert [one["state"] for one in traced["states"]][-1] in ("UNAVAILABLE", "DELETED"), "positions are not used again"
    async with broker(tmp_path) as site:
        assert await names(await asking(site)) == ["orders", "other"]
        assert site.broker.site.queues.store.queues["orders"].waiting == 0  # type: ignore[union-attr]


async def test_a_deleted_queue_stays_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with broker(tmp_path) as site:
        operator, shop = await asking(site), await site.client("shop")
        for name in ("one", "two"):
            await ask(operator, "declare", name)
            await shop.publish(f"$queue/{name}", b"x", qos=1)
        assert (await ask(operator, "purge", "one"))["purged"] == 1
        assert (await ask(operator, "delete", "one"))["deleted"] == 0
        assert (await ask(operator, "delete", "two", force=True))["deleted"] == 1
    async with broker(tmp_path) as site:
        assert await names(await asking(site)) == []
        assert not site.broker.site.queues.known  # type: ignore[union-attr]
    assert "queue-undeclared" not in caplog.text


async def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    """A copy of the folder as it is at the answer is what `kill -9` leaves."""
    async with broker(tmp_path / "a") as site:
        operator, shop = await asking(site), await site.client("shop")
        await ask(operator, "declare", "orders")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        await shop.publish("$queue/orders", b"x", qos=1)
        await ask(operator, "delete", "orders", force=True)
        shutil.copytree(tmp_path / "a", tmp_path / "c")
    async with broker(tmp_path / "b") as site:
        assert await names(await asking(site)) == ["orders"]
    async with broker(tmp_path / "c") as site:
        operator = await asking(site)
        assert await names(operator) == []
        await ask(operator, "declare", "orders")
        assert (await ask(operator, "show", "orders"))["queue"]["waiting"] == 0


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"do": "declare", "name": "orders", "settings": {"deliveries": -1}}, "settings: deliveries = -1: give a whole number"),
        ({"do": "declare", "name": "orders", "settings": {"delivery": 1}}, 'did you mean "deliveries"'),
        ({"do": "declare", "name": "orders", "settings": []}, '"settings": give an object'),
        ({"do": "declare", "name": "orders", "settings": {"dead_letters": "none"}}, "there is no queue 'none'"),
        ({"do": "declare", "name": "no/slash"}, "give the queue a name"),
        ({"do": "declare", "name": "x" * 65}, "give the queue a name"),
        ({"do": "declare", "name": "file"}, "is declared at site0 already, with other settings or in its file"),
        ({"do": "declare", "name": "mine", "settings": {"deliveries": 2}}, "with other settings"),
        ({"do": "delete", "name": "file"}, "is declared in the file of site0: delete its table there"),
        ({"do": "delete", "name": "none"}, "there is no queue 'none'"),
        ({"do": "delete", "name": "graves"}, "takes the dead letters of 'mine'"),
        ({"do": "delete", "name": "mine", "force": 1}, '"force": give true or false'),
    ],
)
async def test_what_is_refused(tmp_path: Path, request_: dict[str, Any], text: str) -> None:
    async with broker(tmp_path, file=Rules()) as site:
        operator = await asking(site)
        await ask(operator, "declare", "graves")
        await ask(operator, "declare", "mine", settings={"dead_letters": "graves"})
        assert text in (await ask(operator, **request_))["error"]
        assert await names(operator) == ["file", "graves", "mine"]


async def test_a_disk_that_takes_nothing_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker(tmp_path) as site:
        operator, shop, a = await asking(site), await site.client("shop"), await site.client("a")
        await ask(operator, "declare", "orders")
        await shop.publish("$queue/orders", b"kept", qos=1)

        def full(*_: Any) -> None:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(Declared, "write", full)
        assert "is not declared: declared.json cannot be written: No space" in (await ask(operator, "declare", "other"))["error"]
        assert "is not deleted" in (await ask(operator, "delete", "orders", force=True))["error"]
        assert await names(operator) == ["orders"]
        await a.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await a.messages(1)] == [b"kept"]


async def test_changes_at_one_time_follow_each_other(tmp_path: Path) -> None:
    async with broker(tmp_path) as site:
        operator = await asking(site)
        wanted = [{"do": do, "name": name} for name in ("a", "b", "a") for do in ("declare", "delete")]
        for one in (*wanted[:1], *wanted[2:3], *wanted[4:5]):
            operator.send(Publish("$mqmesh/queues", json.dumps(one).encode(), 0))
        answers = [json.loads((await operator.expect(Publish)).payload) for _ in range(3)]
        assert sorted(one.get("queue", "") for one in answers) == ["", "a", "b"], "the third came before the first was done"
        assert await names(operator) == ["a", "b"]
        assert json.loads((tmp_path / "queues" / "declared.json").read_text()) == {"queues": {"a": {}, "b": {}}}


async def test_who_may(tmp_path: Path) -> None:
    for name, may in (("viewer", False), ("payload-reader", False), ("operator", True), ("administrator", True)):
        async with broker(tmp_path / name, role(name)) as site:
            found = await ask(await asking(site), "declare", "orders")
            assert ("declared" in found) is may, name
    async with broker(tmp_path / "some", role("operator", queues=("mine",))) as site:
        operator = await asking(site)
        assert "declared" in await ask(operator, "declare", "mine")
        assert "not permitted" in (await ask(operator, "declare", "other"))["error"]


async def test_the_file_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with broker(tmp_path) as site:
        await ask(await asking(site), "declare", "orders", settings={"deliveries": 2})
    async with broker(tmp_path, orders=Rules(deliveries=9)) as site:
        assert (await ask(await asking(site), "show", "orders"))["queue"]["settings"]["deliveries"] == 9
    assert "event=queue-declared-twice queue=orders text=it is declared in the broker's file and by a request" in caplog.text
    async with broker(tmp_path) as site:
        assert (await ask(await asking(site), "show", "orders"))["queue"]["settings"]["deliveries"] == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "cannot be read"),
        ('{"queues": 1}', "cannot be read"),
        ('{"queues": {"a": 1}}', "make it a table"),
        ('{"queues": {"a": {"dead_letters": "b"}}}', "there is no queue 'b'"),
    ],
)
def test_a_file_that_is_not_as_it_should_be(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "declared.json").write_text(content)
    with pytest.raises(ConfigError, match=text) as found:
        Declared(tmp_path).read(QueueSettings())
    assert str(tmp_path / "declared.json") in str(found.value)


async def test_a_queue_that_is_declared_is_reached_from_other_sites(tmp_path: Path) -> None:
    settings = MeshSettings("m", KEY)
    async with Site(mesh=(1, settings)) as one:
        peers = [PeerSettings(one.broker.addresses[0])]
        queues = QueueSettings({}, folder=tmp_path / "queues", durability="os")
        async with Site(mesh=(2, MeshSettings("m", KEY, peers=peers)), queues=queues, management=EVERYBODY) as two:
            await until(lambda: all(sum(m.live for m in site.broker.site.mesh.node.members()) == 2 for site in (one, two)))
            operator, away, shop = await asking(two), await one.client("away"), await one.client("shop")
            await away.subscribe("$queue/orders", qos=1)
            await ask(operator, "declare", "orders", settings={"plan": str(ALL)})
            homes = one.broker.site.queues.sites.homes  # type: ignore[union-attr]
            await until(lambda: homes.home("orders") == 2)
            await until(lambda: any(one.active for one in two.broker.site.queues.store.queues["orders"].members.values()))  # type: ignore
            assert await shop.publish("$queue/orders", b"x", qos=1) == 0
            assert [one.payload for one in await away.messages(1)] == [b"x"]
            await until(lambda: two.broker.site.queues.store.queues["orders"].counts["done"] == 1)  # type: ignore[union-attr]
            assert (await ask(operator, "delete", "orders"))["deleted"] == 0
            await until(lambda: homes.home("orders") is None)
