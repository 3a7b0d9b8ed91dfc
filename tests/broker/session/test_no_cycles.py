"""What comes and goes with clients is freed at once: cycles stay where the broker sets old objects apart (`base/process/collector.py`)."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.client.connection import Connection
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.broker.mesh.link import LinkProtocol
from mqmesh.broker.mesh.receipts import Tracker
from mqmesh.broker.queues.core.blocks import Part
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.offers import Tap
from mqmesh.broker.queues.seats import Place
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.routing.route import Target
from mqmesh.broker.session.session import Session
from mqmesh.mqtt.packets import Disconnect, Publish, Subscription
from mqmesh.mqtt.session import Outbound
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until
from support.models.broker_wire import Wire, run, started

KEY = "a key of sixteen bytes"
KINDS: tuple[Any, ...] = (Session, Target, Outbound, Connection, Tracker, Part, Place, Tap)


def alive() -> Counter[str]:
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS))


def test_a_session_that_has_ended_holds_no_cycle() -> None:
    async def story() -> None:
        broker = await started()
        gc.collect()
        before = alive()
        gc.disable()
        try:
            for number in range(10):
                wire = Wire(broker, 5).connect(f"c{number}", Subscription(f"t/{number}", 2), Subscription("t/+", 1, no_local=True))
                wire.send(Publish(f"t/{number}", b"x", 1, packet_id=1), Publish("t/x", b"x", 1, retain=True, packet_id=2))
                wire.send(Disconnect())
                wire.connection.connection_lost(None)
            del wire
            broker.site.rounds._latest = None  # the broker remembers who wrote last
            assert not list(broker.site.sessions)
            assert alive() == before
        finally:
            gc.enable()

    run(story())


@pytest.mark.parametrize("journal", [False, True])
async def test_neither_do_sessions_of_the_store_nor_messages_of_queues(tmp_path: Path, journal: bool) -> None:
    """Publishers whose acknowledgements wait for a queue, members of it that keep their sessions, and what they work."""
    queues = QueueSettings({"orders": Rules(topics=("orders/#",))}, {"orders": []}, folder=tmp_path / "queues")
    written = JournalSettings(tmp_path / "journal") if journal else None
    async with Site(store=MemoryStore(), queues=queues, journal=written) as site:
        gc.collect()
        before = alive()
        gc.disable()
        try:
            for number in range(4):
                member = await site.client(f"m{number}", clean=False, expiry=1000)
                await member.subscribe("$queue/orders", qos=1)
                await member.subscribe("t", qos=1)
                for topic in ("orders/1", "t"):
                    publisher = await site.client(f"p{number}")
                    assert await publisher.publish(topic, b"x" * 100, 1) == 0
                    await publisher.leave()
                    assert [message.topic for message in await member.messages(1)] == [topic]
                await member.cut()
                await site.gone(f"m{number}")
                site.broker.site.sessions.end(site.broker.site.sessions.get(f"m{number}"))  # type: ignore[arg-type]
            del member, publisher
            site.broker.site.rounds._latest = None
            if site.broker.context.journal is not None:
                site.broker.context.journal.tally.take(lambda counts: None)  # a minute is over: until then it knows routes
            await until(lambda: alive() == before)
        finally:
            gc.enable()


async def test_neither_does_a_link_that_has_ended() -> None:
    async with Site(mesh=(1, MeshSettings("m", KEY))) as one:
        peer = PeerSettings(one.broker.addresses[0])
        async with Site(mesh=(2, MeshSettings("m", KEY, peers=[peer], retry_first=0.01, retry_last=0.01))) as two:

            def up() -> bool:
                return all([link.up for link in site.broker.site.mesh.links.values()] == [True] for site in (one, two))

            def links() -> int:
                """Those of these two, however many of other tests there are."""
                shells = (one.broker.site.mesh, two.broker.site.mesh)
                return len([each for each in gc.get_objects() if isinstance(each, LinkProtocol) and each.shell in shells])

            await until(up)
            gc.collect()
            await until(lambda: links() == 2)
            gc.disable()
            try:
                for _ in range(4):
                    known = set(two.broker.site.mesh.links)
                    next(iter(two.broker.site.mesh.links.values())).transport.abort()
                    await until(lambda: up() and known.isdisjoint(two.broker.site.mesh.links))  # noqa: B023
                await until(lambda: links() == 2)
            finally:
                gc.enable()
