"""Requests on `$mqmesh/queues`: lists, peek, trace, redrive, purge; reveal, withdraw, again (rows Q4, Q14, Q15, Q24)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.queues import HAS_QUEUES
from mqmesh.broker.auth.operators import DENIED
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.plan import ALL, plan_of
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Publisher, Step, Subscriber, name_of
from mqmesh.broker.queues.core.timeline import timeline
from mqmesh.broker.queues.log.store import LogStore
from mqmesh.broker.queues.overview import MOST_WHOLE
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.requests.queues import _audited, _look
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from support.broker_site import Client, Site
from support.steps import ended


def queues(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(dict(rules), folder=folder / "queues", durability="os")


async def asking(site: Site, name: str = "operator") -> Client:
    client = await site.client(name)
    await client.subscribe("$mqmesh/queues/answer", qos=0)
    return client


async def ask(client: Client, **request: Any) -> dict[str, Any]:
    client.send(Publish("$mqmesh/queues", json.dumps(request).encode(), 0))
    answer = await client.expect(Publish, topic="$mqmesh/queues/answer")
    found: dict[str, Any] = json.loads(answer.payload)
    return found


async def test_list_show_and_peek_change_nothing(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(), others=Rules(plan=ALL))) as site:
        shop, a, operator = await site.client("shop"), await site.client("a"), await asking(site)
        for payload in (b"1", b"22", b"333"):
            await shop.publish("$queue/orders", payload, qos=1)
        listed = (await ask(operator, do="list"))["queues"]
        assert [(one["name"], one["plan"], one["waiting"], one["put"]) for one in listed] == [
            ("orders", "pool", 3, 3),
            ("others", "all", 0, 0),
        ]
        peeked = await ask(operator, do="peek", name="orders", **{"from": 2, "most": 1})
        (one,) = peeked["messages"]
        assert (one["position"], one["publisher"], one["state"], one["size"], one["payload"]) == (2, "shop", "REVEALED", 2, "22")
        assert peeked["more"] == 3
        await a.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await a.messages(3, acknowledge=False)] == [b"1", b"22", b"333"]
        shown = (await ask(operator, do="show", name="orders"))["queue"]
        assert (shown["in_flight"], shown["members"]) == (3, [{"name": "a", "active": True, "in_flight": 3, "subscriber": True}])


async def test_peek_gives_whole_messages_to_readers_of_payloads(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, operator = await site.client("shop"), await asking(site)
        assert shop.connack is not None
        assert shop.connack.properties[Property.USER_PROPERTY] == [HAS_QUEUES]
        said = {Property.CORRELATION_DATA: b"\xff", Property.RESPONSE_TOPIC: "answers", Property.USER_PROPERTY: [("a", "1"), ("a", "2")]}
        await shop.publish("$queue/orders", b"\x00\xff", qos=1, properties=said)
        await shop.publish("$queue/orders", b"later", qos=1, properties={Property.USER_PROPERTY: [("mqmesh-delay", "1h")]})
        for _ in range(3):
            await shop.publish("$queue/orders", bytes(MOST_WHOLE - 7), qos=1)
        answer = await ask(operator, do="peek", name="orders", whole=True)
        one, later, large = answer["messages"]
        assert (one["payload"], one["correlation"], one["response_topic"]) == ("AP8=", "/w==", "answers")
        assert (one["topic"], one["text"], one["content_type"], one["user"]) == ("$queue/orders", False, None, [["a", "1"], ["a", "2"]])
        assert [row["waits"] for row in (one, later, large)] == [True, False, True]
        assert answer["more"] == 4, "an answer has so many bytes"
        assert [row["position"] for row in (await ask(operator, do="peek", name="orders", whole=True, **{"from": 4}))["messages"]] == [4]
        a = await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        await a.messages(4, acknowledge=False)
        answer = await ask(operator, do="peek", name="orders", whole=True)
        assert not any(row["waits"] for row in answer["messages"])
        overview = site.broker.queue_topic.overview
        assert overview is not None
        assert ended(_look(overview, "peek", {"name": "orders", "whole": True}, payloads=False)) == {"error": DENIED}


async def test_trace_tells_every_state(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(plan=plan_of("a | b, c")))) as site:
        shop, operator = await site.client("shop"), await asking(site)
        a, b, c = [await site.client(name) for name in "abc"]
        await shop.publish("$queue/orders", b"1", qos=1)
        assert (await ask(operator, do="trace", name="orders", position=1))["needed_by"] == ["a", "b", "c"]
        await a.subscribe("$queue/orders", qos=1)
        await a.messages(1)
        await b.subscribe("$queue/orders", qos=1)
        await b.nothing()
        found = await ask(operator, do="trace", name="orders", position=1)
        assert found["needed_by"] == ["c"]
        await c.subscribe("$queue/orders", qos=1)
        await c.messages(1)
        await c.nothing()
        found = await ask(operator, do="trace", name="orders", position=1)
        assert [one["state"] for one in found["states"]] == ["PUT", "REVEALED", "JOURNALLED"]
        assert {name: [one["state"] for one in states] for name, states in found["subscribers"].items()} == {
            "a": ["GET", "FETCHED", "DONE", "JOURNALLED (IMPLIED)"],
            "b": ["EXPIRED", "JOURNALLED (IMPLIED)"],
            "c": ["GET", "FETCHED", "DONE", "JOURNALLED (IMPLIED)"],
        }
        assert found["needed_by"] == []
        assert "never was" in (await ask(operator, do="trace", name="orders", position=2))["error"]


async def test_dead_letters_go_back_and_purge_withdraws(tmp_path: Path) -> None:
    settings = queues(tmp_path, orders=Rules(deliveries=1, dead_letters="dead"), dead=Rules())
    async with Site(f"unix://{tmp_path}/socket", queues=settings) as site:
        shop, a, operator = await site.client("shop"), await site.client("a"), await asking(site)
        await a.subscribe("$queue/orders", qos=1)
        await shop.publish("$queue/orders", b"1", qos=1, properties={Property.USER_PROPERTY: [("color", "red")]})
        (one,) = await a.messages(1, acknowledge=False)
        a.send(Puback(one.packet_id, 0x80))
        dead = site.broker.site.queues.store.queues["dead"]  # type: ignore[union-attr]
        await site.until(lambda: dead.waiting == 1)
        assert await ask(operator, do="redrive", name="dead", dry_run=True) == {"queue": "dead", "redriven": 1, "dry_run": True}
        assert (await ask(operator, do="redrive", name="dead"))["redriven"] == 1
        (again,) = await a.messages(1)
        assert again.properties[Property.USER_PROPERTY] == [("color", "red")]
        assert (await ask(operator, do="redrive", name="dead"))["redriven"] == 0
        await a.unsubscribe("$queue/orders")
        await shop.publish("$queue/orders", b"2", qos=1)
        assert (await ask(operator, do="purge", name="orders"))["purged"] == 1
        assert (await ask(operator, do="list"))["queues"][1]["waiting"] == 0


async def test_publishers_reveal_withdraw_and_reveal_again(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(reveal=False))) as site:
        shop, a = await asking(site, "shop"), await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        for payload in (b"1", b"2"):
            await shop.publish("$queue/orders", payload, qos=1)
        await a.nothing()
        assert (await ask(shop, do="reveal", name="orders", position=1))["message"]["state"] == "REVEALED"
        (one,) = await a.messages(1, acknowledge=False)
        a.send(Puback(one.packet_id, 0x99))
        await a.nothing()
        assert (await ask(shop, do="again", name="orders", position=1, member="a"))["message"]["state"] == "REVEALED"
        assert [one.payload for one in await a.messages(1)] == [b"1"]
        assert (await ask(shop, do="withdraw", name="orders", position=2))["message"]["state"] == "UNAVAILABLE"
        assert "at an end" in (await ask(shop, do="reveal", name="orders", position=2))["error"]


async def test_members_say_by_requests_what_becomes_of_a_message(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(requests=True))) as site:
        shop, a, other = await site.client("shop"), await asking(site, "a"), await asking(site, "other")
        await a.subscribe("$queue/orders", qos=1)
        for payload in (b"1", b"2", b"3"):
            await shop.publish("$queue/orders", payload, qos=1)
        taken = await a.messages(3)
        assert [dict(one.properties[Property.USER_PROPERTY]) for one in taken] == [{"mqmesh-position": str(at)} for at in (1, 2, 3)]
        assert "does not have message 9" in (await ask(a, do="done", name="orders", position=9))["error"]
        assert "is no member" in (await ask(other, do="done", name="orders", position=1))["error"]
        assert (await ask(a, do="processing", name="orders", position=1))["state"] == "processing"
        assert (await ask(a, do="done", name="orders", position=1, last=2))["state"] == "done"
        assert "does not have message 1" in (await ask(a, do="done", name="orders", position=1))["error"]
        a.send(Publish("$mqmesh/queues", b'{"do": "return", "name": "orders", "position": 3}', 0))
        both = {one.topic: one for one in await a.messages(2)}  # the message may come before the answer
        assert json.loads(both["$mqmesh/queues/answer"].payload)["state"] == "return"
        again = both["$queue/orders"]
        assert (again.payload, dict(again.properties[Property.USER_PROPERTY])["mqmesh-deliveries"]) == (b"3", "1")
        found = await ask(a, do="trace", name="orders", position=1)
        assert [one["state"] for one in found["subscribers"]["a"]][:4] == ["GET", "FETCHED", "IN PROCESS", "DONE"]
        await a.cut()  # what was only fetched goes back
        await other.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await other.messages(1)] == [b"3"]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"do": "dance"}, 'send {"do": "list"}'),
        ({"do": "show"}, 'send {"do": "list"}'),
        ({"do": "show", "name": "none"}, "there is no queue 'none' at site0"),
        ({"do": "peek", "name": "orders", "from": "x"}, '"from": give a position'),
        ({"do": "trace", "name": "orders"}, 'trace: give "position"'),
        ({"do": "again", "name": "orders", "position": 1}, 'again: give "member"'),
        ({"do": "purge", "name": "orders", "dry_run": 1}, '"dry_run": give true or false'),
        ({"do": "purge", "name": "orders"}, "not permitted"),
    ],
)
async def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, request_: dict[str, Any], text: str) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        client = await asking(site)
        assert text in (await ask(client, **request_))["error"]


def clock(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return 1000 * (3600 * hours + 60 * minutes + seconds)


def test_the_example_of_the_source_to_the_state(tmp_path: Path) -> None:
    """Figure 5: publisher X, subscribers 0 to 2, who say JOURNALLED themselves."""
    store = LogStore(tmp_path, "os")
    rules = Rules(plan=ALL, reveal=False, explicit=True)
    store.open(lambda name: rules, 1)
    queue = store.queue("transactions", rules)
    members = [(queue.subscribe(name), queue.join(name))[1] for name in ("0", "1", "2")]
    queue.put([b"sale"], Meta("X"), clock("12:14:03"))
    commit(store, clock("12:14:03"))
    (block,) = queue.blocks.values()
    queue.reveal(block, 0, 1, clock("12:14:12"))
    said: list[tuple[str, int, Subscriber]] = [
        ("12:14:13", 0, Subscriber.GET),
        ("12:14:25", 1, Subscriber.GET),
        ("12:14:26", 0, Subscriber.FETCHED),
        ("12:14:54", 0, Subscriber.DONE),
        ("12:15:02", 0, Subscriber.JOURNALLED),
        ("12:15:08", 2, Subscriber.GET),
        ("12:15:26", 1, Subscriber.FETCHED),
        ("12:15:32", 2, Subscriber.FETCHED),
        ("12:15:44", 2, Subscriber.UNUSABLE),
        ("12:15:51", 1, Subscriber.IN_PROCESS),
        ("12:15:59", 2, Subscriber.JOURNALLED),
        ("12:16:01", 1, Subscriber.DONE),
        ("12:16:07", 1, Subscriber.JOURNALLED),
    ]
    parts = {}
    for text, who, state in said:
        member, at = members[who], clock(text)
        if state is Subscriber.GET:
            (taken,) = queue.take(member, 1, at)
            parts[who] = taken.part
        elif state in (Subscriber.FETCHED, Subscriber.IN_PROCESS):
            queue.advance(member, parts[who], 0, 1, Step.FETCH if state is Subscriber.FETCHED else Step.PROCESS, at)
        elif state is Subscriber.JOURNALLED:
            queue.journal(member.name, parts[who], 0, 1, at)
        else:
            queue.settle(member, parts[who], 0, 1, state, at)
        commit(store, at)
    put, moves = ended(store.history(queue, 1))
    assert put is not None
    found = timeline(put, moves, queue.names, (), explicit=True)
    assert found.publisher == [
        (Publisher.PUT, clock("12:14:03")),
        (Publisher.REVEALED, clock("12:14:12")),
        (Publisher.JOURNALLED, clock("12:16:07")),  # all subscribers are through
    ]
    for who in range(3):
        expected = [(name_of(state), clock(text)) for text, whom, state in said if whom == who]
        assert [(name_of(state), at) for state, at in found.subscribers[str(who)][1:]] == expected
    queue.reveal_again(block, 0, "2", clock("12:20:00"))  # only subscriber 2 needs it
    assert not queue.take(members[0], 1, clock("12:20:01"))
    assert len(queue.take(members[2], 1, clock("12:20:01"))) == 1
    store.close()


def commit(store: LogStore, now: int) -> None:
    batch = store.gather(now)
    assert batch is not None
    store.write(batch)
    store.applied(batch, now)


async def test_q14_priority_by_request_survives_a_restart(tmp_path: Path) -> None:
    async with Site(f"unix://{tmp_path}/socket", queues=queues(tmp_path, orders=Rules())) as site:
        shop, operator = await asking(site, "shop"), await asking(site)
        for payload in (b"1", b"2", b"3"):
            await shop.publish("$queue/orders", payload, qos=1)
        answer = await ask(shop, do="priority", name="orders", position=3, priority=9)  # its publisher
        assert (answer["message"]["priority"], answer["message"]["state"]) == (9, "REVEALED")
        assert (await ask(operator, do="priority", name="orders", position=1, priority=0))["message"]["priority"] == 0
        found = await ask(operator, do="trace", name="orders", position=3)
        assert (found["priority"], [one["priority"] for one in found["priorities"]]) == (9, [9])
        assert found["priorities"][0]["at"] >= found["states"][0]["at"]
        for wrong in ({}, {"priority": 10}, {"priority": -1}, {"priority": True}, {"priority": 1, "last": 3}):
            assert "priority" in (await ask(operator, do="priority", name="orders", position=3, **wrong))["error"]
    async with Site(f"unix://{tmp_path}/socket", queues=queues(tmp_path, orders=Rules())) as site:
        operator, a = await asking(site), await site.client("a")
        peeked = await ask(operator, do="peek", name="orders")
        assert [(one["position"], one["priority"]) for one in peeked["messages"]] == [(1, 0), (2, 4), (3, 9)]
        await a.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await a.messages(3)] == [b"3", b"2", b"1"]
        await a.nothing()
        found = await ask(operator, do="priority", name="orders", position=3, priority=1)
        assert found["error"] == "message 3 of queue 'orders' is at an end, or never was"


async def test_q5_expired_by_its_publisher_or_by_its_subscriber(tmp_path: Path) -> None:
    async with Site(f"unix://{tmp_path}/socket", queues=queues(tmp_path, orders=Rules(plan=plan_of("a | b, c"), requests=True))) as site:
        shop, operator = await asking(site, "shop"), await asking(site)
        a, c = await asking(site, "a"), await asking(site, "c")
        for payload in (b"1", b"2", b"3"):
            await shop.publish("$queue/orders", payload, qos=1)
        await a.subscribe("$queue/orders", qos=1)
        await a.messages(3)
        await a.nothing()  # its acknowledgements have come
        assert (await ask(a, do="expire", name="orders", position=1, last=2))["state"] == "expire"  # what it has
        assert (await ask(c, do="expire", name="orders", position=1))["state"] == "expire"  # what it alone is to get
        assert (await ask(shop, do="expire", name="orders", position=3))["message"]["subscribers"] == {
            "a": "FETCHED",
            "b": "EXPIRED",
            "c": "EXPIRED",
        }
        assert "nobody is still to get message 3" in (await ask(operator, do="expire", name="orders", position=3))["error"]
        trace = await ask(operator, do="trace", name="orders", position=1)
        assert [one["state"] for one in trace["states"]] == ["PUT", "REVEALED", "JOURNALLED"]
        assert {name: [one["state"] for one in states] for name, states in trace["subscribers"].items()} == {
            "a": ["GET", "FETCHED", "EXPIRED", "JOURNALLED (IMPLIED)"],
            "b": ["EXPIRED", "JOURNALLED (IMPLIED)"],
            "c": ["EXPIRED", "JOURNALLED (IMPLIED)"],
        }
        assert (await ask(c, do="expire", name="orders", position=2))["state"] == "expire"
        assert (await ask(a, do="done", name="orders", position=3))["state"] == "done"
        counts = site.broker.site.queues.store.queues["orders"].counts  # type: ignore[union-attr]
        assert (counts["expired"], counts["done"]) == (5, 1)
        assert not site.broker.site.queues.store.queues["orders"].blocks  # type: ignore[union-attr]


def test_the_journal_has_no_password_of_a_store() -> None:
    asked = {"do": "declare", "name": "a", "settings": {"store": "postgresql://u:secret@host/db", "messages": 5}, "most": 3}
    assert _audited(asked) == {"do": "declare", "name": "a", "settings": {"store": "postgresql://host/db", "messages": 5}}
    assert asked["settings"]["store"] == "postgresql://u:secret@host/db"
    assert _audited({"do": "delete", "name": "a"}) == {"do": "delete", "name": "a"}
