"""A single message that its origin holds back: acknowledged by receipts without a commit, or committed as any other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.mesh import hold_back, identity
from mqmesh.broker.mesh.custody_store import RECIPIENT
from mqmesh.broker.mesh.hold_back import HOLD, LONGEST_PAUSE, PAUSE, HoldBack
from mqmesh.mesh.wire.identity import CAPABILITIES, RECEIPTS
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.store import Batch
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.services import PATIENCE
from support.storage.failing_store import FailingStore

KEY = "a key of sixteen bytes"
FOREVER = 0xFFFFFFFF


def mesh(*peers: Site, clients: str = "site") -> MeshSettings:
    return MeshSettings("m", KEY, peers=[PeerSettings(site.broker.addresses[0]) for site in peers], clients=clients)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is held back for longer than any test lasts."""
    monkeypatch.setattr(hold_back, "HOLD", 100 * PATIENCE)


class Recording(MemoryStore):
    """written: runs that were ever committed."""

    written = 0

    def commit(self, batch: Batch) -> None:
        self.written += len(batch.runs)
        super().commit(batch)


class Chain(NamedTuple):
    """Three brokers in a row, their stores, a publisher at the first. The topic "t" was published and confirmed once."""

    sites: list[Site]
    stores: list[FailingStore]
    publisher: Client
    subscriber: Client

    @property
    def kept(self) -> int:
        """Messages for other brokers in the first one's store."""
        return self.stores[0].count(RECIPIENT)

    @property
    def written(self) -> int:
        """Messages that it ever had."""
        return self.stores[0].store.written

    @property
    def held(self) -> int:
        """The same in its memory."""
        return self.sites[0].broker.site.mesh.node.custody()[0]

    def publish(self, payload: bytes, qos: int = 1) -> int:
        number = self.publisher.next_id()
        self.publisher.send(Publish("t", payload, qos, packet_id=number))
        return number


@asynccontextmanager
async def chain(subscriber: dict | None = None, clients: str = "site") -> AsyncIterator[Chain]:
    """subscriber: of the client at the third broker; as it comes its session is clean."""
    stores = [FailingStore(Recording()) for _ in range(3)]
    async with (
        Site(mesh=(1, mesh(clients=clients)), store=stores[0]) as one,
        Site(mesh=(2, mesh(one, clients=clients)), store=stores[1]) as two,
        Site(mesh=(3, mesh(two, clients=clients)), store=stores[2]) as three,
    ):
        listener = await three.client("listener", **(subscriber or {}))
        await listener.subscribe("t", qos=1)
        made = Chain([one, two, three], stores, await one.client("publisher"), listener)
        try:
            await until(lambda: one.broker.site.mesh.node.route(b"t") is not None)
            await made.publisher.publish("t", b"first", 1)
            await listener.messages(1)
            await until(lambda: not made.held and not made.kept and one.broker.site.persistence.mark() == 0)
            yield made
        finally:
            for store in stores:
                store.recover()


@pytest.mark.usefixtures("patient")
async def test_receipts_come_first_and_nothing_is_written():
    async with chain() as made:
        before = made.written
        for payload in (b"a", b"b", b"c"):
            number = made.publish(payload)
            [message] = await made.subscriber.messages(1)
            assert message.payload == payload
            await made.publisher.expect(Puback, packet_id=number, reason=0)
            assert not made.held
        assert await made.sites[0].broker.site.persistence.settle(PATIENCE)
        assert made.written == before


async def test_no_receipt_comes_and_the_message_is_committed():
    async with chain({"clean": False, "expiry": FOREVER}) as made:
        made.stores[2].hold()  # a stored session has the message once it is on the disk
        number = made.publish(b"late")
        await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert made.kept == made.held == 1
        made.stores[2].release()
        await made.subscriber.messages(1)
        await until(lambda: not made.held)


@pytest.mark.usefixtures("patient")
async def test_a_receipt_of_a_stored_session_follows_its_commit():
    async with chain({"clean": False, "expiry": FOREVER}) as made:
        made.stores[2].hold()
        before, number = made.written, made.publish(b"kept")
        await until(made.stores[2].entered.is_set)
        await made.publisher.nothing()
        assert made.held == 1
        made.stores[2].release()
        await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert await made.sites[0].broker.site.persistence.settle(PATIENCE)
        assert made.written == before


@pytest.mark.usefixtures("patient")
async def test_another_message_ends_the_hold_and_both_are_one_commit():
    async with chain({"clean": False, "expiry": FOREVER}) as made:
        made.stores[2].hold()
        commits = made.stores[0].commits
        first = made.publish(b"1")
        await until(made.stores[2].entered.is_set)
        await made.publisher.nothing()
        second = made.publish(b"2")
        for number in (first, second):
            await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert made.stores[0].commits == commits + 1
        assert made.kept == 2


@pytest.mark.usefixtures("patient")
async def test_a_session_that_is_written_ends_the_hold():
    async with chain({"clean": False, "expiry": FOREVER}) as made:
        made.stores[2].hold()
        number = made.publish(b"1")
        await until(made.stores[2].entered.is_set)
        await made.publisher.nothing()
        other = await made.sites[0].client("other", clean=False, expiry=FOREVER)
        await other.subscribe("elsewhere", qos=1)
        await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert made.kept == 1


@pytest.mark.usefixtures("patient")
async def test_the_receipts_of_all_destinations_are_needed():
    async with chain() as made:
        stored = await made.sites[1].client("stored", clean=False, expiry=FOREVER)
        await stored.subscribe("t", qos=1)
        node = made.sites[0].broker.site.mesh.node
        await until(lambda: node.route(b"t").mask == 0b1100)
        await made.publisher.publish("t", b"to both", 1)
        await until(lambda: not made.held and not made.kept)
        made.stores[1].hold()
        before, before_it = node.settled(3), made.written
        number = made.publish(b"again")
        await until(lambda: node.settled(3) > before)
        await made.publisher.nothing()
        assert (made.held, made.kept) == (1, 0)
        made.stores[1].release()
        await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert not made.held
        assert await made.sites[0].broker.site.persistence.settle(PATIENCE)
        assert made.written == before_it


@pytest.mark.usefixtures("patient")
async def test_qos_2_is_committed_before_it_leaves():
    async with chain() as made:
        made.stores[0].hold()
        made.publish(b"twice", 2)
        await until(made.stores[0].entered.is_set)
        await made.subscriber.nothing()


@pytest.mark.usefixtures("patient")
async def test_a_broker_that_stops_keeps_what_it_holds_back():
    async with chain({"clean": False, "expiry": FOREVER}) as made:
        made.stores[2].hold()
        made.publish(b"kept")
        await until(made.stores[2].entered.is_set)
        await made.publisher.nothing()
        assert not made.kept
        await made.sites[0].broker.stop()
        assert made.kept == 1


@pytest.mark.usefixtures("patient")
async def test_a_link_that_is_lost_leaves_the_message_to_the_commit():
    async with chain({"clean": False, "expiry": FOREVER}) as made:
        made.stores[2].hold()
        number = made.publish(b"kept")
        await until(made.stores[2].entered.is_set)
        await made.publisher.nothing()
        await made.sites[1].broker.stop()
        made.stores[0].hold()
        made.sites[0].broker.site.persistence.mark()  # somebody begins to wait
        await until(made.stores[0].entered.is_set)
        await made.sites[0].client("another")  # what is to be sent goes now
        await made.publisher.nothing()
        made.stores[0].release()
        await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert made.kept == made.held == 1


@pytest.mark.usefixtures("patient")
async def test_a_destination_of_the_last_release_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its receipt would come late, so that the message is committed at once."""
    monkeypatch.setattr(identity, "CAPABILITIES", CAPABILITIES - {RECEIPTS})
    async with chain() as made:
        before, number = made.written, made.publish(b"x")
        await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert made.written == before + 1
        await made.subscriber.messages(1)
        await until(lambda: not made.held)


async def test_while_sessions_roam_receipts_follow_commits():
    async with chain(clients="roam") as made:
        made.stores[2].hold()
        number = made.publish(b"kept")
        await made.subscriber.messages(1)
        await made.publisher.expect(Puback, packet_id=number, reason=0)
        assert made.held == 1
        made.stores[2].release()
        await until(lambda: not made.held)


# ---- when a message is held back


class Model:
    """The same rule, written as plainly as it is said."""

    def __init__(self) -> None:
        self.free_at, self.pause = 0.0, PAUSE

    def late(self, now: float) -> None:
        self.free_at = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["begin", "settled", "written", "company"]), st.floats(0, 100) | st.just(HOLD / 2)), max_size=40))
def test_after_one_that_was_late_others_wait(steps: list[tuple[str, float]]) -> None:
    held, model, now, until_ = HoldBack(), Model(), 1000.0, 0.0
    for what, pause in steps:
        now += pause
        if what == "begin" and not held.order:
            assert held.may(now) is (now >= model.free_at)
            if held.may(now):
                held.begin(7, now)
            until_ = now + HOLD
        elif what == "settled" and held.order:
            held.settled(now)
            if now > until_:
                model.late(now)
            else:
                model = Model()
            assert not held.order
        elif what in ("written", "company") and held.order:
            held.written(now, what == "company")
            if what == "company" or now >= until_:
                model.late(now)
            assert not held.order
