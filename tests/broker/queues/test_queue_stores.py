"""A queue names its store: each store has commits of its own, and an empty queue may change (docs/queues.md, "Stores")."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.extras import install
from mqmesh.broker.config import BrokerConfig, parse
from mqmesh.broker.program import reload_files
from mqmesh.broker.queues import upkeep
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.log.locations import KINDS, segments_in
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish
from support.broker_site import Client, Site
from support.management import EVERYBODY
from support.peers.logs import SERVERS, Server, log_at


def broker(folder: Path, durability: str = "os", **rules: Rules) -> Site:
    return Site(queues=QueueSettings(dict(rules), folder=folder / "queues", durability=durability), management=EVERYBODY)


async def put(client: Client, queue: str, *payloads: bytes) -> None:
    for payload in payloads:
        assert await client.publish(f"$queue/{queue}", payload, qos=1) == 0


async def ask(client: Client, **request: Any) -> dict[str, Any]:
    client.send(Publish("$mqmesh/queues", json.dumps(request).encode(), 0))
    found: dict[str, Any] = json.loads((await client.expect(Publish, topic="$mqmesh/queues/answer")).payload)
    return found


async def test_queues_of_all_kinds_side_by_side(tmp_path: Path) -> None:
    rules = {kind: Rules(store=kind) for kind in KINDS}
    async with broker(tmp_path, **rules) as site:
        shop, member = await site.client("shop"), await site.client("a")
        for kind in KINDS:
            await put(shop, kind, b"1", b"2", b"3")
            await member.subscribe(f"$queue/{kind}", qos=1)
            assert [one.payload for one in await member.messages(3)] == [b"1", b"2", b"3"]
            await put(shop, kind, b"4")
            assert (await member.messages(1, acknowledge=False))[0].payload == b"4"
        numbers = {queue.number for queue in site.broker.site.queues.store.queues.values()}  # type: ignore[union-attr]
        assert len(numbers) == len(KINDS)
    async with broker(tmp_path, **rules) as site:
        operator, member = await site.client("operator"), await site.client("b")
        await operator.subscribe("$mqmesh/queues/answer", qos=0)
        for kind in KINDS:
            answer = await ask(operator, do="peek", name=kind)
            assert [one["position"] for one in answer["messages"]] == [4]
            assert (await ask(operator, do="trace", name=kind, position=4))["needed_by"] == ["a"]
            await member.subscribe(f"$queue/{kind}", qos=1)
            assert (await member.messages(1))[0].payload == b"4"


@pytest.mark.parametrize("name", ["here", "there"])
async def test_stores_are_quiet_until_something_is_to_be_written(name: str, tmp_path: Path) -> None:
    async with broker(tmp_path, here=Rules(), there=Rules(store="sqlite")) as site:
        queues = site.broker.site.queues
        assert queues is not None
        shop = await site.client("shop")
        await site.until(lambda: not queues.store.dirty)
        queues.store.forget_calm()
        assert (queues.store.quiet, queues.store.pressing) == (True, False)
        shop.send(Publish(f"$queue/{name}", b"1", 1, packet_id=7))
        await site.until(lambda: not queues.store.quiet)
        assert (await shop.expect(Puback)).reason == 0


async def test_a_store_that_takes_nothing_does_not_hold_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, here=Rules(), there=Rules(store="sqlite")) as site:
        shop = await site.client("shop")
        await put(shop, "there", b"1")
        store = site.broker.site.queues.store.here["sqlite"]  # type: ignore[union-attr]

        def full(batch: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(store, "write", full)
            assert await shop.publish("$queue/there", b"2", qos=1) == 0x97
            assert await shop.publish("$queue/there", b"3", qos=1) == 0x97
            await put(shop, "here", b"1")
        line = "event=queues-failed text=%s: no space left on its disk: free some space; writing then goes on by itself"
        assert line % site.broker.site.queues.settings.folder in caplog.messages  # type: ignore[union-attr]
        await site.later(2.0)
        await site.until(lambda: store.full is None)  # although nothing is left to be written
        assert "event=queues-recovered queues=there text=their store is written again" in caplog.messages
        await put(shop, "there", b"4")


async def test_a_full_store_says_that_it_takes_messages_again_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, orders=Rules()) as site:
        shop, worker = await site.client("shop"), await site.client("a")
        await put(shop, "orders", b"1")
        await worker.subscribe("$queue/orders", qos=1)
        (given,) = await worker.messages(1, acknowledge=False)
        queues = site.broker.site.queues
        assert queues is not None
        store, commits = queues.store.here["log"], queues.store.committers[0]
        said = "event=queues-recovered queues=orders text=their store is written again"
        monkeypatch.setattr(store.where, "set_aside", lambda: False)  # there is no room but what was set aside for states

        def full(batch: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(store, "write", full)
            assert await shop.publish("$queue/orders", b"2", qos=1) == 0x97
            await site.later(5.0)
            assert await shop.publish("$queue/orders", b"2", qos=1) == 0x97
        assert len([line for line in caplog.messages if "event=queues-failed" in line]) == 1, "said once, and not at each try"
        before = commits.commits
        worker.send(Puback(given.packet_id))
        await site.later(2.0)
        await site.until(lambda: commits.commits > before and not store.dirty)
        await site.later(2.0)
        assert await shop.publish("$queue/orders", b"3", qos=1) == 0x97
        assert said not in caplog.messages, "publishers are refused"
        monkeypatch.undo()
        await site.until(lambda: store.full is None)
        await put(shop, "orders", b"4")
        await site.until(lambda: said in caplog.messages)


@pytest.mark.parametrize("then", ["deleted", "deleted, and made anew", "moved", "a file deleted"])
async def test_files_that_are_gone_under_the_broker_confirm_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, then: str) -> None:
    async with broker(tmp_path, orders=Rules()) as site:
        shop = await site.client("shop")
        await put(shop, "orders", b"1")
        queues = site.broker.site.queues
        assert queues is not None
        folder, elsewhere = queues.settings.folder, tmp_path / "elsewhere"
        if then == "a file deleted":
            for segment in folder.rglob("*.queue"):
                segment.unlink()
        else:
            folder.rename(elsewhere)
        if then.startswith("deleted"):
            shutil.rmtree(elsewhere)
        if then.endswith("anew"):
            folder.mkdir()
        tries = 1 if then == "a file deleted" else 3
        for _ in range(tries):
            assert await shop.publish("$queue/orders", b"2", qos=1) == 0x97
            await site.later(2.0)
        if then == "moved":
            elsewhere.rename(folder)
            await site.later(2.0)
            await site.until(lambda: queues.store.here["log"].full is None)
            await put(shop, "orders", b"3")
        assert any("event=queues-failed" in line and "deleted or replaced under the running broker" in line for line in caplog.messages)


@pytest.mark.service
@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_that_is_away_holds_its_queue_and_nothing_is_lost(
    tmp_path: Path, servers: Callable[[str], Server], name: str
) -> None:
    server = servers(name)
    async with broker(tmp_path, "fsync", orders=Rules(store=log_at(server))) as site:
        shop, first = await site.client("shop"), await site.client("a")
        await first.subscribe("$queue/orders", qos=1)
        await put(shop, "orders", b"1")
        (given,) = await first.messages(1, acknowledge=False)
        await first.unsubscribe("$queue/orders")
        assert given.payload == b"1"
        await put(shop, "orders", b"2", b"3")
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        for block in queue.blocks.values():
            site.broker.site.queues.store.forget(queue, block)  # type: ignore[union-attr]
        server.kill()
        second = await site.client("b")
        await second.subscribe("$queue/orders", qos=1)  # bodies cannot be read now
        assert await shop.publish("$queue/orders", b"4", qos=1) == 0x97
        server.start()
        assert [one.payload for one in await second.messages(3)] == [b"1", b"2", b"3"]
        await put(shop, "orders", b"5")
        assert [one.payload for one in await second.messages(1)] == [b"5"]
        await site.until(lambda: not queue.waiting + queue.held)  # its acknowledgement has come
        assert queue.counts["unusable"] == 0
    async with broker(tmp_path, orders=queue.rules) as site:
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        assert not queue.blocks
        assert queue.next == 6


@pytest.mark.service
@pytest.mark.parametrize("name", SERVERS)
async def test_a_queue_at_rest_takes_messages_again(tmp_path: Path, servers: Callable[[str], Server], name: str) -> None:
    """Nothing waits to be written when the server is back."""
    server = servers(name)
    async with broker(tmp_path, "fsync", orders=Rules(store=log_at(server))) as site:
        shop = await site.client("shop")
        await put(shop, "orders", b"1")
        server.kill()
        assert await shop.publish("$queue/orders", b"2", qos=1) == 0x97
        server.start()
        store = site.broker.site.queues.store.here  # type: ignore[union-attr]
        await site.until(lambda: all(one.full is None for one in store.values()))
        await put(shop, "orders", b"3")


async def test_an_empty_queue_changes_its_store(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=Rules()) as site:
        shop, member = await site.client("shop"), await site.client("a", clean=False, expiry=100)
        await put(shop, "orders", b"1", b"2")
        await member.subscribe("$queue/orders", qos=1)
        await member.messages(2)
        await member.nothing()
        number = site.broker.site.queues.store.queues["orders"].number  # type: ignore[union-attr]
    for kind, position in (("sqlite", 3), ("log", 4), ("log", 5)):
        async with broker(tmp_path, orders=Rules(store=kind)) as site:
            queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
            assert (queue.next, queue.number) == (position, number)
            assert list(queue.subscribers) == ["a"]
            shop, member = await site.client("shop"), await site.client("b")
            await put(shop, "orders", b"%d" % position)
            await member.subscribe("$queue/orders", qos=1)
            assert [one.payload for one in await member.messages(1)] == [b"%d" % position]
            await member.unsubscribe("$queue/orders")
            await member.nothing()


async def test_what_waits_is_not_left_behind(tmp_path: Path) -> None:
    async with broker(tmp_path, orders=Rules(), other=Rules(store="sqlite")) as site:
        shop = await site.client("shop")
        await put(shop, "orders", b"1")
    async with broker(tmp_path, orders=Rules(store="lmdb")) as site:
        shop, member = await site.client("shop"), await site.client("a")
        await put(shop, "orders", b"2")
        store = site.broker.site.queues.store  # type: ignore[union-attr]
        await site.until(lambda: store.progress(store.queues["orders"]) is None)
        await put(shop, "orders", b"3")
        await member.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await member.messages(3)] == [b"1", b"2", b"3"]
        assert [kind for kind, one in store.here.items() if "orders" in one.queues] == ["lmdb"]


async def test_a_file_that_is_read_again_moves_its_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def file(**tables: object) -> Callable[[], BrokerConfig]:
        return lambda: parse({"data": str(tmp_path), "queues": tables})

    async with broker(tmp_path, orders=Rules(dead_letters="dead"), dead=Rules(), other=Rules()) as site:
        shop, store = await site.client("shop"), site.broker.site.queues.store  # type: ignore[union-attr]
        await put(shop, "orders", b"1")
        await put(shop, "other", b"2")
        moved = {"store": "lmdb"}
        reload_files(site.broker, file(orders={"dead_letters": "dead", **moved}, dead=moved, other={}))
        await site.until(lambda: [store.kind_of(store.queues[name]) for name in ("orders", "dead", "other")] == ["lmdb", "lmdb", "log"])
        await site.until(lambda: store.progress(store.queues["orders"]) is None)
        reload_files(site.broker, file(orders={"store": "sqlite"}, dead=moved, other={}))
        assert "dead,orders text=these queues belong together" in caplog.text
        reload_files(site.broker, file(other={"store": "postgresql://nobody@127.0.0.1:1/none"}))
        await site.until(lambda: "event=not-reloaded queues=other" in caplog.text)
        await put(shop, "other", b"3")
        assert [store.kind_of(store.queues[name]) for name in ("orders", "dead", "other")] == ["lmdb", "lmdb", "log"]


async def test_a_request_moves_a_queue_that_was_declared_by_one(tmp_path: Path) -> None:
    async with broker(tmp_path, here=Rules()) as site:
        operator, shop, member = await site.client("operator"), await site.client("shop"), await site.client("a")
        await operator.subscribe("$mqmesh/queues/answer", qos=0)
        await ask(operator, do="declare", name="dead", settings={})
        await ask(operator, do="declare", name="orders", settings={"dead_letters": "dead", "deliveries": 2})
        await put(shop, "orders", b"1", b"2")
        await member.subscribe("$queue/orders", qos=1)
        (first, second) = await member.messages(2, acknowledge=False)
        assert "declared in the file" in (await ask(operator, do="store", name="here", store="sqlite"))["error"]
        assert "give log" in (await ask(operator, do="store", name="orders", store="disk"))["error"]
        assert 'give "store"' in (await ask(operator, do="store", name="orders"))["error"]
        answer = await ask(operator, do="store", name="orders", store="sqlite", dry_run=True)
        assert answer == {"queue": "orders", "store": "sqlite", "queues": ["dead", "orders"], "dry_run": True}
        assert (await ask(operator, do="show", name="orders"))["queue"]["store"] == "log"
        await ask(operator, do="store", name="orders", store="sqlite")
        await put(shop, "orders", b"3")
        store = site.broker.site.queues.store  # type: ignore[union-attr]
        await site.until(lambda: store.progress(store.queues["orders"]) is None)
        member.send(Puback(first.packet_id))  # what a member has stays with it
        assert [one.payload for one in await member.messages(1)] == [b"3"]
        found = (await ask(operator, do="show", name="orders"))["queue"]
        assert (found["store"], found["moving"], found["waiting"], found["in_flight"]) == ("sqlite", None, 0, 1)
        assert (await ask(operator, do="show", name="dead"))["queue"]["store"] == "sqlite"
    async with broker(tmp_path, here=Rules()) as site:
        store = site.broker.site.queues.store  # type: ignore[union-attr]
        assert [store.kind_of(store.queues[name]) for name in ("orders", "dead", "here")] == ["sqlite", "sqlite", "log"]
        member = await site.client("a")
        await member.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await member.messages(1)] == [second.payload]


async def test_a_request_declares_with_stores_that_are_in_use(tmp_path: Path) -> None:
    async with broker(tmp_path, here=Rules(), there=Rules(store="sqlite")) as site:
        operator, shop = await site.client("operator"), await site.client("shop")
        await operator.subscribe("$mqmesh/queues/answer", qos=0)
        answer = await ask(operator, do="declare", name="orders", settings={"store": "sqlite", "dead_letters": "there"})
        assert answer["declared"]
        await put(shop, "orders", b"1")
        answer = await ask(operator, do="declare", name="more", settings={"store": "lmdb"})
        assert "no queue of this broker's file has the store lmdb" in answer["error"]
        answer = await ask(operator, do="declare", name="more", settings={"dead_letters": "there"})
        assert "queue 'there' has another store" in answer["error"]
        answer = await ask(operator, do="redrive", name="there", to="here", dry_run=True)
        assert answer["redriven"] == 0


async def test_a_broker_lets_go_of_what_nobody_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "TRIM", 0.0)
    async with broker(tmp_path, orders=Rules(), waits=Rules()) as site:
        store = site.broker.site.queues.store.here["log"]  # type: ignore[union-attr]
        store._segment_bytes = 2000
        shop, member = await site.client("shop"), await site.client("a")
        await put(shop, "waits", b"old")
        await member.subscribe("$queue/orders", qos=1)
        for number in range(20):
            await put(shop, "orders", b"%01000d" % number)
            await member.messages(1)
        await site.until(lambda: len(store._segments) <= 2 and store.carry is None)
        await member.subscribe("$queue/waits", qos=1)
        assert (await member.messages(1))[0].payload == b"old"
    assert len(list((tmp_path / "queues").glob("*.queue"))) <= 3


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mqmesh.broker.queues.log.places.lmdb", None)
    with pytest.raises(OSError, match=re.escape(install("lmdb"))):
        segments_in(tmp_path, "lmdb")
