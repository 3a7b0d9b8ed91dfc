"""The HTTP face: posts, polls, leases (docs/interchange-http.md). `/openapi.json` describes it. SOAP 1.1 is at `/soap`.

Who asks shows what a client of the broker would: `Authorization: Basic` or `Bearer` (a token). A body is read after its sender was let in.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...base.http.login import credentials
from ..faces import cloudevents, envelope, soap, web
from ..faces.envelope import Form
from ..faces.wsdl import wsdl_text
from ..reading import service_name
from ..refusals import Code, Refusal
from ..rules.schema import schema
from .desk import LONGEST_LEASE, LONGEST_SELECTOR, LONGEST_WAIT, MOST_TAKEN, Desk, Poll, Taken
from .line import Denied, Login, Lost
from .openapi import description

log = logging.getLogger("mqmesh.interchange")

TOGETHER = 2000  # connections
LARGEST = 16_777_216  # bytes of a body
LARGEST_ASKED = 262_144  # bytes of a request that is no message
XML = "text/xml"
PATIENCE = 60.0  # seconds for a body
LOGIN = {"WWW-Authenticate": 'Basic realm="mqmesh", charset="UTF-8"'}

Handler = Callable[[Request, Login, str], Awaitable[Response]]


class _Wrong(Exception):
    """A request that is not carried out. status: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class HttpFace:
    """The handlers over one desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def routes(self) -> list[Route]:
        return [
            Route("/openapi.json", _describe, methods=["GET"]),
            Route("/rules.schema.json", _rules_schema, methods=["GET"]),
            Route("/v1/messages", self._endpoint(self._post), methods=["POST"]),
            Route("/v1/explain", self._endpoint(self._explain), methods=["POST"]),
            Route("/v1/services/{organisation}/{name}/poll", self._endpoint(self._poll), methods=["POST"]),
            Route("/v1/leases", self._endpoint(self._settle), methods=["POST"]),
            Route("/v1/query", self._endpoint(self._query), methods=["POST"]),
            Route("/soap", _wsdl, methods=["GET"]),
            Route("/soap", self._endpoint(self._soap), methods=["POST"]),
        ]

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                login, address = _login(request.headers.get("authorization", "")), _address(request)
                await self._desk.enter(login, address)
                return await handler(request, login, address)
            except Refusal as refusal:
                return JSONResponse(refusal.fields(), web.STATUS.get(refusal.code, web.CONFLICT))
            except Denied as denied:
                return _error(401, str(denied))
            except Lost as lost:
                return _error(503, str(lost))
            except _Wrong as wrong:
                return _error(wrong.status, str(wrong))

        return endpoint

    async def _post(self, request: Request, login: Login, address: str) -> Response:
        return JSONResponse(await self._desk.post(login, address, await _form(request)))

    async def _explain(self, request: Request, login: Login, address: str) -> Response:
        return JSONResponse(await self._desk.explain(login, address, await _form(request)))

    async def _poll(self, request: Request, login: Login, address: str) -> Response:
        asked = _asked(f"{request.path_params['organisation']}/{request.path_params['name']}", request.query_params)
        await body_of(request, LARGEST_ASKED)  # it is of no use
        found = await _while_there(request, self._desk.poll(login, address, asked))
        accepted = request.headers.get("accept", "")
        if cloudevents.BATCH in accepted:
            events = [cloudevents.written(one.form) | {"lease": one.lease} for one in found]
            return JSONResponse(events, media_type=cloudevents.BATCH)
        return JSONResponse({"messages": [_shown(one) for one in found]})

    async def _query(self, request: Request, login: Login, address: str) -> Response:
        return JSONResponse(await self._desk.query(login, address, await body_of(request, LARGEST_ASKED)))

    async def _settle(self, request: Request, login: Login, address: str) -> Response:
        try:
            asked = json.loads(await body_of(request, LARGEST_ASKED))
        except (ValueError, RecursionError):
            asked = None
        lists = ("acknowledge", "return", "extend")
        if not isinstance(asked, dict) or not set(asked) <= {*lists, "lease"} or not all(_are_names(asked.get(one, [])) for one in lists):
            raise _Wrong(400, 'give {"acknowledge": ["..."], "return": [], "extend": [], "lease": 60}')
        return JSONResponse({"unknown": self._settled(login, asked, str(asked.get("lease", 60)))})

    def _settled(self, login: Login, asked: Mapping[str, list[str]], lease: str) -> list[str]:
        seconds = _number(lease, "lease", 1, LONGEST_LEASE, 60)
        unknown = self._desk.settle(login, asked.get("acknowledge", []), done=True)
        unknown += self._desk.settle(login, asked.get("return", []), done=False)
        return unknown + self._desk.extend(login, asked.get("extend", []), seconds)

    async def _soap(self, request: Request, login: Login, address: str) -> Response:
        body = await body_of(request, LARGEST)
        try:
            asked = await asyncio.to_thread(soap.read, body, request.headers.get("content-type", ""))
            if asked.operation == "post":
                form = await asyncio.to_thread(soap.message, asked)
                answer = soap.posted(await self._desk.post(login, address, form))
            else:
                given = soap.values(asked)
                first = {name: found[0] for name, found in given.items()}
                if asked.operation == "query":
                    answer = soap.queried(await self._desk.query(login, address, soap.question(asked)))
                elif asked.operation == "poll":
                    poll = self._desk.poll(login, address, _asked(first.get("service", ""), first))
                    answer = soap.polled(await _while_there(request, poll))
                else:
                    answer = soap.settled(self._settled(login, given, first.get("lease", "60")))
        except Refusal as refusal:
            return Response(soap.fault(refusal), 500, media_type=XML)
        except (_Wrong, Lost) as error:
            code = Code.UNAVAILABLE if isinstance(error, Lost) else Code.NOT_WELL_FORMED
            return Response(soap.fault(Refusal(code, str(error))), 500, media_type=XML)
        return Response(answer, media_type=XML)


def application(desk: Desk) -> Starlette:
    """The web application of one desk."""
    return Starlette(routes=HttpFace(desk).routes())


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request. Raises _Wrong, Refusal."""
    size = request.headers.get("content-length", "0")
    parts, length = [], 0
    too_large = Refusal(Code.TOO_LARGE, "the body is too large", f"give at most {most:,} bytes")
    if size.isdecimal() and int(size[:19]) > most:
        raise too_large
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                length += len(part)
                if length > most:
                    raise too_large
                parts.append(part)
    except (TimeoutError, ClientDisconnect):
        raise _Wrong(408, f"the body did not come within {PATIENCE:g} s") from None
    return b"".join(parts)


async def _form(request: Request) -> Form:
    """The message that a request has. Raises _Wrong, Refusal."""
    return web.read(request.headers, request.query_params.multi_items(), await body_of(request, LARGEST))


async def _while_there(request: Request, work: Any) -> list[Taken]:
    """What a poll gives, as long as somebody waits for it."""
    task: asyncio.Task[list[Taken]] = asyncio.create_task(work, name="interchange-poll")
    gone = asyncio.create_task(_gone(request), name="interchange-poll-gone")
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Wrong(408, "nobody waits any more")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _asked(service: str, given: Mapping[str, str]) -> Poll:
    """What is asked of an inbox. Raises _Wrong, Refusal."""
    asked = Poll(
        service_name(service, "service"),
        int(_number(given.get("most"), "most", 1, MOST_TAKEN, 10)),
        _number(given.get("wait"), "wait", 0, LONGEST_WAIT, 0),
        _number(given.get("lease"), "lease", 1, LONGEST_LEASE, 60),
        given.get("selector", "").strip(),
    )
    if len(asked.selector) > LONGEST_SELECTOR:
        raise _Wrong(400, f"a selector has at most {LONGEST_SELECTOR:,} characters")
    return asked


async def _wsdl(request: Request) -> Response:
    return Response(wsdl_text(str(request.url.replace(query=""))), media_type=XML)


async def _rules_schema(_request: Request) -> Response:
    return JSONResponse(schema(), media_type="application/schema+json")


async def _describe(_request: Request) -> Response:
    return JSONResponse(description())


def _address(request: Request) -> str:
    peer = request.client
    return f"{peer.host}:{peer.port}" if peer is not None else "http"


def _login(header: str) -> Login:
    """What an Authorization header shows; a token has no user. Raises _Wrong."""
    try:
        return Login(*credentials(header))
    except ValueError as error:
        raise _Wrong(401, str(error)) from None


def _shown(taken: Taken) -> dict[str, Any]:
    return envelope.shown(taken.form) | {"lease": taken.lease}


def _number(text: str | None, name: str, least: float, most: float, default: float) -> float:
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = least - 1
    if not least <= found <= most:
        raise _Wrong(400, f"{name} = {text[:40]!r}: give a number from {least:g} to {most:g}")
    return found


def _are_names(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MOST_TAKEN and all(isinstance(one, str) and one.isascii() for one in value)


def _error(status: int, text: str) -> Response:
    codes = {401: "not-logged-in", 408: "too-late", 503: Code.UNAVAILABLE.value}
    found = {"code": codes.get(status, Code.NOT_WELL_FORMED.value), "what": text, "right": ""}
    return JSONResponse(found, status, LOGIN if status == 401 else None)
