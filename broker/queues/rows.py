"""A message of a queue as a row of JSON: what a client makes of it, times as text.

What it does not know: states, the log.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime
from typing import Any

from ...base.queues import FROM_POSITION, FROM_QUEUE
from ...mqtt.errors import UsageError
from ...mqtt.properties import Property, encode_properties, properties_in

Row = dict[str, Any]


def iso(at: int) -> str | None:
    """Milliseconds since 1970 as text; None for 0."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


def time_of(text: str) -> int:
    """Milliseconds since 1970 of a time as text. Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
        return max(0, int(1000 * (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()))
    except (ValueError, OverflowError):
        raise UsageError(f'{text[:100]!r}: give a time such as "2026-11-23T10:00:00Z"') from None


def content(topic: bytes, properties: bytes, payload: bytes) -> Row:
    """The payload of a message in base64, and its properties."""
    found = properties_in(properties)
    correlation = found.get(Property.CORRELATION_DATA)
    return {
        "topic": topic.decode(),
        "payload": b64encode(payload).decode(),
        "text": found.get(Property.PAYLOAD_FORMAT_INDICATOR) == 1,
        "content_type": found.get(Property.CONTENT_TYPE),
        "response_topic": found.get(Property.RESPONSE_TOPIC),
        "correlation": b64encode(correlation).decode() if correlation is not None else None,
        "user": found.get(Property.USER_PROPERTY, []),
    }


def message_of(row: Row) -> tuple[bytes, bytes]:
    """The payload and the properties that `content` has made a row of. Raises UsageError, ValueError, KeyError or TypeError: it is none."""
    found: dict[int, Any] = {}
    for key, (identifier, right) in EDITED.items():
        if row[key]:
            if not _fits(key, row[key]):
                raise ValueError(f"{key}: give {right}")
            found[identifier] = _value(key, row[key])
    return bytes_of(row["payload"], "payload"), _encoded(found)


def bytes_of(text: str, key: str) -> bytes:
    """Bytes that stand as base64. Raises UsageError."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise UsageError(f'"{key}": give base64') from None


def with_origin(properties: bytes, queue: str, position: int) -> bytes:
    """Properties of a message that is made of one of a queue: they say which."""
    found = properties_in(properties)
    pairs = [pair for pair in found.get(Property.USER_PROPERTY, []) if pair[0] not in (FROM_QUEUE, FROM_POSITION)]
    found[Property.USER_PROPERTY] = [*pairs, (FROM_QUEUE, queue), (FROM_POSITION, str(position))]
    return encode_properties(found)


def changed(properties: bytes, wanted: Row) -> bytes:
    """Properties with others, which have the names of `content`; None takes one away. Raises UsageError."""
    found = properties_in(properties)
    for key, value in wanted.items():
        identifier, right = EDITED.get(key, (0, ""))
        if not identifier:
            raise UsageError(f'"properties": there is no {key[:100]!r}: give ' + ", ".join(EDITED))
        found.pop(identifier, None)
        if value is None:
            continue
        if not _fits(key, value):
            raise UsageError(f'"properties": {key}: give {right}')
        found[identifier] = _value(key, value)
        if key == "user":
            found[identifier] = [(name, text) for name, text in found[identifier] if not name.startswith("mqmesh-")]
    try:
        return _encoded(found)
    except ValueError as error:
        raise UsageError(f'"properties": {error}') from None


def _encoded(properties: dict[int, Any]) -> bytes:
    """Raises ValueError: they are not as MQTT has them."""
    block = encode_properties(properties)
    properties_in(block)
    return block


def _value(key: str, value: Any) -> Any:
    """The value of a property that has a name of `content`. Raises UsageError."""
    if key == "correlation":
        return bytes_of(value, key)
    if key == "user":
        return [(name, text) for name, text in value]
    return int(value) if key == "text" else value


EDITED = {
    "text": (Property.PAYLOAD_FORMAT_INDICATOR, "true or false"),
    "content_type": (Property.CONTENT_TYPE, "a text"),
    "response_topic": (Property.RESPONSE_TOPIC, "a text"),
    "correlation": (Property.CORRELATION_DATA, "base64"),
    "user": (Property.USER_PROPERTY, "a list of [name, value]"),
}


def _fits(key: str, value: object) -> bool:
    if key == "text":
        return isinstance(value, bool)
    if key != "user":
        return isinstance(value, str)
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair) for pair in value
    )
