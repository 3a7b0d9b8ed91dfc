"""The HTTP face in a process of its own, beside any broker of the mesh: large bodies and slow clients are then no work of the broker.

It has no rights at the broker: what a request shows is shown to the broker, by a connection for each login (`gateway/desk.py`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import time
from collections.abc import Callable, Sequence

from ...base.address import Address
from ...base.http.server import HttpListener
from ...base.process.happy_eyeballs import connect
from ...broker.transport.tls.openssl_errors import explain
from ...broker.transport.websocket.client import dial
from ..gateway.desk import Desk, open_line
from ..gateway.http import TOGETHER, application
from ..gateway.line import Line, Login, Lost

log = logging.getLogger("mqmesh.interchange")

PATIENCE = 10.0  # seconds for a connection to a broker


class Brokers:
    """Where to connect to: the first of these that answers. context: for TLS."""

    def __init__(self, addresses: Sequence[Address], context: ssl.SSLContext | None) -> None:
        self._addresses = addresses
        self._context = context

    async def connect(self, login: Login, address: str) -> Line:
        """See `Connect`."""
        why = ""
        for one in self._addresses:
            line = Line(login, pings=True)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._dial(line, one)
            except TimeoutError:
                why = f"{one}: no answer"
            except OSError as error:
                why = f"{one}: {explain(error) if isinstance(error, ssl.SSLError) else error.strerror or error}"
            else:
                return await open_line(line)
        log.warning("event=broker-away address=%s text=%s", address, why)
        raise Lost("the broker cannot be reached")

    async def _dial(self, line: Line, address: Address) -> None:
        loop, context = asyncio.get_running_loop(), self._context if address.tls else None
        if address.scheme == "unix":
            await loop.create_unix_connection(lambda: line, address.path)
        elif address.websocket:
            await dial(line, address.host, address.port, address.path, context, PATIENCE)
        else:
            await connect(lambda: line, address.host, address.port, context)


async def serve(brokers: Brokers, host: str, port: int, certificate: tuple[str, str] | None, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. ready: called with the URL once it listens. Raises OSError."""
    desk = Desk(brokers.connect, lambda: time.time_ns() // 1_000_000)
    listener = HttpListener(application(desk), host, port, TOGETHER, log, certificate)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    listener.start()
    ready(listener.url)
    await stopped.wait()
    await listener.stop()
    desk.close()
