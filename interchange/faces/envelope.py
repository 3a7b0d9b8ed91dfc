"""A message as one JSON object: the header's fields beside `body` (text) or `base64`, `content_type` and `attachments`.

{"kind": "request", "recipients": ["bank/credit"], "body": "...", "content_type": "text/plain",
 "attachments": [{"name": "invoice", "content_type": "application/pdf", "base64": "..."}]}
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..message import BODY, Message, Part
from ..refusals import Code, Refusal

MOST_ATTACHMENTS = 64
LONGEST_NAME = 255
TRACE = "traceparent"  # as every face calls the header's `trace`
OWN = ("body", "base64", "content_type", "attachments")  # what is no field of the header


class Form(NamedTuple):
    """A message whose header nobody has checked yet. fields: of the header, as JSON has them (`message.read_header`)."""

    fields: dict[str, Any]
    body: Part = Part(b"")
    attachments: tuple[Part, ...] = ()


def read(payload: bytes, most: int | None = None) -> Form:
    """A message that is one JSON object. most: bytes, since all of it is parsed in one piece. Raises Refusal."""
    if most is not None and len(payload) > most:
        raise Refusal(Code.TOO_LARGE, f"{len(payload):,} bytes of JSON", f"give at most {most:,}, and what is larger in parts")
    try:
        return read_values(json.loads(payload))
    except (ValueError, RecursionError) as error:
        raise Refusal(Code.NOT_WELL_FORMED, f"the payload is no JSON: {error}", "give one JSON object") from None


def read_values(found: object) -> Form:
    """The same from values that are parsed. Raises Refusal."""
    if not isinstance(found, dict):
        raise Refusal(Code.NOT_WELL_FORMED, "the payload is no JSON object", 'give {"kind": ..., "body": ...}')
    listed = found.get("attachments", [])
    if not isinstance(listed, list) or len(listed) > MOST_ATTACHMENTS or not all(isinstance(one, dict) for one in listed):
        raise Refusal(Code.NOT_WELL_FORMED, "attachments", f"give a list of at most {MOST_ATTACHMENTS} objects")
    attachments = named(_part(one, _text(one, "name", "")) for one in listed)
    fields = {"trace" if key == TRACE else key: value for key, value in found.items() if key not in OWN}
    return Form(fields, _part(found, BODY), attachments)


def named(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Attachments, whose names have to differ. Raises Refusal."""
    attachments = tuple(parts)
    names = [one.name for one in attachments]
    if len(names) > MOST_ATTACHMENTS:
        raise Refusal(Code.NOT_WELL_FORMED, f"{len(names)} attachments", f"give {MOST_ATTACHMENTS} at most")
    if "" in names or BODY in names or len(set(names)) != len(names):
        raise Refusal(Code.NOT_WELL_FORMED, f"attachments: names {names}"[:500], f"give each a name of its own, and none {BODY!r}")
    return attachments


def _part(found: dict[str, Any], name: str) -> Part:
    text, coded = found.get("body", ""), found.get("base64")
    if not isinstance(text, str) or (coded is not None and (not isinstance(coded, str) or text)):
        raise Refusal(Code.NOT_WELL_FORMED, f"{name}: no text", 'give "body", a text, or "base64"')
    try:
        data = base64.b64decode(coded, validate=True) if coded is not None else text.encode()
    except (binascii.Error, ValueError) as error:  # of a half of a surrogate pair too
        raise Refusal(Code.NOT_WELL_FORMED, f"{name}: {error}", "give whole characters, or base64 of RFC 4648") from None
    return Part(data, _text(found, "content_type", ""), name)


def _text(found: dict[str, Any], key: str, default: str) -> str:
    value = found.get(key, default)
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not value.isprintable():
        raise Refusal(Code.NOT_WELL_FORMED, f"{key}: no name", f"give a text of at most {LONGEST_NAME} characters")
    return value


def written(message: Message, traceparent: str = "") -> bytes:
    """A message as one JSON object. traceparent: what goes out as `TRACE`."""
    fields = message.header.fields()
    came = fields.pop("trace", "")
    if shown_trace := traceparent or came:
        fields[TRACE] = shown_trace
    return encoded(Form(fields, message.body, message.attachments))


def encoded(form: Form) -> bytes:
    return json.dumps(shown(form), ensure_ascii=False, separators=(",", ":")).encode()


def shown(form: Form) -> dict[str, Any]:
    """A message as plain values of JSON."""
    found = form.fields | _shown(form.body)
    if form.attachments:
        found["attachments"] = [{"name": one.name} | _shown(one) for one in form.attachments]
    return found


def _shown(part: Part) -> dict[str, str]:
    shown = {"content_type": part.content_type} if part.content_type else {}
    try:
        return shown | {"body": part.data.decode()}
    except UnicodeDecodeError:
        return shown | {"base64": base64.b64encode(part.data).decode()}
