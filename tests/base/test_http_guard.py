"""The HTTP faces' connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
from mqmesh.base.http.guard import guarded
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
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


HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
WRONG = b"-2\r\n{}\r\n0\r\n\r\n"  # no chunk has such a length


class Face:
    """An HTTP face. how: it answers at once ("given"), after the body ("reads"), or begins to and goes on after the body ("begun")."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.there = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.there.set()
        try:
            if self.how == "begun":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            if self.how != "given":
                while (await receive()).get("more_body"):
                    pass
            if self.how == "begun":
                await send({"type": "http.response.body", "body": b""})
            else:
                await PlainTextResponse("done")(scope, receive, send)
        finally:
            self.ended.set()


async def answers(how: str, together: bool) -> bytes:
    """What a client gets for a request with a wrong body. together: the body comes with the head, and not when the face is at work."""
    face = Face(how)
    config = guarded(face, 10, logging.getLogger("test"), lifespan="off")
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: config.http_protocol_class(config, state, {}), "127.0.0.1", 0)  # type: ignore
    async with server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HEAD + (WRONG if together else b""))
        got = b""
        if not together:
            await face.there.wait()
            got = b"" if how == "reads" else await reader.readuntil({"given": b"done", "begun": b"begun"}[how])
            writer.write(WRONG)
        got += await reader.read()
        await face.ended.wait()
        writer.close()
    return got


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("how", ["given", "reads", "begun"])
def test_a_wrong_body_gets_one_answer_and_no_stack_trace(how: str, together: bool, caplog: pytest.LogCaptureFixture) -> None:
    got = asyncio.run(answers(how, together))
    assert got.count(b"HTTP/1.1 ") == 1
    assert got.startswith(b"HTTP/1.1 400 " if together or how == "reads" else b"HTTP/1.1 200 ")
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_the_body_of_an_answer_does_not_wait_for_the_peer_to_confirm_the_head() -> None:
    """It waited for 40 ms, with the kernel's usual settings on both sides."""
    assert asyncio.run(no_delay())
