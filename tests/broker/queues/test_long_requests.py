"""Requests that take long: in turns between which others are served, and consistent whatever is committed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth.roles import Grant, ManagementSettings, Role
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log.store import LogStore
from mqmesh.broker.queues.overview import MOST_SHOWN
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.requests.queues import LISTED
from mqmesh.mqtt.packets import Puback, Publish
from support.broker_site import Client, Site
from support.steps import ended, one_step_a_round


def queues(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(dict(rules), folder=folder / "queues", durability="os")


async def asking(site: Site, name: str) -> Client:
    client = await site.client(name)
    await client.subscribe("$mqmesh/queues/answer", qos=0)
    return client


def send(client: Client, **request: Any) -> None:
    client.send(Publish("$mqmesh/queues", json.dumps(request).encode(), 0))


async def answer(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await client.expect(Publish, topic="$mqmesh/queues/answer")).payload)
    return found


OPERATORS = ManagementSettings(grants=(Grant(Role.OPERATOR),))


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        ({"do": "purge"}, {"purged": 200}),
        ({"do": "redrive", "to": "others"}, {"redriven": 200}),
        ({"do": "distribute", "last": 200, "to": "$queue/others"}, {"distributed": 200}),
        ({"do": "trace", "position": 1}, {"position": 1}),
        ({"do": "peek", "from": 1, "most": 100}, {"more": 101}),
    ],
)
async def test_others_are_served_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: dict[str, Any], found: dict[str, Any]
) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(), others=Rules()), management=OPERATORS) as site:
        shop, operator, other = await site.client("shop"), await asking(site, "operator"), await asking(site, "other")
        for number in range(200):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        one_step_a_round(site.broker.context.turns, monkeypatch)
        send(operator, name="orders", **request_)
        send(other, do="list")
        assert len((await answer(other))["queues"]) == 2
        assert not operator.waiting()
        assert found.items() <= (await answer(operator)).items()
        site.broker.site.queues.store.queues["orders"].check()  # type: ignore[union-attr]


async def test_a_list_of_very_many_queues_leaves_others_their_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"q{number:04}" for number in range(15 * LISTED)]
    async with Site(queues=queues(tmp_path, **dict.fromkeys(names, Rules()))) as site:
        operator, other = await asking(site, "operator"), await asking(site, "other")
        one_step_a_round(site.broker.context.turns, monkeypatch)
        send(operator, do="list")
        send(other, do="show", name=names[1])
        assert (await answer(other))["queue"]["name"] == names[1]
        assert not operator.waiting()
        site.broker.site.queues.end(names[-1])  # type: ignore[union-attr]
        found = (await answer(operator))["queues"]
        assert [one["name"] for one in found] == names[:-1]


async def test_recovery_on_command_leaves_others_their_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(reveal=False)), management=OPERATORS) as site:
        shop, operator, other = await site.client("shop"), await asking(site, "operator"), await asking(site, "other")
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        for _ in range(40):
            await shop.publish("$queue/orders", b"x", qos=1)
        queue.put([b"y"] * 1000, Meta("shop"), 1)
        await shop.publish("$queue/orders", b"z", qos=1)
        one_step_a_round(site.broker.context.turns, monkeypatch)
        send(operator, do="recover", name="orders", dry_run=True)
        assert (await answer(operator))["revealed"] == 1041
        assert queue.waiting == 1041
        send(operator, do="recover", name="orders")
        send(other, do="reveal", name="orders", position=1041)
        assert (await answer(other))["message"]["state"] == "REVEALED"
        assert not operator.waiting()
        assert (await answer(operator))["revealed"] == 1040, "one was revealed meanwhile"
        assert not any(block.hidden for block in queue.blocks.values())
        await shop.subscribe("$queue/orders", qos=1)
        assert len(await shop.messages(1041)) == 1041
        queue.check()


async def test_a_member_says_much_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(requests=True, prefetch=1000))) as site:
        shop, a = await site.client("shop"), await asking(site, "a")
        await a.subscribe("$queue/orders", qos=1)
        for number in range(300):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        for one in await a.messages(300, acknowledge=False):
            a.send(Puback(one.packet_id))
        await a.nothing()
        one_step_a_round(site.broker.context.turns, monkeypatch)
        send(a, do="done", name="orders", position=1, last=299)
        send(a, do="unusable", name="orders", position=300)  # in the order in which they were asked
        assert [(await answer(a))["state"], (await answer(a))["state"]] == ["done", "unusable"]
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        assert (queue.counts["done"], queue.counts["unusable"]) == (299, 1)


async def test_who_looks_and_goes_is_not_worked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, operator, other = await site.client("shop"), await asking(site, "operator"), await asking(site, "other")
        for number in range(200):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        queues_ = site.broker.site.queues
        assert queues_ is not None
        steps = []
        history = queues_.store.history

        def counted(*args: Any) -> Generator[None, None, Any]:
            walk = history(*args)
            while True:
                try:
                    next(walk)
                except StopIteration as end:
                    return end.value
                steps.append(1)
                if len(steps) == 2:
                    connection.transport.abort()
                yield

        (connection,) = [one for one in site.broker.site.connections if one.client_id == "operator"]
        monkeypatch.setattr(queues_.store, "history", counted)
        one_step_a_round(site.broker.context.turns, monkeypatch)
        send(operator, do="trace", name="orders", position=1)
        await operator.closed()
        send(other, do="list")
        await answer(other)
        assert 2 <= len(steps) < 100


async def test_redrive_keeps_the_bounds_of_its_goal(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, dead=Rules(), orders=Rules(messages=3)), management=OPERATORS) as site:
        shop, operator = await site.client("shop"), await asking(site, "operator")
        for number in range(5):
            await shop.publish("$queue/dead", b"%d" % number, qos=1)
        send(operator, do="redrive", name="dead", to="orders")
        found = await answer(operator)
        assert (found["redriven"], found["left"]) == (3, "orders: the queue holds 3 of 3 messages")
        send(operator, do="redrive", name="dead", to="orders")
        assert await answer(operator) == {"error": "orders: the queue holds 3 of 3 messages"}
        store = site.broker.site.queues.store  # type: ignore[union-attr]
        await site.until(lambda: (store.queues["dead"].waiting, store.queues["orders"].waiting) == (2, 3))


async def test_redrive_takes_the_role_for_both_queues(tmp_path: Path) -> None:
    management = ManagementSettings(grants=(Grant(Role.OPERATOR, queues=("dead",)),))
    async with Site(queues=queues(tmp_path, dead=Rules(), orders=Rules()), management=management) as site:
        shop, operator = await site.client("shop"), await asking(site, "operator")
        await shop.publish("$queue/dead", b"1", qos=1)
        send(operator, do="redrive", name="dead", to="orders")
        assert "not permitted" in (await answer(operator))["error"]


async def test_an_answer_has_an_end(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, operator = await site.client("shop"), await asking(site, "operator")
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        for number in range(MOST_SHOWN + 500):
            queue.subscribe(f"member-{number}")
        for number in range(3):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        send(operator, do="show", name="orders")
        assert len((await answer(operator))["queue"]["members"]) == MOST_SHOWN
        send(operator, do="peek", name="orders")
        found = await answer(operator)
        assert [len(row["subscribers"]) for row in found["messages"]] == [100] * 3
        for number in range(150):
            queue.subscribe("x" * 20_000 + str(number))
        queue.members = dict(reversed(queue.members.items()))  # the long names come first
        send(operator, do="peek", name="orders")
        found = await answer(operator)
        assert (len(found["messages"]), found["more"]) == (1, 2)
        operator.send(Publish("$mqmesh/queues", b" " * 262_145, 0))
        assert await answer(operator) == {"error": "a request has at most 262,144 bytes"}


@pytest.mark.parametrize("segment_bytes", [32 << 20, 64])
def test_a_trace_shows_no_half_commit(tmp_path: Path, segment_bytes: int) -> None:
    store = LogStore(tmp_path, "os", segment_bytes=segment_bytes)
    store.open(lambda name: Rules(), 1)
    queue = store.queue("orders", Rules())

    def commit() -> None:
        batch = store.gather(1)
        assert batch is not None
        store.write(batch)
        store.applied(batch, 1)

    queue.put([b"1"], Meta("shop"), 1)
    commit()
    member = queue.join("a")
    (one,) = queue.take(member, 1, 2)
    queue.settle(member, one.part, one.start, 1, Subscriber.DONE, 3)
    before = ended(store.history(queue, 1))[1]
    begun = store.history(queue, 1)
    next(begun)
    batch = store.gather(4)
    assert batch is not None
    gathered = ended(store.history(queue, 1))[1]
    store.write(batch)  # as the writer's thread does
    written = ended(store.history(queue, 1))[1]
    store.applied(batch, 4)
    applied = ended(store.history(queue, 1))[1]
    assert [move.state for move in before] == [Subscriber.GET, Subscriber.DONE]
    assert before == gathered == written == applied == ended(begun)[1]
    store.close()


def test_a_segment_that_goes_while_it_is_read(tmp_path: Path) -> None:
    store = LogStore(tmp_path, "os", segment_bytes=64)
    store.open(lambda name: Rules(), 1)
    queue = store.queue("orders", Rules())
    for _ in range(3):
        queue.put([b"1"], Meta("shop"), 1)
        batch = store.gather(1)
        assert batch is not None
        store.write(batch)
        store.applied(batch, 1)
    walk = store.history(queue, 1)
    next(walk)
    member = queue.join("a")
    for one in queue.take(member, 3, 2):
        queue.settle(member, one.part, one.start, 1, Subscriber.DONE, 3)
    batch = store.gather(4)
    assert batch is not None
    store.write(batch)
    store.applied(batch, 4)
    assert store.trim(5) == 3
    block, _ = ended(walk)
    assert block is None  # its retention is over
    store.close()


async def test_a_queue_is_deleted_while_it_takes_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules()), management=OPERATORS) as site:
        shop, operator, other = await site.client("shop"), await asking(site, "operator"), await asking(site, "other")
        send(other, do="declare", name="others", settings={})
        assert (await answer(other))["declared"]
        for number in range(200):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        one_step_a_round(site.broker.context.turns, monkeypatch)
        send(operator, do="distribute", name="orders", last=200, to="$queue/others")
        send(other, do="delete", name="others", force=True)
        assert await answer(operator) == {"error": "there is no queue 'others' at site0"}
        assert (await answer(other))["queue"] == "others"
        queue = site.broker.site.queues.store.queues["others"]  # type: ignore[union-attr]
        assert queue.waiting == 0
