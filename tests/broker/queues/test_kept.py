"""What queues keep: read again, given to others, edited; and who still needs what (rows Q17, Q18, Q24)."""

from __future__ import annotations

import errno
import json
import random
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth.operators import DENIED
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.plan import plan_of
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log import marks, reading
from mqmesh.broker.queues.log.batch import Batch
from mqmesh.broker.queues.log.store import LogStore
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.requests.queues import _look
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property
from support.broker_site import Site
from support.steps import ended

from .test_carry import carry, commit, opened
from .test_requests import ask, asking

HOUR = 3_600_000


def kept_for_ever(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(dict(rules), folder=folder / "queues", durability="os")


def all_of(store: LogStore, begin: int = 1, most: int = 7) -> tuple[list[tuple[int, bytes]], int]:
    """Every message from a position on, in pages: (position, payload); and how many pages."""
    queue = store.queues["orders"]
    found: list[tuple[int, bytes]] = []
    at: int | None = begin
    pages = 0
    while at is not None:
        page = store.reader(queue).page(at, most, queue.next)
        assert page.more is None or page.more > at, "each page goes on"
        indexes = ((one.block, index) for one in page.found for index in range(one.start, one.stop))
        here = [(block.first + index, store.bodies.payload(block, index)) for block, index in indexes]
        assert len(here) <= most
        found, at, pages = found + here, page.more, pages + 1
    return found, pages


@pytest.mark.parametrize("seed", range(8))
def test_a_queue_read_by_position_is_what_was_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Small segments, other queues between, messages carried, and all of it after a restart."""
    monkeypatch.setattr(marks, "STRIDE", 300)
    monkeypatch.setattr(reading, "STRIDE", 300)
    monkeypatch.setattr(reading, "MOST_PLACES", 2)
    dice = random.Random(seed)
    store = opened(tmp_path, segment_bytes=900)
    queue, other = store.queue("orders", Rules()), store.queue("others", Rules())
    worker, idle = queue.join("worker"), other.join("idle")
    truth: dict[int, bytes] = {}
    open_: set[int] = set()
    for turn in range(120):
        payloads = [dice.randbytes(dice.randrange(1, 40)) for _ in range(dice.randrange(1, 6))]
        for at, payload in enumerate(payloads):
            truth[queue.next + at] = payload
            open_.add(queue.next + at)
        queue.put(payloads, Meta("shop"), turn)
        other.put([dice.randbytes(50)], Meta("shop"), turn)
        commit(store, turn)
        for one in queue.take(worker, 4, turn):
            for at in range(one.start, one.start + one.length):
                if dice.random() < 0.9:
                    queue.settle(worker, one.part, at, 1, Subscriber.DONE, turn)
                    open_.discard(one.part.block.first + at)
        for one in other.take(idle, 9, turn):
            other.settle(idle, one.part, one.start, one.length, Subscriber.DONE, turn)
        commit(store, turn)
        if turn % 40 == 39:
            carry(store, turn)
    for again in range(2):
        found, pages = all_of(store)
        assert pages > 1
        assert [position for position, _ in found] == sorted({position for position, _ in found}), "each one once, in order"
        assert all(truth[position] == payload for position, payload in found)
        assert open_ <= {position for position, _ in found}
        middle = queue.next // 2
        assert all_of(store, middle, 3)[0] == [one for one in found if one[0] >= middle]
        if not again:
            store.close()
            store = opened(tmp_path)
            queue = store.queues["orders"]


def test_by_time(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=400)
    queue = store.queue("orders", Rules())
    for hour in range(1, 40):
        queue.put([b"x" * 20], Meta("shop"), hour * HOUR)
        commit(store, hour * HOUR)
    for hour in range(41):
        first = store.reader(queue).since(hour * HOUR)
        assert max(0, hour - 25) <= first <= max(1, hour), "never after the first one of that time"
    assert store.reader(store.queue("new", Rules())).since(1) == 0


async def test_what_is_at_an_end_is_read_again_and_the_queue_goes_on(tmp_path: Path) -> None:
    async with Site(f"unix://{tmp_path}/socket", queues=kept_for_ever(tmp_path, orders=Rules(retention=3600))) as site:
        shop, worker, operator = await site.client("shop"), await site.client("worker"), await asking(site)
        await worker.subscribe("$queue/orders", qos=1)
        said = {Property.USER_PROPERTY: [("color", "red")], Property.CONTENT_TYPE: "text/plain"}
        await shop.publish("$queue/orders", b"first", qos=1, properties=said)
        await shop.publish("$queue/orders", b"second", qos=1)
        await worker.messages(2)
        await worker.unsubscribe("$queue/orders")
        await shop.publish("$queue/orders", b"third", qos=1)
        answer = await ask(operator, do="read", name="orders", most=2)
        assert [(one["position"], one["state"]) for one in answer["messages"]] == [(1, None), (2, None)]
        one = answer["messages"][0]
        assert (one["payload"], one["content_type"], one["user"]) == (b64encode(b"first").decode(), "text/plain", [["color", "red"]])
        assert answer["more"] == 3
        answer = await ask(operator, do="read", name="orders", **{"from": 3})
        assert [(one["position"], one["state"]) for one in answer["messages"]] == [(3, "REVEALED")]
        assert answer["more"] is None
        assert len((await ask(operator, do="read", name="orders", since=one["put"]))["messages"]) >= 1
        assert (await ask(operator, do="read", name="orders", since="2999-01-01T00:00:00Z"))["messages"] == []
        assert "give a time" in (await ask(operator, do="read", name="orders", since="soon"))["error"]
        assert (await ask(operator, do="show", name="orders"))["queue"]["waiting"] == 1
        overview = site.broker.queue_topic.overview
        assert overview is not None
        assert ended(_look(overview, "read", {"name": "orders"}, payloads=False)) == {"error": DENIED}


async def test_copies_go_to_a_topic_or_a_queue_and_say_where_they_come_from(tmp_path: Path) -> None:
    settings = kept_for_ever(tmp_path, orders=Rules(retention=3600), others=Rules(messages=3))
    async with Site(f"unix://{tmp_path}/socket", queues=settings) as site:
        shop, worker, operator = await site.client("shop"), await site.client("worker"), await asking(site)
        reader = await site.client("reader")
        await reader.subscribe("again/orders", qos=1)
        await worker.subscribe("$queue/orders", qos=1)
        forged = {Property.USER_PROPERTY: [("mqmesh-from-queue", "forged"), ("color", "red")]}
        for payload in (b"1", b"2", b"3"):
            await shop.publish("$queue/orders", payload, qos=1, properties=forged)
        for one in await worker.messages(3):
            assert one.properties[Property.USER_PROPERTY] == [("color", "red")], "only the broker says where a message comes from"
        answer = await ask(operator, do="distribute", name="orders", last=2, to="again/orders")
        assert answer == {"queue": "orders", "to": "again/orders", "distributed": 2, "more": None}
        copies = await reader.messages(2)
        assert [one.payload for one in copies] == [b"1", b"2"]
        lineage = [("mqmesh-from-queue", "orders"), ("mqmesh-from-position", "2")]
        assert copies[1].properties[Property.USER_PROPERTY] == [("color", "red"), *lineage]
        assert (await ask(operator, do="distribute", name="orders", last=2, **{"from": 2}, to="$queue/others"))["distributed"] == 1
        await worker.subscribe("$queue/others", qos=1)
        (one,) = await worker.messages(1)
        assert (one.payload, one.properties[Property.USER_PROPERTY]) == (b"2", [("color", "red"), *lineage])
        await worker.unsubscribe("$queue/others")
        for request, text in (
            ({"to": "a/#", "last": 2}, "wildcard"),
            ({"to": "$SYS/x", "last": 2}, "belong to the broker"),
            ({"to": "$queue/none", "last": 2}, "there is no queue"),
            ({"to": "$queue/orders", "last": 2}, "of its own messages"),
            ({"to": "a"}, "positions"),
        ):
            assert text in (await ask(operator, do="distribute", name="orders", **request))["error"]
        for _ in range(2):
            answer = await ask(operator, do="distribute", name="orders", last=3, to="$queue/others")
        assert (answer["distributed"], answer["more"]) == (0, 1)
        assert "holds 3 of 3 messages" in answer["refused"]


async def test_an_edited_message_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    settings = kept_for_ever(tmp_path, orders=Rules(retention=3600, plan=plan_of("a, b")))
    async with Site(f"unix://{tmp_path}/socket", queues=settings) as site:
        shop, a, b, operator = await site.client("shop"), await site.client("a"), await site.client("b"), await asking(site)
        said = {Property.USER_PROPERTY: [("color", "red")], Property.CONTENT_TYPE: "text/plain"}
        await shop.publish("$queue/orders", b"worng", qos=1, properties=said)
        await a.subscribe("$queue/orders", qos=1)
        await a.messages(1)
        assert await ask(operator, do="edit", name="orders", position=1, payload="right!") == {"error": '"payload": give base64'}
        assert "there is no" in (await ask(operator, do="edit", name="orders", position=1, properties={"topic": "x"}))["error"]
        assert "true or false" in (await ask(operator, do="edit", name="orders", position=1, properties={"text": 1}))["error"]
        right = b64encode(b"right").decode()
        answer = await ask(operator, do="edit", name="orders", position=1, payload=right, properties={"content_type": None, "text": True})
        assert answer == {"queue": "orders", "edited": 1, "position": 2}
        await b.subscribe("$queue/orders", qos=1)
        (one,) = await b.messages(1)
        assert one.payload == b"right"
        lineage = [("mqmesh-from-queue", "orders"), ("mqmesh-from-position", "1")]
        assert one.properties == {Property.USER_PROPERTY: [("color", "red"), *lineage], Property.PAYLOAD_FORMAT_INDICATOR: 1}
        await a.nothing()  # it has worked the old one
        assert [row["state"] for row in (await ask(operator, do="trace", name="orders", position=1))["states"]][-1] == "UNAVAILABLE"
        answer = await ask(operator, do="edit", name="orders", position=2, payload=right)
        assert answer["position"] == 3, "one at an end is put again"
        (one,) = await b.messages(1, acknowledge=False)
        assert "has message 3" in (await ask(operator, do="edit", name="orders", position=3, payload=right))["error"]


async def test_a_replacement_survives_a_commit_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the old message waits for the next commit; so does the new message. It was lost before, of dead letters too."""
    async with Site(f"unix://{tmp_path}/socket", queues=kept_for_ever(tmp_path, orders=Rules(), dead=Rules())) as site:
        shop, operator = await site.client("shop"), await asking(site)
        dead = {Property.USER_PROPERTY: [("color", "red")]}
        await shop.publish("$queue/dead", b"letter", qos=1, properties=dead)
        await shop.publish("$queue/orders", b"old", qos=1)
        queues = site.broker.site.queues
        assert queues is not None
        store = queues.store.here["log"]
        write, failures = store.write, [OSError(errno.EIO, "broken")] * 2

        def failing(batch: Batch) -> None:
            if failures:
                raise failures.pop()
            write(batch)

        monkeypatch.setattr(store, "write", failing)
        monkeypatch.setattr("mqmesh.broker.queues.committer.RETRY", 0)
        assert "takes nothing" in (await ask(operator, do="edit", name="orders", position=1, payload="bmV3"))["error"]
        await ask(operator, do="redrive", name="dead", to="orders")
        await queues.settled(10)
        await shop.publish("$queue/orders", b"later", qos=1)
        worker = await site.client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        assert sorted([one.payload for one in await worker.messages(3)]) == [b"later", b"letter", b"new"]
        await worker.nothing()


async def test_who_still_needs_what(tmp_path: Path) -> None:
    async with Site(queues=kept_for_ever(tmp_path, orders=Rules(plan=plan_of("a | b, c")), free=Rules())) as site:
        shop, a, operator = await site.client("shop"), await site.client("a", receive_maximum=2), await asking(site)
        for payload in (b"1", b"2", b"3", b"4"):
            await shop.publish("$queue/orders", payload, qos=1)
        await shop.publish("$queue/free", b"1", qos=1)
        await a.subscribe("$queue/orders", qos=1)
        await a.messages(2, acknowledge=False)
        found = await ask(operator, do="needed", name="orders")
        assert found["needed"] == {
            "a": {"messages": 2, "waits": [], "has": [[1, 2]]},
            "a | b": {"messages": 2, "waits": [[3, 4]], "has": []},
            "c": {"messages": 4, "waits": [[1, 4]], "has": []},
        }
        assert found["more"] is None
        assert (await ask(operator, do="needed", name="free"))["needed"] == {"any member": {"messages": 1, "waits": [[1, 1]], "has": []}}
        found = await ask(operator, do="needed", name="orders", most=1)
        assert found["more"] == 2
        assert (await ask(operator, do="needed", name="orders", **{"from": 2, "most": 1}))["more"] == 3


async def test_who_may(tmp_path: Path) -> None:
    """Over TCP nobody runs the broker: what takes a role is refused."""
    async with Site(queues=kept_for_ever(tmp_path, orders=Rules())) as site:
        client = await asking(site)
        for request in (
            {"do": "edit", "name": "orders", "position": 1, "payload": ""},
            {"do": "distribute", "name": "orders", "last": 1, "to": "a"},
        ):
            client.send(Publish("$mqmesh/queues", json.dumps(request).encode(), 0))
            answer: dict[str, Any] = json.loads((await client.expect(Publish)).payload)
            assert answer == {"error": DENIED}
