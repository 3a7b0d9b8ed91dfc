"""Another client of our identifier has taken the session at a server: we do not take it back, but where a lease says that it is ours."""

from __future__ import annotations

import asyncio

import pytest
from mqmesh.base.address import REMOTE, parse_address
from mqmesh.metabroker import reconnect
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.connection import Connection
from mqmesh.metabroker.mqtt.login import Login

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
