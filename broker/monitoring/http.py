"""The HTTP listener of a broker, in the broker's own loop; meant for loopback. What stands here only reads, and tells no secrets;
management (`management/http.py`) asks who it is.

`/metrics` is for Prometheus. `/health` answers 200 as long as the broker's loop runs, and says what is wrong that a restart does not
mend. `/ready` answers 200 while clients should be sent here, else 503 with the reasons: the broker is stopping, its store refuses, or it
does not know yet what other sites want.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...base.http_guard import guarded
from .health import reasons, troubles
from .metrics import Totals, registry

if TYPE_CHECKING:
    from ..site import Site

log = logging.getLogger("mqmesh.http")

TOGETHER = 64  # connections; a new one beyond takes the place of one that says nothing
LEAVING = 2  # seconds for answers under way when the broker stops


class _Server(uvicorn.Server):
    """Leaves signals to the broker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpFace:
    """One listener. host, port: where; port 0 takes any free one, `url` says which. more: what else it answers. OSError when it cannot
    listen."""

    def __init__(self, site: Site, totals: Totals, host: str, port: int, more: Sequence[Route] = ()) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        written = f"[{host}]" if ":" in host else host
        self.url = f"http://{written}:{self._socket.getsockname()[1]}"
        app = application(site, totals, more)
        config = guarded(app, TOGETHER, log, loop="none", lifespan="off", timeout_graceful_shutdown=LEAVING)
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


def application(site: Site, totals: Totals, more: Sequence[Route] = ()) -> Starlette:
    """The web application of one broker. Its handlers run in the broker's loop: they only read, but for `more`."""
    numbers = registry(site, totals)

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(numbers), media_type=CONTENT_TYPE_LATEST)

    async def health(_request: Request) -> Response:
        config, wrong = site.config, troubles(site)
        state = {"state": "degraded" if wrong else "ok", "reasons": wrong}
        uptime = round(site.context.loop.time() - site.context.started, 1)
        return JSONResponse({"name": config.broker_name, "number": config.number, "uptime": uptime, **state})

    async def ready(_request: Request) -> Response:
        why = reasons(site)
        return JSONResponse({"ready": not why, "reasons": why}, 503 if why else 200)

    return Starlette(routes=[Route("/metrics", metrics), Route("/health", health), Route("/ready", ready), *more])
