"""Who leaves with very many messages gives them back a little at a time, and nobody sees a queue of which some are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.plan import ALL
from mqmesh.broker.queues.core.queue import LEAVE, Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.core.stock import Member
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish, Subscription
from support.broker_site import Client, Site


def put(queue: Queue, count: int, group: str = "") -> None:
    """Messages, each in a block of its own."""
    for _ in range(count):
        queue.put([b"x"], Meta("shop", group=group), 1)
        for block in queue.seal(1):
            queue.committed(block, 1)


def taken(queue: Queue, member: Member, most: int = 1000) -> list[int]:
    """The positions that a member gets now."""
    return [one.part.block.first + one.start + at for one in queue.take(member, most, 2) for at in range(one.length)]


def test_nobody_takes_anything_until_all_is_back() -> None:
    queue = Queue("orders", Rules(single=True))
    put(queue, 50)
    a, b = queue.join("a"), queue.join("b")
    assert len(taken(queue, a, 40)) == 40
    queue.leave(a, 2, 10)
    assert queue.held == 30
    queue.join("a")  # it is back before that
    for held in (20, 10):
        assert (taken(queue, a), taken(queue, b)) == ([], [])
        assert queue.let_leave(2, 10) == 10
        assert queue.held == held
        queue.check()
    queue.eased.clear()
    queue.fresh.clear()
    assert queue.let_leave(2, 11) == 10
    assert (queue.held, not queue.leaving, bool(queue.fresh)) == (0, True, True)
    assert taken(queue, b) == list(range(1, 51))  # in order
    queue.check()


def test_what_is_said_meanwhile_of_what_it_has_counts() -> None:
    queue = Queue("orders", Rules())
    put(queue, 10)
    a = queue.join("a")
    found = queue.take(a, 10, 1)
    queue.leave(a, 2, 4)
    for one in found[4:]:
        queue.settle(a, one.part, one.start, one.length, Subscriber.DONE, 2)
    assert queue.let_leave(2, 4) == 0
    assert (queue.waiting, queue.counts["done"], queue.held) == (4, 6, 0)
    queue.check()


def test_parts_of_a_block_are_counted_too() -> None:
    queue = Queue("orders", Rules())
    queue.put([b"x"] * 100, Meta("shop"), 1)
    for block in queue.seal(1):
        queue.committed(block, 1)
    a, b = queue.join("a"), queue.join("b")
    for _ in range(50):
        taken(queue, a, 1)
        taken(queue, b, 1)
    queue.leave(a, 2, 20)
    assert queue.waiting == 20
    queue.check()
    assert [queue.let_leave(2, 20), queue.let_leave(2, 20), queue.let_leave(2, 20)] == [20, 10, 0]
    assert (queue.waiting, queue.held) == (50, 50)
    queue.check()


def test_message_groups_of_who_leaves_are_nobody_elses_until_all_is_back() -> None:
    queue = Queue("orders", Rules())
    put(queue, 20, "g")
    a, b = queue.join("a"), queue.join("b")
    assert taken(queue, a, 10) == list(range(1, 11))
    queue.leave(a, 2, 5)
    assert taken(queue, b) == []
    queue.let_leave(2)
    assert taken(queue, b) == list(range(1, 21))


def test_what_a_subscriber_has_that_is_none_any_more_expires_when_it_is_back() -> None:
    queue = Queue("orders", Rules(plan=ALL))
    queue.subscribe("a")
    put(queue, LEAVE + 50)
    a = queue.join("a")
    assert len(taken(queue, a, LEAVE + 20)) == LEAVE + 20
    queue.leave(a, 2, 0)
    steps = queue.unsubscribe("a", 2)
    next(steps)
    assert queue.held == 20
    for _ in steps:
        queue.check()
    assert not queue.blocks
    assert queue.counts["expired"] == LEAVE + 50


def test_a_queue_that_is_emptied_has_everything_back_first() -> None:
    queue = Queue("orders", Rules())
    put(queue, 50)
    a = queue.join("a")
    taken(queue, a, 40)
    queue.leave(a, 2, 10)
    for _ in queue.empty(2):
        queue.check()
    assert not queue.blocks


async def lost(site: Site, queue: Queue, count: int) -> list[int]:
    """A client has so many messages and is lost: what was given back at a time."""
    client = await site.client("a")
    await client.subscribe("$queue/orders", qos=1)
    await client.messages(count, acknowledge=False)
    let_leave, steps = queue.let_leave, list[int]()

    def noted(now: int, most: int = LEAVE) -> int:
        steps.append(let_leave(now, most))
        return steps[-1]

    queue.let_leave = noted  # type: ignore[method-assign, assignment]
    await client.cut()
    return steps


def settings(folder: Path, **more: object) -> QueueSettings:
    return QueueSettings({"orders": Rules(prefetch=65_535, **more)}, folder=folder / "queues", durability="os")  # type: ignore[arg-type]


async def waiting(site: Site, count: int) -> Queue:
    """The queue, with so many messages, each in a block of its own."""
    queues = site.broker.site.queues
    assert queues is not None
    queue = queues.store.queues["orders"]
    for number in range(count):
        queue.put([b"%d" % number], Meta("shop"), queues.now())
        queue.filled += queue.opened.values()
        queue.opened.clear()
    queues.begin_commit()
    await site.until(lambda: len(queue.blocks) == count)
    return queue


async def test_a_client_that_is_lost_with_very_many_gives_them_back_in_turns(tmp_path: Path) -> None:
    many = 3 * LEAVE + 5
    async with Site(queues=settings(tmp_path)) as site:
        queue = await waiting(site, many)
        steps = await lost(site, queue, many)
        other = await site.client("b")
        await other.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await other.messages(many)] == [b"%d" % number for number in range(many)]
        assert max(steps) <= LEAVE
        assert sum(steps) == many
        queue.check()


async def test_a_broker_that_stops_has_everything_back(tmp_path: Path) -> None:
    many = 2 * LEAVE + 5
    async with Site(queues=settings(tmp_path)) as site:
        queue = await waiting(site, many)
        client = await site.client("a")
        await client.subscribe("$queue/orders", qos=1)
        await client.messages(many, acknowledge=False)
    assert (queue.held, queue.waiting) == (0, many)


async def identifiers_again(site: Site) -> tuple[Client, Client, list[Publish]]:
    """A member has message 1 of a batch of ten. The identifiers of the others, which it has acknowledged, are those of other messages."""
    shop, a = await site.client("shop"), await site.client("a", clean=False, expiry=100)
    await a.subscribe(Subscription("$queue/orders", 1), Subscription("news", 1))
    shop.send(*[Publish("$queue/orders", b"%d" % number, 0) for number in range(10)])
    first, *others = await a.messages(10, acknowledge=False)
    a.send(*[Puback(one.packet_id) for one in others])
    await a.nothing()
    used, kept = {one.packet_id for one in others}, list[Publish]()
    while len(kept) < 4:
        assert await shop.publish("news", b"news", qos=1) == 0
        (one,) = await a.messages(1, acknowledge=False)
        if one.packet_id in used:
            kept.append(one)
        else:
            a.send(Puback(one.packet_id))
    await a.nothing()
    assert first.payload == b"0"
    return shop, a, kept


@pytest.mark.parametrize("cut", [True, False])
async def test_what_goes_back_takes_no_other_messages_with_it_that_have_its_identifiers(tmp_path: Path, cut: bool) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        _, a, kept = await identifiers_again(site)
        if not cut:
            await a.unsubscribe("$queue/orders")
        await a.cut()
        again = await site.client("a", clean=False, expiry=100)
        found = [one for one in await again.messages(len(kept) + cut) if one.topic == "news"]
        assert [one.packet_id for one in found] == [one.packet_id for one in kept]


async def test_who_refuses_a_message_refuses_the_one_that_has_the_identifier_now(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, a, kept = await identifiers_again(site)
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        a.send(*[Puback(one.packet_id) for one in kept])
        await a.nothing()
        used = {one.packet_id for one in kept}
        while True:
            assert await shop.publish("$queue/orders", b"again", qos=1) == 0
            (one,) = await a.messages(1, acknowledge=False)
            if one.packet_id in used:
                break
            a.send(Puback(one.packet_id))
        a.send(Puback(one.packet_id, 0x80))
        (back,) = await a.messages(1, acknowledge=False)
        assert back.payload == b"again"
        assert queue.counts["returned"] == 1
