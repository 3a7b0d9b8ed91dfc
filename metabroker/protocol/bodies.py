"""Bodies of requests and responses: msgpack maps, read strictly. A mistake names the key and what would be right.

MQTT 5 properties travel as a map of their own with the names in `IDENTIFIERS`; what a remote of MQTT 3.1.1 cannot carry is left out there.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgpack

from ...base.metabroker import IDENTITY, PROPERTIES, SITE, pack
from ...mqtt.errors import MqttError
from ...mqtt.packets import Publish
from ...mqtt.properties import PacketKind, Properties, Property, encode_properties
from ...mqtt.topics import check_filter, check_topic, too_deep

IDENTIFIERS = {  # key of the map `properties` -> property of MQTT 5
    "format": Property.PAYLOAD_FORMAT_INDICATOR,
    "expiry": Property.MESSAGE_EXPIRY_INTERVAL,
    "content_type": Property.CONTENT_TYPE,
    "response_topic": Property.RESPONSE_TOPIC,
    "correlation": Property.CORRELATION_DATA,
    "user": Property.USER_PROPERTY,
}
LONGEST_EXPIRY = 0xFFFF_FFFF  # seconds
UNWELCOME = re.compile(  # characters for which a broker may close a connection (MQTT-1.5.4), which others share, and some do
    "[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef" + "".join([chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF)]) + "]"
)
MOST_KEYS = 100  # of a body that are looked at for the identifier of a request that is not served
LONGEST_NAME = 1024  # bytes of a remote, a user name, a client or message identifier


class BodyError(ValueError):
    """The body is not what the request needs; one line."""


class ConnectRequest(NamedTuple):
    """`remote`: an address or a service name.

    `durable`: for how many seconds without a request the session is kept, 0: it is not durable. `clean`: without what an earlier one holds.
    `expiry`: the same for one that is not durable, 0: the client does not say.
    """

    remote: str
    username: str | None
    password: bytes | None
    durable: int
    clean: bool
    expiry: int = 0


class PublishRequest(NamedTuple):
    """`message`: the client's identifier of this request; None: it wants no answer; only at QoS 0."""

    message: str | int | None
    publish: Publish


class SubscribeRequest(NamedTuple):
    """`topics`: filters; for unsubscribe `qos` and `durable` mean nothing."""

    message: str | int
    topics: list[str]
    qos: int
    durable: bool


def unpack(body: bytes) -> dict[str, Any]:
    """The map in a body. Raises BodyError."""
    try:
        value = msgpack.unpackb(body, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
        raise BodyError("the body is not msgpack") from None
    if type(value) is not dict or not all(type(key) is str for key in value):
        raise BodyError("the body is no map with names as keys")
    return value


def client_of(body: dict[str, Any], sender: str | None = None) -> str:
    """Who asks: one level of a topic, because the answer goes there. sender: who it is if the body does not say. Raises BodyError."""
    client = _text({"client": sender, **body}, "client")
    if not is_client(client):
        raise BodyError("client: one level of a topic, without + #, and not 'connect', or two levels")
    return client


def sender_of(properties: Properties) -> str | None:
    """Who sent a request, as far as the community broker says so, where only it can; None: it does not say."""
    said = [value for name, value in properties.get(Property.USER_PROPERTY, ()) if name == IDENTITY]
    return said[-1] if said else None


def site_of(properties: Properties) -> str:
    """At which broker of a mesh the sender of a request is, as far as that broker says so; empty: it does not say."""
    said = [value for name, value in properties.get(Property.USER_PROPERTY, ()) if name == SITE]
    return said[-1] if said else ""


def is_level(client: str) -> bool:
    """Whether a client identifier can be one level of a topic."""
    return 0 < len(client) <= LONGEST_NAME and client != "connect" and not any(mark in client for mark in "/+#\0")


def is_client(client: str) -> bool:
    """Whether this is a client's name, or that and the name of one of its programs."""
    name, slash, program = client.partition("/")
    return is_level(name) and (is_level(program) or not slash)


def connect_request(body: dict[str, Any]) -> ConnectRequest:
    """Raises BodyError."""
    username = _text(body, "username") if body.get("username") is not None else None
    password = body.get("password")
    if isinstance(password, str):
        password = password.encode("utf-8", "surrogatepass")
    if password is not None and (type(password) is not bytes or len(password) > 65_535):
        raise BodyError("password: text or bytes, at most 65535")
    if password is not None and username is None:
        raise BodyError("password: needs a username")
    expiry = body.get("expiry")
    if expiry is not None and (type(expiry) is not int or not 0 < expiry <= LONGEST_EXPIRY):
        raise BodyError(f"expiry: seconds, from 1 to {LONGEST_EXPIRY}")
    clean = _flag(body, "clean")
    durable, passing = (expiry or LONGEST_EXPIRY, 0) if _flag(body, "durable") else (0, expiry or 0)
    return ConnectRequest(_text(body, "remote"), username, password, durable, clean, passing)


def message_in(body: bytes) -> str | int | None:
    """The identifier in the body of a request that is not served, however large; None: there is none, or the body is no such map."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(body) or 1)
    unpacker.feed(body)
    try:
        for _ in range(min(unpacker.read_map_header(), MOST_KEYS)):
            if unpacker.unpack() == "message":
                return message_of({"message": unpacker.unpack()})
            unpacker.skip()
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
        pass
    return None


def message_of(body: dict[str, Any]) -> str | int:
    """The identifier that the client gave this request."""
    message = body.get("message")
    if type(message) is int and 0 <= message < 1 << 63:
        return message
    if type(message) is str and len(message.encode("utf-8", "surrogatepass")) <= LONGEST_NAME:
        return message
    raise BodyError("message: your identifier of this request, text or a number")


def publish_request(body: dict[str, Any]) -> PublishRequest:
    """Raises BodyError."""
    payload = body.get("payload", b"")
    if isinstance(payload, str):
        payload = payload.encode("utf-8", "surrogatepass")
    if type(payload) is not bytes:
        raise BodyError("payload: bytes or text")
    topic = body.get("topic")
    if type(topic) is not str:
        raise BodyError("topic: a Topic Name")
    try:
        check_topic(topic.encode())
    except (MqttError, UnicodeEncodeError) as error:
        raise BodyError(f"topic: {getattr(error, 'text', 'it is not Unicode')}") from None
    if too_deep(topic) or len(topic.encode()) > 65_535 or UNWELCOME.search(topic):
        raise BodyError("topic: it is too long, or has a control character")
    properties = _properties(body)
    if properties.get(Property.PAYLOAD_FORMAT_INDICATOR):
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise BodyError("properties: format is 1, and the payload is not UTF-8") from None
    qos = _qos(body)
    if "message" not in body and qos:
        raise BodyError("message: your identifier of this request, text or a number; it may be left out only at QoS 0")
    message = message_of(body) if "message" in body else None
    return PublishRequest(message, Publish(topic, payload, qos, _flag(body, "retain"), properties=properties))


def subscribe_request(body: dict[str, Any]) -> SubscribeRequest:
    """Raises BodyError."""
    topics = body.get("topics", [body["topic"]] if "topic" in body else None)
    if type(topics) is not list or not all(type(topic) is str for topic in topics):
        raise BodyError("topics: a list of Topic Filters (or topic: one)")
    for topic in topics:
        try:
            check_filter(topic)
            long = len(topic.encode()) > 65_535 or too_deep(topic) or UNWELCOME.search(topic)
        except (MqttError, UnicodeEncodeError) as error:
            raise BodyError(f"topics: {getattr(error, 'text', 'it is not Unicode')}") from None
        if long:
            raise BodyError("topics: a Topic Filter is too long or has a control character")
    return SubscribeRequest(message_of(body), topics, _qos(body), _flag(body, "durable"))


def number_of(body: dict[str, Any], most: int) -> int:
    """The last publication that a client has, 0 if it has none. most: the last one that was sent. Raises BodyError."""
    number = body.get("id", 0)
    if type(number) is not int or not 0 <= number <= most:
        raise BodyError(f"id: of a publication of this session, at most {most}")
    return number


def publication(number: int, publish: Publish, qos: int, retain: bool, before: int | None = None) -> bytes:
    """The body of an incoming publication. number: counts the publications of a session, from 1; 0: it has none.

    before: the number of the one that was sent before, if that is not the one below.
    """
    properties: dict[str, Any] = {}
    for name, identifier in IDENTIFIERS.items():
        if identifier in publish.properties:
            properties[name] = publish.properties[identifier]
    return pack(
        id=number or None, after=before, topic=publish.topic, payload=publish.payload, qos=qos, retain=retain, properties=properties or None
    )


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    try:
        if type(value) is str and len(value.encode()) <= LONGEST_NAME and "\0" not in value:
            return value
    except UnicodeEncodeError:
        pass
    raise BodyError(f"{key}: a text of at most {LONGEST_NAME} bytes")


def _qos(body: dict[str, Any]) -> int:
    qos = body.get("qos", 0)
    if type(qos) is not int or qos not in (0, 1, 2):
        raise BodyError("qos: 0, 1 or 2")
    return qos


def _flag(body: dict[str, Any], key: str) -> bool:
    value = body.get(key, False)
    if type(value) is not bool:
        raise BodyError(f"{key}: true or false")
    return value


def _properties(body: dict[str, Any]) -> dict[int, Any]:
    given: Any = body.get("properties")
    if given is None:
        return {}
    if type(given) is not dict:
        raise BodyError("properties: a map")
    found: dict[int, Any] = {}
    for name, value in given.items():
        kind = PROPERTIES.get(name) if type(name) is str else None
        if kind is None:
            raise BodyError(f"properties: {str(name)[:40]!r} is none of {', '.join(PROPERTIES)}")
        if type(value) is not kind:
            raise BodyError(f"properties: {name} has another type")
        identifier = IDENTIFIERS[name]
        texts = [str(value)] if kind is str else [text for pair in _pairs(value) for text in pair] if kind is list else []
        if any(UNWELCOME.search(text) for text in texts) or (identifier == Property.RESPONSE_TOPIC and not value):
            raise BodyError(f"properties: {name} is empty or has a control character")
        found[identifier] = _pairs(value) if kind is list else value
    try:
        encode_properties(found, PacketKind.PUBLISH)
    except (MqttError, ValueError) as error:
        raise BodyError(f"properties: {error}") from None
    return found


def _pairs(value: Any) -> list[tuple[str, str]]:
    if not all(type(pair) is list and len(pair) == 2 and all(type(part) is str for part in pair) for pair in value):
        raise BodyError("properties: user is a list of pairs of texts")
    return [(pair[0], pair[1]) for pair in value]
