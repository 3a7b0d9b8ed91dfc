"""Dialling a WebSocket: the connection, TLS where it is wanted, and the handshake of WebSocket over it."""

from __future__ import annotations

import asyncio
import os
import ssl

from ....base.process.happy_eyeballs import connect
from ....mqtt.websocket.opening import Answer, ClientOpening
from .transport import WebSocketTransport

LIMIT = 2**40  # bytes of a message: nothing is collected, so that a server may say what it likes


class WebSocketError(ConnectionError):
    """A WebSocket could not be opened; a clause about the server."""


async def dial(protocol: asyncio.Protocol, host: str, port: int, path: str, context: ssl.SSLContext | None, patience: float) -> None:
    """Connect `protocol` through a WebSocket of MQTT: its `connection_made` has been called when this returns.

    context: for TLS, None without. patience: seconds for the handshake of WebSocket. Raises WebSocketError and OSError.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[None] = loop.create_future()

    def established(transport: WebSocketTransport) -> None:
        if not outcome.done():
            outcome.set_result(None)
            transport.begin(protocol)

    def failed(transport: WebSocketTransport, answer: Answer) -> None:
        if not outcome.done():
            outcome.set_exception(WebSocketError(answer.text))

    name = f"[{host}]" if ":" in host else host
    opening = ClientOpening(name if port == (443 if context else 80) else f"{name}:{port}", path, os.urandom(16))
    transport = WebSocketTransport(loop, opening, LIMIT, patience, established, failed)
    await connect(lambda: transport, host, port, context)
    try:
        await outcome
    except BaseException:
        transport.abort()
        raise
