"""The REST face: records as JSON under /v1, described by /openapi.json.

Whoever has no token reads what is public; who writes shows a token (`Authorization: Bearer ...`) drawn at POST /v1/tokens.
Errors are {"error": name, "message": text} with the status of `errors.CODES`. The handlers are plain
functions: the server runs them in threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..base.refusals import source_of
from . import leases, services
from . import records as all_records
from .openapi import description
from .storage.accounts import TOKEN_LIFE, discard_token, draw_token, identify
from .storage.errors import DirectoryError
from .storage.rows import Records
from .storage.store import Store
from .storage.tables import Account
from .turns import Lane
from .uddi.documents import SORTS

MOST = 1000  # records in one answer
_PLURAL = {f"{sort}s": sort for sort in SORTS}

Answer = Callable[[Request, bytes], Response]


class Rest:
    """The handlers over one store; each takes the request and its body.

    keep: of numbers, see `leases.claim`. check: of profiles of the interchange's services.
    """

    def __init__(self, store: Store, keep: float = leases.KEEP, check: services.Check = lambda service, profile: None) -> None:
        self._store = store
        self._keep = keep
        self._check = check

    def routes(self, wrap: Callable[[Answer], Any]) -> list[Route]:
        """Paths and handlers. wrap: makes an endpoint of the web framework from a handler."""
        table: list[tuple[str, str, Answer]] = [
            ("/openapi.json", "GET", lambda request, body: JSONResponse(description())),
            ("/v1/health", "GET", self._health),
            ("/v1/tokens", "POST", self._draw),
            ("/v1/tokens/current", "DELETE", self._discard),
            ("/v1/records", "GET", self._find),
            ("/v1/records", "POST", self._put_all),
            ("/v1/meshes/{mesh}/leases", "GET", self._leases),
            ("/v1/meshes/{mesh}/leases/{holder}", "PUT", self._claim),
            ("/v1/meshes/{mesh}/leases/{holder}", "DELETE", self._leave),
            ("/v1/meshes/{mesh}/numbers/{number}", "DELETE", self._forget),
            ("/v1/services", "GET", self._find_services),
            ("/v1/organisations/{organisation}/services/{name}", "GET", self._get_service),
            ("/v1/organisations/{organisation}/services/{name}", "PUT", self._put_service),
            ("/v1/organisations/{organisation}/services/{name}", "DELETE", self._delete_service),
            ("/v1/organisations/{organisation}/services/{name}/history", "GET", self._history),
            ("/v1/names/{name}", "DELETE", self._give_up),
            ("/v1/meshes/{mesh}", "GET", self._get),
            ("/v1/meshes/{mesh}", "PUT", self._put),
            ("/v1/meshes/{mesh}", "DELETE", self._delete),
            ("/v1/meshes/{mesh}/{plural}/{name}", "GET", self._get),
            ("/v1/meshes/{mesh}/{plural}/{name}", "PUT", self._put),
            ("/v1/meshes/{mesh}/{plural}/{name}", "DELETE", self._delete),
        ]
        return [Route(path, wrap(handler), methods=[method]) for path, method, handler in table]

    def _health(self, request: Request, body: bytes) -> Response:
        with self._store.reading():
            return JSONResponse({"status": "ok"})

    def _draw(self, request: Request, body: bytes) -> Response:
        given = _json(body)
        if not isinstance(given, dict) or not all(isinstance(given.get(key), str) for key in ("account", "secret")):
            raise DirectoryError("E_invalidValue", 'give {"account": "...", "secret": "..."}')
        source = source_of(f"{request.client.host}:0") if request.client is not None else ""
        token = draw_token(self._store, given["account"], given["secret"], source)
        return JSONResponse({"token": token, "expires_in": TOKEN_LIFE})

    def _discard(self, request: Request, body: bytes) -> Response:
        discard_token(self._store, token_of(request) or "")
        return Response(status_code=204)

    def _find(self, request: Request, body: bytes) -> Response:
        asked = request.query_params
        sort = asked.get("sort", "broker")
        if sort not in ("mesh", *SORTS):
            raise DirectoryError("E_invalidValue", f"sort = {sort[:80]!r}: mesh, {', '.join(SORTS)}")
        limit, offset = min(_count(asked.get("limit"), "limit", MOST), MOST), _count(asked.get("offset"), "offset", 0)
        mesh, name, after = asked.get("mesh"), asked.get("name"), _cursor(asked.get("after"))
        if "\0" in f"{mesh}{name}{after}":
            raise DirectoryError("E_invalidValue", "a text has no character 0")
        with self._store.reading() as records:
            self._reader(request, records)
            found, total = all_records.find_page(records, sort, mesh, name, limit, offset, after)
            last = found[-1] if found and len(found) == limit else None
            parent = "" if last is None or not last.mesh else all_records.mesh_of(records, last.mesh).key
        answer: dict[str, Any] = {} if total is None else {"total": total}
        if last is not None:
            answer["next"] = json.dumps([last.name, parent])
        return JSONResponse({**answer, "records": [record.shown() for record in found]})

    def _get(self, request: Request, body: bytes) -> Response:
        sort, mesh, name = _place(request)
        with self._store.reading() as records:
            self._reader(request, records)
            return JSONResponse(all_records.get(records, sort, mesh, name).shown())

    def _put(self, request: Request, body: bytes) -> Response:
        sort, mesh, name = _place(request)
        given = _json(body)
        lease = given.pop("lease", None) if isinstance(given, dict) and sort == "application" else None
        record = all_records.read_body(sort, name, mesh, given)
        with self._store.writing(first=lease is not None) as records:
            writer = self._writer(request, records)
            if lease is not None:
                return JSONResponse(leases.hold(records, writer, record, lease))
            self._store.admit(writer)
            return JSONResponse(all_records.put(records, writer, record).shown())

    def _delete(self, request: Request, body: bytes) -> Response:
        sort, mesh, name = _place(request)
        with self._store.writing() as records:
            all_records.delete(records, self._writer(request, records), sort, mesh, name)
        return Response(status_code=204)

    def _find_services(self, request: Request, body: bytes) -> Response:
        asked = request.query_params
        organisation, name, after = asked.get("organisation"), asked.get("name"), _cursor(asked.get("after"))
        limit = max(1, min(_count(asked.get("limit"), "limit", MOST), MOST))
        if "\0" in f"{organisation}{name}{after}":
            raise DirectoryError("E_invalidValue", "a text has no character 0")
        with self._store.reading() as records:
            self._reader(request, records)
            found, going_on = services.find(records, organisation, name, limit, after)
            last = records.last_change()
        following = {} if going_on is None else {"next": json.dumps(going_on)}
        return JSONResponse({"services": [one.shown() for one in found], "last": last, **following})

    def _get_service(self, request: Request, body: bytes) -> Response:
        with self._store.reading() as records:
            self._reader(request, records)
            return JSONResponse(services.get(records, **request.path_params).shown())

    def _put_service(self, request: Request, body: bytes) -> Response:
        service = services.read_profile(**request.path_params, body=_json(body), check=self._check)
        text = request.query_params.get("revision")
        with self._store.writing() as records:
            writer = self._writer(request, records)
            self._store.admit(writer)
            return JSONResponse(services.put(records, writer, service, None if text is None else _count(text, "revision", 0)).shown())

    def _delete_service(self, request: Request, body: bytes) -> Response:
        with self._store.writing() as records:
            services.delete(records, self._writer(request, records), **request.path_params)
        return Response(status_code=204)

    def _history(self, request: Request, body: bytes) -> Response:
        with self._store.reading() as records:
            self._writer(request, records)
            return JSONResponse({"history": services.history(records, **request.path_params)})

    def _give_up(self, request: Request, body: bytes) -> Response:
        with self._store.writing() as records:
            all_records.give_up_name(records, self._writer(request, records), request.path_params["name"])
        return Response(status_code=204)

    def _put_all(self, request: Request, body: bytes) -> Response:
        given = _json(body)
        listed = given.get("records") if isinstance(given, dict) else None
        if not isinstance(listed, list) or len(listed) > MOST:
            raise DirectoryError("E_invalidValue", f'give {{"records": [...]}}, at most {MOST}')
        wanted = [_one_of_many(at, one) for at, one in enumerate(listed)]
        with self._store.writing() as records:
            writer = self._writer(request, records)
            self._store.admit(writer)
            all_records.put_all(records, writer, wanted)
        return JSONResponse({"registered": len(wanted)})

    def _claim(self, request: Request, body: bytes) -> Response:
        wanted = leases.read_claim(request.path_params["mesh"], request.path_params["holder"], _json(body))
        try:
            with self._store.renewing() as records:
                return JSONResponse(leases.renew(records, self._writer(request, records), wanted, self._keep).shown(records.now))
        except leases.NotRenewed:
            pass
        with self._store.writing(first=True) as records:
            granted = leases.claim(records, self._writer(request, records), wanted, self._keep)
            return JSONResponse(granted.shown(records.now))

    def _leave(self, request: Request, body: bytes) -> Response:
        with self._store.writing(first=True) as records:
            leases.leave(records, self._writer(request, records), request.path_params["mesh"], request.path_params["holder"].lower())
        return Response(status_code=204)

    def changes(self, request: Request, body: bytes) -> tuple[int, list[dict[str, str]] | None]:
        """The number of the last change that is told, and the changes after the one that is asked about: see `Records.changes`."""
        after = request.query_params.get("after")
        with self._store.reading() as records:
            self._reader(request, records)
            if after is None:
                return records.last_change(), []
            return records.changes(_count(after, "after", 0, 18), MOST)

    def _leases(self, request: Request, body: bytes) -> Response:
        with self._store.reading() as records:
            return JSONResponse({"leases": leases.listed(records, self._writer(request, records), request.path_params["mesh"])})

    def _forget(self, request: Request, body: bytes) -> Response:
        number = _count(request.path_params["number"], "number", 0)
        with self._store.writing() as records:
            leases.forget(records, self._writer(request, records), request.path_params["mesh"], number)
        return Response(status_code=204)

    def _reader(self, request: Request, records: Records) -> None:
        records.reader = identify(self._store, records, token_of(request))

    def _writer(self, request: Request, records: Records) -> Account:
        self._reader(request, records)
        if records.reader is None:
            raise DirectoryError("E_authTokenRequired", "this takes a token: Authorization: Bearer ...; draw one at POST /v1/tokens")
        return records.reader


def token_of(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme and scheme.lower() != "bearer":
        raise DirectoryError("E_authTokenRequired", "give the token as Authorization: Bearer ...")
    return token.strip() or None


def lane_of(request: Request, body: bytes) -> Lane:
    """What a request does, before it is done."""
    path, method = request.url.path, request.method
    if path in ("/v1/health", "/openapi.json"):
        return Lane.HEALTH
    if path.startswith("/v1/tokens"):
        return Lane.LOGIN
    if path == "/v1/changes":
        return Lane.CHANGES
    if method == "GET":
        return Lane.READ
    held = method == "PUT" and request.path_params.get("plural") == "applications" and b'"lease"' in body
    return Lane.LEASE if held or "holder" in request.path_params else Lane.WRITE


def _place(request: Request) -> tuple[str, str, str]:
    mesh = request.path_params["mesh"]
    plural = request.path_params.get("plural")
    if plural is None:
        return "mesh", "", mesh
    if plural not in _PLURAL:
        raise DirectoryError("E_invalidKeyPassed", f"a mesh has {', '.join(_PLURAL)}")
    return _PLURAL[plural], mesh, request.path_params["name"]


def _one_of_many(at: int, given: object) -> all_records.Record:
    """One record of many, with its sort, mesh and name in it."""
    fields = dict(given) if isinstance(given, dict) else {}
    place = [fields.pop(key, "") for key in ("sort", "mesh", "name")]
    sort, mesh, name = place
    if not all(isinstance(one, str) for one in place) or sort not in ("mesh", *SORTS) or (sort == "mesh") != (not mesh):
        raise DirectoryError("E_invalidValue", f'records[{at}]: give "sort" (mesh, {", ".join(SORTS)}), "name" and, but for a mesh, "mesh"')
    try:
        return all_records.read_body(sort, name, mesh, fields)
    except DirectoryError as error:
        raise DirectoryError(error.code, f"records[{at}] ({sort} {name}): {error}") from error


def _count(text: str | None, key: str, default: int, digits: int = 9) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > digits:
        raise DirectoryError("E_invalidValue", f"{key} = {text[:80]!r}: a whole number")
    return int(text)


def seconds_of(request: Request, most: float) -> float:
    """How long a request waits for changes."""
    return min(float(_count(request.query_params.get("wait"), "wait", 0)), most)


def _cursor(text: str | None) -> tuple[str, str] | None:
    """Where the part before has ended, as its `next` said."""
    if text is None:
        return None
    try:
        name, parent = json.loads(text)
        if isinstance(name, str) and isinstance(parent, str):
            return name, parent
    except (ValueError, TypeError, RecursionError):
        pass
    raise DirectoryError("E_invalidValue", f"after = {text[:80]!r}: give the `next` of the answer before")


def _json(body: bytes) -> object:
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DirectoryError("E_invalidValue", f"the body is not JSON: {error}") from error


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no JSON")
