"""NATS over TLS: the server says INFO in the clear, and TLS begins after that."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from ...address import Address
from ...connection import Connection, Line
from . import codec
from .machine import Machine


class NatsConnection(Connection[Machine]):
    """A `Connection` that knows this."""

    async def _dial(self, line: Line[Machine], address: Address, context: ssl.SSLContext | None) -> None:
        if context is None:
            await super()._dial(line, address, context)
            return
        loop = asyncio.get_running_loop()
        transport, hello = await loop.create_connection(_Hello, address.host, address.port)
        try:
            info = await hello.info
            secure = await loop.start_tls(transport, line, context, server_hostname=address.host)
        except BaseException:
            transport.abort()
            raise
        line.connection_made(secure)
        line.data_received(info)


class _Hello(asyncio.Protocol):
    """Waits for the first line. What follows it before TLS would be nobody's: nothing may."""

    def __init__(self) -> None:
        self.info: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self.info.done():
            return
        if self._data.endswith(b"\r\n") and self._data.count(b"\r\n") == 1:
            self.info.set_result(self._data)
        elif b"\r\n" in self._data or len(self._data) > codec.LONGEST_LINE:
            self.info.set_exception(OSError("the server does not speak NATS"))

    def connection_lost(self, exc: Any) -> None:
        if not self.info.done():
            self.info.set_exception(OSError("connection lost"))
