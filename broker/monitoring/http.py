"""The HTTP listener of a broker, in the broker's own loop; meant for loopback. What stands here only reads, and tells no secrets;
management (`management/http.py`) asks who it is.

`/metrics` is for Prometheus. `/health` answers 200 as long as the broker's loop runs, and says what is wrong that a restart does not
mend. `/ready` answers 200 while clients should be sent here, else 503 with the reasons: the broker is stopping, its store refuses, or it
does not know yet what other sites want.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...base.http.server import HttpListener
from .health import reasons, troubles
from .metrics import Totals, registry
from .queue_metrics import queue_metrics

if TYPE_CHECKING:
    from ..site import Site

log = logging.getLogger("mqmesh.http")

TOGETHER = 64  # connections; a new one beyond takes the place of one that says nothing


class HttpFace(HttpListener):
    """One listener. more: what else it answers. certificate: see `HttpListener`."""

    def __init__(
        self, site: Site, totals: Totals, host: str, port: int, more: Sequence[Route] = (), certificate: tuple[str, str] | None = None
    ) -> None:
        super().__init__(application(site, totals, more), host, port, TOGETHER, log, certificate)


def application(site: Site, totals: Totals, more: Sequence[Route] = ()) -> Starlette:
    """The web application of one broker. Its handlers run in the broker's loop: they only read, but for `more`."""
    numbers = registry(site, totals)

    async def metrics(_request: Request) -> Response:
        queues, turns = site.queues, site.context.turns
        each = await turns.result_of(turns.broker, queue_metrics(queues), "work=metrics") if queues is not None else b""
        return Response(generate_latest(numbers) + each, media_type=CONTENT_TYPE_LATEST)

    async def health(_request: Request) -> Response:
        config, wrong = site.config, troubles(site)
        state = {"state": "degraded" if wrong else "ok", "reasons": wrong}
        uptime = round(site.context.loop.time() - site.context.started, 1)
        return JSONResponse({"name": config.broker_name, "number": config.number, "uptime": uptime, **state})

    async def ready(_request: Request) -> Response:
        why = reasons(site)
        return JSONResponse({"ready": not why, "reasons": why}, 503 if why else 200)

    return Starlette(routes=[Route("/metrics", metrics), Route("/health", health), Route("/ready", ready), *more])
