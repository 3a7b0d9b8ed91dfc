"""The OpenAPI 3.1 description of the REST face."""

from __future__ import annotations

from typing import Any

from .. import __version__
from .leases import LONGEST, MOST_APPLICATIONS, SHORTEST
from .records import MOST
from .storage.tables import NAMED
from .uddi.documents import SORTS

_TEXT = {"type": "string", "maxLength": 255}
_TEXTS = {"type": "array", "items": _TEXT, "maxItems": 64}
_SECONDS = {"type": ["number", "null"], "exclusiveMinimum": 0}
_COMMON = {
    "description": _TEXT,
    "visibility": {"enum": ["public", "organisation", "list"], "default": "public"},
    "visible_to": _TEXTS,
    "editors": _TEXTS,
}
_OWN: dict[str, dict[str, Any]] = {
    "mesh": {"publishers": _TEXTS},
    "broker": {"addresses": _TEXTS, "number": {"type": ["integer", "null"], "minimum": 0, "maximum": 65535}},
    "service": {"addresses": _TEXTS, "permissions": _TEXTS},
    "application": {
        "alternatives": _TEXTS,
        "interval": _SECONDS,
        "broker": _TEXT,
        "clients": _TEXTS,
        "message_interval": _SECONDS,
        "fault_interval": _SECONDS,
        "defunct_interval": _SECONDS,
        "consents": _TEXTS,
        "probe": {"type": "boolean", "default": False},
    },
}
_GIVEN = {"sort": _TEXT, "name": _TEXT, "mesh": _TEXT, "key": _TEXT, "owner": _TEXT, "modified": {"type": "number"}}


def description() -> dict[str, Any]:
    """The whole document."""
    paths = {
        "/v1/health": {"get": _operation("Whether the directory and its database answer", {"type": "object"}, open_to_all=True)},
        "/v1/names/{name}": {"parameters": _in_path("name"), "delete": _operation("Give up a name of ours")},
        "/v1/changes": {"get": _changes()},
        "/v1/tokens": {"post": _draw()},
        "/v1/tokens/current": {"delete": _operation("End the token that is shown")},
        "/v1/records": {"get": _find(), "post": _put_all()},
        "/v1/meshes/{mesh}/leases": {"parameters": _in_path("mesh"), "get": _operation("Numbers that are held or kept", _listed())},
        "/v1/meshes/{mesh}/leases/{holder}": _lease(),
        "/v1/meshes/{mesh}/numbers/{number}": {
            "parameters": _in_path("mesh", "number"),
            "delete": _operation("Free a number that is kept for a broker that is gone"),
        },
        "/v1/services": {"get": _find_services()},
        "/v1/organisations/{organisation}/services/{name}": _service(),
        "/v1/organisations/{organisation}/services/{name}/history": {
            "parameters": _in_path("organisation", "name"),
            "get": _operation("Every revision of a service, for its organisation", _object({"history": {"type": "array"}})),
        },
        "/v1/meshes/{mesh}": _of("mesh"),
    }
    for sort in SORTS:
        paths[f"/v1/meshes/{{mesh}}/{sort}s/{{name}}"] = _of(sort)
    schemas: dict[str, Any] = {"error": _object({"error": _TEXT, "message": {"type": "string"}})}
    lasts = {"lease": {"type": ["number", "null"], "minimum": SHORTEST, "maximum": LONGEST}}
    for sort, own in _OWN.items():
        given = lasts if sort == "application" else {}
        schemas[f"{sort}_body"] = {**_object({**_COMMON, **own, **given}), "additionalProperties": False}
        named = {"owns_name": {"type": "boolean"}} if sort in NAMED else {}
        if sort == "service":
            named["permitted"] = {"type": "boolean", "description": "Whether its permissions give the reader its addresses"}
        schemas[sort] = _object({**_GIVEN, **_COMMON, **own, **named})
    return {
        "openapi": "3.1.0",
        "info": {"title": "mqmesh directory", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _of(sort: str) -> dict[str, Any]:
    body = {"requestBody": {"required": True, "content": _json({"$ref": f"#/components/schemas/{sort}_body"})}}
    shown = {"$ref": f"#/components/schemas/{sort}"}
    names = ["mesh"] if sort == "mesh" else ["mesh", "name"]
    return {
        "parameters": _in_path(*names),
        "get": _operation(f"One {sort}", shown, open_to_all=True),
        "put": _operation(f"Register a {sort}, or write it anew", shown) | body,
        "delete": _operation(f"Delete a {sort}"),
    }


def _in_path(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def _lease() -> dict[str, Any]:
    """What a broker asks for that registers itself."""
    service = _object({"name": _TEXT, **_COMMON, **_OWN["service"]})
    lasts = {"seconds": {"type": "number", "minimum": SHORTEST, "maximum": LONGEST}}
    application = _object({"name": _TEXT, **_COMMON, **_OWN["application"]})
    offered = {
        "services": {"type": "array", "items": service, "maxItems": MOST},
        "applications": {"type": "array", "items": application, "maxItems": MOST_APPLICATIONS},
    }
    asked = _object({"name": _TEXT, **lasts, **_COMMON, **_OWN["broker"], **offered})
    given = {"expires_in": {"type": "number"}, "static": {"type": "boolean"}, "refused": {"type": "array", "items": {"type": "string"}}}
    answer = _object({"name": _TEXT, "number": {"type": "integer"}, **given})
    body = {"requestBody": {"required": True, "content": _json({**asked, "required": ["name", "seconds"], "additionalProperties": False})}}
    return {
        "parameters": _in_path("mesh", "holder"),
        "put": _operation("Register a broker for a time, and renew it; the holder is a UUID", answer) | body,
        "delete": _operation("End a broker's registration at once"),
    }


def _listed() -> dict[str, Any]:
    seconds = {"type": "number"}
    one = _object(
        {"number": {"type": "integer"}, "name": _TEXT, "holder": _TEXT, "owner": _TEXT, "expires_in": seconds, "kept_for": seconds}
    )
    return _object({"leases": {"type": "array", "items": one}})


_SERVICE = _object(
    {
        "service": _TEXT,
        "revision": {"type": "integer"},
        "whole": {"type": "boolean"},
        "key": _TEXT,
        "owner": _TEXT,
        "modified": {"type": "number"},
        "profile": {"type": "object"},
    }
)


def _service() -> dict[str, Any]:
    """A service of the interchange."""
    profile = _object({"description": _TEXT, "visibility": {"enum": ["public", "organisation", "list"]}, "visible_to": _TEXTS})
    body = {"requestBody": {"required": True, "content": _json(profile)}}
    over = {"parameters": [{"name": "revision", "in": "query", "schema": {"type": "integer", "minimum": 0}}]}
    return {
        "parameters": _in_path("organisation", "name"),
        "get": _operation("One service of the interchange", _SERVICE, open_to_all=True),
        "put": _operation("Register a service of our organisation, or write it anew", _SERVICE) | body | over,
        "delete": _operation("Delete a service"),
    }


def _find_services() -> dict[str, Any]:
    asked = {"organisation": _TEXT, "name": _TEXT, "after": _TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": 1000}}
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in asked.items()]
    answer = _object({"services": {"type": "array", "items": _SERVICE}, "last": {"type": "integer"}, "next": _TEXT})
    return _operation("Find services of the interchange", answer, open_to_all=True) | {"parameters": parameters}


def _put_all() -> dict[str, Any]:
    """Records of all sorts, each as its own PUT has it, with its place beside it."""
    listed = {"type": "array", "maxItems": 1000, "items": {"type": "object", "required": ["sort", "name"]}}
    body = {"requestBody": {"required": True, "content": _json(_object({"records": listed}))}}
    return _operation("Register many records, all or none", _object({"registered": {"type": "integer"}})) | body


def _draw() -> dict[str, Any]:
    body = {"requestBody": {"required": True, "content": _json(_object({"account": _TEXT, "secret": {"type": "string"}}))}}
    answer = _object({"token": {"type": "string"}, "expires_in": {"type": "number"}})
    return _operation("Draw a token", answer, open_to_all=True) | body


def _changes() -> dict[str, Any]:
    change = _object({"sort": _TEXT, "mesh": _TEXT, "name": _TEXT})
    answer = _object({"last": {"type": "integer"}, "lost": {"type": "boolean"}, "changes": {"type": "array", "items": change}})
    asked = {"after": {"type": "integer", "minimum": 0}, "wait": {"type": "integer", "minimum": 0, "description": "seconds, 30 at most"}}
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in asked.items()]
    return _operation("What has changed after a number", answer, open_to_all=True) | {"parameters": parameters}


def _find() -> dict[str, Any]:
    texts = {
        "sort": {"enum": ["mesh", *SORTS], "default": "broker"},
        "mesh": _TEXT,
        "name": {**_TEXT, "description": "* for any characters"},
        "after": {**_TEXT, "description": "next of the answer before"},
    }
    counts = {"limit": {"type": "integer", "minimum": 0, "maximum": 1000}, "offset": {"type": "integer", "minimum": 0}}
    answer = _object({"total": {"type": "integer"}, "next": _TEXT, "records": {"type": "array", "items": {"type": "object"}}})
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in (texts | counts).items()]
    return _operation("Find records", answer, open_to_all=True) | {"parameters": parameters}


def _operation(summary: str, answer: dict[str, Any] | None = None, *, open_to_all: bool = False) -> dict[str, Any]:
    done = {"200": {"description": "done", "content": _json(answer)}} if answer else {"204": {"description": "done"}}
    error = {"default": {"description": "refused", "content": _json({"$ref": "#/components/schemas/error"})}}
    return {"summary": summary, "responses": done | error, "security": [*([{}] if open_to_all else []), {"token": []}]}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
