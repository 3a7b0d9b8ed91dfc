"""No step of a queue grows with what waits in it, and nothing stays in memory that nobody needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.broker.ports import Context
from mqmesh.broker.queues import upkeep
from mqmesh.broker.queues.core.blocks import SPARE, Block, Meta
from mqmesh.broker.queues.core.plan import ALL, Plan, plan_of
from mqmesh.broker.queues.core.queue import BLOCK_BYTES, MOST_DROPPED, MOST_NAMES, Queue
from mqmesh.broker.queues.core.rules import DROP_OLDEST, Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.core.stock import MOST_LANES
from mqmesh.broker.queues.log.store import LogStore
from mqmesh.broker.queues.offers import offers
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.upkeep import AT_ONCE
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from support.broker_site import Site, until


def put(queue: Queue, count: int = 1, now: int = 1, alone: bool = False, **more: object) -> list[Block]:
    """Messages, in one block or each alone."""
    found = []
    for _ in range(count if alone else 1):
        queue.put([b"x"] * (1 if alone else count), Meta("shop"), now, **more)  # type: ignore[arg-type]
        for block in queue.seal(now):
            queue.committed(block, now)
            found.append(block)
    return found


def test_a_block_that_is_through_is_not_held_by_its_expiry() -> None:
    queue = Queue("orders", Rules(age=30 * 86_400, delay=1))
    (block,) = put(queue, 3)
    queue.handle_timer(1001)
    member = queue.join("a")
    for one in queue.take(member, 3, 1001):
        queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1002)
    assert not queue.blocks
    assert queue.deadline == 0
    assert not len(queue._timers)
    assert not queue.lanes[block.key.groups[0]].ready


def test_what_expires_and_nobody_takes_is_not_held() -> None:
    queue = Queue("orders", Rules())
    put(queue)  # it waits, before all others
    put(queue, 3 * SPARE, alone=True, life=20_000)
    queue.handle_timer(30_000)
    (lane,) = queue.lanes.values()
    assert len(lane.ready) <= SPARE + 2
    queue.check()


def test_what_expires_at_one_time_does_so_in_pieces() -> None:
    queue = Queue("orders", Rules())
    put(queue, 100, alone=True, life=20_000)
    calls = 0
    while queue.deadline:
        assert queue.deadline == 21_000  # the next whole second: they have one time
        assert queue.handle_timer(30_000, 16)
        calls += 1
        queue.check()
    assert calls == 7
    assert queue.counts["expired"] == 100


def test_messages_that_live_for_long_share_a_block_and_say_no_more_than_their_life() -> None:
    queue = Queue("orders", Rules())
    for now in range(1_000, 1_990, 10):
        queue.put([b"x"], Meta("shop"), now, life=60_000)
    blocks = queue.seal(2_000)
    assert [(block.count, block.key.expires) for block in blocks] == [(1, 61_000), (98, 62_000)]
    for block in blocks:
        queue.committed(block, 2_000)
    member = queue.join("a")
    for now, left in ((2_001, {58, 59}), (60_500, {1}), (61_999, {1})):
        queue.handle_timer(now)
        taken = queue.take(member, 100, now)
        given = [one for slice in taken for one in offers(slice, [b"x"] * 100, b"q", b"", None, 0.0, now, False, False)]
        assert {one.run.expiry for one in given} == left
        for one in taken:
            queue.give_back(member, one.part, one.start, one.length, now)


def test_a_short_life_ends_at_its_time() -> None:
    queue = Queue("orders", Rules())
    put(queue, life=1234)
    assert queue.deadline == 1235


def test_a_range_is_withdrawn_as_a_range() -> None:
    queue = Queue("orders", Rules())
    (block,) = put(queue, 8192)
    queue.withdraw(block, 5, 1, 2)
    queue.moves.clear()
    queue.withdraw(block, 0, 8192, 3)
    assert [(move.first, move.length) for move in queue.moves] == [(1, 5), (1, 5), (7, 8186), (7, 8186)]
    assert queue.counts["withdrawn"] == 8192
    queue.check()


def test_room_is_made_a_little_at_each_commit() -> None:
    queue = Queue("orders", Rules(when_full=DROP_OLDEST))
    for _ in range(3):
        put(queue, MOST_DROPPED)
    queue.rules = Rules(messages=10, when_full=DROP_OLDEST)  # the file has changed
    for left in (2 * MOST_DROPPED + 1, MOST_DROPPED + 2, 10):
        put(queue)
        assert queue.waiting == left
        queue.check()


def test_who_leaves_a_plan_is_left_by_its_messages_in_steps() -> None:
    queue = Queue("orders", Rules(plan=ALL))
    queue.subscribe("a")
    queue.subscribe("b")
    put(queue, 50, alone=True)
    steps = queue.unsubscribe("a", 2)
    for _ in range(20):
        next(steps)
    assert queue.waiting == 80
    queue.check()
    queue.subscribe("a")
    put(queue, 5, now=3)
    assert list(steps) == [None] * 30
    assert queue.waiting == 60  # of those before, b's; of the new ones both
    queue.check()


def test_plans_of_publishers_bring_no_end_of_groups_and_names() -> None:
    queue = Queue("orders", Rules())
    for number in range(3 * MOST_LANES):  # each is worked at once: its group is forgotten
        plan = plan_of(f"a | b{number % 2000}")
        assert queue.unknown(plan) is None
        put(queue, plan=plan)
        member = queue.join("a")
        for one in queue.take(member, 1, 1):
            queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)
    assert len(queue.lanes) <= MOST_LANES
    assert len(queue.members["a"].lanes) <= MOST_LANES
    for number in range(2 * MOST_LANES):
        plan = plan_of(f"a | c{number}")
        if (text := queue.unknown(plan)) is not None:
            break
        put(queue, plan=plan)
    assert text == f"the queue has messages for {MOST_LANES:,} different groups: wait until they are worked"
    queue.check()
    fresh = Queue("orders", Rules())
    many = Plan((frozenset(f"x{number}" for number in range(MOST_NAMES)),))
    assert fresh.unknown(many) == "the queue knows 1 members: a plan cannot bring more"
    assert len(fresh.names) == 1


def test_blocks_are_bounded_in_bytes() -> None:
    queue = Queue("orders", Rules(bytes=10 * BLOCK_BYTES))
    for _ in range(6):
        assert queue.refusal(1, BLOCK_BYTES) is None
        queue.put([bytes(BLOCK_BYTES)], Meta("shop"), 1)
    for _ in range(4):
        queue.put([bytes(BLOCK_BYTES)], Meta("shop"), 1)
    assert queue.refusal(1, 1) is not None  # what gathers counts too
    assert max(block.count for block in queue.seal(1)) == 2


async def test_members_are_fed_in_pieces(tmp_path: Path) -> None:
    """Very many messages are due at once: one piece of work gives a part of them."""
    settings = QueueSettings({"orders": Rules(prefetch=65_535)}, folder=tmp_path / "queues", durability="os")
    async with Site(queues=settings) as site:
        queues = site.broker.site.queues
        assert queues is not None
        shop, a = await site.client("shop"), await site.client("a")
        for _ in range(4):
            run = [Publish("$queue/orders", b"x", 0)] * 2000
            shop.send(*run)
        await shop.nothing()
        feed, most = queues._feed, list[int]()

        def fed(name: str, left: int) -> int:
            most.append(feed(name, left))
            return most[-1]

        queues._feed = fed  # type: ignore[method-assign]
        await a.subscribe("$queue/orders", qos=0)
        assert len(await a.messages(8000)) == 8000
        assert max(most) <= AT_ONCE


async def test_a_plan_that_is_refused_says_why(tmp_path: Path) -> None:
    settings = QueueSettings({"orders": Rules()}, folder=tmp_path / "queues", durability="os")
    async with Site(queues=settings) as site:
        shop = await site.client("shop")
        for half in "xy":
            names = " | ".join(f"{half}{number}" for number in range(MOST_NAMES // 2 + 10))
            user = {Property.USER_PROPERTY: [("mqmesh-plan", names)]}
            shop.send(Publish("$queue/orders", b"1", 1, packet_id=9, properties=user))
            answer = await shop.expect(Puback, packet_id=9)
        assert answer.reason == 0x97
        assert "a plan cannot bring more" in answer.properties[Property.REASON_STRING]


async def test_the_ledger_knows_what_queues_hold_and_bounds_it(tmp_path: Path) -> None:
    """Small payloads with large properties: the payloads are not what fills the memory."""
    settings = QueueSettings({"orders": Rules()}, folder=tmp_path / "queues", durability="os")
    async with Site(queues=settings, broker_bytes=8 << 20) as site:
        ledger = site.broker.context.ledger
        shop = await site.client("shop")
        user = {Property.USER_PROPERTY: [("k", "v" * 60_000)]}
        for number in range(300):
            shop.send(Publish("$queue/orders", b"%d" % number, 1, packet_id=9, properties=user))
            answer = await shop.expect(Puback, packet_id=9)
            if answer.reason:
                break
        assert answer.reason == 0x97
        assert "limits.broker_bytes" in answer.properties[Property.REASON_STRING]
        assert ledger.total <= ledger.limit
        assert number > 50
        a = await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        assert len(await a.messages(number)) == number  # members go on, and make room
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        await site.until(lambda: queue.counts["done"] == number)
        assert queue.memory == queue.gathering_memory == queue.gathering_size == 0
        for _ in range(2):  # every other tick looks at what the broker holds
            await site.later(1)
        assert await shop.publish("$queue/orders", b"again", qos=1) == 0


def test_bodies_of_what_expires_or_is_withdrawn_leave_memory(tmp_path: Path) -> None:
    store = LogStore(tmp_path, "os")
    store.open(lambda name: Rules(), 1)
    queue = store.queue("orders", Rules())

    def commit() -> None:
        batch = store.gather(1)
        assert batch is not None
        store.write(batch)
        store.applied(batch, 1)

    queue.put([bytes(1000)] * 3, Meta("shop"), 1)
    queue.put([bytes(500)], Meta("shop"), 1, life=100)
    commit()
    assert store.bodies.resident == 3500
    first, second = queue.blocks.values()
    queue.withdraw(first, 0, 3, 2)
    queue.handle_timer(1000)
    commit()
    assert not queue.blocks
    assert (store.bodies.resident, first.payloads, second.payloads) == (0, None, None)
    store.close()


async def test_very_many_queues_in_which_something_is_due_at_one_moment_go_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {f"q{number}": Rules() for number in range(100)}
    async with Site(queues=QueueSettings(rules, folder=tmp_path / "queues", durability="os")) as site:
        queues = site.broker.site.queues
        assert queues is not None
        shop, now = await site.client("shop"), queues.now()
        for name in rules:
            queues.store.queues[name].put([b"x"], Meta("shop"), now, life=60_000)
        await shop.publish("$queue/q0", b"y", qos=1)
        await until(lambda: not queues.store.dirty and not queues.store.busy)
        assert not list(queues.store.touched()), "nothing is looked at that has no members"
        monkeypatch.setattr(upkeep, "MOST_FIRED", 10)
        monkeypatch.setattr(Context, "steady", lambda self: now / 1000 + 3600)
        fired: list[int] = []
        fire = queues.upkeep._fire

        def counted(at: int) -> None:
            before = expired()
            fire(at)
            fired.append(expired() - before)

        def expired() -> int:
            return sum(queue.counts["expired"] for queue in queues.store.queues.values())

        monkeypatch.setattr(queues.upkeep, "_fire", counted)
        queues.tick()
        site.broker.context.flush()
        await until(lambda: expired() == 100)
        assert fired[:10] == [10] * 10
        worker = await site.client("worker")
        await worker.subscribe("$queue/q0", qos=1)
        assert [one.payload for one in await worker.messages(1)] == [b"y"]
