"""Reading in fewer pieces when messages come fast: when it rests, what that costs who waits for us, and that nothing is left unread."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.base.address import parse_address
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.connection import Connection
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.mqtt.read_pacing import ENOUGH, FAST, LARGE, LOOK, PAUSES, REST, ReadPacing
from mqmesh.metabroker.protocol.events import Event
from mqmesh.metabroker.protocol.messages import IncomingRun
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Publish
from support.examples import examples


def rests(made: ReadPacing, each: int, every: float, seconds: float, waits: bool = False) -> int:
    """How often it rests while pieces of `each` messages come. waits: the sender waits for us, so that a rest brings no more."""
    now = 100.0
    found, end = 0, now + seconds
    messages = each
    while now < end:
        if made.rests(messages, 100 * messages, now):
            found += 1
            messages = each if waits else max(each, round(each * REST / every))
            now += REST
        else:
            messages = each
            now += every
    return found


def test_it_rests_while_messages_come_fast() -> None:
    assert rests(ReadPacing(), 1, 0.5 / FAST, 1.0) > 0.9 / REST * (1 - LOOK * 2)


@given(st.floats(0.001, 1.0), st.integers(1, 5))
def test_it_never_rests_while_they_come_slowly(every: float, each: int) -> None:
    assert rests(ReadPacing(), min(each, int(every * FAST / 2)), every, 5.0) == 0


@settings(max_examples=examples(25))
@given(st.integers(1, ENOUGH - 1), st.floats(0.000_01, 0.5 / FAST))
def test_who_waits_for_us_is_hardly_ever_kept_waiting(each: int, every: float) -> None:
    assert 1 <= rests(ReadPacing(), each, every, 3.0, waits=True) <= 8
    late = ReadPacing()
    rests(late, each, every, 10.0, waits=True)
    assert rests(late, each, every, PAUSES[1], waits=True) <= 3


def test_large_pieces_are_taken_as_they_come() -> None:
    made = ReadPacing()
    assert not any(made.rests(1000, LARGE, 0.02 * number) for number in range(100))


@pytest.mark.parametrize("qos", [0, 1])
def test_nothing_is_left_unread(monkeypatch: pytest.MonkeyPatch, qos: int) -> None:
    """A rest behind each piece, and pauses of the owner between them."""
    monkeypatch.setattr(ReadPacing, "rests", lambda *_: True)
    count, chance = 3000, random.Random(qos)

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(encode(Connack(), 5))
        for number in range(count):
            writer.write(encode(Publish("t", number.to_bytes(4, "big"), qos, packet_id=qos * (number + 1)), 5))
            if number % 40 == 0:
                await asyncio.sleep(0)
        await writer.drain()
        await reader.read()

    async def run() -> list[int]:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        got: list[int] = []
        done = asyncio.Event()

        def on_events(events: list[Event]) -> None:
            for event in events:
                if isinstance(event, IncomingRun):
                    got.extend(int.from_bytes(payload, "big") for payload in event.payloads)
            if chance.random() < 0.3:
                connection.pause(True)
                asyncio.get_running_loop().call_later(0.002, connection.pause, False)
            if len(got) == count:
                done.set()

        connection = Connection([parse_address(f"mqtt://127.0.0.1:{port}")], ClientMachine(Login("m")), None, on_events, lambda *_: None)
        task = asyncio.get_running_loop().create_task(connection.run())
        try:
            async with asyncio.timeout(60):
                await done.wait()
        finally:
            task.cancel()
            await asyncio.wait([task])
            listening.close()
        return got

    assert asyncio.run(run()) == list(range(count))
