"""The bytes between nats-py and a server: reading that can be paused, and TLS that is there when it is wanted.

The library's own transport begins TLS when the server says that it needs it: whoever sits between us could strip that word and read the
password. Here the address decides. The library also goes on reading whatever comes; here it waits while we are paused, TCP does the rest,
and nothing has to be dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import Any

from nats.aio import transport

from ....base.process.happy_eyeballs import connected_socket, hand_over

LONGEST_LINE = 65_536  # bytes; INFO of a large cluster is the longest


class Unfit(OSError):
    """The server is none that we can use. refused: it speaks NATS, but not to us."""

    def __init__(self, text: str, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class Transport(transport.Transport):
    """One connection. info: what the server said first. heard_at: the loop's time when something came."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.heard_at = asyncio.get_running_loop().time()
        self._gate = asyncio.Event()
        self._gate.set()
        self._written = asyncio.Event()
        self._hello = b""
        self._closed = False
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._bare: asyncio.StreamWriter | None = None  # below TLS; it closes the socket when it is forgotten

    async def dial(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Connect and hear the server's first word. context: of TLS, which begins after that. Raises OSError, Unfit, ValueError."""
        sock = await connected_socket(host, port)
        self._reader, self._writer = await hand_over(sock, asyncio.open_connection(sock=sock, limit=LONGEST_LINE))
        try:
            self._hello = await self._reader.readline()
        except ValueError:
            raise Unfit("the server does not speak NATS: a line does not end") from None
        word, _, rest = self._hello.partition(b" ")
        try:
            info = json.loads(rest) if word.upper() == b"INFO" else None
        except (ValueError, RecursionError):
            info = None
        if not isinstance(info, dict):
            raise Unfit("the server does not speak NATS" if self._hello else "connection lost")
        self.info = info
        if context is not None:
            await self._secure(host, context)
        elif info.get("tls_required"):
            raise Unfit("it wants TLS: write tls://host:port", True)
        if not info.get("headers"):
            raise Unfit("it knows no headers: nats-server 2.2 and later do", True)

    async def _secure(self, host: str, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LONGEST_LINE)  # what came in the clear behind INFO is nobody's
        protocol = asyncio.StreamReaderProtocol(reader)
        self._bare = self._writer
        secure = await loop.start_tls(self._writer.transport, protocol, context, server_hostname=host)
        if secure is None:
            raise Unfit("connection lost")
        protocol.connection_made(secure)  # so that the reader can pause it
        self._reader, self._writer = reader, asyncio.StreamWriter(secure, protocol, reader, loop)

    def pause(self, paused: bool) -> None:
        """Read nothing, or read on."""
        if paused:
            self._gate.clear()
        else:
            self.heard_at = asyncio.get_running_loop().time()
            self._gate.set()

    @property
    def paused(self) -> bool:
        """Whether nothing is read."""
        return not self._gate.is_set()

    @property
    def waiting(self) -> int:
        """Bytes that the system has not taken."""
        return 0 if self._closed else self._writer.transport.get_write_buffer_size()

    async def written(self) -> None:
        """The library has written something since this was called."""
        self._written.clear()
        await self._written.wait()

    def abort(self) -> None:
        """End it now; what is not written is lost."""
        self.close()
        with contextlib.suppress(AttributeError):  # not connected
            self._writer.transport.abort()

    # What the library asks for

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        """It is connected."""

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        """TLS has begun, or the server is `Unfit`."""

    def write(self, payload: bytes) -> None:
        if not self._closed and not self._writer.is_closing():  # a connection that broke by itself: uvloop raises, asyncio does not
            self._writer.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))
        self._written.set()

    async def drain(self) -> None:
        if not self._closed:
            await self._writer.drain()

    async def read(self, buffer_size: int) -> bytes:
        await self._gate.wait()
        data = await self._reader.read(buffer_size)
        self.heard_at = asyncio.get_running_loop().time()
        return data

    async def readline(self) -> bytes:
        if self._hello:
            hello, self._hello = self._hello, b""
            return hello
        try:
            return await self._reader.readline()
        except ValueError:
            raise Unfit("the server does not speak NATS: a line does not end") from None

    def at_eof(self) -> bool:
        return self._reader.at_eof()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(AttributeError):
            self._writer.close()

    async def wait_closed(self) -> None:
        """Nobody waits for the other side."""

    def __bool__(self) -> bool:
        return True
