"""Thousands of answers that a broker sends in one piece: how many of them the owner of the connection is given in one turn of the loop."""

from __future__ import annotations

import asyncio

from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.connection import AT_ONCE, Connection, Line
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.protocol.events import Event, Subscribed
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Suback
from support.models.broker_wire import FakeTransport

MANY = 3 * AT_ONCE + 5


def opened(given: list[list[Event]]) -> tuple[Connection, Line, FakeTransport]:
    """A connection that is up, and has asked for `MANY` filters."""
    connection = Connection([], ClientMachine(Login("m")), None, given.append, lambda *_: None)
    line, transport = Line(connection), FakeTransport()
    line.connection_made(transport)
    line.data_received(encode(Connack(), 5))
    for number in range(MANY):
        connection.machine.subscribe(f"t/{number}", 1, 0, 1 + number, 0.0)
    given.clear()
    return connection, line, transport


def answers(first: int, many: int) -> bytes:
    return b"".join(encode(Suback(first + number, [1]), 5) for number in range(many))


def test_answers_that_come_together_are_given_in_turns() -> None:
    async def story() -> None:
        given: list[list[Event]] = []
        connection, line, transport = opened(given)
        line.data_received(answers(1, MANY - 1))
        counts = [len(given[0])]
        connection.pause(True)
        connection.pause(False)
        line.data_received(answers(MANY, 1))  # from a layer that had it already
        while not transport.reading:
            before = len(given)
            await asyncio.sleep(0)
            counts += map(len, given[before:])
        assert counts == [AT_ONCE] * 3 + [5]
        assert [event.token for events in given for event in events if isinstance(event, Subscribed)] == list(range(1, MANY + 1))

    asyncio.run(story())


def test_answers_that_came_before_the_loss_are_given() -> None:
    async def story() -> None:
        given: list[list[Event]] = []
        _, line, _ = opened(given)
        line.data_received(answers(1, MANY))
        line.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [len(events) for events in given] == [AT_ONCE, MANY - AT_ONCE]

    asyncio.run(story())
