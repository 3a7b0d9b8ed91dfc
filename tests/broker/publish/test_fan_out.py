"""A batch for many recipients is delivered in turns: the same to everybody, in order, and acknowledged behind the last one."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import Any

import pytest
from mqmesh.broker.publish import accept
from mqmesh.broker.routing import spread
from mqmesh.broker.server import Broker
from mqmesh.broker.turns import SLICE
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Disconnect, Pingreq, Pingresp, Puback, Publish, Pubrec, Subscription
from mqmesh.store import Batch
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site
from support.models.broker_wire import Wire, run, started

MANY = 11


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three recipients are many, and each turn serves two of them."""
    monkeypatch.setattr(accept, "WIDE", (3, 3, 3))
    monkeypatch.setattr(spread, "STEP", 2)


def one_step_a_turn(broker: Broker) -> None:
    """Each look at the clock is a slice later."""
    begun, ticks = broker.context.turns.clock(), iter(range(10**9))
    broker.context.turns.clock = lambda: begun + next(ticks) * 1.01 * SLICE
    broker.context.turns._meter = lambda: 0.0


async def subscribers(broker: Broker, qos: int, version: int = 5, **more: Any) -> list[Wire]:
    return [Wire(broker, version).connect(f"s{number}", Subscription("t/#", qos, **more)) for number in range(MANY)]


async def rest() -> None:
    """Let the loop do all that is to be done."""
    for _ in range(200):
        await asyncio.sleep(0)


def payloads(wire: Wire) -> list[bytes]:
    return [packet.payload for packet in wire.packets() if isinstance(packet, Publish)]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_others_have_their_turns_between_and_the_acknowledgement_comes_last(qos: int, version: int) -> None:
    async def story() -> None:
        broker = await started()
        wires = await subscribers(broker, 2, version)
        publisher, other = Wire(broker, version).connect("publisher"), Wire(broker, version).connect("other")
        one_step_a_turn(broker)
        publisher.send(Publish("t/1", b"one", qos, packet_id=1 if qos else None))
        got = [0]
        while got[-1] < MANY:
            assert publisher.packets() == []
            other.send(Pingreq())
            await asyncio.sleep(0)
            got.append(got[-1] + sum(len(payloads(wire)) for wire in wires))
            assert got[-1] - got[-2] <= 2 * 2, "two turns of two recipients are a round"
        await rest()
        assert [type(packet) for packet in publisher.packets()] == [[], [Puback], [Pubrec]][qos]
        assert Pingresp in [type(packet) for packet in other.packets()]

    run(story())


def conversation(broker: Broker, qos: int) -> list[tuple[str, Any]]:
    """What two publishers send, with what may be special about it."""
    return [
        ("a", Publish("t/1", b"1", qos, packet_id=1 if qos else None)),
        ("a", Publish("t/2", b"2", qos, packet_id=2 if qos else None, retain=True)),
        ("b", Publish("t/1", b"3", qos, packet_id=1 if qos else None)),
        ("a", Publish("other", b"4", 1, packet_id=3)),
        ("s1", Publish("t/1", b"5", qos, packet_id=9 if qos else None)),
        ("a", Publish("t/1", b"6", qos, packet_id=4 if qos else None)),
        ("b", Disconnect()),
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("option", [{}, {"no_local": True}, {"retain_as_published": True}])
def test_everybody_gets_the_same_as_at_once(qos: int, option: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def heard(wide: int) -> dict[str, list[Any]]:
        monkeypatch.setattr(accept, "WIDE", (wide, wide, wide))
        monkeypatch.setattr(spread, "STEP", 2)
        found: dict[str, list[Any]] = {}

        async def story() -> None:
            broker = await started()
            wires = {f"s{number}": wire for number, wire in enumerate(await subscribers(broker, 1, **option))}
            wires |= {name: Wire(broker, 5).connect(name) for name in ("a", "b")}
            wires["members"] = Wire(broker, 4).connect("member", Subscription("$share/g/t/#", 1))
            wires["4"] = Wire(broker, 4).connect("old", Subscription("t/1", 0), Subscription("t/2", 1))
            one_step_a_turn(broker)
            for name, packet in conversation(broker, qos):
                wires[name].send(packet)
                await rest()
            late = Wire(broker, 5).connect("late")
            found.update({name: [repr(packet) for packet in wire.packets()] for name, wire in wires.items()})
            found["counted"] = [broker.context.counters.publish_bytes_sent, broker.context.counters.dropped]
            found["retained"] = [len(late.connection.site.retained)]

        run(story())
        return found

    assert heard(3) == heard(10**6)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_comes_behind_it_from_the_same_client_comes_later_everywhere(qos: int) -> None:
    async def story() -> None:
        broker = await started()
        wires = await subscribers(broker, qos)
        publisher = Wire(broker, 5).connect("publisher")
        one_step_a_turn(broker)
        packets = [Publish(f"t/{n % 3}", b"%d" % n, qos, packet_id=n if qos else None) for n in range(1, 9)]
        publisher.give(b"".join(encode(packet, 5) for packet in [*packets, Disconnect()]))
        await rest()
        for wire in wires:
            assert payloads(wire) == [b"%d" % n for n in range(1, 9)]
        assert publisher.transport.closed

    run(story())


@pytest.mark.usefixtures("narrow")
def test_a_publisher_that_is_gone_and_sessions_that_end() -> None:
    async def story() -> None:
        broker = await started()
        wires = await subscribers(broker, 1)
        publisher = Wire(broker, 5).connect("publisher")
        one_step_a_turn(broker)
        publisher.send(Publish("t/1", b"one", 1, packet_id=1))
        wires[-1].connection.connection_lost(None)
        wires[-2].connection.connection_lost(None)
        wires[-2] = Wire(broker, 5).connect(f"s{MANY - 2}")
        publisher.connection.connection_lost(None)
        held = broker.context.ledger.total
        await rest()
        assert [payloads(wire) for wire in wires] == [[b"one"]] * (MANY - 2) + [[], []]
        assert publisher.packets() == []
        assert broker.context.ledger.total < held + 10_000, "nothing is kept for who is gone"

    run(story())


@pytest.mark.usefixtures("narrow")
def test_no_room_at_one_recipient_is_said_at_the_end() -> None:
    async def story() -> None:
        broker = await started(session_queue_messages=1)
        await subscribers(broker, 1)
        Wire(broker, 5).connect("slow", Subscription("t/1", 1), receive_maximum=1)  # one in flight, one in its queue
        publisher = Wire(broker, 5).connect("publisher")
        one_step_a_turn(broker)
        reasons = []
        for number in (1, 2, 3):
            publisher.send(Publish("t/1", b"x", 1, packet_id=number))
            await rest()
            reasons += [packet.reason for packet in publisher.packets()]
        assert reasons == [0, 0, 0x97]

    run(story())


def crashed(store: MemoryStore) -> MemoryStore:
    """What a broker that is killed now finds again."""
    found = MemoryStore()
    with store._lock:
        found._runs, found._deliveries, found._values = copy.deepcopy((store._runs, store._deliveries, store._values))
    return found


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_acknowledged_is_in_the_store_of_every_session(qos: int) -> None:
    store = MemoryStore()
    async with Site(store=store) as site:
        for number in range(MANY):
            client = await site.client(f"s{number}", expiry=1000)
            await client.subscribe("t", qos=2)
            await client.cut()
            await site.gone(client.name)
        publisher = await site.client("publisher")
        one_step_a_turn(site.broker)
        publisher.send(*[Publish("t", b"%d" % number, qos, packet_id=number) for number in range(1, 30)])
        await publisher.expect(Puback if qos == 1 else Pubrec, packet_id=1)
        first = crashed(store)
        for number in range(2, 30):
            await publisher.expect(Puback if qos == 1 else Pubrec, packet_id=number)
        last = crashed(store)
    for kept, count in ((first, 1), (last, 29)):
        async with Site(store=kept) as site:
            for number in range(MANY):
                client = await site.client(f"s{number}", clean=False, expiry=1000)
                for expected in range(1, count + 1):
                    assert (await client.expect(Publish)).payload == b"%d" % expected
                await client.cut()


class HeldStore(MemoryStore):
    """Commits when it is let. free: it is."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()

    def commit(self, batch: Batch) -> None:
        self.free.wait()
        super().commit(batch)


@pytest.mark.usefixtures("narrow")
async def test_the_acknowledgement_waits_for_the_commit_of_every_turn() -> None:
    store = HeldStore()
    async with Site(store=store) as site:
        for number in range(MANY):
            client = await site.client(f"s{number}", expiry=1000)
            await client.subscribe("t", qos=1)
            await client.cut()
            await site.gone(client.name)
        publisher = await site.client("publisher")
        one_step_a_turn(site.broker)
        store.free.clear()
        publisher.send(Publish("t", b"one", 1, packet_id=1))
        sessions = [site.broker.site.sessions.get(f"s{number}") for number in range(MANY)]
        await site.until(lambda: all(session is not None and session.queued == 1 for session in sessions))
        await publisher.nothing()
        store.free.set()
        await publisher.expect(Puback, packet_id=1, reason=0)
