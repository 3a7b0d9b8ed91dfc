"""Properties of MQTT 5.0 (2.2.2): one table says of each property its name, its type, the packets it may stand in and
whether it may stand there more than once; decoder and encoder are driven by that table.

A property block is a dict from identifier to value. Values are int, str or bytes; USER_PROPERTY is a list of (name, value)
pairs in order; SUBSCRIPTION_IDENTIFIER is a list of int. The encoder writes in the dict's own order, so a caller that needs a
property to come first puts it first. A dict that was decoded keeps the order of first appearance.

What it does not know: directions (client or server) and connection state; rules on those belong to whoever has them.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, NamedTuple

from .errors import MalformedPacket, PeerError, UsageError, protocol_error
from .fields import read_binary, read_string, read_varint, truncated, write_binary, write_string, write_u16, write_u32, write_varint
from .reasons import Reason

Properties = dict[int, Any]


class PacketKind(IntEnum):
    """Control packet types (2.1.2), and WILL, whose properties have rules of their own (3.1.3.2)."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Property(IntEnum):
    """Property identifiers, MQTT 5.0 table 2-4."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class PropertyType(Enum):
    """The data types that property values have (1.5). BOOLEAN is a byte that must be 0 or 1."""

    BOOLEAN = "byte 0 or 1"
    TWO_BYTES = "two byte integer"
    FOUR_BYTES = "four byte integer"
    VARINT = "variable byte integer"
    BINARY = "binary data"
    STRING = "UTF-8 string"
    PAIR = "UTF-8 string pair"


class PropertyRule(NamedTuple):
    """One row of the table.

    name: as in the standard. type: how the value is written. packets: which may carry it. repeatable: in some packet it
    may stand more than once.
    """

    name: str
    type: PropertyType
    packets: frozenset[int]
    repeatable: bool = False


def _rule(name: str, type_: PropertyType, *packets: PacketKind, repeatable: bool = False) -> PropertyRule:
    return PropertyRule(name, type_, frozenset(packets), repeatable)


_T, _K = PropertyType, PacketKind
_ACKNOWLEDGEMENTS = (_K.PUBACK, _K.PUBREC, _K.PUBREL, _K.PUBCOMP, _K.SUBACK, _K.UNSUBACK)

PROPERTIES: dict[int, PropertyRule] = {
    Property.PAYLOAD_FORMAT_INDICATOR: _rule("Payload Format Indicator", _T.BOOLEAN, _K.PUBLISH, _K.WILL),
    Property.MESSAGE_EXPIRY_INTERVAL: _rule("Message Expiry Interval", _T.FOUR_BYTES, _K.PUBLISH, _K.WILL),
    Property.CONTENT_TYPE: _rule("Content Type", _T.STRING, _K.PUBLISH, _K.WILL),
    Property.RESPONSE_TOPIC: _rule("Response Topic", _T.STRING, _K.PUBLISH, _K.WILL),
    Property.CORRELATION_DATA: _rule("Correlation Data", _T.BINARY, _K.PUBLISH, _K.WILL),
    Property.SUBSCRIPTION_IDENTIFIER: _rule("Subscription Identifier", _T.VARINT, _K.PUBLISH, _K.SUBSCRIBE, repeatable=True),
    Property.SESSION_EXPIRY_INTERVAL: _rule("Session Expiry Interval", _T.FOUR_BYTES, _K.CONNECT, _K.CONNACK, _K.DISCONNECT),
    Property.ASSIGNED_CLIENT_IDENTIFIER: _rule("Assigned Client Identifier", _T.STRING, _K.CONNACK),
    Property.SERVER_KEEP_ALIVE: _rule("Server Keep Alive", _T.TWO_BYTES, _K.CONNACK),
    Property.AUTHENTICATION_METHOD: _rule("Authentication Method", _T.STRING, _K.CONNECT, _K.CONNACK, _K.AUTH),
    Property.AUTHENTICATION_DATA: _rule("Authentication Data", _T.BINARY, _K.CONNECT, _K.CONNACK, _K.AUTH),
    Property.REQUEST_PROBLEM_INFORMATION: _rule("Request Problem Information", _T.BOOLEAN, _K.CONNECT),
    Property.WILL_DELAY_INTERVAL: _rule("Will Delay Interval", _T.FOUR_BYTES, _K.WILL),
    Property.REQUEST_RESPONSE_INFORMATION: _rule("Request Response Information", _T.BOOLEAN, _K.CONNECT),
    Property.RESPONSE_INFORMATION: _rule("Response Information", _T.STRING, _K.CONNACK),
    Property.SERVER_REFERENCE: _rule("Server Reference", _T.STRING, _K.CONNACK, _K.DISCONNECT),
    Property.REASON_STRING: _rule("Reason String", _T.STRING, _K.CONNACK, *_ACKNOWLEDGEMENTS, _K.DISCONNECT, _K.AUTH),
    Property.RECEIVE_MAXIMUM: _rule("Receive Maximum", _T.TWO_BYTES, _K.CONNECT, _K.CONNACK),
    Property.TOPIC_ALIAS_MAXIMUM: _rule("Topic Alias Maximum", _T.TWO_BYTES, _K.CONNECT, _K.CONNACK),
    Property.TOPIC_ALIAS: _rule("Topic Alias", _T.TWO_BYTES, _K.PUBLISH),
    Property.MAXIMUM_QOS: _rule("Maximum QoS", _T.BOOLEAN, _K.CONNACK),
    Property.RETAIN_AVAILABLE: _rule("Retain Available", _T.BOOLEAN, _K.CONNACK),
    Property.USER_PROPERTY: _rule(
        "User Property",
        _T.PAIR,
        *(kind for kind in _K if kind not in (_K.PINGREQ, _K.PINGRESP)),
        repeatable=True,
    ),
    Property.MAXIMUM_PACKET_SIZE: _rule("Maximum Packet Size", _T.FOUR_BYTES, _K.CONNECT, _K.CONNACK),
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: _rule("Wildcard Subscription Available", _T.BOOLEAN, _K.CONNACK),
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _rule("Subscription Identifier Available", _T.BOOLEAN, _K.CONNACK),
    Property.SHARED_SUBSCRIPTION_AVAILABLE: _rule("Shared Subscription Available", _T.BOOLEAN, _K.CONNACK),
}

# Values of 0 that are a Protocol Error: 3.1.2.11.3, 3.1.2.11.4, 3.2.2.3.3, 3.2.2.3.6, 3.3.2.3.8, 3.8.2.1.2, [MQTT-3.3.2-8].
_ZERO_FORBIDDEN: dict[int, tuple[Reason, str]] = {
    Property.RECEIVE_MAXIMUM: (Reason.PROTOCOL_ERROR, "3.1.2.11.3"),
    Property.MAXIMUM_PACKET_SIZE: (Reason.PROTOCOL_ERROR, "3.1.2.11.4"),
    Property.SUBSCRIPTION_IDENTIFIER: (Reason.PROTOCOL_ERROR, "3.8.2.1.2"),
    Property.TOPIC_ALIAS: (Reason.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8"),
}


def decode_properties(data: bytes, position: int, kind: int) -> tuple[Properties, int]:
    """Read a property block with its length in front.

    data: the packet's body. position: of the Property Length. kind: a `PacketKind`, for what is allowed.
    Returns the properties and the position after the block. Raises `MalformedPacket` and `PeerError`.
    """
    length, position = read_varint(data, position, "Property Length")
    if not length:
        return {}, position
    end = position + length
    if end > len(data):
        raise truncated("the properties")
    if end < len(data):
        data = data[:end]  # so that no value can reach beyond the block
    return _decode_block(data, position, kind), end


def properties_in(block: bytes) -> Properties:
    """Read the property block of a PUBLISH without a length in front, as it is kept with a message. Raises as `decode_properties`."""
    return _decode_block(block, 0, PacketKind.PUBLISH)


def _decode_block(data: bytes, position: int, kind: int) -> Properties:
    properties: Properties = {}
    while position < len(data):
        position = _decode_property(data, position, kind, properties)
    return properties


def _decode_property(data: bytes, position: int, kind: int, properties: Properties) -> int:
    identifier, position = read_varint(data, position, "a property identifier")
    rule = PROPERTIES.get(identifier)
    if rule is None:
        raise MalformedPacket(f"property identifier 0x{identifier:02x} does not exist", "2.2.2.2")
    name = rule.name
    if kind not in rule.packets:
        raise MalformedPacket(f"{name} must not stand in {PacketKind(kind).name}", "2.2.2.2")
    value, position = read_value(data, position, rule)
    check_value(identifier, rule, value)
    if not rule.repeatable or (kind == PacketKind.SUBSCRIBE and identifier == Property.SUBSCRIPTION_IDENTIFIER):
        if identifier in properties:
            raise protocol_error(f"{name} stands in the packet more than once", "2.2.2.2")
        properties[identifier] = [value] if rule.repeatable else value
    elif identifier in properties:
        properties[identifier].append(value)
    else:
        properties[identifier] = [value]
    return position


def read_value(data: bytes, position: int, rule: PropertyRule) -> tuple[Any, int]:
    """Read one value of the rule's type; the value's range is not checked."""
    kind, name = rule.type, rule.name
    if kind is PropertyType.STRING:
        return read_string(data, position, name)
    if kind is PropertyType.BINARY:
        return read_binary(data, position, name)
    if kind is PropertyType.VARINT:
        return read_varint(data, position, name)
    if kind is PropertyType.PAIR:
        key, position = read_string(data, position, name)
        value, position = read_string(data, position, name)
        return (key, value), position
    end = position + _SIZES[kind]
    if end > len(data):
        raise truncated(name)
    return int.from_bytes(data[position:end], "big"), end


_SIZES = {PropertyType.BOOLEAN: 1, PropertyType.TWO_BYTES: 2, PropertyType.FOUR_BYTES: 4}


def check_value(identifier: int, rule: PropertyRule, value: Any) -> None:
    """Raise `PeerError` if the value is out of the range that the property `identifier`, of this rule, has."""
    if value == 0 and identifier in _ZERO_FORBIDDEN:
        reason, clause = _ZERO_FORBIDDEN[identifier]
        raise PeerError(reason, f"{rule.name} is 0", clause)
    if rule.type is PropertyType.BOOLEAN and value > 1:
        raise protocol_error(f"{rule.name} is {value}, not 0 or 1", "2.2.2.2")
    if identifier == Property.RESPONSE_TOPIC:
        if "+" in value or "#" in value:
            raise protocol_error("Response Topic contains a wildcard", "MQTT-3.3.2-14")
        if not value:
            raise protocol_error("Response Topic is empty", "MQTT-4.7.3-1")


def encode_properties(properties: Properties, kind: int | None = None) -> bytes:
    """Write a property block *without* the length in front, in the dict's order.

    kind: a `PacketKind`; when given, a property that may not stand in that packet is a `UsageError`.
    """
    parts = []
    for identifier, value in properties.items():
        rule = PROPERTIES.get(identifier)
        if rule is None:
            raise UsageError(f"property identifier 0x{identifier:02x} does not exist")
        if kind is not None and kind not in rule.packets:
            raise UsageError(f"{rule.name} must not stand in {PacketKind(kind).name}")
        values = value if rule.repeatable else (value,)
        if kind == PacketKind.SUBSCRIBE and identifier == Property.SUBSCRIPTION_IDENTIFIER and len(values) > 1:
            raise UsageError("Subscription Identifier may stand in SUBSCRIBE only once")
        for one in values:
            parts.append(bytes((identifier,)) + _write_value(identifier, rule, one))
    return b"".join(parts)


def _write_value(identifier: int, rule: PropertyRule, value: Any) -> bytes:
    kind, name = rule.type, rule.name
    try:
        check_value(identifier, rule, value)
    except PeerError as error:
        raise UsageError(error.text) from None
    if kind is PropertyType.STRING:
        return write_string(value, name)
    if kind is PropertyType.BINARY:
        return write_binary(value, name)
    if kind is PropertyType.VARINT:
        return write_varint(value, name)
    if kind is PropertyType.PAIR:
        return write_string(value[0], name) + write_string(value[1], name)
    if kind is PropertyType.TWO_BYTES:
        return write_u16(value, name)
    if kind is PropertyType.FOUR_BYTES:
        return write_u32(value, name)
    return bytes((1 if value else 0,))
