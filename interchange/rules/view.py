"""A message as rules see it: facts of the header, and a body that is parsed when a path first leads into it.

What is large is parsed in another process, so that no message stops the loop: the view then says which values it needs (`NeedsValues`),
`extract` finds them there, and the same question is asked again with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from lxml import etree

from ..message import Message, Part
from ..refusals import Code, Refusal
from .paths import Path, XmlTree, character_data, walk_json
from .values import CONVERT, Value

LARGE = 1 << 18  # bytes of a part that is parsed here; a larger one is parsed in another process
LARGEST = 16 << 20  # bytes of a part that is parsed at all; paths into a larger one lead nowhere
BUDGET = 2_000_000  # units of about 8 ns that the rules of one message may take
LEAF = 10  # units of one comparison
_DOCTYPES = tuple("<!DOCTYPE".encode(coding) for coding in ("utf-8", "utf-16-le", "utf-16-be"))


@dataclass(frozen=True, slots=True)
class Look:
    """What a condition asks a message for: the value of a path as a type, or whether something is there.

    type: of values.TYPES, or `exists`, or `list` for a list of the header.
    default: the value of what is not there, as DTDs and schemas declare for attributes (l. 144).
    """

    path: Path
    type: str
    default: Value | None = None


class NeedsValues(Exception):
    """A path leads into a part that is too large to be parsed here. looks: what `extract` shall find, for this path and its neighbours."""

    def __init__(self, looks: tuple[Look, ...]) -> None:
        super().__init__(f"{len(looks)} values of a large message")
        self.looks = looks


@dataclass(slots=True)
class Budget:
    """What is left of the units that the rules of one message may take."""

    left: int = BUDGET

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise Refusal(
                Code.ROUTE_TOO_LONG,
                "the rules of this route take too long for this message",
                "fewer rules, simpler patterns, shorter values",
            )


@dataclass(slots=True)
class Facts:
    """What the header of one invocation says. values: by the names of paths.HEADERS; argument and context: variables by name."""

    values: Mapping[str, Any]
    argument: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)

    def said(self, name: str) -> Any:
        """What the header says there; None: nothing."""
        raw = self.values.get(name)
        return None if raw == "" or raw == () else raw


class Content:
    """The parts of one message, parsed at most once. known: what `extract` has found in large parts."""

    def __init__(self, message: Message, known: Mapping[Look, Value | None] | None = None, large: int = LARGE) -> None:
        self._message = message
        self.body_is_large = len(message.body.data) > large
        self._known = known or {}
        self._large = large
        self._json: dict[str, Any] = {}
        self._xml: dict[str, XmlTree | None] = {}

    def part(self, content_type: str) -> Part | None:
        """The body, or the first attachment of a content type such as application/pdf or image/*."""
        if not content_type:
            return self._message.body
        begin = content_type[:-1] if content_type.endswith("/*") else ""
        for one in self._message.attachments:
            is_one = plain_type(one.content_type)
            if is_one == content_type or (begin and is_one.startswith(begin)):
                return one
        return None

    def is_large(self, path: Path) -> bool:
        part = self.part(path.attachment) if path.source in ("json", "xml") else None
        return part is not None and self._large < len(part.data) <= LARGEST

    def value(self, look: Look, neighbours: Iterable[Look]) -> Value | None:
        """The value of a look into a part. neighbours: other looks of the same rules, found in one go if the part is large."""
        path = look.path
        part = self._message.body if not path.attachment else self.part(path.attachment)
        if part is None or len(part.data) > LARGEST:
            return typed(None, look)
        if len(part.data) > self._large and path.source != "attachment":
            if look not in self._known:
                raise NeedsValues(tuple(one for one in neighbours if self.is_large(one.path)))
            return self._known[look]
        return typed(self._raw(path, part), look)

    def text(self, path: Path) -> str:
        """What a place in a part says, as a text of at most 255 characters; empty: nothing, or a part that is too large."""
        part = self._message.body if not path.attachment else self.part(path.attachment)
        if part is None or len(part.data) > self._large or path.source not in ("json", "xml"):
            return ""
        raw = self._raw(path, part)
        if isinstance(raw, etree._Element):
            raw = character_data(raw)
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            return ""
        return str(raw)[:255]

    def body(self) -> Any:
        """The body as JSON; None: it is none. It is not large."""
        if "" not in self._json:
            self._json[""] = parse_json(self._message.body.data)
        return self._json[""]

    def _raw(self, path: Path, part: Part) -> Any:
        name = path.attachment
        if path.source == "json":
            if not name:
                return walk_json(self.body(), path.steps)
            if name not in self._json:
                self._json[name] = parse_json(part.data)
            return walk_json(self._json[name], path.steps)
        if path.source == "attachment":
            return part.data
        if name not in self._xml:
            self._xml[name] = parse_xml(part.data)
        tree = self._xml[name]
        return None if tree is None else tree.walk(path.steps)


def extract(parts: tuple[Part, tuple[Part, ...]], looks: tuple[Look, ...]) -> dict[Look, Value | None]:
    """The values of looks into large parts, body and attachments; runs in another process."""
    header: Any = None  # no look into a part needs it
    content = Content(Message(header, *parts), large=LARGEST)
    return {look: content.value(look, ()) for look in looks}


def typed(raw: Any, look: Look) -> Value | None:
    if look.type == "exists":
        return True if raw is not None or look.default is not None else None
    if raw is None:
        return look.default
    if look.type == "list":
        return tuple(raw)
    if isinstance(raw, etree._Element) and look.type != "element":
        raw = character_data(raw)
    return CONVERT[look.type](raw)


Finder = Callable[["Content", Facts], "Value | None"]


def finder(look: Look, neighbours: Callable[[], Iterable[Look]]) -> Finder:
    """What finds the value of a look in a message. neighbours: see `Content.value`. The finder may raise NeedsValues."""
    path, default, name = look.path, look.default, look.path.text
    if path.source != "header":
        if path.source == "json" and not path.attachment and look.type in CONVERT:
            return _finder_in_body(look, neighbours)
        return lambda content, facts: content.value(look, neighbours())
    group, _, rest = name.partition(".")
    if group == "argument":
        return lambda content, facts: typed(facts.argument.get(rest), look)
    if group == "context":
        return lambda content, facts: typed(facts.context.get(rest), look)
    if look.type not in CONVERT:
        return lambda content, facts: typed(facts.said(name), look)
    convert = CONVERT[look.type]

    def find(content: Content, facts: Facts) -> Value | None:
        raw = facts.said(name)
        return default if raw is None else convert(raw)

    return find


def _finder_in_body(look: Look, neighbours: Callable[[], Iterable[Look]]) -> Finder:
    """The same for a place in a body of JSON, as most are."""
    steps, default, convert = look.path.steps, look.default, CONVERT[look.type]

    def find(content: Content, facts: Facts) -> Value | None:
        if content.body_is_large:
            return content.value(look, neighbours())
        raw = walk_json(content.body(), steps)
        return default if raw is None else convert(raw)

    return find


def plain_type(content_type: str) -> str:
    """A content type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def parse_json(data: bytes) -> Any:
    """None for what is no JSON, has numbers that no double holds, or is nested deeper than Python's recursion goes."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: wrong UTF-8
        return None


def parse_xml(data: bytes) -> XmlTree | None:
    """None for what is not well-formed, has a document type (entities), or is nested deeper than libxml2 goes."""
    if any(mark in data for mark in _DOCTYPES):
        return None
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_comments=True, remove_pis=True, recover=False
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    return None if root.getroottree().docinfo.doctype else XmlTree(root)
