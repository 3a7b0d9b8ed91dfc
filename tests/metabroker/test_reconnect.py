"""What is said of connections that could not be made tells a mistake in the address from an outage."""

from __future__ import annotations

import asyncio
import socket

import pytest
from mqmesh.base.address import Address
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.connection import Connection
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.reconnect import why_not
from support.services import PATIENCE, free_port


def test_words() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert why_not(unknown, "nowhere") == "the host name 'nowhere' is not known (Name or service not known): is the address right?"
    assert why_not(OSError("Multiple exceptions: [Errno 111] a, [Errno 111] b"), "localhost").startswith("connection refused: does")
    assert why_not(OSError(113, "No route to host"), "10.0.0.1") == "No route to host"


@pytest.mark.parametrize("known", [False, True])
def test_the_first_attempt_says_it(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    def lookup(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    address = Address("mqtt", "127.0.0.1" if known else "nowhere.invalid", free_port())
    if not known:  # no question to a real name server, which may be out of reach
        monkeypatch.setattr(socket, "getaddrinfo", lookup)

    async def first() -> str:
        said: asyncio.Queue[str] = asyncio.Queue()
        connection = Connection([address], ClientMachine(Login("m")), None, lambda events: None, lambda _, text: said.put_nowait(text))
        task = asyncio.create_task(connection.run())
        try:
            return await asyncio.wait_for(said.get(), PATIENCE)
        finally:
            task.cancel()

    text = asyncio.run(first())
    assert text.startswith(f"{address}: ")
    assert ("does a broker listen there?" if known else "the host name 'nowhere.invalid' is not known") in text
