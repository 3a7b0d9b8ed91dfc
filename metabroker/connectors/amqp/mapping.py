"""From MQTT's terms to AMQP's and back: topics and routing keys, filters and binding keys, properties.

Invariant: what is carried comes back the same, and what cannot is refused (`Unmappable`) or, where somebody else wrote it, left out;
nothing becomes another topic. `/` is written `.` and `+` is written `*`, as RabbitMQ's MQTT plug-in does, so that its clients and ours
meet. A `.` or `*` in a topic has no place then; nor has a routing key with `/`, `+` or `#`.
"""

from __future__ import annotations

import math

from ....mqtt.errors import MqttError
from ....mqtt.packets import Publish
from ....mqtt.properties import Properties, Property, encode_properties
from ....mqtt.topics import check_topic, too_deep
from .codec import OVERHEAD, Argument, Decimal, Malformed, Table, Value, properties
from .codec import encode_properties as encode

LONGEST_KEY = 255  # bytes
LONGEST_EXPIRY = 4_294_967_295  # seconds
QOS_HEADER, FORMAT_HEADER = "x-mqtt-publish-qos", "x-mqtt-payload-format"
CORRELATION_HEADER = "x-correlation-id"  # what does not fit into the property of that name
PERSISTENT, TRANSIENT = 2, 1
# User properties that are AMQP properties there, both ways.
NAMED = {"amqp-message-id": "message_id", "amqp-type": "type", "amqp-app-id": "app_id"}
OURS = b"mqmesh-"  # how identifiers begin that we gave, and that no client knows
# Headers that RabbitMQ acts upon: a message with CC or BCC goes to other routing keys, too.
ROUTING = frozenset(("cc", "bcc"))


class Unmappable(ValueError):
    """There is no AMQP for this; one line for the client."""


def routing_key(topic: str) -> bytes:
    """Where a message with this topic is published. Raises Unmappable."""
    return _key(topic, "topic").encode()


def binding_key(filter_: str) -> bytes:
    """What a queue is bound with for this filter. Raises Unmappable."""
    return _key(filter_, "filter").replace("+", "*").encode()


def _key(text: str, what: str) -> str:
    for mark in ".*":
        if mark in text:
            raise Unmappable(f"an AMQP remote has no {what} with {mark!r} in it: levels are words between dots there, and * is any word")
    if len(text.encode()) > LONGEST_KEY:
        raise Unmappable(f"an AMQP remote has no {what} of more than {LONGEST_KEY} bytes")
    return text.replace("/", ".")


def topic_of(key: bytes) -> str | None:
    """The topic that a routing key stands for; None: no topic does."""
    try:
        text = key.decode()
        if not text or "/" in text:
            return None
        topic = text.replace(".", "/")
        check_topic(topic.encode())
    except (UnicodeDecodeError, MqttError):
        return None
    return None if too_deep(topic) else topic


def check(publish: Publish, largest_frame: int) -> str | None:
    """Why a message cannot be carried; None: it can."""
    try:
        routing_key(publish.topic)
        if len(encode(to_amqp(publish, ""))) + 300 + OVERHEAD > largest_frame:  # 300: a message identifier
            return "an AMQP remote takes no properties of this length"
    except (Unmappable, Malformed) as error:
        return str(error)
    return None


def to_amqp(publish: Publish, message_id: str) -> dict[str, Argument | str]:
    """The properties of a message. message_id: taken unless the message has one. Raises Unmappable."""
    given = publish.properties
    found: dict[str, Argument | str] = {"delivery_mode": PERSISTENT if publish.qos else TRANSIENT, "message_id": message_id}
    headers: Table = [(QOS_HEADER.encode(), publish.qos)]
    content_type = given.get(Property.CONTENT_TYPE)
    if content_type is not None:
        found["content_type"] = _short(content_type, "content_type")
    response = given.get(Property.RESPONSE_TOPIC)
    if response is not None:
        found["reply_to"] = routing_key(response)
    if (expiry := given.get(Property.MESSAGE_EXPIRY_INTERVAL)) is not None:
        found["expiration"] = str(min(expiry * 1000, LONGEST_EXPIRY))
    correlation = given.get(Property.CORRELATION_DATA)
    if correlation is not None and len(correlation) <= LONGEST_KEY and _is_text(correlation):
        found["correlation_id"] = correlation
    elif correlation is not None:
        headers.append((CORRELATION_HEADER.encode(), correlation))
    if (form := given.get(Property.PAYLOAD_FORMAT_INDICATOR)) is not None:
        headers.append((FORMAT_HEADER.encode(), form))
    _user(given.get(Property.USER_PROPERTY, []), found, headers)
    found["headers"] = headers
    return found


def _user(pairs: list[tuple[str, str]], found: dict[str, Argument | str], headers: Table) -> None:
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name.lower() in ROUTING or name.startswith("x-mqtt-") or name == CORRELATION_HEADER:
            raise Unmappable(f"an AMQP remote takes no user property {name!r}: it has a meaning of its own there")
        values.setdefault(name, []).append(value)
    for name, given in values.items():
        if name in NAMED and len(given) == 1:
            found[NAMED[name]] = _short(given[0], name)
        else:
            several: list[Value] = [value.encode() for value in given]
            headers.append((_short(name, "the name of a user property").encode(), several[0] if len(several) == 1 else several))


def _short(text: str, what: str) -> str:
    if len(text.encode()) > LONGEST_KEY:
        raise Unmappable(f"an AMQP remote takes at most {LONGEST_KEY} bytes: {what}")
    return text


def _is_text(data: bytes) -> bool:
    """Whether MQTT takes it for a text."""
    try:
        return "\0" not in data.decode() and len(data) <= 65_535
    except UnicodeDecodeError:
        return False


def from_amqp(topic: str, body: bytes, data: bytes, redelivered: bool) -> Publish:
    """A message that has come, with its properties as they came. What has no place in MQTT is left out, and so is what cannot be read."""
    try:
        given = properties(data)
    except Malformed:
        given = {}
    table = given.get("headers", [])
    headers: Table = table if isinstance(table, list) else []
    qos = 1
    found: Properties = {}
    user: list[tuple[str, str]] = []
    for name, value in headers:
        match name:
            case b"x-mqtt-publish-qos" if value in (0, 1, 2) and not isinstance(value, float):
                qos = min(int(value), 1)  # a queue may give it twice
            case b"x-mqtt-payload-format" if value in (0, 1) and not isinstance(value, float):
                found[Property.PAYLOAD_FORMAT_INDICATOR] = int(value)
            case b"x-correlation-id" if isinstance(value, bytes):
                found[Property.CORRELATION_DATA] = value[:65_535]
            case _:
                user += _pairs(name, value)
    for label, property_ in NAMED.items():
        one = given.get(property_)
        if isinstance(one, bytes) and not one.startswith(OURS):
            user += _pairs(label.encode(), one)
    _named(given, found)
    if user:
        found[Property.USER_PROPERTY] = user
    publish = Publish(topic, body, qos, dup=redelivered, properties=found)
    try:
        encode_properties(found)
    except (MqttError, ValueError):
        publish.properties = {}
    return publish


def _named(given: dict[str, Argument], found: Properties) -> None:
    content_type, correlation, reply, expiration = (
        given.get(name) for name in ("content_type", "correlation_id", "reply_to", "expiration")
    )
    if isinstance(content_type, bytes) and _is_text(content_type):
        found[Property.CONTENT_TYPE] = content_type.decode()
    if isinstance(correlation, bytes):
        found.setdefault(Property.CORRELATION_DATA, correlation)
    if isinstance(reply, bytes) and (topic := topic_of(reply)) is not None:
        found[Property.RESPONSE_TOPIC] = topic
    if isinstance(expiration, bytes) and expiration.isdigit() and len(expiration) < 14:
        found[Property.MESSAGE_EXPIRY_INTERVAL] = min(math.ceil(int(expiration) / 1000), LONGEST_EXPIRY)


def _pairs(name: bytes, value: Value) -> list[tuple[str, str]]:
    """A header as user properties: texts as they are, numbers as text, each item of a list on its own."""
    if isinstance(value, list):
        return [pair for item in value if not isinstance(item, list) for pair in _pairs(name, item)]
    if value is None or not _is_text(name) or (isinstance(value, bytes) and not _is_text(value)):
        return []
    if isinstance(value, bytes):
        return [(name.decode(), value.decode())]
    if isinstance(value, Decimal):
        return [(name.decode(), f"{value.digits}e-{value.places}")]
    return [(name.decode(), str(value).lower() if isinstance(value, bool) else str(value))]


def message_id_of(data: bytes) -> str:
    """The identifier of a message that has come back; empty when there is none."""
    try:
        found = properties(data).get("message_id")
    except Malformed:
        return ""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""
