"""The types that conditions compare in: string, number, date, boolean, element (l. 142-144).

A value that is not of the declared type counts as not there: None.
JSON tells its types; character data of XML, headers and arguments is text that is read as the declared type.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from lxml import etree

TYPES = ("string", "number", "date", "boolean", "element")
ORDERED = ("string", "number", "date")  # may be less or greater
DEEPEST = 100  # levels of an element that is compared
LONGEST_NUMBER = 400  # characters: a double has 309 digits before the point at most
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?\Z")
_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)([Zz]|[+-][0-9]{2}:[0-9]{2})?)?\Z"
)

Value = str | int | float | bool | datetime | tuple[Any, ...]
_INFINITY = float("inf")


def as_string(raw: Any) -> str | None:
    return raw if isinstance(raw, str) else None


def as_number(raw: Any) -> int | float | None:
    """A number, or a text in decimal digits. Integers stay exact, however long."""
    if isinstance(raw, str):
        text = raw.strip()
        if len(text) > LONGEST_NUMBER:
            return None
        if _INTEGER.match(text):
            return int(text)
        raw = float(text) if _DECIMAL.match(text) else None
    if raw is None or isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    return raw if -_INFINITY < raw < _INFINITY else None


def as_date(raw: Any) -> datetime | None:
    """A date or a time of ISO 8601, as XML Schema writes them, in UTC; without a zone it is UTC, without a time midnight."""
    found = _DATE.match(raw.strip()) if isinstance(raw, str) and len(raw) < 64 else None
    if found is None:
        return None
    day, time, zone = found[1], found[2] or "00:00", found[3] or "Z"
    clock, dot, fraction = time.partition(".")
    try:
        made = datetime.fromisoformat(f"{day}T{clock}{dot}{fraction[:6].ljust(6, '0') if dot else ''}{'+00:00' if zone in 'Zz' else zone}")
        return made.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def as_boolean(raw: Any) -> bool | None:
    if isinstance(raw, bool):
        return raw
    return {"true": True, "false": False}.get(raw) if isinstance(raw, str) else None


def as_element(raw: Any) -> tuple[Any, ...] | None:
    """A JSON object or array, or an XML element with children, in a form that is equal for equal ones; None if it is too deep."""
    try:
        if isinstance(raw, etree._Element):
            return _xml_form(raw, DEEPEST)
        return _json_form(raw, DEEPEST) if isinstance(raw, dict | list) else None
    except RecursionError:
        return None


def _json_form(raw: Any, levels: int) -> Any:
    if not levels:
        raise RecursionError
    if isinstance(raw, dict):
        return ("object", frozenset((key, _json_form(value, levels - 1)) for key, value in raw.items()))
    if isinstance(raw, list):
        return ("array", tuple(_json_form(value, levels - 1) for value in raw))
    return (isinstance(raw, bool), raw)


def _xml_form(element: etree._Element, levels: int) -> tuple[Any, ...]:
    if not levels:
        raise RecursionError
    children = tuple(_xml_form(child, levels - 1) for child in element)
    text = "" if children else element.text or ""
    return (element.tag, frozenset(element.attrib.items()), children, text)


CONVERT: dict[str, Callable[[Any], Value | None]] = {
    "string": as_string,
    "number": as_number,
    "date": as_date,
    "boolean": as_boolean,
    "element": as_element,
}
