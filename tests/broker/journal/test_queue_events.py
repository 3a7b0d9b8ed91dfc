"""What the journal says of messages in queues: each state, with its time, as ranges; and the whole life of one message by its id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.journal.ends import stories
from mqmesh.broker.journal.kinds import QUEUE_STATES, Kind, MessageId, QueueState, Stream
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.search import Query
from mqmesh.broker.journal.settings import JournalSettings, TopicRule
from mqmesh.broker.journal.topics import Topics
from mqmesh.broker.journal.writing.columns import Columns
from mqmesh.broker.journal.writing.queue_states import Put, Queued
from mqmesh.broker.queues.core.plan import plan_of
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Publisher, Subscriber, name_of
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.pipeline.trace.drawing import text
from mqmesh.pipeline.trace.sources import gather
from support.broker_site import Site

from .test_events import rows


def site(folder: Path, *topics: TopicRule, **rules: Rules) -> Site:
    journal = JournalSettings(str(folder / "journal"), topics=topics or (TopicRule("#", "full"),))
    queues = QueueSettings(dict(rules), folder=folder / "queues", durability="os")
    return Site(mesh=None, journal=journal, queues=queues)


def told(folder: Path) -> list[tuple[str, int, str, str]]:
    """(queue, position, state, client) in order."""
    found = rows(folder / "journal", Kind.QUEUE_STATE)
    assert all(row["reason"] == QUEUE_STATES[row["value"]] for row in found)
    return [(row["topic"].removeprefix("$queue/"), row["sequence"], row["reason"], row["client"]) for row in found]


def test_the_journal_has_the_states_of_queues() -> None:
    names = {int(one): name_of(one) for one in (*Publisher, *Subscriber) if one is not Subscriber.JOURNALLED_IMPLIED}
    assert {int(state): text.removesuffix(" BY PUBLISHER") for state, text in QUEUE_STATES.items()} == names


async def test_a_message_is_put_got_returned_and_done(tmp_path: Path) -> None:
    async with site(tmp_path, orders=Rules()) as broker:
        shop, a, b = [await broker.client(name) for name in ("shop", "a", "b")]
        await a.subscribe("$queue/orders", qos=1)
        await shop.publish("$queue/orders", b"1", qos=1)
        (one,) = await a.messages(1, acknowledge=False)
        await b.subscribe("$queue/orders", qos=1)
        a.send(Puback(one.packet_id, 0x80))
        await a.unsubscribe("$queue/orders")
        (one,) = await b.messages(1)
        await b.nothing()
    found = told(tmp_path)
    assert found[:3] == [("orders", 1, "PUT", "shop"), ("orders", 1, "GET", "a"), ("orders", 1, "CLEAN", "a")]
    assert found[-2:] == [("orders", 1, "GET", "b"), ("orders", 1, "DONE", "b")]
    seen = rows(tmp_path / "journal", Kind.QUEUE_STATE)
    put = seen[0]["published"]
    assert {(row["origin_epoch"], row["stream"], row["published"]) for row in seen} == {(1, Stream.QUEUE, put)}
    assert [row["time"] for row in seen] == sorted(row["time"] for row in seen)
    assert put <= seen[0]["time"] <= put + 1000
    assert stories(Journal(str(tmp_path / "journal")).tables()) == {}, "a message in a queue is no message of the mesh"


async def test_states_of_many_messages_are_one_event(tmp_path: Path) -> None:
    async with site(tmp_path, orders=Rules(prefetch=1000)) as broker:
        shop, a = await broker.client("shop"), await broker.client("a")
        shop.send(*[Publish("$queue/orders", b"%03d" % number, 1, packet_id=number) for number in range(1, 501)])
        for number in range(1, 501):
            await shop.expect(Puback, packet_id=number)
        await a.subscribe("$queue/orders", qos=1)
        taken = await a.messages(500, acknowledge=False)
        a.send(*[Puback(one.packet_id) for one in taken])
        await a.nothing()
    assert sorted(told(tmp_path)) == sorted(
        ("orders", at, state, who) for at in range(1, 501) for state, who in (("PUT", "shop"), ("GET", "a"), ("DONE", "a"))
    )
    events = sum(table.num_rows for table in Journal(str(tmp_path / "journal")).tables())
    assert events < 100, "states of neighbours are one range"
    (done,) = [row for row in rows(tmp_path / "journal", Kind.QUEUE_STATE) if (row["sequence"], row["value"]) == (500, QueueState.DONE)]
    assert done["published"] > 0, "it says when it was put, though it is at an end"


async def test_dead_letters_say_what_they_were(tmp_path: Path) -> None:
    async with site(tmp_path, orders=Rules(deliveries=1, dead_letters="dead"), dead=Rules()) as broker:
        shop, a = await broker.client("shop"), await broker.client("a")
        await a.subscribe("$queue/orders", qos=1)
        for payload in (b"1", b"2"):
            await shop.publish("$queue/orders", payload, qos=1)
        first, second = await a.messages(2, acknowledge=False)
        a.send(Puback(first.packet_id), Puback(second.packet_id, 0x80))
        dead = broker.broker.site.queues.store.queues["dead"]  # type: ignore[union-attr]
        await broker.until(lambda: dead.waiting == 1)
    assert ("orders", 2, "UNUSABLE", "a") in told(tmp_path)
    (put,) = [row for row in rows(tmp_path / "journal") if (row["topic"], row["value"]) == ("$queue/dead", QueueState.PUT)]
    (life,) = gather([Journal(Place(str(tmp_path / "journal")))], Query(message=MessageId.parse(put["parent"]))).stories()
    assert (life.topic, life.status, [step.name for step in life.steps]) == ("$queue/orders", "complete", ["put", "get", "unusable"])


async def test_the_life_of_a_message_by_its_id(tmp_path: Path) -> None:
    async with site(tmp_path, orders=Rules(plan=plan_of("a, b"), reveal=False)) as broker:
        shop, a = await broker.client("shop"), await broker.client("a")
        await shop.subscribe("$mqmesh/queues/answer")
        await a.subscribe("$queue/orders", qos=1)
        hidden = {Property.USER_PROPERTY: [("mqmesh-reveal", "no")]}
        await shop.publish("$queue/orders", b"first", qos=1)
        await shop.publish("$queue/orders", b"second", qos=1, properties=hidden)
        shop.send(Publish("$mqmesh/queues", b'{"do": "reveal", "name": "orders", "position": 2}', 0))
        await shop.expect(Publish)
        await a.messages(1)
        await a.nothing()
    journal = Journal(Place(str(tmp_path / "journal")))
    (life,) = gather([journal], Query(message=MessageId(0, 1, Stream.QUEUE, 2))).stories()
    assert [(step.name, step.client) for step in life.steps] == [("put", "shop"), ("revealed", None), ("get", "a"), ("done", "a")]
    assert (life.topic, life.publisher, life.size) == ("$queue/orders", "shop", 6)
    assert (life.status, life.why) == ("no end", "1 of 2 groups of subscribers are through")
    assert "done  client a" in text(life).replace("  done      ", "  done  ")
    first, second = gather([journal], Query(topic="$queue/orders")).stories()
    assert {first.message, second.message} == {"0.1.3.1", "0.1.3.2"}


async def test_rules_of_queues(tmp_path: Path) -> None:
    rules = (TopicRule("$queue/secret", "counted"), TopicRule("#", "full"))
    async with site(tmp_path, *rules, orders=Rules(), secret=Rules()) as broker:
        shop = await broker.client("shop")
        for name in ("orders", "secret"):
            await shop.publish(f"$queue/{name}", b"1", qos=1)
    assert told(tmp_path) == [("orders", 1, "PUT", "shop")]


async def test_what_was_put_before_the_journal_has_its_time(tmp_path: Path) -> None:
    for journalled in (False, True):
        broker = site(tmp_path, orders=Rules())
        if not journalled:
            broker.broker.config.journal = None
        async with broker:
            if not journalled:
                shop = await broker.client("shop")
                await shop.publish("$queue/orders", b"1", qos=1)
                continue
            queue = broker.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
            put = queue.blocks[1].at
            a = await broker.client("a")
            await a.subscribe("$queue/orders", qos=1)
            await a.messages(1)
            await a.nothing()
    assert {row["published"] for row in rows(tmp_path / "journal", Kind.QUEUE_STATE)} == {put * 1000}


@pytest.fixture
def columns() -> Columns:
    topics = Topics(JournalSettings("", topics=(TopicRule("$queue/s", "sampled", 0.5),)))
    return Columns(7, topics, lambda user: user)


def test_sampled_queues_have_all_states_of_the_same_messages(columns: Columns) -> None:
    puts = [Put(1, 6400, 1_700_000_000_000, 64_000, "shop")]
    moves = [(1, 6400, 0, 1, 11, 1_700_000_000_001), (1, 6400, 0, 1, 15, 1_700_000_000_002)]
    table = columns.batch([Queued("s", 3, (), puts, moves, {1: "a"}, 6401)], 0.0)
    chosen: dict[int, set[tuple[int, int]]] = {}
    for row in table.to_pylist():
        chosen.setdefault(row["value"], set()).add((row["sequence"], row["count"]))
        assert row["bytes"] == (10 * row["count"] if row["value"] == 1 else 0)
    assert chosen[1] == chosen[11] == chosen[15]
    assert 1000 < sum(count for _, count in chosen[1]) < 5400


@pytest.mark.slow
def test_times_of_puts_are_forgotten_with_their_messages(columns: Columns) -> None:
    for number in range(5000):
        put = Put(2 * number + 1, 2, 1000 + number, 2, "shop")
        moves = [(2 * number + 1, 2, 0, 1, 15, 9000 + number)] if number % 2 else []
        table = columns.batch([Queued("orders", 3, (), [put], moves, {1: "a"}, 2 * number + 1)], 0.0)
        assert {row["published"] for row in table.to_pylist()} == {1_000_000 + 1000 * number}
    (times,) = columns._queues._times.values()
    assert len(times._firsts) < 1100


def test_ranges_that_wait_are_bounded(tmp_path: Path) -> None:
    recorder = _recorder(1000)
    many = Queued("orders", 1, (), (), [(at, 1, 0, 1, 15, 0) for at in range(1, 400)], {1: "a"}, 1)
    for _ in range(5):
        recorder().queued(many)
    assert (len(recorder().noted), recorder().lost) == (2, 3 * 399)


def test_ranges_that_found_no_room_leave_room_for_later_ones(tmp_path: Path) -> None:
    recorder = _recorder(1000)()
    many = Queued("orders", 1, (), (), [(at, 1, 0, 1, 15, 0) for at in range(1, 400)], {1: "a"}, 1)
    for _ in range(1000):
        recorder.event(Kind.SUBSCRIBED)
    for _ in range(5):
        recorder.queued(many)
    assert (len(recorder.noted), recorder.lost) == (1000, 5 * 399)
    recorder.noted.clear()
    recorder.queued(many)
    recorder.queued(many)
    assert len(recorder.noted) == 2


def _recorder(most: int) -> Callable[[], Any]:
    from mqmesh.broker.journal.recorder import Recorder

    class Still:
        now = 0.0

        def wall(self) -> float:
            return 0.0

    made = Recorder(Still(), Topics(JournalSettings("")), 1, most, 2**27)
    return lambda: made
