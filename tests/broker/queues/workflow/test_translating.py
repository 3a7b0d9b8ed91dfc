"""Messages that a broker itself makes of others, by what a program says that embeds it (docs/queues.md, "Translations")."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mqmesh import Hooks, QueueMessage, Translation
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.checks.checks import Checks
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.shell import Queues
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.steps import one_step_a_round

from .test_workflow import states

KEY = "0123456789abcdef"
ME = "$translation/billing"


def invoice(order: QueueMessage) -> QueueMessage | None:
    """What most tests do with an order."""
    if order.payload == b"free":
        return None
    if order.payload == b"wrong":
        raise ValueError("no order")
    return order._replace(payload=b"invoice of " + order.payload, content_type="text/plain")


def hooks(translate: Callable[[QueueMessage], QueueMessage | None] = invoice) -> list[Hooks]:
    found = Hooks()
    found.translations = [Translation("orders", "billing", translate)]
    return [found]


def settings(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(rules or {"orders": Rules(), "billing": Rules()}, folder=folder / "queues", durability="os")


def shell(site: Site) -> Queues:
    queues = site.broker.site.queues
    assert queues is not None
    return queues


async def put(client: Client, *payloads: bytes, **said: str) -> None:
    user = [(name.replace("_", "-"), value) for name, value in said.items()]
    for payload in payloads:
        assert await client.publish("$queue/orders", payload, qos=1, properties={Property.USER_PROPERTY: user} if user else {}) == 0


async def test_q22_each_message_becomes_one_of_another_queue(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path), hooks=hooks()) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        await clerk.subscribe("$queue/billing", qos=1)
        await put(shop, b"a crane", colour="red", mqmesh_handle="17", mqmesh_delay="0s", mqmesh_priority="7")
        (child,) = await clerk.messages(1, acknowledge=False)
        assert child.payload == b"invoice of a crane"
        assert child.properties[Property.CONTENT_TYPE] == "text/plain"
        said = dict(child.properties[Property.USER_PROPERTY])
        assert said == {"colour": "red", "mqmesh-priority": "7", "mqmesh-handle": "orders:1", "mqmesh-lineage": "orders:1"}
        assert states(site, "orders", 1)[1][ME][-2:] == ["DONE", "JOURNALLED (IMPLIED)"]
        assert states(site, "billing", 1)[0] == ["PUT", "REVEALED"]
        clerk.send(Puback(child.packet_id))


async def test_messages_that_are_there_at_one_moment_are_translated_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    at: list[int] = []
    rounds = itertools.count()

    def translate(order: QueueMessage) -> QueueMessage | None:
        seen.append(order.payload)
        at.append(next(rounds))
        return None

    async with Site(queues=settings(tmp_path), hooks=hooks(translate)) as site:
        queues, turns = shell(site), site.broker.context.turns
        real = turns._round

        def one_round() -> None:
            next(rounds)
            real()

        monkeypatch.setattr(turns, "_round", one_round)
        one_step_a_round(turns, monkeypatch)
        queue, wanted = queues.store.queues["orders"], [b"%d" % number for number in range(300)]
        queue.put(wanted, Meta("shop", b"", "", ""), queues.now())
        queues.store.begin()
        await until(lambda: queue.counts["done"] == 300)
        assert seen == wanted
        assert all(after - before >= 2 for before, after in pairwise(at)), "one in each round"


async def test_what_makes_nothing_is_done_and_what_is_wrong_is_unusable(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path), hooks=hooks()) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        await put(shop, b"free", b"wrong", b"a crane")
        await clerk.subscribe("$queue/billing", qos=1)
        assert [one.payload for one in await clerk.messages(1)] == [b"invoice of a crane"]
        assert states(site, "orders", 1)[1][ME][-2] == "DONE"
        assert states(site, "orders", 2)[1][ME][-2] == "UNUSABLE"
        assert shell(site).store.queues["billing"].next == 2


async def test_a_child_that_mqtt_cannot_carry_is_unusable(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path), hooks=hooks(lambda order: order._replace(user=(("a", "x" * 70_000),)))) as site:
        await put(await site.client("shop"), b"1")
        queue = shell(site).store.queues["orders"]
        await until(lambda: queue.counts["unusable"] == 1)


async def test_where_there_is_no_room_for_a_child_its_parent_waits(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path, orders=Rules(), billing=Rules(messages=1)), hooks=hooks()) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        await put(shop, b"1", b"2", b"3")
        orders = shell(site).store.queues["orders"]
        await until(lambda: orders.counts["done"] == 1)
        await clerk.subscribe("$queue/billing", qos=1)
        for payload in (b"invoice of 1", b"invoice of 2", b"invoice of 3"):
            assert [one.payload for one in await clerk.messages(1)] == [payload]
            await until(lambda: not shell(site).store.queues["billing"].held)
            shell(site).tick()
            site.broker.context.flush()
        assert orders.counts["done"] == 3
        assert not orders.counts["returned"]


async def test_a_child_whose_commit_fails_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=settings(tmp_path), hooks=hooks()) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        await clerk.subscribe("$queue/billing", qos=1)
        store = shell(site).store.here["log"]
        write, failed = store.write, 0

        def fail(batch: Any) -> None:
            nonlocal failed
            if not failed and any(queue.name == "billing" for queue, _ in batch.blocks):
                failed += 1
                raise OSError(28, "no room")
            write(batch)

        monkeypatch.setattr(store, "write", fail)
        await put(shop, b"1")
        await until(lambda: failed == 1 and store.full is None)
        shell(site).tick()
        site.broker.context.flush()
        assert [one.payload for one in await clerk.messages(1)] == [b"invoice of 1"]
        await until(lambda: shell(site).store.queues["orders"].counts["done"] == 1)
        assert shell(site).store.queues["billing"].counts["put"] == 1


async def test_a_queue_that_is_declared_later_is_translated(tmp_path: Path) -> None:
    async with Site(f"unix://{tmp_path}/socket", queues=settings(tmp_path, billing=Rules()), hooks=hooks()) as site:
        operator, clerk = await site.client("operator"), await site.client("clerk")
        await operator.subscribe("$mqmesh/queues/answer")
        await clerk.subscribe("$queue/billing", qos=1)
        for payload in (b"1", b"2"):
            operator.send(Publish("$mqmesh/queues", json.dumps({"do": "declare", "name": "orders"}).encode(), 0))
            assert json.loads((await operator.messages(1))[0].payload)["declared"]
            await put(operator, payload)
            assert [one.payload for one in await clerk.messages(1)] == [b"invoice of " + payload]
            operator.send(Publish("$mqmesh/queues", json.dumps({"do": "delete", "name": "orders", "force": True}).encode(), 0))
            assert "deleted" in json.loads((await operator.messages(1))[0].payload)


@pytest.mark.parametrize("restart", [False, True])
async def test_the_other_queue_is_at_another_site_and_was_away(tmp_path: Path, restart: bool) -> None:
    """A broker that starts anew makes the child again, and its home knows it by its handle."""
    store, other = MemoryStore(), MemoryStore()
    billing = settings(tmp_path / "2", billing=Rules())
    async with AsyncExitStack() as stack:

        def first() -> Site:
            mesh = MeshSettings("m", KEY, silence=1000, start_wait=0.0)
            listen = f"unix://{tmp_path}/socket"
            return Site(listen, mesh=(1, mesh), store=store, queues=settings(tmp_path / "1", orders=Rules()), hooks=hooks())

        peers = [PeerSettings(f"unix://{tmp_path}/socket")]
        second = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
        site = await stack.enter_async_context(first())
        async with Site(mesh=(2, second), store=other, queues=billing):
            await until(lambda: shell(site).name_of("$queue/billing") is not None)
        shop = await site.client("shop")
        await put(shop, b"a crane")
        orders = shell(site).store.queues["orders"]
        await until(lambda: orders.held == 1)
        if restart:
            await stack.aclose()
            site = await stack.enter_async_context(first())
            orders = shell(site).store.queues["orders"]
            await until(lambda: orders.held == 1)
        billing = settings(tmp_path / "2", billing=Rules())
        home = await stack.enter_async_context(Site(mesh=(2, second), store=other, queues=billing))
        clerk = await home.client("clerk")
        await clerk.subscribe("$queue/billing", qos=1)
        assert [one.payload for one in await clerk.messages(1)] == [b"invoice of a crane"]
        await until(lambda: orders.counts["done"] == 1)
        arrivals = shell(home).sites.arrivals
        await until(lambda: not arrivals.names and not arrivals.unsettled)
        await clerk.nothing()
        assert shell(home).store.queues["billing"].counts["put"] == 1


@pytest.mark.parametrize("pairs", [[("a", "a")], [("a", "b"), ("a", "b")]])
def test_translations_that_cannot_be_are_refused(pairs: list[tuple[str, str]]) -> None:
    found = Hooks()
    found.translations = [Translation(source, target, invoice) for source, target in pairs]
    with pytest.raises(ValueError, match="translation"):
        Site(hooks=[found])


async def test_a_child_that_fails_the_checks_elsewhere_is_a_dead_letter_and_its_parent_is_done(tmp_path: Path) -> None:
    billing = settings(tmp_path / "2", billing=Rules(dead_letters="wrong"), wrong=Rules())
    billing.checks["billing"] = Checks(largest=12)
    listen, mesh = f"unix://{tmp_path}/socket", MeshSettings("m", KEY, silence=1000, start_wait=0.0)
    peer = replace(mesh, peers=[PeerSettings(listen)])
    async with (
        Site(listen, mesh=(1, mesh), store=MemoryStore(), queues=settings(tmp_path / "1", orders=Rules()), hooks=hooks()) as site,
        Site(mesh=(2, peer), store=MemoryStore(), queues=billing) as home,
    ):
        await until(lambda: shell(site).name_of("$queue/billing") is not None)
        clerk = await home.client("clerk")
        await clerk.subscribe("$queue/billing", qos=1)
        await clerk.subscribe("$queue/wrong", qos=1)
        await put(await site.client("shop"), b"a crane", b"2")
        found = await clerk.messages(2)
        assert sorted(one.payload for one in found) == [b"invoice of 2", b"invoice of a crane"]
        orders = shell(site).store.queues["orders"]
        await until(lambda: orders.counts["done"] == 2)
        assert orders.held == 0
