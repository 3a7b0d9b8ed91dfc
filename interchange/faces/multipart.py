"""Multipart bodies (RFC 2046): multipart/form-data, related and mixed, cut into parts. Nothing is copied but the parts themselves.

Raises Refusal for what is not whole: no boundary, no end, a part without the end of its head, too many parts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from email.message import EmailMessage
from typing import NamedTuple

from ..message import BODY, Part
from ..refusals import Code, Refusal
from . import envelope
from .envelope import MOST_ATTACHMENTS, Form

MOST_PARTS = MOST_ATTACHMENTS + 2  # the header, the body
LONGEST_HEAD = 8192  # bytes of the head of a part
LONGEST_MESSAGE = 1_048_576  # bytes of the part `message`
LARGEST_CODED = 1_048_576  # bytes of a part in base64
MESSAGE = "message"  # the part that is the header, as one JSON object
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


class Section(NamedTuple):
    """One part. headers: names in small letters."""

    headers: Mapping[str, str]
    data: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def name(self) -> str:
        """As multipart/form-data has it; else the Content-ID, or the name of the file."""
        parameters = parameters_of(self.headers.get("content-disposition", ""))
        return parameters.get("name") or self.headers.get("content-id", "").strip("<> ") or parameters.get("filename", "")


def parameters_of(value: str) -> dict[str, str]:
    """Parameters of a header such as Content-Type, with names in small letters; "" is what stands before them."""
    parsed = EmailMessage()
    try:
        parsed["content-disposition"] = value
        found = parsed["content-disposition"]
        return {"": value.partition(";")[0].strip().lower(), **{key.lower(): str(one) for key, one in found.params.items()}}
    except (ValueError, AttributeError, IndexError, TypeError):  # of a value that is none
        return {"": value.partition(";")[0].strip().lower()}


def sections(data: bytes, content_type: str) -> list[Section]:
    """The parts of a body. Raises Refusal."""
    boundary = parameters_of(content_type).get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary):
        raise _wrong("Content-Type has no boundary", "give multipart/form-data; boundary=...")
    mark = b"\r\n--" + boundary.encode()
    data = b"\r\n" + data if data.startswith(mark[2:]) else data
    found: list[Section] = []
    at = data.find(mark)
    while at >= 0:
        start = at + len(mark)
        if data.startswith(b"--", start):
            return found
        line = data.find(b"\r\n", start)
        at = data.find(mark, start)
        if line < 0 or at < 0 or data[start:line].strip(b" \t"):
            break
        if len(found) >= MOST_PARTS:
            raise _wrong(f"more than {MOST_PARTS} parts", "give fewer")
        found.append(_section(data, line + 2, at))
    raise _wrong("the multipart body has no end", f"end it with --{boundary[:40]}--")


def _section(data: bytes, start: int, end: int) -> Section:
    if data.startswith(b"\r\n", start):
        return Section({}, data[start + 2 : end])
    head = data.find(b"\r\n\r\n", start, min(end + 4, start + LONGEST_HEAD))
    if head < 0 or head > end:
        raise _wrong("the head of a part has no end", f"give at most {LONGEST_HEAD:,} bytes and an empty line")
    headers: dict[str, str] = {}
    for line in re.sub(rb"\r\n[ \t]+", b" ", data[start:head]).split(b"\r\n"):
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon:
            raise _wrong(f"{line[:60]!r} is no header", "give NAME: VALUE")
        headers[name.strip().lower()] = value.strip()
    content = data[min(head + 4, end) : end]
    coding = headers.get("content-transfer-encoding", "binary").lower()
    if coding == "base64":
        if len(content) > LARGEST_CODED:
            raise Refusal(Code.TOO_LARGE, f"a part of {len(content):,} bytes in base64", f"give at most {LARGEST_CODED:,}, or binary")
        try:
            content = base64.b64decode(re.sub(rb"\s", b"", content), validate=True)
        except (binascii.Error, ValueError) as error:
            raise _wrong(f"a part is no base64: {error}", "") from None
    elif coding not in ("binary", "8bit", "7bit"):
        raise _wrong(f"Content-Transfer-Encoding {coding[:40]!r}", "give binary or base64")
    return Section(headers, content)


def read(data: bytes, content_type: str) -> Form:
    """A message in parts: `message`, the header's fields as one JSON object; `body`; all others are attachments. Raises Refusal."""
    found = sections(data, content_type)
    form = Form({})
    body, attachments = Part(b""), []
    for one in found:
        if one.name == MESSAGE:
            form = envelope.read(one.data, LONGEST_MESSAGE)
        elif one.name == BODY:
            body = Part(one.data, one.content_type)
        else:
            attachments.append(Part(one.data, one.content_type, one.name))
    return Form(form.fields, body if body.data or not form.body.data else form.body, envelope.named((*form.attachments, *attachments)))


def _wrong(what: str, right: str) -> Refusal:
    return Refusal(Code.NOT_WELL_FORMED, what, right)
