"""Another client of our identifier has taken the session at a server: we do not take it back, but where a lease says that it is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from mqmesh import Broker, BrokerConfig
from mqmesh.base.address import REMOTE, Address, parse_address
from mqmesh.metabroker import reconnect
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.connection import STANDS_BY, Connection
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.protocol.events import Event, Up
from support.services import PATIENCE

CONNACK, TAKEN_OVER = b"\x20\x03\x00\x00\x00", b"\xe0\x02\x8e\x00"


@pytest.mark.parametrize(("ours", "connections"), [([], 1), ([True, True, True, True], 4), ([True, False, True, False], 2)])
def test_it_connects_again_only_if_it_is_the_owner(ours: list[bool], connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "PAUSES", (0.01, 0.02))
    came, downs = asyncio.run(attempts(ours))
    assert came == connections
    assert ours or downs[1:] == [False] * 3


async def attempts(ours: list[bool]) -> tuple[int, list[bool | None]]:
    """How often a connection came to the server, and how each of four attempts ended."""
    came, enough = 0, asyncio.Event()
    downs: list[bool | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        await reader.read(1024)
        writer.write(CONNACK + TAKEN_OVER)
        await writer.drain()
        writer.close()

    def on_down(refused: bool | None, text: str) -> None:
        downs.append(refused)
        if len(downs) == 4:
            enough.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = parse_address(f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", REMOTE)
        connection = Connection([address], ClientMachine(Login("gateway")), None, lambda events: None, on_down)
        answers = iter(ours)
        connection.still_ours = (lambda: next(answers, False)) if ours else None
        task = asyncio.create_task(connection.run())
        await enough.wait()
        task.cancel()
        await asyncio.wait((task,))
    return came, downs[:4]


def test_it_stands_by_and_comes_back_when_the_other_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a broker that can tell. It does not end the other one's connection meanwhile."""
    monkeypatch.setattr(reconnect, "PAUSES", (0.01, 0.02))
    ups, downs = asyncio.run(two_at_a_broker())
    assert ups == ["one", "two", "one"]
    assert {text.rpartition(": ")[2] for text in downs} == {STANDS_BY}


async def two_at_a_broker() -> tuple[list[str], list[str]]:
    """Who was connected, one after the other, and why the first one was not, once the second one was there."""
    ups: list[str] = []
    downs: list[str] = []
    up, refused = asyncio.Queue[str](), asyncio.Event()

    def connection(name: str, address: Address, on_down: Callable[[bool | None, str], None]) -> asyncio.Task[None]:
        def on_events(events: list[Event]) -> None:
            for event in events:
                if isinstance(event, Up):
                    ups.append(name)
                    up.put_nowait(name)

        login = Login("gateway", yields=True)
        return asyncio.create_task(Connection([address], ClientMachine(login), None, on_events, on_down).run())

    def on_down(was_refused: bool | None, text: str) -> None:
        if "SESSION_TAKEN_OVER" not in text:
            downs.append(text)
        if len(downs) == 4:
            refused.set()

    async with Broker(BrokerConfig(listen=["mqtt://127.0.0.1:0"])) as broker, asyncio.timeout(PATIENCE):
        address = parse_address(broker.addresses[0], REMOTE)
        one = connection("one", address, on_down)
        await up.get()
        two = connection("two", address, lambda was_refused, text: None)
        await up.get()
        await refused.wait()
        two.cancel()
        await asyncio.wait((two,))
        await up.get()
        one.cancel()
        await asyncio.wait((one,))
    return ups, downs
