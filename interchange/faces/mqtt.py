"""The MQTT face: a message as PUBLISH of MQTT 5, with its header in user properties, or as one JSON object (`envelope.py`).

    posted, to interchange/post                          delivered, to $queue/interchange/inbox/ORGANISATION/NAME
    payload                  the body                    the same
    Content Type             its type                    the same
    user properties          the header: one for each    the header, with session, call and hop; traceparent
                             text; `recipient` and
                             `service` for each of them
    Message Expiry Interval  seconds until it expires    what is left of them
    Response Topic           where the answer goes       interchange/post, of a request
    Correlation Data         comes back in the answer    the hop, of a request

A message without `kind` whose Correlation Data is a hop is a response to that hop: so any MQTT 5 client that answers requests as
MQTT 5 describes it [4.10] is a service.

A client of MQTT 3.1.1 posts the JSON object; so does one whose Content Type says that it is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from ...base.interchange import ENVELOPE, POST
from ...mqtt.fields import write_string
from ...mqtt.properties import Properties, Property, encode_properties
from ...mqtt.publish import PublishProperties
from ..message import MOST_RECIPIENTS, Header, Kind, Message, Part, check_complete, read_header
from ..refusals import Code, Refusal
from . import envelope
from .envelope import TRACE, Form

TEXTS = ("kind", "sender", "topic", "handle", "session", "call", "hop", "number", "code", "reason")
MANY = {"recipient": "recipients", "service": "services"}
ONE_OF = {many: one for one, many in MANY.items()}
DUPLICATE = "possible_duplicate"
EXPIRES = "expires"
HOP = re.compile(rb"[0-9a-f]{16}")
SOME_HOP = "0" * 16
COMMON = 512  # bytes of properties that are read once for all messages that have them
PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
SECOND = 1000
REPLY = encode_properties({Property.RESPONSE_TOPIC: POST}) + bytes((Property.CORRELATION_DATA,))
OFTEN = ("kind", "sender", "recipient")  # the same texts in many messages
LONGEST = 16_000  # characters of a user property: its bytes are counted in 16 bits


def read(
    payload: bytes,
    properties: PublishProperties | None,
    version: int,
    sender: Callable[[object], str],
    now: int,
    has: frozenset[str] = frozenset(),
) -> Message:
    """What a client has posted. sender: the service that posts, by what the header says of it. has: see `Message`. Raises Refusal."""
    if version == 5 and (properties is None or properties.content_type != ENVELOPE):
        return Message(_header(properties, sender, now), Part(payload, _content_type(properties)), (), has)
    fields, body, attachments = envelope.read(payload)
    if properties is not None and properties.expiry is not None:
        fields.setdefault("expires", now + SECOND * properties.expiry)
    fields["sender"] = sender(fields.get("sender"))
    return Message(read_header(fields), body, attachments, has)


def _header(properties: PublishProperties | None, sender: Callable[[object], str], now: int) -> Header:
    """The header that properties say. Raises Refusal.

    The posts of a service often have the same user properties: they are read once. What is of one message is put in afterwards.
    """
    if properties is None:
        return _read((), sender(None), False)
    pairs, hop = properties.user_properties, ""
    found = dict(pairs[::-1])  # of two the first one counts, until both are refused
    if "kind" not in found and HOP.fullmatch(properties.correlation or b""):
        hop = (properties.correlation or b"").decode()
    once = _read if properties.length <= COMMON else _read.__wrapped__
    header = once(pairs, sender(found.get("sender")), bool(hop))
    if hop:
        header = replace(header, hop=hop)
    if properties.expiry is not None and header.expires is None:
        header = replace(header, expires=now + SECOND * properties.expiry)
        check_complete(header)
    return header


@lru_cache(1024)
def _read(pairs: tuple[tuple[str, str], ...], sender: str, answers: bool) -> Header:
    """The header that user properties say. answers: the Correlation Data is the hop that is answered; `SOME_HOP` stands for it."""
    fields = _fields(pairs)
    if answers:
        fields["kind"], fields["hop"] = Kind.RESPONSE.value, SOME_HOP
    fields["sender"] = sender
    return read_header(fields)


def _fields(pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The fields of a header, as user properties say them."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in MANY:
            fields.setdefault(MANY[name], []).append(_json(name, value) if value.startswith("{") else value)
        elif name in TEXTS:
            if name in fields:
                raise Refusal(Code.NOT_WELL_FORMED, f"user property {name} comes twice", "say it once")
            fields[name] = value
        elif name == DUPLICATE:
            fields[name] = {"true": True, "false": False}.get(value, value)
        elif name == "access" or name in MANY.values():
            fields[name] = _json(name, value)
        elif name == TRACE and PARENT.fullmatch(value):
            fields["trace"] = value
        elif name == EXPIRES:
            fields[name] = int(value) if value.isdecimal() and len(value) < 20 else value
    return fields


def _json(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise Refusal(Code.NOT_WELL_FORMED, f"user property {name}: {value[:100]!r}", "give JSON") from None


def _content_type(properties: PublishProperties | None) -> str:
    return (properties.content_type or "") if properties is not None else ""


def written(message: Message, as_json: bool) -> tuple[bytes, bytes]:
    """A message as it is delivered: payload, and encoded properties.

    as_json: as one JSON object; a message with attachments, or with arguments too long for user properties, is one in any case.
    """
    header = message.header
    found: dict[int, Any] = {}
    pairs = _pairs(header)
    long = max([len(value) for _, value in pairs]) > LONGEST
    if as_json or message.attachments or long:
        payload, found[Property.CONTENT_TYPE] = envelope.written(message, traceparent(header)), ENVELOPE
    else:
        payload = message.body.data
        if message.body.content_type:
            found[Property.CONTENT_TYPE] = message.body.content_type
    block = encode_properties(found) if found else b""
    if header.kind is Kind.REQUEST:
        block += REPLY + write_string(header.hop, "Correlation Data")
    if long:
        pairs = [(name, value) for name, value in pairs if len(value) <= LONGEST]
    parts = [block]
    for name, value in pairs:
        if name in OFTEN:
            parts.append(_said_often(name, value))
        else:
            data = value.encode()  # the texts of a header have neither halves of surrogate pairs nor U+0000
            parts += (_name_of(name), len(data).to_bytes(2, "big"), data)
    return payload, b"".join(parts)


@lru_cache(4096)
def _said_often(name: str, value: str) -> bytes:
    return _name_of(name) + write_string(value, "User Property")


@lru_cache(64)
def _name_of(name: str) -> bytes:
    """A user property up to its value."""
    return bytes((Property.USER_PROPERTY,)) + write_string(name, "User Property")


def _pairs(header: Header) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = [(name, value) for name in TEXTS if (value := getattr(header, name))]
    for one in header.recipients:
        pairs.append(("recipient", one.service))
        if one.arguments:
            pairs.append(("arguments", json.dumps(dict(one.arguments))))
    if header.context:
        pairs.append(("context", json.dumps(dict(header.context))))
    return [*pairs, (TRACE, traceparent(header))]


def traceparent(header: Header) -> str:
    """The W3C trace context that goes out: the trace that came in, or the session as one, with our hop as the parent."""
    came = PARENT.fullmatch(header.trace) if header.trace else None
    return f"00-{came[1] if came else header.session}-{header.hop}-01"


# The side of a client, which other faces are


def posting(form: Form) -> tuple[bytes, Properties]:
    """Payload and properties with which a client posts a message. What user properties cannot say is one JSON object.

    Raises Refusal for a header that is wrong and large, or of no form that could be posted.
    """
    pairs = _said(form.fields)
    if pairs is None:
        read_header({"sender": "any/one", **form.fields})
    if pairs is None or form.attachments:
        return envelope.encoded(form), {Property.CONTENT_TYPE: ENVELOPE}
    found: Properties = {Property.USER_PROPERTY: pairs}
    if form.body.content_type:
        found[Property.CONTENT_TYPE] = form.body.content_type
    return form.body.data, found


def _said(fields: dict[str, Any]) -> list[tuple[str, str]] | None:
    """A header as user properties; None: they cannot say it."""
    pairs = []
    for name, value in fields.items():
        if isinstance(value, list) and name in ONE_OF and len(value) <= MOST_RECIPIENTS:
            pairs += [(ONE_OF[name], one if isinstance(one, str) and not one.startswith("{") else json.dumps(one)) for one in value]
        elif isinstance(value, str) and name in TEXTS:
            pairs.append((name, value))
        elif isinstance(value, bool) and name == DUPLICATE:
            pairs.append((name, json.dumps(value)))
        elif isinstance(value, int) and name == EXPIRES:
            pairs.append((name, str(value)))
        elif isinstance(value, dict) and name == "access":
            pairs.append((name, json.dumps(value)))
        elif name == "trace" and isinstance(value, str):
            pairs.append((TRACE, value))
        else:
            return None
    return None if any(len(value) > LONGEST for _, value in pairs) else pairs


def taken(payload: bytes, properties: Properties, now: int) -> Form:
    """A message as a client gets it from an inbox. Its `traceparent` goes out with it."""
    pairs = properties.get(Property.USER_PROPERTY, [])
    if properties.get(Property.CONTENT_TYPE) == ENVELOPE:
        form = envelope.read(payload)
    else:
        fields: dict[str, Any] = {name: value for name, value in pairs if name in TEXTS}
        said = dict(pairs)
        if "recipient" in said:
            to: dict[str, Any] = {"service": said["recipient"]}
            fields["recipients"] = [to | {"arguments": json.loads(said["arguments"])} if "arguments" in said else to]
        if "context" in said:
            fields["context"] = json.loads(said["context"])
        form = Form(fields, Part(payload, properties.get(Property.CONTENT_TYPE, "")))
    form.fields.pop("trace", None)
    form.fields.update((name, value) for name, value in pairs if name == TRACE)
    life = properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
    if life is not None:
        form.fields.setdefault(EXPIRES, now + SECOND * life)
    return form
