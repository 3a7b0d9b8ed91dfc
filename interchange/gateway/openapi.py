"""The HTTP face as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from ... import __version__
from ...base.interchange import ENVELOPE
from ..faces import cloudevents, web
from ..message import Kind
from ..refusals import Code
from .desk import LONGEST_LEASE, LONGEST_WAIT, MOST_TAKEN

TEXT = {"type": "string"}
SERVICE = {"type": "string", "description": "organisation/name", "examples": ["bank/credit"]}
DECLARED = {
    "oneOf": [
        SERVICE,
        {
            "type": "object",
            "required": ["service"],
            "properties": {"service": SERVICE, "arguments": {"type": "object", "additionalProperties": TEXT}},
        },
    ]
}
PART = {
    "content_type": TEXT,
    "body": {"type": "string", "description": "a text"},
    "base64": {"type": "string", "description": "instead of body: other bytes"},
}
ATTACHMENT = {"type": "object", "required": ["name"], "properties": {"name": TEXT, **PART}}
SHARED = {
    "kind": {"type": "string", "enum": [one.value for one in Kind]},
    "sender": SERVICE,
    "topic": TEXT,
    "handle": TEXT,
    "expires": {"type": "integer", "description": "milliseconds since 1970-01-01 UTC"},
    "session": TEXT,
    "call": TEXT,
    "hop": TEXT,
    "number": {"type": "string", "description": "of a response, where a service gives several: 2, delivered 2/3"},
    "code": TEXT,
    "reason": TEXT,
    **PART,
    "attachments": {"type": "array", "items": ATTACHMENT},
}
POSTED = {
    **SHARED,
    "recipients": {"type": "array", "items": DECLARED},
    "services": {"type": "array", "items": DECLARED},
    "possible_duplicate": {"type": "boolean"},
    "access": {"type": "object"},
}
DELIVERED = {
    **SHARED,
    "recipients": {"type": "array", "items": DECLARED["oneOf"][1]},
    "context": {"type": "object", "additionalProperties": TEXT},
    "traceparent": TEXT,
    "lease": {"type": "string", "description": "names the message at /v1/leases"},
}
REFUSAL = {
    "type": "object",
    "required": ["code", "what", "right"],
    "properties": {
        "code": {"type": "string", "examples": [one.value for one in Code]},
        "what": {"type": "string", "description": "what is wrong"},
        "right": {"type": "string", "description": "what would be right"},
    },
}
VERDICT = {
    "type": "object",
    "properties": {
        "session": TEXT,
        "call": TEXT,
        "came": {"type": "array", "items": {"type": "object", "additionalProperties": TEXT}},
        "waits_for": {"type": "string", "description": "the home of the call is out of reach; the message waits for it"},
    },
}


TIME = {"type": "integer", "description": "milliseconds since 1970-01-01 UTC"}
QUERY = {
    **dict.fromkeys(("session", "call", "service", "route", "status", "cursor"), TEXT),
    "since": TIME,
    "until": TIME,
    "identifier": {"type": "object", "required": ["name", "value"], "properties": {"name": TEXT, "value": TEXT}},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
}
ROWS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}
FOUND = {
    "type": "object",
    "properties": {"calls": ROWS, "sessions": ROWS, "missing": {"type": "object", "additionalProperties": TEXT}, "cursor": TEXT},
}


EXPLAINED = {
    "type": "object",
    "required": ["services"],
    "properties": {"services": ROWS, "routes": ROWS, "refusal": {"$ref": "#/components/schemas/Refusal"}},
}


def description() -> dict[str, Any]:
    """The document."""
    names = {"type": "array", "maxItems": MOST_TAKEN, "items": TEXT}
    leases = {"acknowledge": names, "return": names, "extend": names, "lease": {"type": "number", "minimum": 1, "maximum": LONGEST_LEASE}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mqmesh interchange", "version": __version__},
        "paths": {
            "/v1/messages": {"post": _post("post", "Post a message", "Verdict")},
            "/v1/explain": {"post": _post("explain", "What would become of a message, which is not posted", "Explained")},
            "/v1/services/{organisation}/{name}/poll": {"post": _poll()},
            "/v1/query": {
                "post": _operation("query", "What became of messages", _ref("Found"))
                | {"requestBody": {"required": True, "content": _json(_ref("Query"))}}
            },
            "/v1/leases": {
                "post": _operation("settle", "Acknowledge messages, return them, or keep them longer", _ref("Settled"))
                | {"requestBody": {"required": True, "content": _json(_ref("Leases"))}}
            },
        },
        "components": {
            "schemas": {
                "Message": {"type": "object", "required": ["kind"], "properties": POSTED},
                "Delivered": {"type": "object", "required": ["kind", "sender", "lease"], "properties": DELIVERED},
                "Verdict": VERDICT,
                "Explained": EXPLAINED,
                "Refusal": REFUSAL,
                "Messages": {
                    "type": "object",
                    "required": ["messages"],
                    "properties": {"messages": {"type": "array", "items": _ref("Delivered")}},
                },
                "Query": {"type": "object", "properties": QUERY},
                "Found": FOUND,
                "Leases": {"type": "object", "properties": leases},
                "Settled": {"type": "object", "required": ["unknown"], "properties": {"unknown": names}},
            },
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}, "bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"basic": []}, {"bearer": []}, {}],
    }


def _post(name: str, summary: str, answer: str) -> dict[str, Any]:
    queried = [_asked(name, TEXT) for name in web.QUERY if name not in ("recipient", "service")]
    many = [{**_asked(name, {"type": "array", "items": TEXT}), "explode": True} for name in ("recipient", "service")]
    content = {
        ENVELOPE: {"schema": _ref("Message")},
        cloudevents.STRUCTURED: {"schema": {"type": "object"}},
        "multipart/form-data": {"schema": {"type": "object", "properties": {"message": TEXT}}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    key = {"name": "Idempotency-Key", "in": "header", "schema": TEXT, "description": "the handle of the message"}
    trace = {"name": "traceparent", "in": "header", "schema": TEXT}
    return _operation(name, summary, _ref(answer)) | {
        "parameters": [*queried, *many, key, trace],
        "requestBody": {"required": True, "content": content},
    }


def _poll() -> dict[str, Any]:
    asked = [
        _asked("most", {"type": "integer", "minimum": 1, "maximum": MOST_TAKEN, "default": 10}),
        _asked("wait", {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "default": 0, "description": "seconds"}),
        _asked("lease", {"type": "number", "minimum": 1, "maximum": LONGEST_LEASE, "default": 60, "description": "seconds"}),
        _asked("selector", {"type": "string", "description": "as Jakarta Messaging has it: kind = 'response'"}),
    ]
    place = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in ("organisation", "name")]
    return _operation("poll", "Take messages from the inbox of a service", _ref("Messages")) | {"parameters": [*place, *asked]}


def _operation(name: str, summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "done", "content": _json(answer)},
            "default": {"description": "refused", "content": _json(_ref("Refusal"))},
        },
    }


def _asked(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
