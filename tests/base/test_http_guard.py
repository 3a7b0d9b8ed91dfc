"""The HTTP faces' connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from mqmesh.base.http.guard import guarded
from starlette.responses import PlainTextResponse
from support.services import PATIENCE
from uvicorn.server import ServerState


async def no_delay() -> int:
    """Whether the kernel sends what is written at once, at a listener that a program has made and passed on."""
    config = guarded(PlainTextResponse("done"), 10, logging.getLogger("test"), lifespan="off")
    config.load()
    found: list[int] = []

    class Watched(config.http_protocol_class):  # type: ignore[misc, name-defined]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            found.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    state = ServerState()
    listener = socket.create_server(("127.0.0.1", 0))
    server = await asyncio.get_running_loop().create_server(lambda: Watched(config, state, {}), sock=listener)
    async with server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"done")
        writer.close()
    return found[0]


def test_the_body_of_an_answer_does_not_wait_for_the_peer_to_confirm_the_head() -> None:
    """It waited for 40 ms, with the kernel's usual settings on both sides."""
    assert asyncio.run(no_delay())
