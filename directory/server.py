"""The directory as a web application, and the process that serves it.

REST and SOAP share one port. A request has at most LONGEST bytes, and the number of requests in progress is bounded. Requests are handled
in threads, because databases and hashes of secrets block.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..base.http.guard import guarded
from ..base.process.descriptors import raise_file_limit
from ..base.refusals import source_of
from . import feed as feed_module
from . import services
from .feed import Feed
from .leases import KEEP
from .rest import Answer, Rest, lane_of, seconds_of, token_of
from .storage.accounts import asker
from .storage.errors import DirectoryError
from .storage.store import Store
from .turns import AllTurns
from .uddi import soap
from .uddi.saving import prepare
from .uddi.schema import schema_text, xml_schema_text
from .uddi.wsdl import wsdl_text

LONGEST = 1024 * 1024  # bytes of a request
PATIENCE = 10.0  # seconds for a request's body
TOGETHER = 600  # connections, more than may wait for changes; a new connection beyond takes the place of one that says nothing

log = logging.getLogger("mqmesh.directory")

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]


class TooLong(Exception):
    """The body has more than LONGEST bytes, or takes longer than PATIENCE."""


async def body_of(request: Request) -> bytes:
    """The body of a request. Raises TooLong."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > LONGEST:
                    raise TooLong
                parts.append(part)
    except (TimeoutError, ClientDisconnect) as error:
        raise TooLong from error
    return b"".join(parts)


def _wrapper(store: Store, turns: AllTurns) -> Callable[[Answer], Endpoint]:
    """What makes endpoints of REST handlers."""

    def wrap(handler: Answer) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return await _worked_at(store, turns, handler, request, await body_of(request))

        return _refusing(endpoint)

    return wrap


async def _worked_at(store: Store, turns: AllTurns, handler: Callable[[Request, bytes], T], request: Request, body: bytes) -> T:
    """What a handler makes of a request, when it is its turn."""
    async with turns.turn(lane_of(request, body), asker(store, token_of(request), _source(request))):
        return await run_in_threadpool(handler, request, body)


def _refusing(answer: Endpoint) -> Endpoint:
    """An endpoint whose exceptions become answers. This is the only place that does it."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except TooLong:
            return JSONResponse({"error": "E_invalidValue", "message": f"at most {LONGEST} bytes within {PATIENCE:.0f} s"}, 413)
        except DirectoryError as error:
            if error.ours:
                log.error(
                    "event=request-failed method=%s path=%s error=%s text=%s", request.method, request.url.path, error.code, error.cause
                )
            headers = {"Retry-After": "1"} if error.code == "E_busy" else None
            return JSONResponse({"error": error.code, "message": str(error)}, error.status, headers)
        except Exception:
            log.exception("event=request-failed method=%s path=%s", request.method, request.url.path)
            return JSONResponse({"error": "E_fatalError", "message": "the directory failed; its log says how"}, 500)

    return endpoint


def _changes(store: Store, turns: AllTurns, rest: Rest, feed: Feed) -> Endpoint:
    """What has changed; a request without news waits for some."""

    async def endpoint(request: Request) -> Response:
        seconds, body = seconds_of(request, feed_module.LONGEST), await body_of(request)
        last, told = await _worked_at(store, turns, rest.changes, request, body)
        until = time.monotonic() + (seconds if "after" in request.query_params else 0.0)
        while told == [] and await feed.wait(last, until - time.monotonic()):
            last, told = await _worked_at(store, turns, rest.changes, request, body)
        return JSONResponse({"last": last, "lost": True, "changes": []} if told is None else {"last": last, "lost": False, "changes": told})

    return _refusing(endpoint)


def _source(request: Request) -> str:
    """The address that asks."""
    return source_of(f"{request.client.host}:0") if request.client is not None else ""


def application(store: Store, public_url: str | None = None, keep: float = KEEP, check: services.Check | None = None) -> Starlette:
    """The web application over a store. public_url: where clients reach it, None for what each request says. keep, check: see `Rest`."""
    prepare(store)
    turns, rest, feed = AllTurns(store.searches), Rest(store, keep) if check is None else Rest(store, keep, check), Feed(store)
    news = Route("/v1/changes", _changes(store, turns, rest, feed), methods=["GET"])
    app = Starlette(routes=[news, *rest.routes(_wrapper(store, turns)), *_uddi(store, turns, public_url)])
    app.state.feed = feed
    return app


def _uddi(store: Store, turns: AllTurns, public_url: str | None) -> list[Route]:
    """The SOAP endpoint, its WSDL and its schemas."""
    schemas = {"uddi.xsd": schema_text(), "xml.xsd": xml_schema_text()}

    async def post(request: Request) -> Response:
        try:
            body, source = await body_of(request), _source(request)
            lane, token = soap.lane_and_token(body)
            async with turns.turn(lane, asker(store, token, source)):
                status, text = await run_in_threadpool(soap.answer, store, body, source)
        except DirectoryError as error:
            status, text = 500, soap.refused(error)
        except TooLong:
            status, text = 500, soap.too_long(f"at most {LONGEST} bytes within {PATIENCE:.0f} s")
        return Response(text, status, media_type="text/xml")

    def wsdl(request: Request) -> Response:
        address = (public_url or str(request.base_url)).rstrip("/") + "/uddi"
        return Response(wsdl_text(address), media_type="text/xml")

    def schema(request: Request) -> Response:
        return Response(schemas[request.url.path.rpartition("/")[2]], media_type="text/xml")

    served = [Route(f"/uddi/{name}", schema, methods=["GET"]) for name in schemas]
    return [Route("/uddi", post, methods=["POST"]), Route("/uddi", wsdl, methods=["GET"]), *served]


def configured(app: Starlette, certificate: Path | None = None, key: Path | None = None) -> uvicorn.Config:
    """The configuration of uvicorn, with bounds on what strangers can hold."""
    tls: dict[str, Any] = {} if certificate is None else {"ssl_certfile": certificate, "ssl_keyfile": key}
    return guarded(app, TOGETHER, log, **tls)


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], feed: Feed) -> None:
        super().__init__(config)
        self._ready, self._feed = ready, feed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end it in order; uvicorn would raise them again at its end, before the database is closed."""
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._end)
        try:
            yield
        finally:
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(one)

    def _end(self) -> None:
        log.info("event=stopping")
        self._feed.end()
        self.force_exit = self.should_exit  # asked twice
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def _run(work: Coroutine[Any, Any, None]) -> None:
    """In the faster event loop, where it is installed."""
    raise_file_limit()
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def serve(
    store: Store,
    host: str,
    port: int,
    ready: Callable[[str], None],
    *,
    public_url: str | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    keep: float = KEEP,
    check: services.Check | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. ready: called with the URL once it listens. OSError when it cannot, ssl.SSLError too.

    keep: seconds for which the number of a broker that is gone is kept. check: see `Rest`.
    """
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)
    written = f"[{host}]" if ":" in host else host
    url = f"{'https' if certificate else 'http'}://{written}:{listener.getsockname()[1]}"
    app = application(store, public_url, keep, check)
    config = configured(app, certificate, key)

    def listening() -> None:
        log.info("event=listening url=%s", url)
        ready(url)

    _run(_Server(config, listening, app.state.feed).serve(sockets=[listener]))
    log.info("event=stopped url=%s", url)
