"""How `mqmesh sub` writes a message: the payload, topic and payload, JSON, or a format like mosquitto_sub's -F.

Format letters: %p payload, %x and %X payload in hexadecimal, %t topic, %q QoS, %r retain (1 or 0), %l payload length in
bytes, %m packet identifier, %j and %J JSON (with %J a payload that is JSON stays JSON), %I time of arrival in ISO 8601,
%U in seconds since 1970, %@c any strftime letter c, %C Content Type, %D Correlation Data, %E Message Expiry Interval,
%F Payload Format Indicator, %P User Properties, %R Response Topic, %S Subscription Identifiers, %% a percent sign.
Escapes: \\n \\t \\r \\0 \\a \\e \\\\.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "e": "\x1b", "\\": "\\"}
# MQTT 5 properties as paho's `Properties.json()` names them -> as our JSON names them.
PROPERTY_NAMES = {
    "PayloadFormatIndicator": "payload_format",
    "MessageExpiryInterval": "expiry",
    "ContentType": "content_type",
    "ResponseTopic": "response_topic",
    "CorrelationData": "correlation",
    "SubscriptionIdentifier": "subscription_identifiers",
    "UserProperty": "user",
}


class FormatError(ValueError):
    """The format has an unknown letter; the message names it."""


@dataclass(slots=True)
class Message:
    """A received message. properties: with the keys of PROPERTY_NAMES."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_id: int
    received: datetime
    properties: dict[str, Any] = field(default_factory=dict)


Writer = Callable[[Message], bytes]


def properties_of(properties: Any) -> dict[str, Any]:
    """paho's properties of a PUBLISH as plain values; {} for None."""
    found: dict[str, Any] = {}
    for name, key in PROPERTY_NAMES.items():
        value = getattr(properties, name, None)
        if value is not None:
            found[key] = [list(pair) for pair in value] if key == "user" else value
    return found


def as_json(message: Message, nested: bool = False) -> dict[str, Any]:
    """A message as JSON object. A payload that is not UTF-8 stands under `payload_base64`. nested: a JSON payload stays JSON."""
    record: dict[str, Any] = {"topic": message.topic, "qos": message.qos, "retain": message.retain}
    record["received"] = message.received.isoformat(timespec="milliseconds")
    try:
        text = message.payload.decode()
    except UnicodeDecodeError:
        record["payload_base64"] = base64.b64encode(message.payload).decode()
    else:
        record["payload"] = _parsed(text) if nested else text
    if message.properties:
        record["properties"] = {key: _plain(value) for key, value in message.properties.items()}
    return record


def writer(verbose: bool, json_lines: bool, form: str | None, newline: bool) -> Writer:
    """The function that turns a message into bytes for stdout. Raises FormatError."""
    end = b"\n" if newline else b""
    if json_lines:
        return lambda message: json.dumps(as_json(message), ensure_ascii=False).encode() + b"\n"
    if form is not None:
        parts = _compile(form)
        return lambda message: b"".join(part(message) for part in parts) + end
    if verbose:
        return lambda message: message.topic.encode() + b" " + message.payload + end
    return lambda message: message.payload + end


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(get: Callable[[Message], object]) -> Writer:
    return lambda message: str(get(message)).encode()


def _property(key: str) -> Writer:
    return lambda message: _property_text(message.properties.get(key, ""))


def _property_text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return " ".join(":".join(item) if isinstance(item, list) else str(item) for item in value).encode()
    return str(value).encode()


LETTERS: dict[str, Writer] = {
    "%": lambda message: b"%",
    "p": lambda message: message.payload,
    "x": lambda message: message.payload.hex().encode(),
    "X": lambda message: message.payload.hex().upper().encode(),
    "t": _text(lambda message: message.topic),
    "q": _text(lambda message: message.qos),
    "r": _text(lambda message: int(message.retain)),
    "l": _text(lambda message: len(message.payload)),
    "m": _text(lambda message: message.packet_id),
    "j": lambda message: json.dumps(as_json(message), ensure_ascii=False).encode(),
    "J": lambda message: json.dumps(as_json(message, nested=True), ensure_ascii=False).encode(),
    "I": _text(lambda message: message.received.strftime("%Y-%m-%dT%H:%M:%S%z")),
    "U": _text(lambda message: f"{message.received.timestamp():.6f}"),
    "C": _property("content_type"),
    "D": _property("correlation"),
    "E": _property("expiry"),
    "F": _property("payload_format"),
    "P": _property("user"),
    "R": _property("response_topic"),
    "S": _property("subscription_identifiers"),
}


def _compile(form: str) -> list[Writer]:
    parts: list[Writer] = []
    characters = iter(form)
    for character in characters:
        if character == "%":
            parts.append(_letter(next(characters, ""), characters))
        elif character == "\\":
            escape = next(characters, "")
            if escape not in ESCAPES:
                raise FormatError(f"-F: \\{escape} is not known; there are \\n \\t \\r \\0 \\a \\e \\\\")
            parts.append(_constant(ESCAPES[escape]))
        else:
            parts.append(_constant(character))
    return parts


def _letter(letter: str, rest: Any) -> Writer:
    if letter == "@":
        directive = "%" + next(rest, "")
        return _text(lambda message: message.received.strftime(directive))
    if letter not in LETTERS:
        raise FormatError(
            f"-F: %{letter} is not known; there are {' '.join('%' + known for known in LETTERS)} and %@ with a letter of strftime"
        )
    return LETTERS[letter]


def _constant(text: str) -> Writer:
    data = text.encode()
    return lambda message: data
