"""Clients of the HTTP face that send half a request, nothing, or do not take their answer: others are answered at once, and they go."""

from __future__ import annotations

import asyncio
import logging
import socket
from urllib.parse import urlsplit

import pytest
from mqmesh.base.http.guard import PATIENCE
from mqmesh.broker.monitoring.http import TOGETHER
from support.broker_site import Site, until

HALF = b"GET /health HTTP/1.1\r\nHost: a\r\n"
WHOLE = HALF + b"\r\n"


class Asker(asyncio.Protocol):
    """One connection to the face."""

    def __init__(self) -> None:
        self.data = b""
        self.lost = False
        self.transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


async def ask(site: Site, data: bytes, host: str = "127.0.0.1", buffer: int = 65_536) -> Asker:
    """buffer: what the asker's socket takes."""
    assert site.broker.http is not None
    port = urlsplit(site.broker.http.url).port
    assert port is not None
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.setblocking(False)
    sock.bind((host, 0))
    await loop.sock_connect(sock, ("127.0.0.1", port))
    _, asker = await loop.create_connection(Asker, sock=sock)
    asker.transport.write(data)
    return asker


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
@pytest.mark.parametrize("half", [b"", HALF, WHOLE])
async def test_health_is_answered_beside_any_number_of_halves(host: str, half: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with Site(http=("127.0.0.1", 0)) as site:
        slow = [await ask(site, half) for _ in range(2 * TOGETHER)]
        for _ in range(3):
            asker = await ask(site, WHOLE, host)
            await until(lambda: b'"state":"ok"' in asker.data or asker.lost)  # noqa: B023
            assert asker.data.startswith(b"HTTP/1.1 200 OK")
            asker.transport.abort()
        await until(lambda: sum(one.lost for one in slow) >= TOGETHER)
        assert len(refused(caplog)) == 1, "one line, though a hundred were closed"
        await site.later(PATIENCE + 1)
        await until(lambda: all(one.lost for one in slow))


async def test_who_does_not_take_the_answer_is_cut_off() -> None:
    """Pipelined questions, whose answers fill the socket."""
    async with Site(http=("127.0.0.1", 0)) as site:
        assert site.broker.http is not None
        site.broker.http._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        asker = await ask(site, b"", buffer=4096)
        asker.transport.pause_reading()
        asker.transport.write(WHOLE.replace(b"/health", b"/metrics") * 400)
        connections = site.broker.http._server.server_state.connections
        await until(lambda: any(one.transport.get_write_buffer_size() > 65536 for one in connections))
        for _ in range(400):
            if not connections:
                break
            await site.later(PATIENCE + 1)
        assert not connections
        asker.transport.abort()


async def test_what_is_no_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with Site(http=("127.0.0.1", 0)) as site:
        for number in range(50):
            asker = await ask(site, b"\x16\x03 %d\r\n\r\n" % number)
            await until(lambda: asker.lost)  # noqa: B023
        assert len(refused(caplog)) == 1
        assert "event=http-refused address=127.0.0.1:" in refused(caplog)[0]
