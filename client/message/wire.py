"""The wire mapping: a message to and from an MQTT 5 publication. docs/client-wire.md says the same for other languages."""

from __future__ import annotations

from ...base.queues import DELAY, DELIVERIES, HANDLE, POSITION, PRIORITY
from ...base.selector.values import kinds_in
from ..core.errors import InvalidDestinationError, JMSError, MessageFormatError
from ..core.transport import Incoming, Properties, Publication
from .bodies import BytesMessage, MapMessage, StreamMessage
from .destinations import Destination, Queue, destination_of, topic_to_send
from .messages import DEFAULT_PRIORITY, DeliveryMode, Message, ObjectMessage, TextMessage
from .values import Typed, check_text, of_text, text_of

KINDS: dict[str, type[Message]] = {
    kind.kind: kind for kind in (Message, TextMessage, BytesMessage, MapMessage, StreamMessage, ObjectMessage)
}
HEADERS = (
    "JMSMessageID",
    "JMSTimestamp",
    "JMSDeliveryMode",
    "JMSPriority",
    "JMSType",
    "JMSExpiration",
    "JMSDeliveryTime",
    "JMSBody",
    "JMSTypes",
    "JMSCorrelation",
    HANDLE,
    DELAY,
    PRIORITY,
    DELIVERIES,
    POSITION,
)
LONGEST = 65535  # bytes of a UTF-8 string in MQTT [MQTT-1.5.4]


def encode(message: Message, qos: int, now: int, held: bool = False) -> Publication:
    """The publication of a message whose headers are set. now: milliseconds since 1970, from which its remaining time to live follows.

    held: the broker holds delayed messages to topics, too.
    """
    headers = [("JMSMessageID", message.message_id or ""), ("JMSTimestamp", str(message.timestamp))]
    if message.delivery_mode == DeliveryMode.NON_PERSISTENT:
        headers.append(("JMSDeliveryMode", "1"))
    text = isinstance(message, TextMessage) and message.text is not None
    if not text and message.kind != "bytes":
        headers.append(("JMSBody", "text-null" if isinstance(message, TextMessage) else message.kind))
    if message.priority != DEFAULT_PRIORITY:
        headers.append(("JMSPriority", str(message.priority)))
    if message.jms_type is not None:
        headers.append(("JMSType", check_text(message.jms_type, "JMSType")))
    if message.expiration:
        headers.append(("JMSExpiration", str(message.expiration)))
    if message.delivery_time > message.timestamp:
        headers.append(("JMSDeliveryTime", str(message.delivery_time)))
    if isinstance(message.correlation_id, bytes):
        headers.append(("JMSCorrelation", "bytes"))
    delayed = message.delivery_time > message.timestamp
    if isinstance(message.destination, Queue) or (held and delayed):
        headers.append((HANDLE, message.message_id or ""))
        if delayed:
            headers.append((DELAY, f"{message.delivery_time - message.timestamp}ms"))
    types, values = _encode_properties(message)
    if types:
        headers.append(("JMSTypes", types))
    for name, value in values + headers:
        if len(value.encode(errors="replace")) > LONGEST or "\0" in value:
            raise MessageFormatError(f"{name} is longer than {LONGEST} bytes or contains a null character: MQTT cannot carry that")
    correlation = _correlation_data(message.correlation_id)
    expiry = -(-max(message.expiration - now, 1) // 1000) if message.expiration else None  # seconds, rounded up
    properties = Properties(
        text or None, expiry, message.content_type, _reply_topic(message.reply_to), correlation, tuple(headers + values)
    )
    return Publication(topic_to_send(message.destination), message.encode_body(), qos, properties)


def _correlation_data(identifier: str | bytes | None) -> bytes | None:
    if identifier is None:
        return None
    data = identifier if isinstance(identifier, bytes) else check_text(identifier, "the correlation identifier").encode()
    if len(data) > LONGEST:
        raise MessageFormatError(f"the correlation identifier is longer than {LONGEST} bytes")
    return data


def _encode_properties(message: Message) -> tuple[str, list[tuple[str, str]]]:
    types, values = [], []
    for name, (kind, value) in message.properties.typed.items():
        if value is None:
            types.append(f"{name}=null")
            continue
        if kind != "string":
            types.append(f"{name}={kind}")
        values.append((name, text_of(kind, value)))
    return " ".join(types), values


def _reply_topic(reply_to: Destination | None) -> str | None:
    if reply_to is None:
        return None
    try:
        return topic_to_send(reply_to)
    except InvalidDestinationError as error:
        raise InvalidDestinationError(f"reply_to: {error}") from error


def decode(incoming: Incoming) -> Message:
    """The message of a publication of any MQTT client. Never fails: a body that does not match its header becomes a `BytesMessage`, an
    unreadable header is left out."""
    found: dict[str, str] = {}
    values: dict[str, str] = {}
    for name, value in incoming.properties.user:
        (found if name in HEADERS else values).setdefault(name, value)
    message = _decode_body(incoming, found.get("JMSBody"))
    message.destination = destination_of(incoming.topic)
    message.message_id = found.get("JMSMessageID") or None
    message.timestamp = _number(found.get("JMSTimestamp"))
    non_persistent = found.get("JMSDeliveryMode", "1" if incoming.qos == 0 else "2") == "1"
    message.delivery_mode = DeliveryMode.NON_PERSISTENT if non_persistent else DeliveryMode.PERSISTENT
    message.priority = min(_number(found.get("JMSPriority", found.get(PRIORITY)), DEFAULT_PRIORITY), 9)
    message.delivery_count = _number(found.get(DELIVERIES))
    message.jms_type = found.get("JMSType")
    message.expiration = _number(found.get("JMSExpiration"))
    message.delivery_time = _number(found.get("JMSDeliveryTime")) or message.timestamp
    message.correlation_id = _correlation(incoming.properties.correlation, found.get("JMSCorrelation"))
    if incoming.properties.response_topic:
        message.reply_to = destination_of(incoming.properties.response_topic)
    message.properties.typed = _decode_properties(values, found.get("JMSTypes", ""))
    message.freeze()
    return message


def _decode_body(incoming: Incoming, kind: str | None) -> Message:
    if kind == "text-null":
        return TextMessage()
    if kind is None:
        kind = "text" if incoming.properties.text else "bytes"
    message = KINDS.get(kind, BytesMessage)()
    if isinstance(message, ObjectMessage) and incoming.properties.content_type == "application/json":
        message.content_type = "application/json"
    try:
        message.decode_body(incoming.payload)
    except (ValueError, TypeError, KeyError, JMSError, RecursionError):
        return BytesMessage(incoming.payload)
    return message


def _decode_properties(values: dict[str, str], types: str) -> dict[str, Typed]:
    kinds = kinds_in(types)
    made: dict[str, Typed] = {name: ("string", None) for name, kind in kinds.items() if kind == "null"}
    for name, value in values.items():
        try:
            made[name] = of_text(kinds.get(name, "string"), value)
        except MessageFormatError:
            made[name] = ("string", value)
    return made


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else default


def _correlation(data: bytes | None, form: str | None) -> str | bytes | None:
    if data is None or form == "bytes":
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
