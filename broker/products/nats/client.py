"""nats-py's client, where it is made to differ.

It speaks the protocol; this says what happens in four places where it would end or lose something. The methods are the library's own,
which is why pyproject.toml bounds its version closely.

- Reading: a client whose reading fails by whatever a server or a message may contain would log a traceback and stay, deaf. Here that ends
  the connection, and says why. What a server announces is bounded.
- Errors: the library closes the connection for each but one kind. A server that takes no more subscriptions, or not this subject, does
  not mean the other sessions on the connection.
- Headers: names may repeat, values may be any bytes; the library keeps the last of each name.
- Subjects: a client of the server can publish to one that is no UTF-8. The message comes, and we can acknowledge it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio import client, msg
from nats.errors import Error

from .headers import Headers
from .transport import Transport

LARGEST_MESSAGE = 67_108_864  # bytes; the most that a server can be configured to carry
CHUNK = 65_536
SILENT = 1 << 30  # seconds: the library's own pings would end connections that we have paused
_TOLD = ("permissions violation", "maximum subscriptions", "invalid subject", "invalid publish subject", "message size exceeded")


class Client(client.Client):
    """One connection. on_error: the server says that something is wrong, in lower case; the connection stays.

    gone: the connection has ended. error: why.
    """

    def __init__(self, transport: Transport, on_error: Callable[[str], None]) -> None:
        super().__init__()
        self.gone = asyncio.Event()
        self.error = ""
        self._transport = transport
        self._on_error = on_error

    async def open(self, **options: Any) -> None:
        """Say who we are. Raises nats.errors.Error, OSError."""
        await self.connect(
            "nats://connected",  # the transport is
            error_cb=self._told,
            closed_cb=self._closed,
            allow_reconnect=False,
            connect_timeout=SILENT,
            ping_interval=SILENT,
            **options,
        )
        if not self.is_connected:
            raise OSError("the server has not accepted us")

    async def handled(self) -> None:
        """Return when the server has handled all that was given to the library so far. Raises nats.errors.Error."""
        assert isinstance(self._transport, Transport)
        while self.pending_data_size:  # the library writes a PING before what waits
            await self._transport.written()
        await self.rtt(SILENT)

    async def _told(self, error: Exception) -> None:
        """Of messages that it drops, for example: it has no reason to."""
        if self.is_connected:
            self._on_error(str(error).removeprefix("nats: "))

    async def _closed(self) -> None:
        if not self.error and self.last_error is not None:
            self.error = _words(self.last_error)
        self.gone.set()

    async def _read_loop(self) -> None:
        assert isinstance(self._transport, Transport)
        try:
            while data := await self._transport.read(CHUNK):
                await self._ps.parse(data)
                if len(self._ps.buf) > LARGEST_MESSAGE:
                    raise Error("nats: a message or a line does not end")
                if len(self._server_pool) > 1:
                    self.set_server_pool([])  # other servers of the cluster: the address says where we go
        except Exception as error:
            self.error = f"the server ends the connection: {error.args[0]}" if isinstance(error, _Ended) else _words(error)
        finally:
            self.gone.set()

    async def _process_err(self, err_msg: str) -> None:
        text = err_msg.strip("'")
        if not text.startswith(_TOLD):
            raise _Ended(text)
        self._on_error(text)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return Headers(headers) if headers else None

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None) -> msg.Msg:
        escape = "surrogateescape"
        return self.msg_class(self, subject.decode(errors=escape), reply.decode(errors=escape), data, headers, _sid=sid)


class _Ended(Exception):
    """The server says that it ends the connection."""


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"the server does not speak NATS: {str(error).removeprefix('nats: ')[:200]}"
