"""A message in one request of HTTP: what its Content-Type, its headers, its query and its body say (docs/interchange-http.md).

    Content-Type                                       what the body is
    application/vnd.mqmesh.message+json                the message as one JSON object (`envelope.py`)
    application/cloudevents+json                       a CloudEvent; one in binary form has headers `ce-...` (`cloudevents.py`)
    multipart/form-data, related, mixed                parts `message`, `body` and attachments (`multipart.py`)
    any other                                          the body of the message

Fields of the header may stand in the query, too: `?kind=request&recipient=bank/credit`. There they count more.

What it does not know: sockets, frameworks, who asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ...base.interchange import ENVELOPE
from ..message import Part
from ..refusals import Code, Refusal
from . import cloudevents, envelope, multipart
from .envelope import TRACE, Form
from .mqtt import DUPLICATE, EXPIRES, MANY, PARENT, TEXTS

QUERY = (*TEXTS, *MANY, DUPLICATE, EXPIRES, "access")
LARGEST_JSON = 1_048_576  # bytes that are parsed in one piece: 15 ms
HANDLE = "idempotency-key"
STATUS = {
    Code.NOT_WELL_FORMED: 400,
    Code.NOT_THE_SENDER: 403,
    Code.NOT_PERMITTED: 403,
    Code.NOT_SECURE_ENOUGH: 403,
    Code.SUSPENDED: 403,
    Code.REJECTED: 403,
    Code.NOT_A_RECIPIENT: 403,
    Code.UNKNOWN_SERVICE: 404,
    Code.UNKNOWN_SESSION: 404,
    Code.UNKNOWN_CALL: 404,
    Code.NO_REQUEST: 404,
    Code.TOO_LARGE: 413,
    Code.INVALID_ROUTE: 422,
    Code.ROUTE_TOO_LONG: 422,
    Code.SERVICE_CYCLE: 422,
    Code.OVER_LIMIT: 429,
    Code.UNAVAILABLE: 503,
}
CONFLICT = 409  # what is of no use any more: a duplicate, a second response, an expired request


def read(headers: Mapping[str, str], query: Iterable[tuple[str, str]], body: bytes) -> Form:
    """A posted message. headers: names in small letters. Raises Refusal."""
    content_type = headers.get("content-type", "")
    plain = content_type.partition(";")[0].strip().lower()
    if plain == ENVELOPE:
        form = envelope.read(body, LARGEST_JSON)
    elif plain == cloudevents.STRUCTURED:
        form = cloudevents.read(_json(body, LARGEST_JSON))
    elif "ce-specversion" in headers:
        form = cloudevents.read_binary({name[3:]: value for name, value in headers.items() if name.startswith("ce-")}, body, content_type)
    elif plain in ("multipart/form-data", "multipart/related", "multipart/mixed"):
        form = multipart.read(body, content_type)
    else:
        form = Form({}, Part(body, content_type if body else ""))
    form.fields.update(_queried(query))
    if HANDLE in headers:
        form.fields["handle"] = headers[HANDLE].strip('"')
    if TRACE in headers and PARENT.fullmatch(headers[TRACE]):
        form.fields.setdefault("trace", headers[TRACE])
    return form


def _queried(query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in query:
        if name in MANY:
            fields.setdefault(MANY[name], []).append(_json(value) if value.startswith("{") else value)
        elif name == DUPLICATE:
            fields[name] = {"true": True, "false": False}.get(value, value)
        elif name == EXPIRES:
            fields[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else value
        elif name == "access":
            fields[name] = _json(value)
        elif name in QUERY:
            fields[name] = value
        else:
            raise Refusal(Code.NOT_WELL_FORMED, f"query: {name[:60]!r}", f"it has {', '.join(QUERY)}")
    return fields


def _json(text: str | bytes, most: int = 65_536) -> Any:
    if len(text) > most:
        raise Refusal(Code.TOO_LARGE, f"{len(text):,} bytes of JSON", f"give at most {most:,}, and larger bodies as they are or in parts")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(Code.NOT_WELL_FORMED, f"this is no JSON: {error}", "give JSON") from None
