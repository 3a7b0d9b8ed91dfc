"""Messages to topics that are held until they are due, in a queue with `publish` (docs/queues.md, "Delayed messages to topics")."""

from __future__ import annotations

import itertools
import time
from itertools import pairwise
from pathlib import Path

import pytest
from mqmesh.base.settings import ConfigError, Section
from mqmesh.broker.ports import Context
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.steps import one_step_a_round

from .test_workflow import states

DELAYS = ("mqmesh-delays", "1")


def settings(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(rules or {"later": Rules(publish=True)}, folder=folder / "queues", durability="os")


async def send(client: Client, payload: bytes, delay: str, handle: str = "", topic: str = "orders", qos: int = 1) -> int:
    user = [("mqmesh-handle", handle or payload.decode()), ("mqmesh-delay", delay), ("colour", "red")]
    return await client.publish(topic, payload, qos=qos, properties={Property.USER_PROPERTY: user})


def move_on(site: Site, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """What is due in that time is due now."""
    monkeypatch.setattr(Context, "steady", lambda self: time.time() + seconds)
    assert site.broker.site.queues is not None
    site.broker.site.queues.stir("later")
    site.broker.site.queues.tick()
    site.broker.context.flush()


async def test_a_message_is_published_at_its_topic_when_its_delay_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        assert DELAYS in shop.connack.properties[Property.USER_PROPERTY]
        await clerk.subscribe("orders", qos=1)
        assert await send(shop, b"later", "300ms") == 0
        assert await send(shop, b"much later", "1h", qos=2) == 0
        await shop.publish("orders", b"now", qos=1)
        now, later = await clerk.messages(2)
        assert (now.payload, later.payload, later.topic) == (b"now", b"later", "orders")
        assert later.properties == {Property.USER_PROPERTY: [("colour", "red")]}, "the words of the queue are not the subscribers'"
        await clerk.nothing()
        await until(lambda: states(site, "later", 1)[1]["$publish"][-2:-1] == ["DONE"])
        move_on(site, monkeypatch, 3600)
        assert [one.payload for one in await clerk.messages(1)] == [b"much later"]


async def test_it_is_held_over_a_restart_and_a_repeat_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    async with Site(queues=settings(tmp_path), store=store) as site:
        clerk = await site.client("clerk", clean=False, expiry=1000)
        await clerk.subscribe("orders", qos=1)
        shop = await site.client("shop")
        for _ in range(2):
            assert await send(shop, b"later", "1h", "17") == 0
    async with Site(queues=settings(tmp_path), store=store) as site:
        clerk = await site.client("clerk", clean=False, expiry=1000)
        shop = await site.client("shop")
        assert await send(shop, b"later", "1h", "17") == 0
        await clerk.nothing()
        move_on(site, monkeypatch, 3600)
        assert [one.payload for one in await clerk.messages(1)] == [b"later"]
        await clerk.nothing()
        await until(lambda: states(site, "later", 1)[1]["$publish"][-2:-1] == ["DONE"])


async def test_what_was_not_confirmed_is_published_again(tmp_path: Path) -> None:
    """At least once: the subscriber knows a repeat by what it has of the publisher."""
    async with Site(queues=settings(tmp_path)) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        await clerk.subscribe("orders", qos=1)
        queues = site.broker.site.queues
        assert queues is not None
        real, refused = queues.publish, []
        queues.publish = lambda run: bool(refused.append(run))
        await send(shop, b"later", "1ms")
        await until(lambda: len(refused) == 1)
        await clerk.nothing()
        queues.publish = real
        queues.tick()
        site.broker.context.flush()
        assert [one.payload for one in await clerk.messages(1)] == [b"later"]


async def test_what_is_due_at_one_moment_is_published_in_turns_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop = await site.client("shop")
        due = [b"%d" % number for number in range(300)]
        for payload in due:
            assert await send(shop, payload, "1h") == 0
        queues, turns = site.broker.site.queues, site.broker.context.turns
        assert queues is not None
        told: list[bytes] = []
        at: list[int] = []
        real, rounds, room = turns._round, itertools.count(), [100, 300]  # after the first 100 there is no room for a while

        def publish(run: Run) -> bool:
            at.append(next(rounds))
            if len(told) == room[0]:
                return False
            told.append(bytes(run.payloads[0]))
            return True

        def one_round() -> None:
            next(rounds)
            real()

        monkeypatch.setattr(queues, "publish", publish)
        monkeypatch.setattr(turns, "_round", one_round)
        one_step_a_round(turns, monkeypatch)
        move_on(site, monkeypatch, 3600)
        assert told == [], "nothing in the slice in which all of it is due"
        await until(lambda: len(at) == 101)
        await until(lambda: not turns._waiting and not queues.store.dirty and not queues.store.busy)
        assert told == due[:100], "what has no room waits, with what is after it"
        del room[0]
        queues.tick()
        site.broker.context.flush()
        await until(lambda: len(told) == 300)
        assert told == due
        assert all(after - before >= 2 for before, after in pairwise(at)), "one in each round"


async def test_a_queue_that_goes_takes_what_waits_for_its_turn_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        await clerk.subscribe("orders", qos=1)
        for payload in (b"1", b"2"):
            assert await send(shop, payload, "1h") == 0
        queues = site.broker.site.queues
        assert queues is not None
        rules = queues.settings.rules["later"]
        move_on(site, monkeypatch, 3600)  # both wait for their turns
        queues.end("later")
        queues.begin("later", rules, [])
        site.broker.context.flush()
        assert [one.payload for one in await clerk.messages(2)] == [b"1", b"2"]
        await until(lambda: queues.store.queues["later"].counts["done"] == 2)
        await clerk.nothing()


async def test_what_is_not_delayed_is_published_at_once(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        await clerk.subscribe("#", qos=1)
        for user in ([("mqmesh-delay", "1h")], [("mqmesh-handle", "1")]):
            await shop.publish("orders", b"no delay", qos=1, properties={Property.USER_PROPERTY: user})
        retained = [("mqmesh-delay", "1h"), ("mqmesh-handle", "2")]
        await shop.publish("orders", b"retained", qos=1, retain=True, properties={Property.USER_PROPERTY: retained})
        assert [one.payload for one in await clerk.messages(3)] == [b"no delay", b"no delay", b"retained"]
        shop.send(
            Publish("orders", b"x", 1, packet_id=5, properties={Property.USER_PROPERTY: [("mqmesh-handle", "3"), ("mqmesh-delay", "x")]})
        )
        answer = await shop.expect(Puback, packet_id=5, reason=0x83)
        assert "mqmesh-delay" in answer.properties[Property.REASON_STRING]


async def test_what_was_put_without_a_topic_is_unusable(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop = await site.client("shop")
        await shop.publish("$queue/later", b"where to?", qos=1)
        await until(lambda: states(site, "later", 1)[1]["$publish"][-2:-1] == ["UNUSABLE"])


async def test_a_broker_without_such_a_queue_does_not_say_that_it_holds_messages(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path, orders=Rules())) as site:
        shop, clerk = await site.client("shop"), await site.client("clerk")
        assert DELAYS not in shop.connack.properties[Property.USER_PROPERTY]
        await clerk.subscribe("orders", qos=1)
        assert await send(shop, b"at once", "1h") == 0
        assert [one.payload for one in await clerk.messages(1)] == [b"at once"]


def test_what_such_a_queue_cannot_be_too(tmp_path: Path) -> None:
    table = {"later": {"publish": True, "topics": ["a"]}}
    with pytest.raises(ConfigError, match="holds delayed messages"):
        QueueSettings.of(Section("broker.toml", table, "queues"), tmp_path, "os")
    table = {"later": {"publish": True}}
    assert QueueSettings.of(Section("broker.toml", table, "queues"), tmp_path, "os").rules["later"].publish
