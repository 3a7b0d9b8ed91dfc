"""Closes connections that keep the directory waiting: those that do not send a whole request head within PATIENCE seconds.

uvicorn bounds how long a connection may be idle between two requests. This bounds the time before the first request, and that of a head
that comes byte by byte. Bodies have their own bound (`server.body_of`).
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 10.0  # seconds


class SlowClientProtocol(H11Protocol):
    """HTTP/1.1 with a timeout for request heads."""

    _hurry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _look(self) -> None:
        """The timeout runs from the beginning of the connection, or from the first byte of a head, until a request is complete."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._hurry is None:
            self._hurry = self.loop.call_later(PATIENCE, self._too_late)

    def _stop(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None

    def _too_late(self) -> None:
        self._hurry = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
