"""Events that wait for the journal's disk: what they hold, and the bound on it."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from mqmesh.broker.config import BrokerConfig, Limits
from mqmesh.broker.journal import tally
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.mark import Mark, Source
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.recorder import PART, Recorder
from mqmesh.broker.journal.settings import JournalSettings, TopicRule
from mqmesh.broker.journal.tally import Tally
from mqmesh.broker.journal.topics import OTHER, Topics
from mqmesh.broker.journal.writing.columns import Columns, Names
from mqmesh.broker.journal.writing.notes import Note
from mqmesh.broker.journal.writing.queue_states import Put, Queued
from mqmesh.broker.journal.writing.writer import TAKEN, TAKEN_BYTES, Writer
from mqmesh.broker.ledger import JOURNAL
from mqmesh.broker.server import Broker
from mqmesh.mesh.node.core import Passage
from mqmesh.mqtt.packets import Publish, Subscribe, Subscription, Unsubscribe
from mqmesh.mqtt.properties import Property
from support.broker_site import until
from support.models.broker_wire import Wire

MORE = 1.25  # times what is said: versions of Python differ
LONG = 60_000
BOUND = 32 * 2**20  # bytes that the broker may hold


def client(broker: Broker, name: str, *subscriptions: Subscription) -> Wire:
    return Wire(broker, 5).connect(name, *subscriptions)


def long_topics(broker: Broker, number: int) -> None:
    publisher(broker).send(Publish(f"{number}" + "t" * LONG, b"x"))


def long_properties(broker: Broker, number: int) -> None:
    pairs: Any = {Property.USER_PROPERTY: [(f"k{number}", "v" * LONG)]}
    publisher(broker).send(Publish("t", b"x", properties=pairs))


def short(broker: Broker, number: int) -> None:
    """With a subscriber: published, received, delivered."""
    publisher(broker).send(*(Publish(f"t/{at}", b"x", 1, packet_id=1) for at in range(20)))


def mixed(broker: Broker, number: int) -> None:
    publisher(broker).send(*(Publish(f"t/{number}/{at}" + "x" * 100, b"y" * (at % 3)) for at in range(500)))


def long_names(broker: Broker, number: int) -> None:
    """A client comes, and the one before it goes."""
    new = client(broker, f"{number}" + "i" * LONG)
    broker.subscriber.connection.connection_lost(None)  # type: ignore[attr-defined]
    broker.subscriber = new  # type: ignore[attr-defined]


def long_filters(broker: Broker, number: int) -> None:
    name = f"{number}" + "f" * LONG
    publisher(broker).send(Subscribe(1, [Subscription(name)]), Unsubscribe(2, [name]))


def values(broker: Broker, number: int) -> None:
    publisher(broker).send(Publish("orders", json.dumps({"id": number, "text": "x" * LONG}).encode()))


def requests(broker: Broker, number: int) -> None:
    recorder(broker).managed(publisher(broker).connection, "queues", do="declare", settings={"selector": f"{number}" + "s" * 10_000})


def queues(broker: Broker, number: int) -> None:
    puts = [Put(number + at, 1, 10**12 + number, 1000 + at, f"{number}.{at}" + "p" * 500, None, None, b"") for at in range(100)]
    moves = [(number + at, 1, 0, 1, 15, 10**12 + number) for at in range(300, 400)]
    recorder(broker).queued(Queued("orders", 1, (), puts, moves, {1: "a"}, 1))


def forwarded(broker: Broker, number: int) -> None:
    names = [b"\x00\x01" + f"t/{number}/{at}".encode() for at in range(100)]
    recorder(broker).forwarded(Passage(1, 10**12 + number, False, 10**6 + number, 100, 10**12 + number, b"", [1] * 100, names), 2)


def publisher(broker: Broker) -> Wire:
    return broker.publisher  # type: ignore[attr-defined, no-any-return]


def recorder(broker: Broker) -> Recorder:
    found = broker.context.journal
    assert found is not None
    return found


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


WAYS = [long_topics, long_properties, short, mixed, long_names, long_filters, values, requests, queues, forwarded]


@pytest.mark.parametrize("way", WAYS)
def test_what_waits_is_bounded_by_bytes_and_known(way: Callable[[Broker, int], None], tmp_path: Path) -> None:
    async def story() -> None:
        limits = replace(Limits(), sys_interval=0, broker_bytes=BOUND, max_packet_size=2**20)
        rules = (TopicRule("orders", "full", 1.0, (("order", ("id",)),)), TopicRule("#", "full"))
        broker: Any = Broker(BrokerConfig(listen=[], limits=limits, journal=JournalSettings(str(tmp_path), topics=rules)))
        await broker.start()
        try:
            broker.publisher, broker.subscriber = client(broker, "p"), client(broker, "s", Subscription("t/#", 0))
            tracemalloc.start()
            noted, number = recorder(broker), 0
            while not noted.lost and not noted.unselected and number < 3_000:
                way(broker, number)
                number += 1
                for one in (broker.publisher, broker.subscriber):
                    await until(lambda one=one: not one.connection.unread)
                    one.transport.written.clear()
            assert noted.lost or noted.unselected, f"{noted.size:,} bytes"
            assert noted.size <= BOUND // PART
            broker.site.backpressure.check(broker.site.connections)
            assert broker.context.ledger.held[JOURNAL] == noted.size
            before, said = traced(), noted.size
            noted.noted.clear()
            held = before - traced()
            assert held <= MORE * said, f"{held:,} bytes, and {said:,} are counted"
            assert said <= 2.5 * held, f"{held:,} bytes, and {said:,} are counted"
            noted.events_taken, noted.size_taken = noted._added, noted._added_bytes
            noted.weights.clear()
        finally:
            tracemalloc.stop()
            for one in (broker.publisher, broker.subscriber):
                one.connection.connection_lost(None)
            await broker.stop()

    with mock.patch.object(Writer, "_step"):
        asyncio.run(story())


def test_a_table_is_made_of_few_large_events() -> None:
    noted = Recorder(Still(), Topics(JournalSettings("")), 1, 200_000, 2**30)
    writer = Writer(JournalSettings(""), noted, Columns(1, noted.topics, str), Place("memory://few"), Path())
    for number in range(200):
        noted.event(Kind.SUBSCRIBED, topic=f"{number}" + "t" * LONG)
    items = writer._items()
    assert TAKEN_BYTES - 2 * LONG < LONG * len(items) < TAKEN_BYTES + 2 * LONG
    while writer._items():
        pass
    assert (noted.size, len(noted.weights)) == (0, 0)
    source = Source([b"a", b"b"] * 500, 1, 0)
    for _ in range(100):
        noted._note(Note(Kind.DELIVERED, 0.0, Mark(source, range(1000))))
    assert len(writer._items()) == TAKEN // 1000


class Still:
    now = 0.0

    def wall(self) -> float:
        return 0.0


def test_counts_of_a_minute_and_their_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "KEYS", 100)
    counted = Tally()
    for number in range(1000):
        counted.add(Kind.DELIVERED, f"{number}", "user", "recipient", 1)
        counted.add(Kind.DELIVERED, "a", "user", f"{number}" + "r" * LONG, 1)
    found: dict[tuple[int, str, str, str], int] = {}
    counted.take(found.update)
    assert sum(found.values()) == 2000
    assert len(found) <= 102
    assert max(len(name) for key in found for name in key[1:]) < LONG
    assert found[Kind.DELIVERED, OTHER, "user", OTHER] == 901
    assert found[Kind.DELIVERED, "a", "user", OTHER] == 1000


def test_names_that_are_remembered_are_bounded_by_bytes() -> None:
    names = Names(100_000)
    for number in range(10_000):
        names.id("topic", f"{number}" + "t" * 400)
        assert names.size <= 100_000
    assert len(names.fresh) == 10_000
    assert 0 < len(names._known["topic"]) < 200
