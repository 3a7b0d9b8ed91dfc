"""The SOAP 1.1 face: operations `post`, `poll`, `settle` and `query`, in the words of `wsdl.py`.

A request is an envelope, or multipart/related with the envelope first (SOAP with Attachments, XOP). `<data href="cid:...">` and
`<data><xop:Include href="cid:..."/></data>` stand for a part; a part that nothing names is an attachment.

Strangers write it: there is no document type, so there are no entities; libxml2 bounds the depth. Larger parts are attachments.

What it does not know: HTTP, who asks.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

from lxml import etree

from ..message import BODY, Part
from ..refusals import Code, Refusal
from . import envelope, multipart
from .envelope import Form
from .wsdl import NAMESPACE, OPERATIONS

ENVELOPE = "http://schemas.xmlsoap.org/soap/envelope/"
XOP = "{http://www.w3.org/2004/08/xop/include}Include"
TEXTS = ("kind", "sender", "topic", "handle", "session", "call", "hop", "number", "code", "reason")
DECLARED = {"recipient": "recipients", "service": "services"}
ORDER = (
    *("kind", "sender", "recipient", "service", "topic", "handle", "expires"),
    *("session", "call", "hop", "number", "code", "reason", "traceparent"),
)
LARGEST_XML = 4_194_304  # bytes of an envelope: 20 ms
MOST_ELEMENTS = 10_000  # of a message
_BAD = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Request(NamedTuple):
    """What is asked. operation: see `OPERATIONS`. element: of the body. parts: those that came beside the envelope, by Content-ID."""

    operation: str
    element: Any
    parts: Mapping[str, multipart.Section]


def read(data: bytes, content_type: str) -> Request:
    """A request. Raises Refusal."""
    parts: dict[str, multipart.Section] = {}
    if content_type.strip().lower().startswith("multipart/"):
        first, *others = multipart.sections(data, content_type) or [multipart.Section({}, b"")]
        data = first.data
        parts = {one.name: one for one in others}
    root = _parsed(data)
    body = root.find(f"{{{ENVELOPE}}}Body") if root.tag == f"{{{ENVELOPE}}}Envelope" else None
    if body is None or len(body) != 1:
        raise _wrong("the request", "give a SOAP 1.1 envelope whose body has one element")
    for header in root.iterfind(f"{{{ENVELOPE}}}Header/*"):
        if header.get(f"{{{ENVELOPE}}}mustUnderstand") in ("1", "true"):
            raise _wrong(f"the header {header.tag!r} is not understood", "leave it out")
    name = etree.QName(body[0])
    if name.namespace != NAMESPACE or name.localname not in OPERATIONS:
        raise _wrong(f"operation {name.localname} of {name.namespace!r}", f"give {', '.join(OPERATIONS)} of {NAMESPACE}")
    return Request(name.localname, body[0], parts)


def _parsed(data: bytes) -> Any:
    if len(data) > LARGEST_XML:
        raise Refusal(Code.TOO_LARGE, f"{len(data):,} bytes of XML", f"give at most {LARGEST_XML:,}, and what is larger as an attachment")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise _wrong("a document type", "give none")
    parser = etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_comments=True, remove_pis=True
    )
    try:
        return etree.fromstring(data, parser=parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise _wrong(f"the request is no XML: {error}"[:300], "give XML in UTF-8") from None


def message(request: Request) -> Form:
    """The message of `post`. Raises Refusal."""
    (found, *more) = [*request.element] or [None]
    if found is None or more or _name(found) != "message":
        raise _wrong("post", "give one message")
    if _many(request.element):
        raise _wrong(f"more than {MOST_ELEMENTS} elements", "give fewer")
    fields: dict[str, Any] = {}
    body, attachments = Part(b""), []
    used: set[str] = set()
    for one in found:
        name = _name(one)
        if name in TEXTS:
            fields[name] = one.text or ""
        elif name in DECLARED:
            fields.setdefault(DECLARED[name], []).append(_declaration(one))
        elif name == "possible_duplicate":
            fields[name] = {"true": True, "1": True, "false": False, "0": False}.get((one.text or "").strip(), one.text)
        elif name == "expires":
            fields[name] = _milliseconds(one.text or "")
        elif name == "traceparent":
            fields["trace"] = one.text or ""
        elif name == "access":
            fields.setdefault("access", {})[_text(one, "part")] = _rights(one)
        elif name == BODY:
            body = _part(one, BODY, request.parts, used)
        elif name == "attachment":
            attachments.append(_part(one, _text(one, "name"), request.parts, used))
        else:
            raise _wrong(f"message: {name[:60]!r}", "give what the WSDL has")
    attachments += [Part(one.data, one.content_type, name) for name, one in request.parts.items() if name not in used]
    return Form(fields, body, envelope.named(attachments))


def _many(element: Any) -> bool:
    """Whether an element has more below it than anybody needs."""
    return next(islice(element.iter(), MOST_ELEMENTS, None), None) is not None


def values(request: Request) -> dict[str, list[str]]:
    """The arguments of `poll` and `settle`. Raises Refusal."""
    if _many(request.element):
        raise _wrong(f"more than {MOST_ELEMENTS} elements", "give fewer")
    found: dict[str, list[str]] = {}
    for one in request.element:
        found.setdefault(_name(one), []).append(one.text or "")
    return found


def question(request: Request) -> bytes:
    """The question of `query`, in JSON. Raises Refusal."""
    asked: dict[str, Any] = {}
    for one in request.element:
        name, text = _name(one), (one.text or "").strip()
        if name in ("since", "until"):
            asked[name] = _milliseconds(text)
        elif name == "limit" and text.isdecimal() and len(text) < 10:
            asked[name] = int(text)
        elif name == "identifier":
            asked[name] = {"name": _text(one, "name"), "value": _text(one, "value")}
        else:
            asked[name] = text
    return json.dumps(asked).encode()


def _part(element: Any, name: str, parts: Mapping[str, multipart.Section], used: set[str]) -> Part:
    content_type = _text(element, "content_type")
    data = element.find(f"{{{NAMESPACE}}}data")
    if data is None:
        return Part(_text(element, "text").encode(), content_type, name)
    include = data.find(XOP)
    reference = data.get("href") if include is None else include.get("href")
    if reference is not None:
        id = unquote(reference.removeprefix("cid:"))
        if id not in parts:
            raise _wrong(f"{name}: {reference[:80]!r}", "give the Content-ID of a part, as cid:...")
        used.add(id)
        return Part(parts[id].data, content_type or parts[id].content_type, name)
    try:
        return Part(base64.b64decode("".join((data.text or "").split()), validate=True), content_type, name)
    except (binascii.Error, ValueError) as error:
        raise _wrong(f"{name}: {error}", "give base64") from None


def _declaration(element: Any) -> Any:
    service = _text(element, "service")
    arguments = {_text(one, "name"): _text(one, "value") for one in element.iterfind(f"{{{NAMESPACE}}}argument")}
    return {"service": service, "arguments": arguments} if arguments else service


def _rights(element: Any) -> dict[str, list[str]]:
    return {
        right: [one.text or "" for one in found]
        for right in ("see", "change")
        if (found := element.find(f"{{{NAMESPACE}}}{right}")) is not None
    }


def _text(element: Any, name: str) -> str:
    found = element.find(f"{{{NAMESPACE}}}{name}")
    return "" if found is None else found.text or ""


def _name(element: Any) -> str:
    name = etree.QName(element)
    return name.localname if name.namespace == NAMESPACE else str(element.tag)


def _milliseconds(text: str) -> int:
    try:
        found = datetime.fromisoformat(text.strip())
        return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise _wrong(f"{text[:40]!r} is no time", "give a dateTime") from None


# Answers


def posted(verdict: Mapping[str, Any]) -> bytes:
    """The answer to `post`."""
    made = _make("postResponse")
    for name in ("session", "call"):
        _add(made, name, verdict.get(name))
    for one in verdict.get("came", ()):
        came = _add(made, "came")
        for name in ("recipient", "state", "number", "at"):
            _add(came, name, one.get(name))
    _add(made, "waits_for", verdict.get("waits_for"))
    return _enveloped(made)


def polled(found: Iterable[tuple[str, Form]]) -> bytes:
    """The answer to `poll`: messages with their leases."""
    made = _make("pollResponse")
    for lease, form in found:
        _shown(_add(made, "message"), form, lease)
    return _enveloped(made)


def queried(answer: Mapping[str, Any]) -> bytes:
    """The answer to `query`: a JSON object as a text."""
    made = _make("queryResponse")
    _add(made, "answer", json.dumps(answer))
    return _enveloped(made)


def settled(unknown: Iterable[str]) -> bytes:
    """The answer to `settle`."""
    made = _make("settleResponse")
    for one in unknown:
        _add(made, "unknown", one)
    return _enveloped(made)


def fault(refusal: Refusal) -> bytes:
    """What is answered, with status 500, to who asks wrongly."""
    made = etree.Element(f"{{{ENVELOPE}}}Fault")
    ours = refusal.code is Code.UNAVAILABLE
    etree.SubElement(made, "faultcode").text = "soap:Server" if ours else "soap:Client"
    etree.SubElement(made, "faultstring").text = _printable(str(refusal))
    detail = _make("refusal")
    etree.SubElement(made, "detail").append(detail)
    for name, value in refusal.fields().items():
        _add(detail, name, value)
    return _enveloped(made)


def _shown(made: Any, form: Form, lease: str) -> None:
    fields = form.fields
    for name in ORDER:
        if name in DECLARED:
            for one in fields.get(DECLARED[name], ()):
                to = _add(made, name)
                _add(to, "service", one["service"])
                _pairs(to, "argument", one.get("arguments", {}))
        elif name == "expires" and name in fields:
            _add(made, name, datetime.fromtimestamp(fields[name] / 1000, UTC).isoformat().replace("+00:00", "Z"))
        else:
            _add(made, name, fields.get(name))
    _pairs(made, "context", fields.get("context", {}))
    if form.body.data:
        _add_part(_add(made, BODY), form.body)
    for one in form.attachments:
        _add_part(_add(made, "attachment"), one)
    _add(made, "lease", lease)


def _add_part(made: Any, part: Part) -> None:
    if part.name != BODY:
        _add(made, "name", part.name)
    _add(made, "content_type", part.content_type or None)
    try:
        text = part.data.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text == _printable(text):
        _add(made, "text", text)
    else:
        _add(made, "data", base64.b64encode(part.data).decode())


def _pairs(made: Any, name: str, pairs: Mapping[str, str]) -> None:
    for key, value in pairs.items():
        one = _add(made, name)
        _add(one, "name", key)
        _add(one, "value", value)


def _make(name: str) -> Any:
    return etree.Element(f"{{{NAMESPACE}}}{name}", nsmap={None: NAMESPACE})


def _add(parent: Any, name: str, text: str | None = "") -> Any:
    """A new element; None: there is none."""
    if text is None:
        return None
    made = etree.SubElement(parent, f"{{{NAMESPACE}}}{name}")
    made.text = _printable(text) or None
    return made


def _printable(text: str) -> str:
    """What XML cannot have becomes a question mark."""
    return _BAD.sub("?", text)


def _enveloped(content: Any) -> bytes:
    made = etree.Element(f"{{{ENVELOPE}}}Envelope", nsmap={"soap": ENVELOPE})
    etree.SubElement(made, f"{{{ENVELOPE}}}Body").append(content)
    return bytes(etree.tostring(made, xml_declaration=True, encoding="utf-8"))


def _wrong(what: str, right: str) -> Refusal:
    return Refusal(Code.NOT_WELL_FORMED, what, right)
