"""Bounds what slow and idle clients of an HTTP face can hold: the monitoring of a broker, and the directory.

A connection is *waiting* while no request of it is being answered: before the first request, in a head that comes byte by byte, between
two requests, and while its peer does not take an answer. It is closed after PATIENCE seconds of that, in which nothing of an answer was
taken. Bodies have their own bound, where a face takes any.

There is a bound on connections. Beyond it a new one takes the place of the oldest waiting one of the address that has most of them. So
whoever opens connections and says nothing, or half a request, does not keep others out: what is asked at once is answered. Only where all
connections are being answered, a request more gets status 503.

What strangers send wrongly is a warning a minute for their address.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..refusals import Refusals, source_of

PATIENCE = 10.0  # seconds
KEEP_ALIVE = 15  # seconds between two requests at most; PATIENCE ends it earlier


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with bounds. `limits` are the settings of uvicorn that belong to it. most: connections of the face."""

    most = 64
    refusals: Refusals

    _timer: asyncio.TimerHandle | None = None
    _unsent = 0
    since = 0.0  # when it was made, on the loop's clock

    @property
    def waiting(self) -> bool:
        """Whether no request is being answered, or its peer does not take the answer."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    @property
    def source(self) -> str:
        """Whose connection it is."""
        return source_of("{}:{}".format(*self.client)) if self.client else "unix"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (one := transport.get_extra_info("socket")) is not None and one.family in (socket.AF_INET, socket.AF_INET6):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a body waited for the peer's word about the head, which has 40 ms
        self.since = self.loop.time()
        self.logger = _Log(self.logger, self)  # type: ignore[assignment]
        self._look()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """What comes is no HTTP. If it is in the body of a request, the face's own answer must not follow: one request has one answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the answer has begun, or is given
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # it and the log know this connection: what holds no cycle is freed at once
        if isinstance(self.logger, _Log):
            self.logger = self.logger.logger

    def _make_room(self) -> None:
        """At the bound, close the oldest waiting connection of the address that has most of them."""
        alive = [
            one
            for one in self.connections
            if isinstance(one, GuardedProtocol) and (not one.transport.is_closing() or one.transport.get_write_buffer_size())
        ]  # one that closes counts until its answer is taken
        waiting = [one for one in alive if one is not self and one.waiting]
        if len(alive) <= self.most or not waiting:
            return
        counts: dict[str, int] = {}
        for one in waiting:
            counts[one.source] = counts.get(one.source, 0) + 1
        victim = min(waiting, key=lambda one: (-counts[one.source], one.since))
        self.say(victim.source, "closed its oldest idle connection: the bound of connections is reached")
        self.connections.discard(victim)  # it counts no longer, though the loop has not said yet that it is lost
        victim.transport.abort()

    def say(self, source: str, text: str) -> None:
        """Log what a client does wrong."""
        self.refusals.say(self.loop.time(), f"{source}:", text)

    def _look(self) -> None:
        """The clock runs from the beginning of the connection, from the first byte of a head, and from the end of an answer."""
        if not self.waiting:
            self._stop()
        elif self._timer is None:
            self._unsent = self.transport.get_write_buffer_size()
            self._timer = self.loop.call_later(PATIENCE, self._too_late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if not self.waiting:
            return
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self.transport.close()
        elif unsent < self._unsent:
            self._look()  # it takes its answer, slowly
        else:
            self.transport.abort()


class _Log(logging.LoggerAdapter[logging.Logger]):
    """What uvicorn says of a client's mistakes, bounded by its address."""

    level = logging.WARNING

    def __init__(self, log: logging.Logger, protocol: GuardedProtocol) -> None:
        super().__init__(log, {})
        self._protocol = protocol

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        self._protocol.say(self._protocol.source, str(msg))


def guarded(app: Any, most: int, log: logging.Logger, **settings: Any) -> Config:
    """The configuration of uvicorn for a face. most: connections. log: of what clients do wrong. settings: others of uvicorn.

    Raises OSError if the certificate or its key cannot be used.
    """
    if "ssl_certfile" in settings:
        _check(settings["ssl_certfile"], settings["ssl_keyfile"])
    protocol = type("Protocol", (GuardedProtocol,), {"most": most, "refusals": Refusals(log, "http-refused")})
    return Config(
        app,
        http=protocol,
        limit_concurrency=most + 1,  # counts the one that asks
        timeout_keep_alive=KEEP_ALIVE,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        **settings,
    )


def _check(certificate: str | Path, key: str | Path) -> None:
    """Raise OSError, which names the file, if a certificate cannot be used: uvicorn says it late, and without a name."""
    for file in (certificate, key):
        Path(file).read_bytes()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")  # never ask at the terminal
    except ssl.SSLError as error:
        why = (error.reason or "no PEM").lower().replace("_", " ")
        raise OSError(errno.EINVAL, f"no certificate with its key ({why}): give PEM files", f"{certificate}, {key}") from None
