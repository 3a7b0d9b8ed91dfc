"""What the NATS library writes to when the connection has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from mqmesh.broker.products.nats.transport import Transport


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_writing_to_a_connection_that_broke_is_no_error(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The library writes what is left when it closes: its reader tells of the break, so this need not."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers": true}\r\n')
        await writer.drain()
        writer.transport.abort()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        transport = Transport()
        await transport.dial("127.0.0.1", server.sockets[0].getsockname()[1], None)
        while not transport._writer.is_closing():
            await asyncio.sleep(0)
            transport.write(b"PING\r\n")
        await asyncio.sleep(0)
        transport.write(b"PING\r\n")
        transport.writelines([b"PUB a 0\r\n", b"\r\n"])
        server.close()

    loop = new_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
