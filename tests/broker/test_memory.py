"""What a broker holds and what its ledger says of it, thing by thing; `tests/fuzz/fuzz_memory.py` mixes them."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings
from mqmesh.broker.journal.kinds import name_id
from mqmesh.broker.journal.settings import TOPIC, JournalSettings
from mqmesh.broker.journal.topics import OTHER, Topics
from mqmesh.broker.journal.writing.columns import Names
from mqmesh.broker.server import Broker
from mqmesh.mqtt.packets import Connect, Publish, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.broker_site import until
from support.models.broker_wire import Wire, run, started

COUNT = 2000
MORE = 1.25  # times what the ledger says: versions of Python differ
KEPT = 100  # seconds for which a session stays
FEW = 50
LONG = "x" * 60_000 + "\N{GRINNING FACE}"  # a text that takes four bytes a character


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def queued(broker: Broker, publisher: Wire) -> None:
    Wire(broker, 5).connect("away", Subscription("t", 1), session_expiry_interval=KEPT).connection.connection_lost(None)
    for number in range(COUNT):
        publisher.send(Publish("t", b"x", 1, packet_id=number + 1))
        publisher.take()


def in_flight(broker: Broker, publisher: Wire) -> None:
    subscriber = Wire(broker, 5).connect("s", Subscription("t", 1))
    for number in range(COUNT):
        publisher.send(Publish("t", b"x", 1, packet_id=number + 1))
        publisher.take()
        subscriber.take()


def in_many_forms(broker: Broker, publisher: Wire) -> None:
    Wire(broker, 5).connect("away", Subscription("t", 1), session_expiry_interval=KEPT).connection.connection_lost(None)
    others = [Wire(broker, 5).connect(f"s{number}", Subscription("t", 0), identifier=number + 1) for number in range(30)]
    for number in range(COUNT // 10):
        publisher.send(Publish("t", number.to_bytes(2, "big") * 5_000, 1, packet_id=number + 1))
        for one in (publisher, *others):
            one.take()


def received(broker: Broker, publisher: Wire) -> None:
    for number in range(4 * COUNT):
        publisher.send(Publish("t", b"", 2, packet_id=number + 1))
        publisher.take()


def shared(broker: Broker, publisher: Wire) -> None:
    for part in range(COUNT // 100):
        publisher.send(Subscribe(1, [Subscription(f"$share/g{number}/a/{part}", 1) for number in range(100)]))
        publisher.take()


def retained(broker: Broker, publisher: Wire) -> None:
    for number in range(COUNT):
        publisher.send(Publish(f"{number}" + "/a" * 150, b"x", 0, True))


def topics(broker: Broker, publisher: Wire) -> None:
    for number in range(COUNT):
        publisher.send(Publish(f"t/{number}", b"x"))


def sessions(broker: Broker, publisher: Wire) -> None:
    """Each had a message once."""
    for number in range(COUNT):
        subscriber = Wire(broker, 5).connect(f"s{number}", Subscription("t", 1), session_expiry_interval=KEPT)
        subscriber.connection.session.outbound._grow(1)  # type: ignore[union-attr]
        subscriber.connection.connection_lost(None)


def long_filters(broker: Broker, publisher: Wire) -> None:
    for number in range(FEW):
        publisher.send(Subscribe(1, [Subscription(f"{number}{LONG}"), Subscription(f"$share/{number}{LONG}/a")]))
        publisher.take()


def long_names(broker: Broker, publisher: Wire) -> None:
    for number in range(FEW):
        subscriber = Wire(broker, 5)
        properties: Any = {Property.SESSION_EXPIRY_INTERVAL: KEPT}
        subscriber.send(Connect(f"{number}{LONG}", 5, user_name=f"{number}{LONG}", properties=properties))
        subscriber.connection.connection_lost(None)


def long_topics(broker: Broker, publisher: Wire) -> None:
    """They wait, with a property as long."""
    Wire(broker, 5).connect("away", Subscription("#", 1), session_expiry_interval=KEPT).connection.connection_lost(None)
    for number in range(FEW):
        properties: Any = {Property.RESPONSE_TOPIC: f"{number}{LONG}"}
        publisher.send(Publish(f"{number}{LONG}", b"x", 1, packet_id=number + 1, properties=properties))
        publisher.take()


WAYS = [queued, in_flight, in_many_forms, received, shared, retained, topics, sessions, long_filters, long_names, long_topics]


@pytest.mark.parametrize("way", WAYS)
def test_the_ledger_has_what_is_there(way: Callable[[Broker, Wire], None]) -> None:
    async def story() -> None:
        broker = await started()
        publisher, ledger = Wire(broker, 5).connect("publisher"), broker.context.ledger
        way(broker, publisher)  # what is made once, as a table of identifiers, is there
        tracemalloc.start()
        try:
            memory, said = traced(), ledger.total
            other = await started()
            way(other, Wire(other, 5).connect("publisher"))
            other.site.backpressure.check(other.site.connections)
            memory, said = traced() - memory, other.context.ledger.total
            assert memory <= MORE * said + 200_000, f"{memory / COUNT:.0f} bytes each, {said / COUNT:.0f} in the ledger"
        finally:
            tracemalloc.stop()

    run(story())


def test_the_journal_remembers_no_long_topics() -> None:
    """The counters call them all one name. What has an id of its own is written down once."""
    topics, names = Topics(JournalSettings("journal", dimension=TOPIC)), Names()
    tracemalloc.start()
    try:
        memory = traced()
        for number in range(500):
            name = f"{number}" + "t" * 60_000
            assert topics.rule(name.encode()).mode == "full"
            assert topics.prefix(name) == OTHER
            assert names.id("topic", name) == names.id("topic", name) == name_id(name)
            assert [one for _, _, one in names.fresh] == [name]
            names.fresh.clear()
        assert traced() - memory < 10 * 60_000
    finally:
        tracemalloc.stop()


def test_nothing_else_remembers_long_topics() -> None:
    """Of 500 topics of 60 kB each nothing is left in the mesh and the connection once the routes are forgotten."""

    async def story() -> None:
        mesh = MeshSettings("m", "a key of sixteen bytes", start_wait=0.0)
        broker = Broker(BrokerConfig("a", 1, [], mesh=mesh, limits=Limits(sys_interval=0)))
        await broker.start()
        publisher = Wire(broker, 5).connect("publisher")
        publisher.send(Publish("t/first", b"x", 1, packet_id=1))
        tracemalloc.start()
        try:
            memory = traced()
            for number in range(500):
                publisher.send(Publish(f"{number}" + "t" * 60_000, b"x"))
                await until(lambda: not publisher.connection.unread)
            publisher.take()
            broker.site.router._clear()
            assert traced() - memory < 10 * 60_000
        finally:
            tracemalloc.stop()
            publisher.connection.connection_lost(None)
            await broker.stop()

    asyncio.run(story())
