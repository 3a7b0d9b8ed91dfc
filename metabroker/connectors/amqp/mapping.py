"""From MQTT's terms to AMQP's and back: topics and routing keys, filters and binding keys, properties.

Invariant: what is carried comes back the same, and what cannot is refused (`Unmappable`) or, where somebody else wrote it, left out;
nothing becomes another topic. `/` is written `.` and `+` is written `*`, as RabbitMQ's MQTT plug-in does, so that its clients and ours
meet. A `.` or `*` in a topic has no place then; nor has a routing key with `/`, `+` or `#`.
"""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import pamqp.header
from aiormq import spec

from ....mqtt.errors import MqttError
from ....mqtt.packets import Publish
from ....mqtt.properties import Properties, Property, encode_properties
from ....mqtt.topics import check_topic, too_deep

LONGEST_KEY = 255  # bytes
LONGEST_NAME = 128  # bytes of a header's name: the library cuts longer ones
LONGEST_EXPIRY = 4_294_967_295  # seconds
OVERHEAD = 8 + 300  # bytes of a frame beside its payload, and a message identifier
QOS_HEADER, FORMAT_HEADER = "x-mqtt-publish-qos", "x-mqtt-payload-format"
CONTENT_TYPE_HEADER = "x-mqtt-content-type"  # an empty one: the library leaves empty properties out
CORRELATION_HEADER = "x-correlation-id"  # what does not fit into the property of that name
PERSISTENT, TRANSIENT = 2, 1
# User properties that are AMQP properties there, both ways.
NAMED = {"amqp-message-id": "message_id", "amqp-type": "message_type", "amqp-app-id": "app_id"}
OURS = "mqmesh-"  # how identifiers begin that we gave, and that no client knows
# Headers that RabbitMQ acts upon: a message with CC or BCC goes to other routing keys, too.
ROUTING = frozenset(("cc", "bcc"))


class Unmappable(ValueError):
    """There is no AMQP for this; one line for the client."""


def routing_key(topic: str) -> str:
    """Where a message with this topic is published. Raises Unmappable."""
    return _key(topic, "topic")


def binding_key(filter_: str) -> str:
    """What a queue is bound with for this filter. Raises Unmappable."""
    return _key(filter_, "filter").replace("+", "*")


def _key(text: str, what: str) -> str:
    for mark in ".*":
        if mark in text:
            raise Unmappable(f"an AMQP remote has no {what} with {mark!r} in it: levels are words between dots there, and * is any word")
    if len(text.encode()) > LONGEST_KEY:
        raise Unmappable(f"an AMQP remote has no {what} of more than {LONGEST_KEY} bytes")
    return text.replace("/", ".")


def topic_of(key: str | None) -> str | None:
    """The topic that a routing key stands for; None: no topic does."""
    if not key or "/" in key:
        return None
    topic = key.replace(".", "/")
    try:
        check_topic(topic.encode())
    except MqttError:
        return None
    return None if too_deep(topic) else topic


def check(publish: Publish, largest_frame: int) -> str | None:
    """Why a message cannot be carried; None: it can."""
    try:
        routing_key(publish.topic)
        if publish.properties:
            header = pamqp.header.ContentHeader(0, len(publish.payload), to_amqp(publish, ""))
            if len(header.marshal()) + OVERHEAD > largest_frame:
                return "an AMQP remote takes no properties of this length"
    except Unmappable as error:
        return str(error)
    return None


def to_amqp(publish: Publish, message_id: str) -> spec.Basic.Properties:
    """The properties of a message. message_id: taken unless the message has one. Raises Unmappable."""
    given = publish.properties
    found = spec.Basic.Properties(delivery_mode=PERSISTENT if publish.qos else TRANSIENT, message_id=message_id)
    headers: dict[str, Any] = {QOS_HEADER: publish.qos}
    found.headers = headers
    if not given:
        return found
    if (content_type := given.get(Property.CONTENT_TYPE)) is not None:
        if content_type:
            found.content_type = _short(content_type, "content_type")
        else:
            headers[CONTENT_TYPE_HEADER] = ""
    response = given.get(Property.RESPONSE_TOPIC)
    if response is not None:
        found.reply_to = routing_key(response)
    if (expiry := given.get(Property.MESSAGE_EXPIRY_INTERVAL)) is not None:
        found.expiration = str(min(expiry * 1000, LONGEST_EXPIRY))
    correlation = given.get(Property.CORRELATION_DATA)
    if correlation and len(correlation) <= LONGEST_KEY and _is_text(correlation):
        found.correlation_id = correlation.decode()
    elif correlation is not None:
        headers[CORRELATION_HEADER] = bytearray(correlation)
    if (form := given.get(Property.PAYLOAD_FORMAT_INDICATOR)) is not None:
        headers[FORMAT_HEADER] = form
    _user(given.get(Property.USER_PROPERTY, []), found, headers)
    return found


def message_id(publish: Publish) -> str | None:
    """The message identifier that its sender has given to a message."""
    given = [value for name, value in publish.properties.get(Property.USER_PROPERTY, ()) if name == "amqp-message-id"]
    return given[0] if len(given) == 1 and given[0] else None


def _user(pairs: list[tuple[str, str]], found: spec.Basic.Properties, headers: dict[str, Any]) -> None:
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name.lower() in ROUTING or name.startswith("x-mqtt-") or name == CORRELATION_HEADER:
            raise Unmappable(f"an AMQP remote takes no user property {name!r}: it has a meaning of its own there")
        values.setdefault(name, []).append(value)
    for name, given in values.items():
        if name in NAMED and len(given) == 1 and given[0]:
            setattr(found, NAMED[name], _short(given[0], name))
        else:
            headers[_short(name, "the name of a user property", LONGEST_NAME)] = given[0] if len(given) == 1 else given


def _short(text: str, what: str, longest: int = LONGEST_KEY) -> str:
    if len(text.encode()) > longest:
        raise Unmappable(f"an AMQP remote takes at most {longest} bytes: {what}")
    return text


def _is_text(data: bytes) -> bool:
    """Whether MQTT takes it for a text."""
    try:
        return "\0" not in data.decode() and len(data) <= 65_535
    except UnicodeDecodeError:
        return False


def from_amqp(topic: str, body: bytes, given: spec.Basic.Properties, redelivered: bool) -> Publish:
    """A message that has come, with its properties as they came. What has no place in MQTT is left out."""
    qos = 1
    found: Properties = {}
    user: list[tuple[str, str]] = []
    for name, value in (given.headers or {}).items():
        match name, value:
            case "x-mqtt-publish-qos", int() if value in (0, 1, 2):
                qos = min(value, 1)  # a queue may give it twice
            case "x-mqtt-payload-format", int() if value in (0, 1):
                found[Property.PAYLOAD_FORMAT_INDICATOR] = int(value)
            case "x-mqtt-content-type", "":
                found[Property.CONTENT_TYPE] = ""
            case "x-correlation-id", str():
                found[Property.CORRELATION_DATA] = value.encode()[:65_535]
            case "x-correlation-id", bytes() | bytearray():
                found[Property.CORRELATION_DATA] = bytes(value[:65_535])
            case _:
                user += _pairs(name, value)
    for label, property_ in NAMED.items():
        one = getattr(given, property_)
        if isinstance(one, str) and not one.startswith(OURS):
            user += _pairs(label, one)
    _named(given, found)
    if user:
        found[Property.USER_PROPERTY] = user
    publish = Publish(topic, body, qos, dup=redelivered, properties=found)
    if found:
        try:
            encode_properties(found)
        except (MqttError, ValueError):
            publish.properties = {}
    return publish


def _named(given: spec.Basic.Properties, found: Properties) -> None:
    if given.content_type and _is_text(given.content_type.encode()):
        found[Property.CONTENT_TYPE] = given.content_type
    if given.correlation_id is not None:
        found.setdefault(Property.CORRELATION_DATA, given.correlation_id.encode())
    if (topic := topic_of(given.reply_to)) is not None:
        found[Property.RESPONSE_TOPIC] = topic
    expiration = given.expiration or ""
    if expiration.isascii() and expiration.isdigit() and len(expiration) < 14:
        found[Property.MESSAGE_EXPIRY_INTERVAL] = min(math.ceil(int(expiration) / 1000), LONGEST_EXPIRY)


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """A header as user properties: texts as they are, numbers and times as text, each item of a list on its own."""
    if isinstance(value, list):
        return [pair for item in value if not isinstance(item, list) for pair in _pairs(name, item)]
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, datetime):
        value = str(int(value.timestamp()))
    elif isinstance(value, int | float | Decimal):
        value = str(value)
    if not isinstance(value, str) or not _is_text(name.encode()) or not _is_text(value.encode()):
        return []
    return [(name, value)]
