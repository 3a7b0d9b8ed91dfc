"""Typed values and the conversions between them (Jakarta Messaging 3.1, 3.5.4, 3.11.3): properties, map and stream bodies.

A value is kept with its kind, one of the words below, because Python's `int` does not distinguish short and long. Without a kind of the
application, `kind_of` chooses: boolean, int up to 32 bits, long up to 64, double, string or bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from ...base.selector.terms import Value
from ...base.selector.values import BITS, value_of
from ..core.errors import MessageFormatError

Typed = tuple[str, Value]  # kind, value

NUMBERS = ("byte", "short", "int", "long", "float", "double")
PROPERTY_KINDS = frozenset(("boolean", *NUMBERS, "string"))
BODY_KINDS = PROPERTY_KINDS | {"char", "bytes"}

_WIDENS = {  # a kind -> kinds that it can be read as (tables 3-4 and 3-7)
    "boolean": {"boolean", "string"},
    "byte": {"byte", "short", "int", "long", "string"},
    "short": {"short", "int", "long", "string"},
    "int": {"int", "long", "string"},
    "long": {"long", "string"},
    "float": {"float", "double", "string"},
    "double": {"double", "string"},
    "string": PROPERTY_KINDS,
    "char": {"char", "string"},
    "bytes": {"bytes"},
}


def kind_of(value: Any) -> str:
    """The kind of a Python value. Raises `MessageFormatError` without one."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "int" if -(1 << 31) <= value < 1 << 31 else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str) or value is None:
        return "string"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    raise MessageFormatError(f"{type(value).__name__} is not a type of a message value: use bool, int, float, str, bytes or None")


def typed(value: Any, kind: str | None = None, kinds: frozenset[str] = PROPERTY_KINDS) -> Typed:
    """The value with its kind. Raises `MessageFormatError` if it is not of that kind or out of range, or the kind is not in `kinds`."""
    kind = kind or kind_of(value)
    if kind not in kinds:
        raise MessageFormatError(f"a value of kind {kind} cannot stand here")
    if value is None and kind in ("string", "bytes"):
        return kind, None
    if kind in BITS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise MessageFormatError(f"{value!r} is not a whole number")
        if not -(1 << BITS[kind] - 1) <= value < 1 << BITS[kind] - 1:
            raise MessageFormatError(f"{value} does not fit into a {kind}")
        return kind, value
    if kind in ("float", "double"):
        return kind, _real(value, kind)
    if kind == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return kind, bytes(value)
    if kind == "boolean" and isinstance(value, bool):
        return kind, value
    if kind in ("string", "char") and isinstance(value, str) and (kind == "string" or len(value) == 1):
        return kind, check_text(value, "the value")
    raise MessageFormatError(f"{value!r} is not a {kind}")


def check_text(value: Any, what: str) -> str:
    """The text. Raises `MessageFormatError` for another type, and for surrogates, which UTF-8 cannot carry."""
    if not isinstance(value, str):
        raise MessageFormatError(f"{what} is {value!r}: expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MessageFormatError(f"{what} is not valid Unicode: {error}") from error
    return value


def _real(value: Any, kind: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise MessageFormatError(f"{value!r} is not a number")
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0]) if kind == "float" else float(value)
    except (OverflowError, struct.error) as error:
        raise MessageFormatError(f"{value} does not fit into a {kind}") from error


def convert(stored: Typed | None, kind: str) -> Value:
    """A stored value, read as `kind`.

    A missing value is None as string and bytes, False as boolean, and an error as number. So is a string that is no number.
    """
    have, value = stored or ("string", None)
    if kind not in _WIDENS[have] and not (kind == "bytes" and value is None):
        raise MessageFormatError(f"a {have} cannot be read as a {kind}")
    if kind == "string":
        return value if value is None or have in ("string", "char") else text_of(have, value)
    if have == "string" and kind != "bytes":
        return _parsed(value, kind)
    return value


def _parsed(value: Value, kind: str) -> Value:
    """A string read as another kind, with the rules of Java's valueOf."""
    if kind == "boolean":
        return isinstance(value, str) and value.lower() == "true"
    if value is None:
        raise MessageFormatError(f"there is no value to be read as a {kind}")
    try:
        return value_of(kind, str(value))
    except ValueError as error:
        raise MessageFormatError(f"{value!r} cannot be read as a {kind}: {error}") from error


def text_of(kind: str, value: Value) -> str:
    """The text of a property's value in a User Property."""
    return ("true" if value else "false") if kind == "boolean" else str(value)


def of_text(kind: str, text: str) -> Typed:
    """The value of a text made by `text_of`. Raises `MessageFormatError` if the text is not of that kind."""
    if kind not in PROPERTY_KINDS:
        raise MessageFormatError(f"unknown kind of property {kind!r}")
    return (kind, text) if kind == "string" else (kind, _parsed(text, kind))
