"""Where a condition finds its value: a field of the header, a path into JSON or XML, an attachment by content type (l. 138).

Paths are our own walkers, one step for one step of the path: a path of a stranger cannot search a body. JSON paths are RFC 9535's singular
queries, which name one place. XML paths have child, attribute and index steps: `/order/line[2]/@qty`.

A path yields None for what is not there, as for a path that leads nowhere or a body that is no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lxml import etree

from ..reading import read_text, wrong

LONGEST_PATH = 1024  # bytes
MOST_STEPS = 64
LARGEST_INDEX = (1 << 53) - 1  # as RFC 9535 has it
_MEMBER = re.compile(r"[A-Za-z_\u0080-\U0010FFFF][A-Za-z0-9_\u0080-\U0010FFFF]*")
_INDEX = re.compile(r"\[(0|-?[1-9][0-9]*)\]")
_QUOTED = re.compile(r"""\[(?:"((?:[^"\\\x00-\x1f]|\\.)*)"|'((?:[^'\\\x00-\x1f]|\\.)*)')\]""")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\"}
_XML_NAME = r"[A-Za-z_\u00C0-\U000EFFFF][A-Za-z0-9_.\-\u00B7-\U000EFFFF]*"
_XML_STEP = re.compile(rf"/(@?)(?:({_XML_NAME}):)?({_XML_NAME})(?:\[([1-9][0-9]{{0,8}})\])?")
_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/(?:\*|[A-Za-z0-9!#$&^_.+-]{1,127})\Z")

HEADERS = {  # what a header path may name -> the types that its values have
    "kind": "string",
    "sender": "string",
    "sender.organisation": "string",
    "recipient": "string",
    "recipients": "list",
    "services": "list",
    "service": "string",
    "invoker": "string",
    "topic": "string",
    "handle": "string",
    "possible_duplicate": "boolean",
    "expires": "number",
    "code": "string",
    "reason": "string",
    "content_type": "string",
    "attachments": "list",
    "size": "number",
}
GROUPS = ("argument", "context")  # argument.NAME of this invocation, context.NAME that the invoker set


@dataclass(frozen=True, slots=True)
class Path:
    """One place in a message.

    source: header, json, xml or attachment.
    steps: of JSON names and indices; of XML (element or attribute, index from 0).
    attachment: content type of the attachment that is meant, the first that has it; empty: the body.
    """

    source: str
    text: str
    steps: tuple[Any, ...] = ()
    attachment: str = ""

    @property
    def is_list(self) -> bool:
        return self.source == "header" and HEADERS.get(self.text) == "list"

    def __str__(self) -> str:
        inside = f" of attachment {self.attachment}" if self.attachment and self.source != "attachment" else ""
        return f"{self.source} {self.text}{inside}"


def header_path(value: object, where: str) -> Path:
    name = read_text(value, where, LONGEST_PATH)
    group, dot, rest = name.partition(".")
    if name not in HEADERS and not (group in GROUPS and dot and rest):
        raise wrong(where, name, f"give {', '.join(HEADERS)}, argument.NAME or context.NAME")
    return Path("header", name)


def attachment_path(value: object, where: str) -> Path:
    content_type = _content_type(value, where)
    return Path("attachment", content_type, attachment=content_type)


def _content_type(value: object, where: str) -> str:
    text = read_text(value, where, LONGEST_PATH)
    if not _CONTENT_TYPE.match(text):
        raise wrong(where, text, "give a content type such as application/pdf or image/*")
    return text.lower()


def json_path(value: object, where: str, attachment: object = None) -> Path:
    """A singular query of RFC 9535: `$.customer['first name'].orders[0]`."""
    text = read_text(value, where, LONGEST_PATH)
    right = "give a singular path as RFC 9535 has it, such as $.order.lines[0]['unit price']"
    if not text.startswith("$"):
        raise wrong(where, text, right)
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        begin = at
        while at < len(text) and text[at] in " \t\n\r":  # S, between segments
            at += 1
        if found := _INDEX.match(text, at):
            steps.append(_index(found[1], where, text))
        elif found := _QUOTED.match(text, at):
            steps.append(_unquoted(found, where, text))
        elif text[at : at + 1] == "." and (found := _MEMBER.match(text, at + 1)):
            steps.append(found[0])
        else:
            raise wrong(where, text[begin:], right)
        at = found.end()
    return Path("json", text, _bounded(steps, where, text), _content_type(attachment, where) if attachment is not None else "")


def _index(digits: str, where: str, path: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > LARGEST_INDEX:
        raise wrong(where, path, f"an index is at most {LARGEST_INDEX}")
    return int(digits)


def _unquoted(found: re.Match[str], where: str, path: str) -> str:
    """A quoted name of RFC 9535 without its escapes."""
    quote = '"' if found[1] is not None else "'"

    def one(escape: re.Match[str]) -> str:
        if escape[1]:
            return chr(int(escape[1], 16))
        made = _ESCAPES.get(escape[2], quote if escape[2] == quote else None)
        if made is None:
            raise wrong(where, path, f"\\{escape[2]} is no escape in a name of RFC 9535")
        return made

    name = _ESCAPE.sub(one, found[1] if found[1] is not None else found[2])
    try:
        return name.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise wrong(where, path, "\\u escapes of surrogates come in pairs") from None


def xml_path(value: object, where: str, namespaces: Mapping[str, str], attachment: object = None) -> Path:
    """`/order/p:line[2]/@qty`: from the root element, the first child of a name or the one of an index from 1, at last an attribute."""
    text = read_text(value, where, LONGEST_PATH)
    steps: list[tuple[str, str, int]] = []
    at = 0
    while at < len(text):
        found = _XML_STEP.match(text, at)
        if not found or (steps and steps[-1][0] == "@") or (found[1] and (found[4] or not steps)):
            raise wrong(where, text, "give a path of child, attribute and index steps, such as /order/line[2]/@qty")
        if found[2] and found[2] not in namespaces:
            raise wrong(where, text, f"say which namespace {found[2]} is, in `namespaces`")
        uri = namespaces.get(found[2]) if found[2] else "" if found[1] else namespaces.get("", "")
        steps.append((found[1], f"{{{uri}}}{found[3]}" if uri else found[3], int(found[4] or 1) - 1))
        at = found.end()
    if not steps:
        raise wrong(where, text, "a path begins with / and the name of the root element")
    if steps[0][2]:
        raise wrong(where, text, "there is one root element: give it no index")
    return Path("xml", text, _bounded(steps, where, text), _content_type(attachment, where) if attachment is not None else "")


def _bounded(steps: list[Any], where: str, path: str) -> tuple[Any, ...]:
    if len(steps) > MOST_STEPS:
        raise wrong(where, path, f"a path has at most {MOST_STEPS} steps")
    return tuple(steps)


def walk_json(value: Any, steps: tuple[str | int, ...]) -> Any:
    """The value at the end of the steps; None if there is none, and for null."""
    for step in steps:
        if isinstance(step, str):
            if not isinstance(value, dict):
                return None
            value = value.get(step)
        elif isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


class XmlTree:
    """An XML document whose elements are looked into once: paths of many rules cost no more than the document."""

    def __init__(self, root: etree._Element) -> None:
        self.root = root
        self._children: dict[etree._Element, dict[str, list[etree._Element]]] = {}

    def walk(self, steps: tuple[tuple[str, str, int], ...]) -> etree._Element | str | None:
        """The element or the text of the attribute at the end of the steps; None if there is none."""
        if self.root.tag != steps[0][1]:
            return None
        element = self.root
        for kind, name, index in steps[1:]:
            if kind == "@":
                found: str | None = element.get(name)
                return found
            same = self._by_name(element).get(name, ())
            if index >= len(same):
                return None
            element = same[index]
        return element

    def _by_name(self, element: etree._Element) -> dict[str, list[etree._Element]]:
        known = self._children.get(element)
        if known is None:
            known = self._children[element] = {}
            for child in element:
                known.setdefault(child.tag, []).append(child)
        return known


def character_data(element: etree._Element) -> str | None:
    """What stands in an element; None for one with child elements, which has no character data (l. 142)."""
    return None if len(element) else element.text or ""
