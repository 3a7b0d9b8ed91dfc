"""Queues that are bound to topic filters: who gets what, when the publisher is answered, and what is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import parse
from mqmesh.broker.journal.ends import stories
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.broker.publish.bound import BoundQueue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish, Pubrec, Will
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site
from support.management import EVERYBODY, ask, manager

from .test_declaring import ask as ask_queues
from .test_declaring import asking


def broker(folder: Path, stored: bool = False, journal: JournalSettings | None = None, **rules: Rules) -> Site:
    queues = QueueSettings(dict(rules), folder=folder / "queues", durability="os")
    return Site(queues=queues, management=EVERYBODY, store=MemoryStore() if stored else None, journal=journal)


BOUND = Rules(topics=("orders/#",))


async def worker(site: Site, name: str = "worker", queue: str = "orders") -> Client:
    client = await site.client(name)
    await client.subscribe(f"$queue/{queue}", qos=1)
    return client


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_bound_queue_has_its_copy(tmp_path: Path, qos: int, stored: bool) -> None:
    async with broker(tmp_path, stored, orders=BOUND, other=Rules()) as site:
        shop, reader, work = await site.client("shop"), await site.client("reader"), await worker(site)
        await reader.subscribe("orders/+", qos=1)
        for topic in ("orders/1", "orders/2", "parts/1"):
            assert await shop.publish(topic, topic.encode(), qos) == (0x10 if qos and topic == "parts/1" else 0)
        assert [one.topic for one in await reader.messages(2)] == ["orders/1", "orders/2"]
        taken = await work.messages(2)
        assert [(one.topic, one.payload) for one in taken] == [("orders/1", b"orders/1"), ("orders/2", b"orders/2")]
        await work.nothing()
        assert site.broker.site.queues.store.queues["orders"].counts["done"] == 2  # type: ignore[union-attr]


async def test_a_route_with_very_many_queues_looks_at_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {f"q{number}": Rules(topics=("orders/#", "orders/+")) for number in range(300)}
    looks, equal = [0], BoundQueue.__eq__

    def counted(self: BoundQueue, other: object) -> bool:
        looks[0] += 1
        return equal(self, other)

    async with broker(tmp_path, **rules) as site:
        monkeypatch.setattr(BoundQueue, "__eq__", counted)
        route = site.broker.site.router.route(b"orders/1")
        assert [one.name for one in route.shares] == [f"$queue/{name}" for name in rules], "once, whichever of its filters match"
        assert looks[0] <= 2 * 300, "two filters of each"


async def test_many_messages_at_once_keep_their_order(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=BOUND) as site:
        shop, work = await site.client("shop"), await worker(site)
        shop.send(*[Publish(f"orders/{n % 3}" if n % 5 else "else", b"%d" % n, 1, packet_id=n) for n in range(1, 301)])
        for number in range(1, 301):
            await shop.expect(Puback, packet_id=number)
        wanted = [b"%d" % n for n in range(1, 301) if n % 5]
        assert sorted(map(int, [one.payload for one in await work.messages(240)])) == sorted(map(int, wanted))


async def test_the_acknowledgement_follows_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker(tmp_path, True, orders=BOUND) as site:
        shop, reader = await site.client("shop"), await site.client("reader")
        await reader.subscribe("orders/#")
        queues: Any = site.broker.site.queues
        committer = queues.store.committer(queues.store.queues["orders"])
        begin = committer.begin
        monkeypatch.setattr(committer, "begin", lambda: None)  # the disk is slow
        shop.send(
            Publish("orders/1", b"1", 1, packet_id=1), Publish("else", b"2", 1, packet_id=2), Publish("orders/1", b"3", 2, packet_id=3)
        )
        assert [one.payload for one in await reader.messages(2)] == [b"1", b"3"], "who is subscribed does not wait"
        await shop.nothing()
        monkeypatch.setattr(committer, "begin", begin)
        queues.begin_commit()
        found = [await shop.receive() for _ in range(3)]
        assert [one.packet_id for one in found if isinstance(one, Puback)] == [1, 2]
        assert [one.packet_id for one in found if isinstance(one, Pubrec)] == [3]


async def test_a_full_queue_refuses(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=Rules(topics=("orders/#",), messages=1)) as site:
        shop, old = await site.client("shop"), await site.client("old", 4)
        assert await shop.publish("orders/1", b"1", 1) == 0
        shop.send(Publish("orders/1", b"2", 1, packet_id=9))
        refused = await shop.expect(Puback, packet_id=9, reason=0x97)
        assert refused.properties[Property.REASON_STRING] == "the queue holds 1 of 1 messages"
        old.send(Publish("orders/1", b"3", 1, packet_id=1))
        await old.closed()
        assert await shop.publish("else", b"4", 1) == 0x10


async def test_a_commit_that_fails_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker(tmp_path, orders=BOUND) as site:
        shop = await site.client("shop")
        queues: Any = site.broker.site.queues
        store = queues.store.committer(queues.store.queues["orders"]).store

        def full(_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(store, "write", full)
        shop.send(Publish("orders/1", b"1", 1, packet_id=1))
        await shop.closed(0x97)


async def test_what_fails_the_checks_is_a_dead_letter(tmp_path: Path) -> None:
    table = {"orders": {"topics": ["orders/#"], "largest": 3, "dead_letters": "dead"}, "dead": {}}
    settings = parse({"data": str(tmp_path), "queues": table}).queues
    assert settings is not None
    async with Site(queues=settings) as site:
        shop, work = await site.client("shop"), await worker(site)
        for payload in (b"1", b"too large", b"2"):
            assert await shop.publish("orders/1", payload, 1) == 0
        assert [one.payload for one in await work.messages(2)] == [b"1", b"2"]
        assert [one.payload for one in await (await worker(site, "grave", "dead")).messages(1)] == [b"too large"]


async def test_repeats_are_put_once(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=BOUND) as site:
        shop = await site.client("shop")
        handle = {Property.USER_PROPERTY: [("mqmesh-handle", "h")]}
        for _ in range(2):
            assert await shop.publish("orders/1", b"1", 1, properties=handle) in (0, 0x10)
        for _ in range(2):
            shop.send(Publish("orders/1", b"2", 2, packet_id=77))
            await shop.expect(Pubrec, packet_id=77)
        assert site.broker.site.queues.store.queues["orders"].counts["put"] == 2  # type: ignore[union-attr]


async def test_what_publishers_say_of_a_message_counts(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=BOUND) as site:
        shop = await site.client("shop")
        for priority in ("1", "9"):
            pairs = [("mqmesh-priority", priority), ("mqmesh-deliveries", "7"), ("color", "red")]
            await shop.publish("orders/1", priority.encode(), 1, properties={Property.USER_PROPERTY: pairs})
        work = await worker(site)
        taken = await work.messages(2)
        assert [one.payload for one in taken] == [b"9", b"1"]
        assert ("mqmesh-deliveries", "7") not in taken[0].properties[Property.USER_PROPERTY]
        assert ("color", "red") in taken[0].properties[Property.USER_PROPERTY]


async def test_wills_and_the_programs_own_messages(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=BOUND) as site:
        work = await worker(site)
        gone = await site.client("gone", will=Will("orders/will", b"will", 1))
        await gone.cut()
        site.broker.publish("orders/own", b"own", 1)
        assert {one.topic for one in await work.messages(2)} == {"orders/will", "orders/own"}


async def test_a_will_whose_properties_are_wrong_is_put_all_the_same(tmp_path: Path) -> None:
    """Nobody is there to be told: it ended the work in which its client's connection ends."""
    async with broker(tmp_path, orders=BOUND) as site:
        work = await worker(site)
        wrong = {Property.USER_PROPERTY: [("mqmesh-priority", "x"), ("mqmesh-deliveries", "3"), ("color", "red")]}
        for topic in ("$queue/orders", "orders/1"):
            gone = await site.client("gone", will=Will(topic, b"will", 1, properties=wrong))
            await gone.cut()
            (one,) = await work.messages(1)
            assert (one.topic, one.properties[Property.USER_PROPERTY][-1]) == (topic, ("color", "red"))
            assert "mqmesh-deliveries" not in dict(one.properties[Property.USER_PROPERTY])
        shop = await site.client("shop")
        assert await shop.publish("orders/2", b"x", 1, properties=wrong) == 0
        assert await shop.publish("$queue/orders", b"x", 1, properties=wrong) == 0x83


async def test_without_a_bound_queue_nothing_is_different(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=BOUND) as site:
        shop, reader = await site.client("shop"), await site.client("reader")
        await reader.subscribe("#", qos=1)
        for topic in ("orders/1", "else/1"):
            await shop.publish(topic, b"x", 1)
        router = site.broker.site.router
        assert router.routes[b"else/1"].shares == []
        assert router.recipients[b"else/1"] is router.routes[b"else/1"].recipients
        assert b"orders/1" not in router.recipients


async def test_bound_and_unbound_by_requests(tmp_path: Path) -> None:
    async with broker(tmp_path) as site:
        operator, shop = await asking(site), await site.client("shop")
        await shop.publish("orders/1", b"early", 1)
        assert (
            "'$SYS/#': topics that begin with '$'" in (await ask_queues(operator, "declare", "a", settings={"topics": ["$SYS/#"]}))["error"]
        )
        assert (await ask_queues(operator, "declare", "orders", settings={"topics": ["orders/#", "orders/1"]}))["declared"]
        assert await shop.publish("orders/1", b"put", 1) == 0
        work = await worker(site)
        assert [one.payload for one in await work.messages(1)] == [b"put"], "once, though two filters match"
        await work.nothing()
        client = await manager(site)
        rows = (await ask(client, list="routes", where={"topic": "orders/1"}))["rows"]
        assert {("$queue/orders", "queue", True, "orders/#")} <= {(row["to"], row["kind"], row["gets"], row["filter"]) for row in rows}
        assert (await ask_queues(operator, "delete", "orders"))["deleted"] == 0
        assert await shop.publish("orders/1", b"late", 1) == 0x10


async def test_bindings_survive_a_restart(tmp_path: Path) -> None:
    async with broker(tmp_path) as site:
        await ask_queues(await asking(site), "declare", "orders", settings={"topics": ["orders/#"]})
    async with broker(tmp_path) as site:
        assert await (await site.client("shop")).publish("orders/1", b"x", 1) == 0
        assert [one.payload for one in await (await worker(site)).messages(1)] == [b"x"]


async def test_the_journal_has_an_end_for_the_queue(tmp_path: Path) -> None:
    journal = JournalSettings(str(tmp_path / "journal"))
    async with broker(tmp_path, journal=journal, orders=BOUND) as site:
        shop, reader = await site.client("shop"), await site.client("reader")
        await reader.subscribe("orders/#", qos=1)
        for qos in (0, 1, 2):
            await shop.publish("orders/1", b"x", qos)
        await reader.messages(3)
        await reader.nothing()
    found = stories(Journal(str(tmp_path / "journal")).tables())
    assert [one.missing for one in found.values()] == [""] * 3


@pytest.mark.parametrize(
    ("topics", "text"), [(["a/#/b"], "'a/#/b'"), (["$queue/x"], "begin with '$'"), (["$share/g/a"], "begin with"), ("a", "list")]
)
def test_filters_that_are_none(topics: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"queues\.orders\.topics") as found:
        parse({"data": "/tmp/porto", "queues": {"orders": {"topics": topics}}})
    assert text in str(found.value)
