"""The one abstract message of the interchange: kind, header, body, attachments (us-9037726, l. 98-126).

Faces (MQTT, HTTP, SOAP) turn their own form into this one and back; rules, routes and exchanges know only this one.
`read_header` and `Header.fields` are the form that all faces share: names and plain values, as JSON has them.

These are structs of msgspec: one is made in a tenth of the time that a frozen dataclass takes, and an exchange makes some thirty.

A message as it is posted and as it is delivered differ (l. 114-118). `delivered` makes the second of the first: what made the route leaves,
identifiers come in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from .reading import LONGEST_TEXT, MOST_ARGUMENTS, read_names, read_text, read_texts, service_name, wrong

BODY = "body"  # the name of the body among the parts; attachments have names of their own
MOST_RECIPIENTS = 64
MOST_SERVICES = 64  # that a sender names explicitly, for one message
LONGEST_HANDLE = 256  # bytes
NEW_SESSION = "new"  # what a post says that wants one of its own, whatever its sender works on
_ID = re.compile(r"[0-9a-f]{16}\Z")
_SESSION = re.compile(r"[0-9a-f]{32}\Z")


class Kind(StrEnum):
    REQUEST = "request"  # a response is expected; an error in routing is answered with an error (l. 100)
    RESPONSE = "response"  # to a request, by its recipient (l. 102)
    NOTIFICATION = "notification"  # no response, no error message (l. 104)
    CANCEL = "cancel"  # of an earlier message of the sender (l. 106)
    ERROR = "error"  # ends a request that failed
    ACKNOWLEDGE = "acknowledge"  # of a delivery (l. 98, 228)


PROTOCOLS = ("mqtt-5", "mqtt-3", "http")
NEW = (Kind.REQUEST, Kind.NOTIFICATION)  # begin a call; the others refer to one


class Declaration(Struct, frozen=True, gc=False):
    """A service that a header names, with the arguments for it (l. 48, 120).

    service: organisation/name.
    visible: the parts that it may see; None: all.
    """

    service: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    visible: frozenset[str] | None = None


class Access(Struct, frozen=True):
    """Who may see a part, and who may change it (l. 84): names of services; None: all of the route."""

    see: frozenset[str] | None = None
    change: frozenset[str] | None = None


class Header(Struct, frozen=True, gc=False):
    """What the interchange goes by. Times are milliseconds since 1970-01-01 UTC.

    sender: organisation/name of the service that posts; proved by the face, never believed.
    recipients: in the order in which their scripts are evaluated.
    services: those that are to work on the message before each recipient, in order (l. 120).
    handle: chosen by the sender, to recognise a message that is posted twice; possible_duplicate: it may be such a one (l. 126).
    expires: time at which routing ends, for a request also its response (l. 206); None: the default.
    session, call, hop: empty in a message that begins its own. Other kinds than `NEW` name the call, or the hop, that they are about.
    access: part -> who may see and change it.
    number: of a response, where its recipient gives several: posted which one it is, `2`, delivered also of how many, `2/3`.
    code, reason: of an error, and of a response that says that the service failed; empty: it did not.
    context: variables that the invoker set, as rules see them and as a service gets them; no face lets a poster set it.
    trace: a W3C traceparent that came with the post.
    """

    kind: Kind
    sender: str
    recipients: tuple[Declaration, ...] = ()
    services: tuple[Declaration, ...] = ()
    topic: str = ""
    handle: str = ""
    possible_duplicate: bool = False
    expires: int | None = None
    session: str = ""
    call: str = ""
    hop: str = ""
    access: Mapping[str, Access] = field(default_factory=dict)
    number: str = ""
    code: str = ""
    reason: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""

    def fields(self) -> dict[str, Any]:
        """In the form that all faces share; what is not set is left out. `read_header` reads it again."""
        made: dict[str, Any] = {"kind": self.kind.value, "sender": self.sender}
        if self.recipients:
            made["recipients"] = [_declared(one) for one in self.recipients]
        if self.services:
            made["services"] = [_declared(one) for one in self.services]
        if self.possible_duplicate:
            made["possible_duplicate"] = True
        if self.expires is not None:
            made["expires"] = self.expires
        if self.access:
            made["access"] = {
                part: {right: sorted(names) for right, names in (("see", access.see), ("change", access.change)) if names is not None}
                for part, access in self.access.items()
            }
        if self.context:
            made["context"] = dict(self.context)
        made.update((name, value) for name in _TEXTS if (value := getattr(self, name)))
        return made


class Part(Struct, frozen=True, gc=False):
    """The body or an attachment: any bytes (l. 76, 116). content_type: as MIME has it; empty: not said."""

    data: bytes
    content_type: str = ""
    name: str = BODY


class Message(Struct, frozen=True, gc=False):
    """A message of the interchange.

    has: what the connection of its post had: `tls`, `password`, `certificate` (l. 84, 90), and which of `PROTOCOLS` it spoke (l. 250).
    """

    header: Header
    body: Part = Part(b"")
    attachments: tuple[Part, ...] = ()
    has: frozenset[str] = frozenset()

    @property
    def protocol(self) -> str:
        """What it was posted by; empty: that is not known, as of a message of an earlier release."""
        for one in PROTOCOLS:
            if one in self.has:
                return one
        return ""

    @property
    def size(self) -> int:
        """Bytes of all its parts."""
        return len(self.body.data) + sum([len(one.data) for one in self.attachments])

    def part(self, name: str) -> Part | None:
        if name == BODY:
            return self.body
        return next((one for one in self.attachments if one.name == name), None)

    def only(self, visible: frozenset[str] | None) -> Message:
        """With the parts that somebody may see; None: all. A body that may not be seen is empty."""
        if visible is None:
            return self
        body = self.body if BODY in visible else Part(b"")
        return replace(self, body=body, attachments=tuple(one for one in self.attachments if one.name in visible))


_TEXTS = ("topic", "handle", "session", "call", "hop", "number", "code", "reason", "trace")
_POSTED = frozenset((*_TEXTS, "kind", "sender", "recipients", "services", "possible_duplicate", "expires", "access"))


def delivered(
    message: Message, header: Header, to: Declaration, session: str, call: str, hop: str, context: Mapping[str, str], **changes: Any
) -> Message:
    """The message as one service gets it: the one declaration for it, its parts, the identifiers (l. 114-118).

    header: of which it has what is not said here. changes: further fields of it.
    """
    said = {"recipients": (to,), "services": (), "handle": "", "number": "", "possible_duplicate": False, "access": {}, "context": context}
    made = replace(header, session=session, call=call, hop=hop, **{**said, **changes})
    return Message(made, message.body, message.attachments, message.has).only(to.visible)


def stored_header(fields: Mapping[str, Any]) -> Header:
    """The same of what `Header.fields` has made in this process: nothing is checked again."""
    made = {name: fields[name] for name in (*_TEXTS, "possible_duplicate", "expires", "context") if name in fields}
    for name in ("recipients", "services"):
        if name in fields:
            made[name] = tuple(map(_stored, fields[name]))
    if "access" in fields:
        made["access"] = _access(fields["access"])
    return Header(Kind(fields["kind"]), fields["sender"], **made)


def _stored(one: Mapping[str, Any]) -> Declaration:
    visible = one.get("visible")
    return Declaration(one["service"], one.get("arguments", {}), None if visible is None else frozenset(visible))


def read_header(fields: object, posted: bool = True) -> Header:
    """A header from the form that all faces share; Refusal not-well-formed names the key, the value and what would be right.

    posted: what a service posts; else what the interchange wrote, which has `context` too.
    """
    if not isinstance(fields, Mapping):
        raise wrong("header", fields, "give an object")
    for key in fields:
        if key not in _POSTED and (posted or key != "context"):
            raise wrong("header", key, f"it has {', '.join(sorted(_POSTED))}")
    kind = _kind(fields.get("kind"))
    said = [name for name in _TEXTS if name in fields]
    texts = {name: read_text(fields[name], name, LONGEST_HANDLE if name == "handle" else LONGEST_TEXT) for name in said}
    for name, form in (("session", _SESSION), ("call", _ID), ("hop", _ID)):
        text = texts.get(name)
        if text and not form.match(text) and not (name == "session" and text == NEW_SESSION and kind in NEW):
            raise wrong(name, text, f"give {32 if form is _SESSION else 16} hexadecimal digits, lower case")
    duplicate = fields.get("possible_duplicate", False)
    if not isinstance(duplicate, bool):
        raise wrong("possible_duplicate", duplicate, "give true or false")
    expires = fields.get("expires")
    if expires is not None and (not isinstance(expires, int) or isinstance(expires, bool) or not 0 <= expires < 1 << 53):
        raise wrong("expires", expires, "give milliseconds since 1970-01-01 UTC")
    header = Header(
        kind,
        service_name(fields.get("sender"), "sender"),
        _declarations(fields["recipients"], "recipients", MOST_RECIPIENTS) if "recipients" in fields else (),
        _declarations(fields["services"], "services", MOST_SERVICES) if "services" in fields else (),
        possible_duplicate=duplicate,
        expires=expires,
        access=_access(fields["access"]) if "access" in fields else {},
        context=read_texts(fields["context"], "context") if "context" in fields else {},
        **texts,
    )
    check_complete(header)
    return header


def check_complete(header: Header) -> None:
    """What each kind must have, and may not. Raises Refusal."""
    if header.kind in NEW and not header.recipients:
        raise wrong("recipients", [], f"a {header.kind} names at least one")
    if header.kind not in NEW and not (header.call or header.hop or (header.kind is Kind.CANCEL and header.handle)):
        raise wrong("call", "", f"a message of kind {header.kind} names the call or the hop that it is about")
    if header.kind is Kind.RESPONSE and header.expires is not None:
        raise wrong("expires", header.expires, "a response has none: its request's holds (give no expiry)")
    if header.kind is Kind.ERROR and not header.code:
        raise wrong("code", "", "an error says which")
    if len(header.recipients) > 1:
        names = [one.service for one in header.recipients]
        if len(set(names)) != len(names):
            raise wrong("recipients", names, "name each recipient once")


def _declared(one: Declaration) -> dict[str, Any]:
    made: dict[str, Any] = {"service": one.service}
    if one.arguments:
        made["arguments"] = dict(one.arguments)
    if one.visible is not None:
        made["visible"] = sorted(one.visible)
    return made


def _declarations(value: object, where: str, most: int) -> tuple[Declaration, ...]:
    """A list of names, or of objects with service, arguments and visible."""
    if not isinstance(value, list) or len(value) > most:
        raise wrong(where, value, f"give a list of at most {most} services")
    return tuple(_declaration(one, where) for one in value)


def _declaration(value: object, where: str) -> Declaration:
    if isinstance(value, str):
        return Declaration(service_name(value, where))
    if not isinstance(value, Mapping) or not set(value) <= {"service", "arguments", "visible"}:
        raise wrong(where, value, "give organisation/name, or an object with service, arguments, visible")
    visible = value.get("visible")
    return Declaration(
        service_name(value.get("service"), f"{where}.service"),
        read_texts(value.get("arguments", {}), f"{where}.arguments"),
        None if visible is None else read_names(visible, f"{where}.visible", "parts"),
    )


def _access(value: object) -> dict[str, Access]:
    if not isinstance(value, Mapping) or len(value) > MOST_ARGUMENTS:
        raise wrong("access", value, "give an object: part -> {see: [services], change: [services]}")
    made = {}
    for part, rights in value.items():
        if not isinstance(rights, Mapping) or not set(rights) <= {"see", "change"} or not isinstance(part, str):
            raise wrong(f"access.{part}", rights, "give an object with see, change or both")
        named = {
            right: frozenset(service_name(one, f"access.{part}.{right}") for one in read_names(names, f"access.{part}.{right}", "services"))
            for right, names in rights.items()
        }
        made[read_text(part, "access", 255)] = Access(**named)
    return made


def _kind(value: object) -> Kind:
    try:
        return Kind(value)  # type: ignore[arg-type]
    except ValueError:
        raise wrong("kind", value, f"give one of {', '.join(Kind)}") from None
