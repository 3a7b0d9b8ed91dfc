"""What other sites publish to a topic that a queue is bound to: who gets what, over restarts, and where there is no room."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.shell import Queues
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property, encode_properties
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until

from ..test_bound import BOUND, worker

KEY = "0123456789abcdef"


def shell(site: Site) -> Queues:
    queues = site.broker.site.queues
    assert queues is not None
    return queues


def home_of(folder: Path, store: MemoryStore | None, **rules: Rules) -> Site:
    queues = QueueSettings(dict(rules), folder=folder / "queues", durability="os")
    return Site(mesh=(1, MeshSettings("m", KEY, silence=1000, start_wait=0.0)), store=store, queues=queues)


async def elsewhere(stack: AsyncExitStack, home: Site, number: int = 2, to: Site | None = None) -> Site:
    """Another site, which knows what the home wants. to: another site that it dials too."""
    peers = [PeerSettings(one.broker.addresses[0]) for one in (home, to) if one is not None]
    site = Site(mesh=(number, MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)), store=MemoryStore())
    await stack.enter_async_context(site)
    await until(lambda: _wanted(site))
    return site


def _wanted(site: Site, topic: bytes = b"orders/1") -> bool:
    route = site.broker.site.router.route(topic).mesh
    return route is not None and bool(route.mask)


async def two(stack: AsyncExitStack, folder: Path, stored: bool = True, **rules: Rules) -> tuple[Site, Site]:
    home = home_of(folder, MemoryStore() if stored else None, **rules)
    await stack.enter_async_context(home)
    return home, await elsewhere(stack, home)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_another_site_publishes_is_put(tmp_path: Path, qos: int, stored: bool) -> None:
    async with AsyncExitStack() as stack:
        home, far = await two(stack, tmp_path, stored, orders=BOUND, all=Rules(topics=("#",)))
        shop, near, work = await far.client("shop"), await home.client("near"), await worker(home)
        for topic in ("orders/1", "parts/1", "orders/2"):
            await shop.publish(topic, topic.encode(), qos)
        taken = await work.messages(2)
        assert [(one.topic, one.payload) for one in taken] == [("orders/1", b"orders/1"), ("orders/2", b"orders/2")]
        assert await near.publish("orders/3", b"orders/3", qos) == 0
        assert [one.payload for one in await work.messages(1)] == [b"orders/3"]
        await work.nothing()
        everything = await (await worker(home, "everything", "all")).messages(4)
        assert [one.payload for one in everything] == [b"orders/1", b"parts/1", b"orders/2", b"orders/3"]


async def test_once_over_redundant_links_and_beside_who_is_subscribed(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, second = await two(stack, tmp_path, orders=BOUND)
        third = await elsewhere(stack, home, 3, second)
        shop, reader, member = await third.client("shop"), await home.client("reader"), await home.client("member")
        await reader.subscribe("orders/+", qos=2)
        await member.subscribe("$share/g/orders/+", qos=1)
        shop.send(*[Publish(f"orders/{n % 3}" if n % 5 else "orders", b"%d" % n, 1, packet_id=n) for n in range(1, 301)])
        for number in range(1, 301):
            await shop.expect(Puback, packet_id=number)
        work = await worker(home)
        found = [int(one.payload) for one in await work.messages(300)]
        assert sorted(found) == list(range(1, 301))
        for topic in range(3):
            assert [n for n in found if n % 5 and n % 3 == topic] == [n for n in range(1, 301) if n % 5 and n % 3 == topic]
        await work.nothing()
        assert shell(home).store.queues["orders"].counts["put"] == 300


async def test_what_its_publisher_says_counts(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, far = await two(stack, tmp_path, orders=BOUND)
        shop = await far.client("shop")
        for priority in ("4", "5"):
            said = [("mqmesh-priority", priority), ("mqmesh-parents", "orders:1"), ("color", "red")]
            assert await shop.publish("orders/1", priority.encode(), 1, properties={Property.USER_PROPERTY: said}) == 0
        await until(lambda: shell(home).store.queues["orders"].counts["put"] == 2)
        taken = await (await worker(home)).messages(2)
        assert [one.payload for one in taken] == [b"5", b"4"], "the higher priority comes first"
        assert all(("color", "red") in one.properties[Property.USER_PROPERTY] for one in taken)


async def test_handles_of_two_users_of_another_site_are_two_handles(tmp_path: Path) -> None:
    async with home_of(tmp_path, MemoryStore(), orders=BOUND) as home:
        site = home.broker.site
        site.mesh.node.name = lambda number: "far"  # type: ignore[method-assign, union-attr]
        said = encode_properties({Property.USER_PROPERTY: [("mqmesh-handle", "the same"), ("color", "red")]})
        (queue,) = site.router.route(b"orders/1").shares
        for user in (b"1", b"2"):
            assert queue.come(Run(b"orders/1", 1, False, [user], said, None, 0.0), 2) == 0
        taken = await (await worker(home)).messages(2)
        assert [one.payload for one in taken] == [b"1", b"2"]
        assert all(("color", "red") in one.properties[Property.USER_PROPERTY] for one in taken)


async def test_a_home_that_was_away_gets_what_was_published_meanwhile(tmp_path: Path) -> None:
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        async with home_of(tmp_path, store, orders=BOUND) as home:
            far = await elsewhere(stack, home)
            shop = await far.client("shop")
            assert await shop.publish("orders/1", b"before", 1) == 0
        assert await shop.publish("orders/1", b"meanwhile", 1) == 0
        queues = QueueSettings({"orders": BOUND}, folder=tmp_path / "queues", durability="os")
        settings = MeshSettings("m", KEY, silence=1000, start_wait=0.0)
        async with Site(str(home.broker.addresses[0]), mesh=(1, settings), store=store, queues=queues) as again:
            assert [one.payload for one in await (await worker(again)).messages(2)] == [b"before", b"meanwhile"]


async def test_what_has_come_and_was_not_put_is_put_by_the_next_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        home = home_of(tmp_path, store, orders=BOUND)
        await stack.enter_async_context(home)
        far = await elsewhere(stack, home)
        monkeypatch.setattr(shell(home).sites.arrivals, "_take", lambda kept: None)
        shop = await far.client("shop")
        assert await shop.publish("orders/1", b"1", 1) == 0
        mesh: Any = far.broker.site.mesh
        await until(lambda: not mesh.node.custody()[0])
    async with Site(queues=QueueSettings({"orders": BOUND}, folder=tmp_path / "queues", durability="os"), store=store) as again:
        assert [one.payload for one in await (await worker(again)).messages(1)] == [b"1"]


@pytest.mark.parametrize("qos", [0, 1])
async def test_where_there_is_no_room_it_is_a_dead_letter(tmp_path: Path, qos: int) -> None:
    async with AsyncExitStack() as stack:
        rules = Rules(topics=("orders/#",), messages=1, dead_letters="dead")
        home, far = await two(stack, tmp_path, orders=rules, dead=Rules())
        shop = await far.client("shop")
        for payload in (b"1", b"2"):
            await shop.publish("orders/1", payload, qos)
        (dead,) = await (await worker(home, "grave", "dead")).messages(1)
        assert dead.payload == b"2"
        assert ("mqmesh-dead-reason", "the queue is full") in dead.properties[Property.USER_PROPERTY]
        assert [one.payload for one in await (await worker(home)).messages(1)] == [b"1"]


@pytest.mark.parametrize("qos", [0, 1])
async def test_without_dead_letters_it_is_dropped_and_said(tmp_path: Path, qos: int, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        home, far = await two(stack, tmp_path, orders=Rules(topics=("orders/#",), messages=1))
        shop, reader = await far.client("shop"), await home.client("reader")
        await reader.subscribe("last", qos=1)
        await until(lambda: _wanted(far, b"last"))
        queue = shell(home).store.queues["orders"]
        with caplog.at_level(logging.WARNING):
            for payload in (b"1", b"2", b"3"):
                await shop.publish("orders/1", payload, qos)
            assert await shop.publish("last", b"", 1) == 0
            await reader.messages(1)
            await until(lambda: queue.counts["refused"] == 2)
        assert sum("event=queue-dropped queue=orders publisher=site2" in one for one in caplog.messages) == 1
        work = await worker(home)
        assert [one.payload for one in await work.messages(1)] == [b"1"]
        await until(lambda: not queue.full)
        await shop.publish("orders/1", b"4", qos)
        assert [one.payload for one in await work.messages(1)] == [b"4"]


ROOM = [({"messages": 3}, 2), ({"bytes": 3}, 2), ({"messages": 3, "bytes": 2}, 1), ({"messages": 1}, 0)]


@pytest.mark.parametrize(("rules", "fits"), ROOM)
@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
async def test_of_several_that_come_together_those_are_put_that_find_room(
    tmp_path: Path, rules: dict[str, int], fits: int, dead: bool, qos: int
) -> None:
    """In a slow process messages that were published one by one come so."""
    orders = Rules(topics=("orders/#",), dead_letters="dead" if dead else "", **rules)
    async with home_of(tmp_path, MemoryStore(), orders=orders, dead=Rules()) as home:
        site, queues = home.broker.site, shell(home).store.queues
        site.mesh.node.name = lambda number: "far"  # type: ignore[method-assign, union-attr]
        (bound,) = site.router.route(b"orders/1").shares
        assert bound.come(Run(b"orders/1", qos, False, [b"0"], b"", None, 0.0), 2) == 0
        await until(lambda: queues["orders"].counts["put"] == 1)
        assert bound.come(Run(b"orders/1", qos, False, [b"1", b"2", b"3", b"4"], b"", None, 0.0), 2) == 0
        lost = queues["dead"].counts if dead else queues["orders"].counts
        await until(lambda: lost["put" if dead else "refused"] == 4 - fits and queues["orders"].counts["put"] == 1 + fits)
        taken = await (await worker(home)).messages(1 + fits)
        assert [one.payload for one in taken] == [b"%d" % number for number in range(1 + fits)]
        if dead:
            letters = await (await worker(home, "grave", "dead")).messages(4 - fits)
            assert [one.payload for one in letters] == [b"%d" % number for number in range(1 + fits, 5)]


async def test_a_queue_that_is_bound_no_more_is_wanted_no_more(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, far = await two(stack, tmp_path, orders=BOUND)
        shell(home).bind("orders", ())
        await until(lambda: not _wanted(far))
        shell(home).bind("orders", ("orders/#",))
        await until(lambda: _wanted(far))
        shop = await far.client("shop")
        assert await shop.publish("orders/1", b"1", 1) == 0
        assert [one.payload for one in await (await worker(home)).messages(1)] == [b"1"]
