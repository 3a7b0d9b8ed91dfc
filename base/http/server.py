"""An HTTP listener in the loop of a program that has other things to do: it leaves signals to the program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from .guard import guarded

LEAVING = 2  # seconds for answers under way when it stops


class _Server(uvicorn.Server):
    """Leaves signals to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpListener:
    """One listener. host, port: where; port 0 takes any free one, `url` says which. OSError when it cannot listen.

    app: what answers (ASGI). most: connections. log: of what clients do wrong. certificate: PEM files of certificate and key, for https.
    """

    def __init__(
        self, app: Any, host: str, port: int, most: int, log: logging.Logger, certificate: tuple[str, str] | None = None, **settings: Any
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        written = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if certificate else ''}://{written}:{self._socket.getsockname()[1]}"
        if certificate is not None:
            settings |= {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
        config = guarded(app, most, log, loop="none", lifespan="off", timeout_graceful_shutdown=LEAVING, **settings)
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Answer from now on."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")

    async def stop(self) -> None:
        """Answer no longer."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=2 * LEAVING)
        self._socket.close()
