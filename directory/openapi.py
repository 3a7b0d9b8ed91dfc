"""The OpenAPI 3.1 description of the REST face."""

from __future__ import annotations

from typing import Any

from .. import __version__
from .documents import SORTS

_TEXT = {"type": "string", "maxLength": 255}
_TEXTS = {"type": "array", "items": _TEXT, "maxItems": 64}
_COMMON = {"description": _TEXT, "visibility": {"enum": ["public", "organisation"], "default": "public"}}
_OWN: dict[str, dict[str, Any]] = {
    "mesh": {},
    "broker": {"addresses": _TEXTS, "number": {"type": ["integer", "null"], "minimum": 0, "maximum": 65535}},
    "service": {"addresses": _TEXTS, "permissions": _TEXTS},
    "application": {"alternatives": _TEXTS, "interval": {"type": ["number", "null"], "exclusiveMinimum": 0}},
}
_GIVEN = {"sort": _TEXT, "name": _TEXT, "mesh": _TEXT, "key": _TEXT, "owner": _TEXT, "modified": {"type": "number"}}


def description() -> dict[str, Any]:
    """The whole document."""
    paths = {
        "/v1/health": {"get": _operation("Whether the directory and its database answer", {"type": "object"}, open_to_all=True)},
        "/v1/tokens": {"post": _draw()},
        "/v1/tokens/current": {"delete": _operation("End the token that is shown")},
        "/v1/records": {"get": _find()},
        "/v1/meshes/{mesh}": _of("mesh"),
    }
    for sort in SORTS:
        paths[f"/v1/meshes/{{mesh}}/{sort}s/{{name}}"] = _of(sort)
    schemas: dict[str, Any] = {"error": _object({"error": _TEXT, "message": {"type": "string"}})}
    for sort, own in _OWN.items():
        schemas[f"{sort}_body"] = {**_object({**_COMMON, **own}), "additionalProperties": False}
        schemas[sort] = _object({**_GIVEN, **_COMMON, **own})
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
        "parameters": [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names],
        "get": _operation(f"One {sort}", shown, open_to_all=True),
        "put": _operation(f"Register a {sort}, or write it anew", shown) | body,
        "delete": _operation(f"Delete a {sort}"),
    }


def _draw() -> dict[str, Any]:
    body = {"requestBody": {"required": True, "content": _json(_object({"account": _TEXT, "secret": {"type": "string"}}))}}
    answer = _object({"token": {"type": "string"}, "expires_in": {"type": "number"}})
    return _operation("Draw a token", answer, open_to_all=True) | body


def _find() -> dict[str, Any]:
    texts = {
        "sort": {"enum": ["mesh", *SORTS], "default": "broker"},
        "mesh": _TEXT,
        "name": {**_TEXT, "description": "* for any characters"},
    }
    counts = {"limit": {"type": "integer", "minimum": 0, "maximum": 1000}, "offset": {"type": "integer", "minimum": 0}}
    answer = _object({"total": {"type": "integer"}, "records": {"type": "array", "items": {"type": "object"}}})
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in (texts | counts).items()]
    return _operation("Find records", answer, open_to_all=True) | {"parameters": parameters}


def _operation(summary: str, answer: dict[str, Any] | None = None, *, open_to_all: bool = False) -> dict[str, Any]:
    done = {"200": {"description": "done", "content": _json(answer)}} if answer else {"204": {"description": "done"}}
    error = {"default": {"description": "refused", "content": _json({"$ref": "#/components/schemas/error"})}}
    return {"summary": summary, "responses": done | error, "security": [*([{}] if open_to_all else []), {"token": []}]}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
