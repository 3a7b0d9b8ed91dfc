"""The management protocol over HTTP, on the broker's HTTP listener: `POST /manage`, `GET /manage/LIST`, `/manage/openapi.json`.

Who asks is a user of the broker, by `Authorization: Basic` or `Bearer` (a token); the answer is the one that a client gets over MQTT.

Without TLS this is for loopback only: elsewhere each request is refused. A page in a browser cannot use it: the body has to be
`application/json`, which a page may not send elsewhere unasked, a request with an `Origin` is refused, and without TLS the name in `Host`
has to be a loopback one, so that no name of a stranger leads here (DNS rebinding); with TLS the certificate has no such name.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ... import __version__
from ...base.address import is_loopback
from ...base.http.login import credentials
from ...mqtt.packets import Connect
from ..auth.operators import rights_of_user
from .asked import LARGEST, LISTED
from .wire import Asker

if TYPE_CHECKING:
    from ..auth.guard import Guard
    from ..auth.service import Outcome
    from ..settings.http import HttpAddress
    from ..site import Site
    from .service import Management

NOT_LOOPBACK = "passwords would travel in the clear: give http.listen a loopback address, or https"
LOGIN = {"WWW-Authenticate": 'Basic realm="mqmesh", charset="UTF-8"'}
NUMBERS = ("limit", "within")
PATIENCE = 10  # seconds for the body of a request


class HttpRefused(Exception):
    """A request that is not carried out. status: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Peer:
    """Stands for the connection of a client where a password is compared. address: with the port."""

    closing = False
    listener = ""

    def __init__(self, address: str) -> None:
        self.address = address
        self.transport = self

    def get_extra_info(self, _name: str) -> None:
        """It has no TLS."""


def management_routes(site: Site, management: Management, address: HttpAddress) -> list[Route]:
    """What the HTTP listener answers for management. address: where it listens."""
    face = _Face(site, management, is_loopback(address.host), address.tls)
    return [
        Route("/manage", face.post, methods=["POST"]),
        Route("/manage/openapi.json", face.describe, methods=["GET"]),
        Route("/manage/{list}", face.get, methods=["GET"]),
    ]


class _Face:
    def __init__(self, site: Site, management: Management, loopback: bool, tls: bool) -> None:
        self._site = site
        self._management = management
        self._loopback = loopback
        self._tls = tls

    async def post(self, request: Request) -> Response:
        """Any request of the protocol."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _error(415, "send application/json")
        size = request.headers.get("content-length", "")
        if not size.isdecimal() or len(size) > 9 or int(size) > LARGEST:
            return _error(413, f"a request has at most {LARGEST:,} bytes, and says how many in Content-Length")
        try:
            async with asyncio.timeout(PATIENCE):
                body = await request.body()
        except (TimeoutError, ClientDisconnect):
            return _error(408, f"the request did not come within {PATIENCE} s")
        return await self._answered(request, body)

    async def get(self, request: Request) -> Response:
        """Rows of a list: keys of the request are parameters; any other one is a condition for the column of that name."""
        given = request.query_params
        asked: dict[str, Any] = {key: given[key] for key in LISTED if key in given and key not in ("list", "where")}
        for key in NUMBERS:
            if key in asked:
                asked[key] = float(asked[key]) if asked[key].replace(".", "", 1).isdecimal() else asked[key]
        if "at" in asked and "," in asked["at"]:
            asked["at"] = asked["at"].split(",")
        if "payload" in asked:
            asked["payload"] = asked["payload"] == "true"
        where = {key: value for key, value in given.items() if key not in LISTED}
        body = json.dumps({**asked, "list": request.path_params["list"], "where": where}).encode()
        return await self._answered(request, body)

    async def describe(self, _request: Request) -> Response:
        """What can be asked, as OpenAPI."""
        return JSONResponse(openapi(self._management))

    async def _answered(self, request: Request, body: bytes) -> Response:
        try:
            self._check(request)
            asker = await self._asker(request)
        except HttpRefused as refused:
            return _error(refused.status, str(refused))
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        context = self._site.context
        context.refresh()
        self._management.ask(body, asker, lambda found: None if answer.done() else answer.set_result(found))
        context.flush()
        found = await answer
        return JSONResponse(found, 400 if "error" in found else 200)

    def _check(self, request: Request) -> None:
        if not (self._loopback or self._tls):
            raise HttpRefused(403, NOT_LOOPBACK)
        if "origin" in request.headers:
            raise HttpRefused(403, "pages of browsers are not served")
        if not self._tls and not is_loopback((request.url.hostname or "").strip("[]")):
            raise HttpRefused(403, "Host has to be a loopback address or localhost")

    async def _asker(self, request: Request) -> Asker:
        """Who asks. Raises HttpRefused."""
        guard = self._site.guard
        peer = request.client
        address = f"{peer.host}:{peer.port}" if peer is not None else "http"
        outcome = await _known(guard, address, *_credentials(request.headers.get("authorization", "")))
        if outcome is not None and outcome.refusal is not None:
            raise HttpRefused(401, outcome.refusal[1])
        user = outcome.user if outcome is not None else None
        rights = rights_of_user(guard, user)
        if not rights:
            raise HttpRefused(401 if user is None else 403, "not permitted: give the user a role in [management]")
        return Asker("(http)", user, address, rights)


def _credentials(header: str) -> tuple[str | None, bytes | None]:
    """See `credentials`. Raises HttpRefused."""
    try:
        return credentials(header)
    except ValueError as error:
        raise HttpRefused(401, str(error)) from None


async def _known(guard: Guard, address: str, user: str | None, password: bytes | None) -> Outcome | None:
    """Who shows this; None: nobody is asked here."""
    if guard.authenticator is None:
        return None
    found: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    packet = Connect("", 5, True, 0, user, password)
    now = guard.authenticator.ask(_Peer(address), packet, lambda outcome: None if found.done() else found.set_result(outcome))  # type: ignore[arg-type]
    return now if now is not None else await found


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status, LOGIN if status == 401 else None)


def openapi(management: Management) -> dict[str, Any]:
    """The description of the interface (OpenAPI 3.1), with the lists and actions that the broker has."""
    answer = {"description": "the answer", "content": {"application/json": {"schema": {"type": "object"}}}}
    responses = {"200": answer, "400": {**answer, "description": "wrong or refused: `error` says why"}, "401": {"description": "log in"}}
    paths: dict[str, Any] = {
        "/manage": {
            "post": {
                "summary": "any request of the management protocol",
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"oneOf": _requests(management)}}}},
                "responses": responses,
            }
        }
    }
    for listing in management.work.lists.all():
        names = [name for name in LISTED if name not in ("list", "where")] + [one.name for one in listing.fields] + list(listing.extra)
        paths[f"/manage/{listing.name}"] = {
            "get": {
                "summary": listing.help,
                "parameters": [
                    {"name": name, "in": "query", "required": name in listing.needs, "schema": {"type": "string"}}
                    for name in dict.fromkeys(names)
                ],
                "responses": responses,
            }
        }
    security = {"basic": {"type": "http", "scheme": "basic"}, "bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mqmesh management", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": security},
        "security": [{"basic": []}, {"bearer": []}],
    }


def _requests(management: Management) -> list[dict[str, Any]]:
    """The forms of a request as JSON Schemas."""
    at = {"at": {"type": ["string", "integer", "array"]}, "within": {"type": "number"}}
    listed = {"list": {"enum": [one.name for one in management.work.lists.all()]}, "where": {"type": "object"}, "sort": {"type": "string"}}
    page = {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "cursor": {"type": ["string", "null"]},
        "payload": {"type": "boolean"},
    }
    found: list[dict[str, Any]] = [{"type": "object", "required": ["list"], "properties": {**listed, **page, **at}}]
    for action in management.work.actions.all():
        values = {name: {"examples": [json.loads(text)]} for name, text in action.values.items()}
        needed = ["do", *[name for name in action.values if name not in action.optional]]
        fixed = {"do": {"const": action.name}, "dry_run": {"type": "boolean"}}
        found.append({"type": "object", "title": action.help, "required": needed, "properties": {**fixed, **values, **at}})
    return found
