"""What a selector sees of a message in MQTT: user properties that stand for headers and typed properties (docs/client-wire.md).

What it does not know: selectors, packets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from .terms import Value

BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
DEFAULT_PRIORITY = 4
LONGEST_NUMBER = 400  # characters: a double has 309 digits before the point at most


def value_of(kind: str, text: str) -> Value:
    """The value of a property of this kind. Raises ValueError."""
    if kind == "string":
        return text
    if kind == "boolean":
        return text.lower() == "true"
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} characters")
    if kind in BITS:
        number = int(text)
        if not -(1 << BITS[kind] - 1) <= number < 1 << BITS[kind] - 1:
            raise ValueError(f"{text} does not fit into a {kind}")
        return number
    if kind not in ("float", "double"):
        raise ValueError(f"unknown kind of property {kind!r}")
    try:
        return float(struct.unpack(">f", struct.pack(">f", float(text)))[0]) if kind == "float" else float(text)
    except (OverflowError, struct.error) as error:
        raise ValueError(f"{text} does not fit into a {kind}") from error


def kinds_in(types: str) -> dict[str, str]:
    """The kinds of properties that are not strings, by name, as `JMSTypes` says them."""
    return dict(part.split("=", 1) for part in types.split(" ") if "=" in part)


def lookup(user: Iterable[tuple[str, str]], correlation: bytes | None, priority: int) -> Callable[[str], Value]:
    """The headers and properties of a message in a queue. user: its user properties. correlation: Correlation Data."""
    found: dict[str, str] = {}
    for name, value in user:
        found.setdefault(name, value)
    kinds = kinds_in(found.get("JMSTypes", ""))
    return lambda name: _value(name, found, kinds, correlation, priority)


def _value(name: str, found: dict[str, str], kinds: dict[str, str], correlation: bytes | None, priority: int) -> Value:
    if name == "JMSPriority":
        return priority
    if name == "JMSDeliveryMode":
        return "NON_PERSISTENT" if found.get(name) == "1" else "PERSISTENT"
    if name == "JMSTimestamp":
        text = found.get(name, "")
        return (int(text) or None) if text.isascii() and text.isdigit() and len(text) < 19 else None
    if name == "JMSCorrelationID":
        return _text(correlation) if correlation is not None and found.get("JMSCorrelation") != "bytes" else None
    if name == "JMSMessageID":
        return found.get(name) or None
    value = found.get(name)
    if value is None or name == "JMSType":
        return value
    kind = kinds.get(name, "string")
    try:
        return None if kind == "null" else value_of(kind, value)
    except ValueError:
        return value


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
