"""A remote that does not understand MQTT 5 is asked in 3.1.1, once for each round, and stays with the version that it has answered."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from mqmesh.base.address import REMOTE, parse_address
from mqmesh.metabroker.mqtt import client
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.connection import Connection
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.protocol.events import Up
from mqmesh.metabroker.protocol.messages import PublishHeader


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**values: Any) -> None:
        asyncio.run(test(**values))

    return run


WAYS = {"closes": None, "refuses": b"\x20\x02\x00\x01", "is silent": b""}  # what a server of 3.1.1 does with MQTT 5


class Server:
    """Notes the version of each CONNECT. accepts: the version that it understands; way: what it does with the other one."""

    def __init__(self, accepts: int, way: bytes | None) -> None:
        self.accepts, self.way = accepts, way
        self.asked: list[int] = []
        self.got = asyncio.Event()
        self.data = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            version = (await reader.read(1000))[8]
            self.asked.append(version)
            if version == self.accepts:
                writer.write(b"\x20\x02\x00\x00" if version == 4 else b"\x20\x03\x00\x00\x00")
            elif self.way is None:
                writer.close()
            else:
                writer.write(self.way)
            while data := await reader.read(1000):
                self.data += data
                self.got.set()
            writer.close()


@contextlib.asynccontextmanager
async def connected(server: Server, falls_back: bool = True) -> Any:
    """A connection to the server, and what it reports."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    events: asyncio.Queue[Any] = asyncio.Queue()
    downs: asyncio.Queue[str] = asyncio.Queue()
    machine = ClientMachine(Login("me", falls_back=falls_back))
    made = Connection(
        [parse_address(f"mqtt://127.0.0.1:{port}", REMOTE)],
        machine,
        None,
        lambda found: [events.put_nowait(one) for one in found if isinstance(one, Up)] and None,
        lambda _, text: downs.put_nowait(text),
    )

    async def tick() -> None:
        while True:
            await asyncio.sleep(0)
            made.tick()

    tasks = [asyncio.create_task(made.run()), asyncio.create_task(tick())]
    try:
        async with asyncio.timeout(60):
            yield made, events, downs
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        listener.close()


@pytest.mark.parametrize("way", WAYS)
@asynchronous
async def test_a_server_of_3_1_1(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ASKING", 0.2)
    server = Server(4, WAYS[way])
    async with connected(server) as (made, events, _):
        made.machine.publish_batch([(PublishHeader("t", 0, True, 5), b"x")], 0, 0, 0.0)  # it waits, and was made for MQTT 5
        up = await events.get()
        assert (up.abilities.version, up.abilities.identifiers) == (4, False)
        await server.got.wait()
        assert server.data == b"\x31\x04\x00\x01tx", "in 3.1.1, without properties"
    assert server.asked == [5, 4]


@asynchronous
async def test_a_server_of_mqtt_5_is_asked_once() -> None:
    server = Server(5, None)
    async with connected(server) as (_, events, _):
        assert (await events.get()).abilities.version == 5
    assert server.asked == [5]


@asynchronous
async def test_a_version_in_the_policy_is_the_only_one() -> None:
    server = Server(4, b"\x20\x02\x00\x01")
    async with connected(server, falls_back=False) as (_, _, downs):
        assert "it does not speak MQTT 5" in await downs.get()
    assert server.asked[0] == 5
    assert 4 not in server.asked


@asynchronous
async def test_a_server_that_answers_in_no_version_is_asked_in_mqtt_5_again() -> None:
    server = Server(0, None)
    async with connected(server) as (_, _, downs):
        await downs.get()
        await downs.get()
    assert server.asked[:3] == [5, 4, 5]
