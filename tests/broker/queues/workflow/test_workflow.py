"""Chains of queues, and the six recovery scenarios of the source (US 6,970,945; rows Q22 and Q23; docs/queues.md, "Workflow").

In the source, a point of sale (POS) puts orders into an inbound queue, a customer database makes an approved order of each and puts it into
an outbound queue, and the credit approval takes those. Here the inbound queue is `inbound`, the outbound one `outbound`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.workflow import parents as judging
from mqmesh.broker.queues.workflow.lineage import RIGHT, lineage, parents_in, parents_of
from mqmesh.broker.queues.workflow.workflow import Child
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from support.broker_site import Client, Site


def queues(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(rules or {"inbound": Rules(), "outbound": Rules()}, folder=folder / "queues", durability="os")


def user(**pairs: str) -> dict[int, object]:
    return {Property.USER_PROPERTY: [(f"mqmesh-{name}", value) for name, value in pairs.items()]}


def said(packet: Publish, name: str) -> list[str]:
    return [value for key, value in packet.properties.get(Property.USER_PROPERTY, []) if key == name]


def states(site: Site, queue: str, position: int) -> tuple[list[str], dict[str, list[str]]]:
    """All states of a message: its publisher's, and each subscriber's."""
    overview = site.broker.queue_topic.overview
    assert overview is not None
    found: dict[str, Any] = {}
    walk = overview.trace(queue, position, False)
    while not found:
        try:
            next(walk)
        except StopIteration as end:
            found = end.value
    of = {name: [one["state"] for one in states] for name, states in found["subscribers"].items()}
    return [one["state"] for one in found["states"]], of


async def ask(client: Client, **asked: object) -> dict[str, object]:
    client.send(Publish("$mqmesh/queues", json.dumps(asked).encode(), 0))
    answer = await client.expect(Publish, topic="$mqmesh/queues/answer")
    found: dict[str, object] = json.loads(answer.payload)
    return found


async def put(client: Client, queue: str, payload: bytes, **pairs: str) -> int:
    return await client.publish(f"$queue/{queue}", payload, qos=1, properties=user(**pairs))


async def fetched(site: Site, client: Client, queue: str = "inbound", count: int = 1) -> list[Publish]:
    await client.subscribe(f"$queue/{queue}", qos=1)
    return await client.messages(count, acknowledge=False)


async def test_a_child_is_put_and_its_parents_are_done(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path)) as site:
        pos, customer, credit = await site.client("pos"), await site.client("customer"), await site.client("credit")
        await put(pos, "inbound", b"order 1")
        await put(pos, "inbound", b"order 2")
        await fetched(site, customer, count=2)
        assert await put(customer, "outbound", b"both", parents="inbound:1,inbound:2") == 0
        (child,) = await fetched(site, credit, "outbound")
        assert (child.payload, said(child, "mqmesh-lineage"), said(child, "mqmesh-parents")) == (b"both", ["inbound:1,inbound:2"], [])
        for position in (1, 2):
            assert states(site, "inbound", position)[1]["customer"][-2:] == ["DONE", "JOURNALLED (IMPLIED)"]
        credit.send(Puback(child.packet_id))
        assert states(site, "outbound", 1)[0][:2] == ["PUT", "REVEALED"]


async def test_who_does_not_have_the_parents_has_no_child(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path)) as site:
        pos, customer, other = await site.client("pos"), await site.client("customer"), await site.client("other")
        await put(pos, "inbound", b"order")
        await fetched(site, customer)
        assert await put(other, "outbound", b"forged", parents="inbound:1") == 0x83
        assert await put(customer, "outbound", b"x", parents="inbound:2") == 0x83
        assert await put(customer, "outbound", b"x", parents="inbound") == 0x83
        assert await put(customer, "outbound", b"x", parents="nowhere:1") == 0x83
        assert not site.broker.site.queues.store.queues["outbound"].blocks  # type: ignore[union-attr]
        assert await put(customer, "outbound", b"x", parents="inbound:1") == 0
        assert await put(customer, "outbound", b"again", parents="inbound:1") == 0x83  # once only


async def test_pos_1_what_was_put_and_not_revealed_is_revealed_on_command(tmp_path: Path) -> None:
    """Steps 1, 2 and 4: it has no parents."""
    async with Site(f"unix://{tmp_path}/socket", queues=queues(tmp_path)) as site:
        pos, credit = await site.client("pos"), await site.client("credit")
        await put(pos, "inbound", b"order", reveal="no")
        await pos.cut()
        await credit.subscribe("$queue/inbound", qos=1)
        await credit.subscribe("$mqmesh/queues/answer")
        found = await ask(credit, do="recover", name="inbound", dry_run=True)
        assert (found["revealed"], found["dry_run"]) == (1, True)
        await credit.nothing()
        assert (await ask(credit, do="recover", name="inbound"))["revealed"] == 1
        assert [one.payload for one in await credit.messages(1)] == [b"order"]


async def test_pos_2_what_is_fetched_is_the_subscribers_affair(tmp_path: Path) -> None:
    async with Site(f"unix://{tmp_path}/socket", queues=queues(tmp_path)) as site:
        pos, customer = await site.client("pos"), await site.client("customer")
        await put(pos, "inbound", b"order")
        (one,) = await fetched(site, customer)
        await pos.cut()
        await customer.subscribe("$mqmesh/queues/answer")
        assert await ask(customer, do="recover", name="inbound") == {
            "queue": "inbound",
            "children": 0,
            "revealed": 0,
            "cleaned": 0,
            "dry_run": False,
        }
        customer.send(Puback(one.packet_id))
        await customer.nothing()
        assert states(site, "inbound", 1)[1]["customer"][-2:] == ["DONE", "JOURNALLED (IMPLIED)"]


async def restarted(folder: Path) -> Site:
    return Site(queues=queues(folder))


async def test_credit_1_and_customer_1_fetched_and_not_done_is_clean(tmp_path: Path) -> None:
    """Step 5, after the broker's end and after the worker's."""
    async with Site(queues=queues(tmp_path)) as site:
        pos, customer = await site.client("pos"), await site.client("customer")
        await put(pos, "inbound", b"order")
        await fetched(site, customer)
    async with await restarted(tmp_path) as site:
        customer, other = await site.client("customer"), await site.client("other")
        (again,) = await fetched(site, customer)
        assert again.payload == b"order"
        await customer.cut()
        (again,) = await fetched(site, other)
        assert again.payload == b"order"


def unfinished(site: Site, parents: str, publisher: str = "customer") -> None:
    """A child whose broker ended before anybody was asked about its parents."""
    shell = site.broker.site.queues
    assert shell is not None
    shell.workflow.begin = lambda child: None  # type: ignore[method-assign]


async def test_customer_2_a_child_whose_parent_is_not_done_is_deleted(tmp_path: Path) -> None:
    """Steps 1, 2 and 3: fetched, and the child is put; then everything ends."""
    async with Site(queues=queues(tmp_path)) as site:
        pos, customer = await site.client("pos"), await site.client("customer")
        await put(pos, "inbound", b"order")
        await fetched(site, customer)
        unfinished(site, "inbound:1")
        assert await put(customer, "outbound", b"child", parents="inbound:1") == 0
    async with await restarted(tmp_path) as site:
        assert states(site, "outbound", 1)[0] == ["PUT", "DELETED"]
        other = await site.client("other")
        (again,) = await fetched(site, other)
        assert again.payload == b"order"  # its parent is clean, and somebody makes another child
        assert await put(other, "outbound", b"second child", parents="inbound:1") == 0
        credit = await site.client("credit")
        (child,) = await fetched(site, credit, "outbound")
        assert child.payload == b"second child"


async def test_the_handle_of_a_child_that_was_deleted_may_come_again(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path)) as site:
        pos, customer = await site.client("pos"), await site.client("customer")
        await put(pos, "inbound", b"order")
        await fetched(site, customer)
        unfinished(site, "inbound:1")
        assert await put(customer, "outbound", b"child", parents="inbound:1", handle="inbound:1") == 0
    async with await restarted(tmp_path) as site:
        assert states(site, "outbound", 1)[0] == ["PUT", "DELETED"]
        customer, credit = await site.client("customer"), await site.client("credit")
        await fetched(site, customer)
        assert await put(customer, "outbound", b"again", parents="inbound:1", handle="inbound:1") == 0
        (child,) = await fetched(site, credit, "outbound")
        assert child.payload == b"again"


async def test_customer_3_a_child_whose_parent_is_done_is_revealed(tmp_path: Path) -> None:
    """Steps 1, 2 and 3: fetched, the child is put, the parent is DONE; then everything ends. All its parents are DONE with it."""
    async with Site(queues=queues(tmp_path)) as site:
        pos, customer = await site.client("pos"), await site.client("customer")
        await put(pos, "inbound", b"order 1")
        await put(pos, "inbound", b"order 2")
        first, _ = await fetched(site, customer, count=2)
        unfinished(site, "inbound:1,inbound:2")
        assert await put(customer, "outbound", b"child", parents="inbound:1,inbound:2") == 0
        customer.send(Puback(first.packet_id))
        await customer.nothing()
    async with await restarted(tmp_path) as site:
        credit, other = await site.client("credit"), await site.client("other")
        (child,) = await fetched(site, credit, "outbound")
        assert child.payload == b"child"
        await other.subscribe("$queue/inbound", qos=1)
        await other.nothing()
        assert "DONE" in states(site, "inbound", 2)[1]["customer"]


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:-1", "a:x", "a:1,,b:2", "a:1,a:1", "a:" + "9" * 30, ",".join(["a:1"] * 99)])
def test_what_names_no_messages_says_what_would_be_right(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parents_of(text)
    assert str(caught.value) == RIGHT


def test_lineage_reads_back() -> None:
    parents = (("orders", 17), ("a.b-c", 1))
    assert parents_in(lineage(parents)) == parents
    assert parents_in(b"") == ()


async def test_a_lineage_cannot_be_forged(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path)) as site:
        pos, credit = await site.client("pos"), await site.client("credit")
        await put(pos, "outbound", b"x", lineage="inbound:1")
        (one,) = await fetched(site, credit, "outbound")
        assert said(one, "mqmesh-lineage") == []


async def test_each_message_of_one_read_counts(tmp_path: Path) -> None:
    """One order becomes several messages: an invoice, a delivery."""
    async with Site(queues=queues(tmp_path)) as site:
        pos, customer, credit = await site.client("pos"), await site.client("customer"), await site.client("credit")
        await put(pos, "inbound", b"order")
        await fetched(site, customer)
        properties = user(parents="inbound:1")
        customer.send(
            *(Publish("$queue/outbound", b"%d" % number, 1, packet_id=100 + number, properties=properties) for number in (1, 2, 3))
        )
        for number in (1, 2, 3):
            await customer.expect(Puback, packet_id=100 + number, reason=0)
        assert [one.payload for one in await fetched(site, credit, "outbound", 3)] == [b"1", b"2", b"3"]


async def test_children_that_wait_are_looked_at_some_at_a_time(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path)) as site:
        shell = site.broker.site.queues
        assert shell is not None
        begun: list[object] = []
        shell.work = begun.append  # type: ignore[method-assign]
        for position in range(1, 1001):
            child = Child("outbound", position, "customer", (("elsewhere", 1),))
            shell.workflow.children[child.queue, child.position] = child
        for ticks in range(1, 17):
            shell.workflow.tick()
            assert len(begun) == min(64 * ticks, 1000)
        assert all(child.waiting for child in shell.workflow.children.values())
        shell.workflow.children.clear()


async def test_who_asks_again_about_parents_waits_for_the_first_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home asks again when it has no answer in time. Questions that are looked up each time would never come to an end."""

    def counts(queue: Queue, position: int, *_: object) -> Iterator[None]:
        if position < 3:
            yield  # it is read from the log

    monkeypatch.setattr(judging, "counts", counts)
    async with Site(queues=queues(tmp_path)) as site:
        shell = site.broker.site.queues
        assert shell is not None
        begun: list[Iterator[object]] = []
        answers: list[int] = []
        shell.work = begun.append  # type: ignore[method-assign]
        for number, position in enumerate((1, 1, 1, 2, 3)):
            shell.workflow.asked([["inbound", position]], "customer", False, lambda counts, n=number: answers.append(n))  # type: ignore[misc]
        assert answers == [4]
        assert len(begun) == 2
        for steps in begun:
            assert not list(steps)
        assert answers == [4, 0, 1, 2, 3]
        shell.workflow.asked([["inbound", 1]], "customer", False, lambda counts: None)
        assert len(begun) == 3
