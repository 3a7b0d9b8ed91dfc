"""Very many clients that go at one moment, or whose sessions or wills are due then: how much of that is done in one slice of the loop.

The clock of the turns is the test's own: it goes on by more than a slice with every second look, so no slice does more than two things.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from mqmesh.broker.server import Broker
from mqmesh.broker.session.will import Will
from mqmesh.broker.site import Site
from mqmesh.broker.turns import SLICE
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Pingreq, Publish, Subscription
from mqmesh.mqtt.packets import Will as WillPacket
from mqmesh.mqtt.properties import Property
from support.broker_site import until
from support.models.broker_wire import Wire, run, started

CLIENTS = 40
MOST = 4  # of what is counted in one turn of the loop

Begin = Callable[[list[Wire]], None]


def slow(broker: Broker) -> None:
    """From now on there is little time in a slice."""
    looks = itertools.count(1)
    broker.context.turns.clock = lambda: next(looks) // 2 * 1.5 * SLICE


async def most_in_a_turn(left: Callable[[], int]) -> int:
    """Let the loop run until nothing is left: the most that one turn of it has done."""
    most = 0
    while before := left():
        await asyncio.sleep(0)
        most = max(most, before - left())
    return most


def reset(wires: list[Wire]) -> None:
    for wire in wires:
        wire.connection.connection_lost(ConnectionResetError())


def end(wires: list[Wire]) -> None:
    for wire in wires:
        wire.connection.eof_received()


def silent(wires: list[Wire]) -> None:
    for wire in wires:
        wire.connection.last_received -= 1000
    wires[0].connection.site.look_at_connections()


def give(broker: Broker, number: int, delay: int = 0, expiry: int = 0) -> Wire:
    """A client with a will."""
    wire = Wire(broker, 5)
    will = WillPacket(f"will/{number}", b"x", properties={Property.WILL_DELAY_INTERVAL: delay})
    wire.send(Connect(f"c{number}", 5, True, 10, will=will, properties={Property.SESSION_EXPIRY_INTERVAL: expiry}))
    return wire


@pytest.mark.parametrize("begin", [reset, end, silent])
def test_clients_that_go_at_once_have_a_turn_each(begin: Begin) -> None:
    async def story() -> None:
        broker = await started()
        watcher = Wire(broker, 5).connect("watcher")
        wires = [give(broker, number) for number in range(CLIENTS)]
        slow(broker)
        begin(wires)
        assert broker.context.counters.clients > CLIENTS - 2 * MOST
        assert await most_in_a_turn(lambda: broker.context.counters.clients - 1) <= MOST
        assert len(broker.site.sessions) == 1
        assert all(wire.connection.closing for wire in wires)
        assert not watcher.connection.closing

    run(story())


@pytest.mark.parametrize("begin", [reset, end, silent])
def test_a_client_of_the_same_address_does_not_wait_for_all_who_go(begin: Begin) -> None:
    async def story() -> None:
        broker = await started()
        stays = Wire(broker, 5).connect("stays", Subscription("t"))
        wires = [give(broker, number) for number in range(CLIENTS)]
        slow(broker)
        begin(wires)
        stays.send(Publish("t", b"x"))
        await until(lambda: bool(stays.transport.written))
        assert broker.context.counters.clients > CLIENTS - 3 * MOST

    run(story())


def test_a_lost_connection_whose_turn_has_not_come_takes_what_is_sent_to_it_and_is_taken_over() -> None:
    """uvloop's transport raises when something is written to it behind its end."""

    async def story() -> None:
        broker = await started()
        wires = [give(broker, number, expiry=100) for number in range(CLIENTS)]
        slow(broker)
        reset(wires)
        last = wires[-1]
        assert last.connection.waits
        assert not last.connection.closing
        last.transport.write = lambda data: pytest.fail("written to a lost transport")  # type: ignore[method-assign]
        last.connection.send(b"x")
        broker.flush()
        again = give(broker, CLIENTS - 1, expiry=100)
        await until(lambda: broker.site.sessions.get(f"c{CLIENTS - 1}").connection is again.connection)  # type: ignore[union-attr]
        await until(lambda: broker.context.counters.clients == 1)
        assert last.connection.closing
        assert not again.connection.closing

    run(story())


def test_sessions_and_wills_that_are_due_at_once_have_a_turn_each() -> None:
    async def story() -> None:
        broker = await started()
        sessions = broker.site.sessions
        reset([give(broker, number, delay=50, expiry=100) for number in range(CLIENTS)])
        await until(lambda: not broker.context.counters.clients)
        slow(broker)

        def wills() -> int:
            return sum(session.will is not None for session in sessions)

        for session in sessions:
            assert isinstance(session.will, Will)
            sessions._will_due(session, session.will)
        assert wills() == CLIENTS
        assert await most_in_a_turn(wills) <= MOST
        for session in sessions:
            assert session.ends_at is not None
            sessions._end_due(session, session.ends_at)
        assert len(sessions) == CLIENTS
        assert await most_in_a_turn(lambda: len(sessions)) <= MOST
        assert broker.context.counters.clients_expired == CLIENTS

    run(story())


def test_a_session_whose_client_comes_and_goes_before_its_turn_does_not_expire() -> None:
    async def story() -> None:
        broker = await started()
        sessions = broker.site.sessions
        give(broker, 1, expiry=100).connection.connection_lost(None)
        (session,) = sessions
        ends_at = session.ends_at
        assert ends_at is not None
        back = Wire(broker, 5)
        back.send(Connect("c1", 5, False, properties={Property.SESSION_EXPIRY_INTERVAL: 200}))
        back.connection.connection_lost(None)
        sessions._end_due(session, ends_at)
        for _ in range(5):
            await asyncio.sleep(0)
        assert list(sessions) == [session]

    run(story())


def test_what_the_client_in_this_process_does_for_a_piece_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of requests to the metabroker that are read in one round: some are worked on at once, the rest in turns."""
    now, handed = [0.0], [0]

    def hand_over(_: Site) -> None:
        handed[0] += 1
        now[0] += SLICE / 2

    async def story() -> None:
        broker = await started()
        wires = [Wire(broker, 5).connect(f"c{number}") for number in range(CLIENTS)]
        broker.context.turns.clock = lambda: now[0]
        monkeypatch.setattr(broker.site, "within", SimpleNamespace(out=[b"x"]))
        monkeypatch.setattr(Site, "hand_over", hand_over)
        for wire in wires:
            wire.give(encode(Pingreq(), 5), False)
        assert handed[0] <= 2 * MOST
        assert await most_in_a_turn(lambda: CLIENTS - handed[0]) <= MOST
        assert all(wire.take() for wire in wires)

    run(story())
