"""CloudEvents 1.0 (JSON and HTTP bindings): an event is a message whose kind, recipients and identifiers are extension attributes.

    event             message
    source            the sender, organisation/name
    id                posted: the handle, so that one event is posted once; delivered: the hop
    type              the topic; `mqmesh` where a delivered message has none
    kind              the kind; posted without one: notification
    recipient         a service, or a JSON list of services; delivered: the one that gets it
    session, call, hop, number, code, reason, traceparent        the same
    expirytime        when it expires (RFC 3339)
    datacontenttype   of the body; data and data_base64 are the body
    access, arguments, context, attachments              JSON in a text

What it does not know: HTTP.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from ..message import Part
from ..refusals import Code, Refusal
from . import envelope
from .envelope import Form

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
NO_TYPE = "mqmesh"  # an event has to have a type
SAME = ("kind", "session", "call", "hop", "number", "code", "reason", "handle")
IN_JSON = {"access": dict, "service": list, "attachments": list}
_OPTIONAL = ("subject", "time", "dataschema", "specversion", "data", "data_base64", "datacontenttype")  # of no use here


def read(event: object) -> Form:
    """A structured event. Raises Refusal."""
    if not isinstance(event, dict):
        raise _wrong("the event is no JSON object", 'give {"specversion": "1.0", ...}')
    coded, data, kind = event.get("data_base64"), event.get("data"), event.get("datacontenttype", "application/json")
    if coded is not None:
        try:
            content = base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise _wrong(f"data_base64: {error}", "give base64 of RFC 4648") from None
    elif isinstance(data, str) and not _is_json(str(kind)):
        content = data.encode("utf-8", "replace")
    else:
        content = b"" if data is None else json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")
    return _form(event, Part(content, str(kind) if content else ""))


def read_binary(attributes: Mapping[str, str], body: bytes, content_type: str) -> Form:
    """An event whose attributes are headers of HTTP, without `ce-`, and percent-encoded. Raises Refusal."""
    return _form({name: unquote(value) for name, value in attributes.items()}, Part(body, content_type))


def _form(event: Mapping[str, Any], body: Part) -> Form:
    if event.get("specversion") != "1.0":
        raise _wrong(f"specversion: {str(event.get('specversion'))[:40]!r}", 'give "1.0"')
    for name in ("id", "source", "type"):
        if not isinstance(event.get(name), str) or not event[name]:
            raise _wrong(f"{name} is missing", "an event has id, source and type")
    fields: dict[str, Any] = {"kind": "notification", "sender": event["source"], "handle": event["id"]}
    if event["type"] != NO_TYPE:
        fields["topic"] = event["type"]
    attachments: tuple[Part, ...] = ()
    for name, value in event.items():
        if name in SAME:
            fields[name] = value
        elif name == "recipient":
            fields["recipients"] = _json(name, value, list) if str(value).startswith("[") else [value]
        elif name == "traceparent":
            fields["trace"] = value
        elif name == "possibleduplicate":
            fields["possible_duplicate"] = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        elif name == "expirytime":
            fields["expires"] = _milliseconds(value)
        elif name in IN_JSON:
            found = _json(name, value, IN_JSON[name])
            if name == "attachments":
                attachments = envelope.read_values({"attachments": found}).attachments
            else:
                fields["services" if name == "service" else name] = found
        elif name not in (*_OPTIONAL, "id", "source", "type", "lease"):
            raise _wrong(f"attribute {name[:40]!r}", "post attributes of docs/interchange.md only")
    return Form(fields, body, attachments)


def written(form: Form) -> dict[str, Any]:
    """A delivered message as a structured event."""
    event = attributes(form)
    body = form.body
    if body.content_type:
        event["datacontenttype"] = body.content_type
    if not body.data:
        return event
    try:
        text = body.data.decode()
        event["data"] = json.loads(text) if _is_json(body.content_type) else text
    except (ValueError, RecursionError):
        event["data_base64"] = base64.b64encode(body.data).decode()
    if not body.content_type:  # a text without a type would be read as JSON
        event["datacontenttype"] = "text/plain" if "data" in event else "application/octet-stream"
    return event


def attributes(form: Form) -> dict[str, Any]:
    """The context attributes of a delivered message."""
    fields = form.fields
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": fields.get("hop", ""),
        "source": fields.get("sender", ""),
        "type": fields.get("topic") or NO_TYPE,
    }
    event |= {name: fields[name] for name in (*SAME, "traceparent") if name in fields}
    for to in fields.get("recipients", ())[:1]:
        event["recipient"] = to["service"]
        if "arguments" in to:
            event["arguments"] = json.dumps(to["arguments"])
    if "context" in fields:
        event["context"] = json.dumps(fields["context"])
    if "expires" in fields:
        event["expirytime"] = datetime.fromtimestamp(fields["expires"] / 1000, UTC).isoformat().replace("+00:00", "Z")
    if form.attachments:
        event["attachments"] = json.dumps(envelope.shown(Form({}, attachments=form.attachments))["attachments"])
    return event


def headers(form: Form) -> dict[str, str]:
    """The same as headers of HTTP: `ce-id` and so on."""
    return {f"ce-{name}": quote(str(value), safe=_PLAIN) for name, value in attributes(form).items()}


_PLAIN = "".join(chr(one) for one in range(0x21, 0x7F) if chr(one) not in '"%') + " "  # what is not percent-encoded in a header


def _is_json(content_type: str) -> bool:
    plain = content_type.partition(";")[0].strip().lower()
    return plain in ("application/json", "text/json") or plain.endswith("+json")


def _milliseconds(value: object) -> object:
    try:
        return int(datetime.fromisoformat(str(value)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise _wrong(f"expirytime: {str(value)[:40]!r}", "give a time of RFC 3339") from None


def _json(name: str, value: object, kind: type) -> Any:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise _wrong(f"{name}: {str(value)[:100]!r}", f"give a JSON {'list' if kind is list else 'object'}")
    return found


def _wrong(what: str, right: str) -> Refusal:
    return Refusal(Code.NOT_WELL_FORMED, what, right)
