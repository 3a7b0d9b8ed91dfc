"""Events of queues that get full, have room again, or get dead letters: once a crossing, not with each message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.levels import Levels
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish
from support.broker_site import Site
from support.management import EVERYBODY


def fill(queue: Queue, messages: int, size: int = 1) -> None:
    queue.put([b"x" * size] * messages, Meta("shop"), 1)
    for block in queue.seal(1):
        queue.committed(block, 1)


def work(queue: Queue, messages: int) -> None:
    member = queue.join("a")
    for one in queue.take(member, messages, 1):
        queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)


@given(st.lists(st.integers(-30, 30), max_size=40))
def test_events_come_in_turn_and_say_what_is_true(steps: list[int]) -> None:
    said: list[dict[str, Any]] = []
    levels, queue = Levels(said.append), Queue("q", Rules(messages=20))
    full = False
    for step in steps:
        before = len(said)
        if step > 0:
            fill(queue, step)
        else:
            work(queue, -step)
        levels.look(queue, False)
        levels.look(queue, False)
        if queue.waiting >= 20:
            full = True
        elif queue.waiting <= 18:
            full = False
        turns = [one["event"] for one in said]
        assert turns == ["full", "room"] * (len(turns) // 2) + ["full"] * full
        assert len(said) - before <= 1


def test_bytes_count_too_and_both_have_to_have_room() -> None:
    said: list[dict[str, Any]] = []
    levels, queue = Levels(said.append), Queue("q", Rules(messages=100, bytes=50))
    fill(queue, 1, 49)
    levels.look(queue, False)
    assert not said
    fill(queue, 1, 1)
    levels.look(queue, False)
    assert said == [{"event": "full", "queue": "q", "messages": 2, "bytes": 50}]
    work(queue, 1)
    levels.look(queue, False)
    assert [one["event"] for one in said] == ["full", "room"]


def test_a_queue_that_is_gone_is_not_full_any_more() -> None:
    said: list[dict[str, Any]] = []
    levels, queue = Levels(said.append), Queue("q", Rules(messages=1))
    fill(queue, 1)
    for _ in range(2):
        levels.look(queue, False)
        levels.gone("q")
    assert [one["event"] for one in said] == ["full", "full"]


@pytest.mark.parametrize("when_full", ["refuse", "drop-oldest"])
async def test_listeners_are_told_once(tmp_path: Path, when_full: str) -> None:
    rules = {"orders": Rules(messages=10, when_full=when_full, deliveries=1, dead_letters="dead"), "dead": Rules()}
    async with Site(queues=QueueSettings(rules, folder=tmp_path / "queues", durability="os"), management=EVERYBODY) as site:
        ops, shop, worker = await site.client("ops"), await site.client("shop"), await site.client("worker")
        await ops.subscribe("$mqmesh/events/queues", qos=1)
        for number in range(1, 16):
            shop.send(Publish("$queue/orders", b"%d" % number, 1, packet_id=number))
            await shop.expect(Puback)
        full = json.loads((await ops.messages(1))[0].payload)
        assert (full["event"], full["queue"], full["messages"], full["site"]) == ("full", "orders", 10, "site0")
        await worker.subscribe("$queue/orders", qos=1)
        for one in await worker.messages(10, acknowledge=False):
            worker.send(Puback(one.packet_id, 0x80))
        rest = [json.loads(one.payload) for one in await ops.messages(2)]
        assert sorted((one["event"], one["queue"]) for one in rest) == [("dead-letters", "dead"), ("room", "orders")]


async def test_dead_letters_of_a_queue_that_takes_the_place_of_another(tmp_path: Path) -> None:
    """There are as many queues as before, and another one takes dead letters."""
    rules = {"old": Rules(deliveries=1, dead_letters="dead"), "dead": Rules(), "others": Rules()}
    async with Site(queues=QueueSettings(rules, folder=tmp_path / "queues", durability="os"), management=EVERYBODY) as site:
        ops, shop, worker = await site.client("ops"), await site.client("shop"), await site.client("worker")
        await ops.subscribe("$mqmesh/events/queues", qos=1)
        shop.send(Publish("$queue/old", b"1", 1, packet_id=1))
        await shop.expect(Puback)
        queues = site.broker.site.queues
        assert queues is not None
        queues.end("old")
        queues.begin("new", Rules(deliveries=1, dead_letters="others"), [])
        shop.send(Publish("$queue/new", b"2", 1, packet_id=2))
        await shop.expect(Puback)
        await worker.subscribe("$queue/new", qos=1)
        (one,) = await worker.messages(1, acknowledge=False)
        worker.send(Puback(one.packet_id, 0x80))
        said = json.loads((await ops.messages(1))[0].payload)
        assert (said["event"], said["queue"]) == ("dead-letters", "others")
