"""What is told of a server that cannot be used: in each case what would be right."""

from __future__ import annotations

import asyncio

import pytest
from mqmesh.base.address import REMOTE, parse_address
from mqmesh.metabroker.connectors.amqp.connector import AmqpConnector, Login
from mqmesh.metabroker.connectors.connector import Owner
from support.services import PATIENCE, free_port


async def told(address: str) -> tuple[bool | None, str]:
    """Why a connection to an address is not accepted."""
    down: asyncio.Queue[tuple[bool | None, str]] = asyncio.Queue()
    connector = AmqpConnector(
        Login("m"), [parse_address(address, REMOTE)], None, Owner(lambda events: None, lambda *why: down.put_nowait(why))
    )
    running = asyncio.create_task(connector.run())
    try:
        return await asyncio.wait_for(down.get(), PATIENCE)
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_listener_with_tls_reached_without() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"\x15\x03\x03\x00\x02\x02\x46")
        await reader.read()
        writer.close()

    async def reached() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            assert await told(address) == (False, f"{address}: it wants TLS: write amqps://host:port")

    asyncio.run(reached())


@pytest.mark.parametrize(
    ("host", "words"), [("127.0.0.1", "does a broker listen there?"), ("no-such-host.invalid", "is the address right?")]
)
def test_nobody_is_there(host: str, words: str) -> None:
    refused, text = asyncio.run(told(f"amqp://{host}:{free_port()}"))
    assert refused is None
    assert text.endswith(words), text
