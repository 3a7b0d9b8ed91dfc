"""What is delivered in turns and must not come again: QoS 2, handles, wills, what the mesh brings, with a store that keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.mesh import incoming
from mqmesh.broker.publish import accept
from mqmesh.broker.routing import spread
from mqmesh.broker.server import Broker
from mqmesh.broker.turns import SLICE
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription, Will
from mqmesh.mqtt.properties import Property
from mqmesh.store import Batch
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.models.broker_wire import Wire, run, started

MANY = 11
HANDLE = {Property.USER_PROPERTY: [("mqmesh-handle", "h")]}
KEY = "a key of sixteen bytes"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three recipients are many, and each turn serves two of them."""
    monkeypatch.setattr(accept, "WIDE", (3, 3, 3))
    monkeypatch.setattr(incoming, "WIDE", (3, 3, 3))
    monkeypatch.setattr(spread, "STEP", 2)


def one_step_a_turn(broker: Broker) -> None:
    """Each look at the clock is a slice later."""
    begun, ticks = broker.context.turns.clock(), iter(range(10**9))
    broker.context.turns.clock = lambda: begun + next(ticks) * 1.01 * SLICE
    broker.context.turns._meter = lambda: 0.0


class WatchedStore(MemoryStore):
    """Notes after each commit how many deliveries it has, and what else.

    seen: (deliveries of sessions, rows of `inbound`, of `handles`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int, int]] = []

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        with self._lock:
            rows = sum(len(orders) for recipient, orders in self._deliveries.items() if not recipient.startswith("mesh"))
            self.seen.append((rows, len(self._values.get("inbound", ())), len(self._values.get("handles", ()))))


async def absent(site: Site, count: int = MANY, topic: str = "t") -> None:
    """Subscribers with sessions that are gone."""
    for number in range(count):
        client = await site.client(f"s{number}", expiry=1000)
        await client.subscribe(topic, qos=2)
        await client.cut()
        await site.gone(client.name)


def whole(site: Site) -> Any:
    """The work that belongs into one commit and is being done."""
    persistence = site.broker.site.persistence
    assert persistence is not None
    return persistence._whole


async def got(site: Site, *payloads: bytes) -> None:
    """Each of the sessions has these messages, and no other."""
    for number in range(MANY):
        client = await site.client(f"s{number}", clean=False, expiry=1000)
        assert [message.payload for message in await client.messages(len(payloads))] == list(payloads)
        await client.nothing()
        await client.cut()


async def test_qos_2_is_in_the_store_with_all_its_deliveries_or_with_none() -> None:
    store = WatchedStore()
    async with Site(store=store) as site:
        await absent(site)
        publishers = [await site.client(f"p{number}", expiry=1000) for number in range(3)]
        other = await site.client("other", expiry=1000)
        one_step_a_turn(site.broker)
        store.seen.clear()
        for publisher in publishers:
            publisher.send(*[Publish("t", b"x", 2, packet_id=number) for number in range(1, 6)])
        assert await other.publish("elsewhere", b"x", 1, retain=True) < 0x80, "others are kept between two of them"
        for publisher in publishers:
            for number in range(1, 6):
                await publisher.expect(Pubrec, packet_id=number)
        assert {rows % MANY for rows, _, _ in store.seen} == {0}
        assert store.seen[-1][0] == 3 * MANY, "each piece is one run"
        await until(lambda: not site.broker.site.router.spreads)


async def test_a_broker_that_stops_finishes_what_belongs_into_one_commit() -> None:
    store = WatchedStore()
    async with Site(store=store) as site:
        await absent(site)
        publisher = await site.client("publisher", expiry=1000)
        one_step_a_turn(site.broker)
        publisher.send(Publish("t", b"one", 2, packet_id=1))
        await until(lambda: whole(site) is not None)
    async with Site(store=store) as site:
        publisher = await site.client("publisher", clean=False, expiry=1000)
        publisher.send(Publish("t", b"one", 2, packet_id=1, dup=True))
        await publisher.expect(Pubrec, packet_id=1)
        await got(site, b"one")


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_repeat_of_a_handle_comes_while_the_first_is_under_way(qos: int) -> None:
    store = WatchedStore()
    async with Site(store=store) as site:
        await absent(site)
        listeners = [await site.client(f"here{number}") for number in range(2)]
        for listener in listeners:
            await listener.subscribe("t", qos=2)
        publishers = [await site.client(f"p{number}") for number in range(2)]
        one_step_a_turn(site.broker)
        store.seen.clear()
        publishers[0].send(Publish("t", b"one", qos, packet_id=1 if qos else 0, properties=HANDLE))
        await until(lambda: bool(site.broker.site.router.spreads))
        publishers[1].send(Publish("t", b"one", qos, packet_id=1 if qos else 0, properties=HANDLE))
        answers = [] if not qos else [await publisher.expect(Puback if qos == 1 else Pubrec, packet_id=1) for publisher in publishers]
        assert [answer.reason for answer in answers] == [0] * len(answers)
        await until(lambda: not site.broker.site.router.spreads)
        for listener in listeners:
            await listener.messages(1)
            await listener.nothing()
        if qos:
            assert {(rows, handles) for rows, _, handles in store.seen} <= {(0, 0), (MANY, 1)}
            await got(site, b"one")


async def test_a_handle_is_not_known_if_a_recipient_had_no_room() -> None:
    async with Site(store=WatchedStore(), session_queue_messages=1) as site:
        await absent(site)
        publisher = await site.client("publisher")
        one_step_a_turn(site.broker)
        assert await publisher.publish("t", b"1", 1) == 0
        for _ in range(2):  # not taken for a repeat of what was taken
            assert await publisher.publish("t", b"2", 1, properties=HANDLE) == 0x97


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_will_comes_behind_what_its_client_has_published(qos: int) -> None:
    store = WatchedStore()
    async with Site(store=store) as site:
        await absent(site)
        dying = await site.client("dying", will=Will("t", b"will", qos))
        listeners = [await site.client(f"here{number}") for number in range(MANY)]
        for listener in listeners:
            await listener.subscribe("t", qos=2)
        one_step_a_turn(site.broker)
        store.seen.clear()
        dying.send(Publish("t", b"last", 1, packet_id=1))
        await until(lambda: bool(site.broker.site.router.spreads))
        await site.client("dying")  # takes its place
        await until(lambda: not site.broker.site.router.spreads)
        site.broker.site.sessions.publish_late_wills()
        site.broker.context.flush()
        for listener in listeners:
            assert [message.payload for message in await listener.messages(2)] == [b"last", b"will"]
        await got(site, *[b"last", b"will"][: 1 + min(qos, 1)])


def test_a_will_has_to_wait_for_what_its_client_has_published_and_goes_in_turns() -> None:
    async def story() -> None:
        broker = await started()
        wires = [Wire(broker, 5).connect(f"s{number}", Subscription("t", 1)) for number in range(MANY)]
        publisher = Wire(broker, 5).connect("publisher")
        one_step_a_turn(broker)
        publisher.send(Publish("t", b"last", 1, packet_id=1))
        session = publisher.connection.session
        assert session is not None
        will, route = Run(b"t", 1, False, [b"will"]), broker.site.router.routes[b"t"]
        assert not broker._accept_will(will, route, session.account)
        await until(lambda: not broker.site.router.spreads)
        assert broker._accept_will(will, route, session.account)
        assert broker.site.router.spreads
        await until(lambda: not broker.site.router.spreads)
        broker.context.flush()
        assert [[packet.payload for packet in wire.packets()] for wire in wires] == [[b"last", b"will"]] * MANY

    run(story())


async def test_no_will_is_kept_for_some_of_its_recipients_only() -> None:
    store = WatchedStore()
    async with Site(store=store) as site:
        await absent(site)
        dying = [await site.client(f"d{number}", will=Will("t", b"will", 1)) for number in range(2)]
        one_step_a_turn(site.broker)
        store.seen.clear()
        for client in dying:
            await client.cut()
            await site.gone(client.name)
        await until(lambda: not site.broker.site.router.spreads)
        site.broker.site.sessions.publish_late_wills()  # the second found the first under way
        site.broker.context.flush()
        await until(lambda: bool(store.seen) and store.seen[-1][0] == 2 * MANY)
        assert {rows % MANY for rows, _, _ in store.seen} == {0}


def member(number: int, *peers: Site, store: MemoryStore | None = None, **mesh: object) -> Site:
    settings = MeshSettings("m", KEY, peers=[PeerSettings(peer.broker.addresses[0]) for peer in peers], **mesh)  # type: ignore[arg-type]
    return Site(store=store, mesh=(number, settings))


async def wanted(origin: Site, topic: bytes) -> None:
    """Wait until an origin knows that another broker wants a topic."""
    await until(lambda: (route := origin.broker.site.mesh.route(topic)) is not None and route.match.mask.bit_count() == 1)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_the_mesh_brings_goes_in_turns_and_in_its_order(qos: int, stored: bool) -> None:
    store = WatchedStore() if stored else None
    async with member(1) as origin, member(2, origin, store=store) as site:
        listeners = [await site.client(f"here{number}") for number in range(MANY)]
        for listener in listeners:
            await listener.subscribe("t/#", "u", qos=2)
        if stored:
            await absent(site, topic="t/#")
        await wanted(origin, b"t/1")
        await wanted(origin, b"u")
        publisher = await origin.client("publisher")
        if store is not None:
            store.seen.clear()
        one_step_a_turn(site.broker)
        payloads = [b"%d" % number for number in range(30)]
        topics = ["t/1", "t/2", "t/2", "u"]
        publisher.send(
            *[Publish(topics[at % 4], payload, qos, packet_id=publisher.next_id() if qos else 0) for at, payload in enumerate(payloads)]
        )
        await until(lambda: bool(site.broker.site.router.spreads))
        for listener in listeners:
            assert [message.payload for message in await listener.messages(30)] == payloads
        await until(lambda: not site.broker.site.router.spreads and not site.broker.site.mesh.incoming.waiting)
        if store is not None and qos:
            await until(lambda: not origin.broker.site.mesh.node.custody()[0])
            assert {rows % MANY for rows, _, _ in store.seen} == {0}, "a window is kept with all that it let in"
        assert site.broker.site.mesh.ordinary


async def test_receipts_name_the_site_though_it_has_the_message_before_the_last_recipient_here() -> None:
    async with member(1) as origin, member(2, origin) as site:
        far = await site.client("far")
        await far.subscribe("t", qos=1)
        listeners = [await origin.client(f"here{number}") for number in range(MANY)]
        for listener in listeners:
            await listener.subscribe("t", qos=1)
        await wanted(origin, b"t")
        publisher, other = await origin.client("publisher"), await origin.client("other")
        one_step_a_turn(origin.broker)
        receipts = {Property.USER_PROPERTY: [("mqmesh-ack", "receipts")]}
        publisher.send(Publish("t", b"one", 1, packet_id=1, properties=receipts))
        other.send(*[Publish("t", b"more", 1, packet_id=number) for number in range(1, 9)])
        answer = await publisher.expect(Puback, packet_id=1)
        assert ("mqmesh-received", "site2") in answer.properties[Property.USER_PROPERTY]
        assert [message.payload for message in await listeners[0].messages(9)].count(b"one") == 1


def test_many_shared_subscriptions_are_served_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "GROUPS", 3)

    async def story() -> None:
        broker = await started()
        wires = [Wire(broker, 5).connect(f"s{number}", Subscription(f"$share/g{number}/t", 1)) for number in range(MANY)]
        publisher = Wire(broker, 5).connect("publisher")
        one_step_a_turn(broker)
        publisher.send(Publish("t", b"one", 1, packet_id=1))
        assert publisher.packets() == []
        await until(lambda: not broker.site.router.spreads)
        assert [type(packet) for packet in publisher.packets()] == [Puback]
        assert [[packet.payload for packet in wire.packets()] for wire in wires] == [[b"one"]] * MANY

    run(story())


def test_a_session_that_is_known_by_another_face_now_has_the_message_before() -> None:
    async def story() -> None:
        broker = await started()
        wires = [Wire(broker, 5).connect(f"s{number}", Subscription("t", 1)) for number in range(MANY)]
        publisher = Wire(broker, 5).connect("publisher")
        one_step_a_turn(broker)
        publisher.send(Publish("t", b"one", 1, packet_id=1))
        last = wires[-1].connection.session
        assert last is not None
        broker.site.router.reface(last, last)
        assert last.outbound.in_flight == 1
        await until(lambda: not broker.site.router.spreads)
        assert last.outbound.in_flight == 1
        assert [type(packet) for packet in publisher.packets()] == [Puback]

    run(story())


async def test_a_publisher_that_comes_back_meanwhile_sends_qos_2_again() -> None:
    store = WatchedStore()
    async with Site(store=store) as site:
        await absent(site)
        publisher = await site.client("publisher", expiry=1000)
        one_step_a_turn(site.broker)
        publisher.send(Publish("t", b"one", 2, packet_id=1))
        await until(lambda: whole(site) is not None)
        again: Client = await site.dial()
        connect = Connect("publisher", 5, False, 0, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
        again.send(encode(connect, 5), Publish("t", b"one", 2, packet_id=1, dup=True))
        await again.expect(Connack, session_present=True)
        await again.expect(Pubrec, packet_id=1)
        again.send(Pubrel(1))
        await again.expect(Pubcomp, packet_id=1)
        await got(site, b"one")
