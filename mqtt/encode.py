"""Packets to bytes, in the shortest form that the standard has.

One function a packet, in a table keyed by class. What the version does not have is left out: a 3.1.1 packet has no
properties, no reason codes but those of CONNACK and SUBACK, and of the subscription options only QoS. A packet that could not be
decoded again is a `UsageError`, before a byte is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import PeerError, UsageError
from .fields import write_binary, write_string, write_u16
from .length import LONGEST_LENGTH, encode_length
from .packets import (
    BRIDGE,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from .properties import PacketKind, Properties, Property, encode_properties
from .reasons import (
    AUTH_REASONS,
    CONNACK_REASONS,
    DISCONNECT_REASONS,
    PUBACK_REASONS,
    PUBCOMP_REASONS,
    PUBREC_REASONS,
    PUBREL_REASONS,
    SUBACK_REASONS,
    UNSUBACK_REASONS,
    V3_FROM_V5,
    Reason,
)
from .topics import check_filter


def encode(packet: Packet, version: int) -> bytes:
    """The packet as bytes, fixed header included.

    version: 4 or 5, of the connection (3 counts as 4); CONNECT states its own. Raises `UsageError`.
    """
    try:
        encoder = _ENCODERS[type(packet)]
    except KeyError:
        raise UsageError(f"{type(packet).__name__} is not an MQTT packet") from None
    return encoder(packet, version)


def _frame(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) > LONGEST_LENGTH:
        raise UsageError(f"the packet has {len(body)} bytes, at most {LONGEST_LENGTH} fit")
    return bytes((first_byte,)) + encode_length(len(body)) + body


def _packet_id(value: int) -> bytes:
    if not 0 < value <= 0xFFFF:
        raise UsageError(f"the Packet Identifier is {value}, not 1 to 65535")
    return value.to_bytes(2, "big")


def _properties(properties: Properties, version: int, kind: PacketKind) -> bytes:
    """The block with its length in front; nothing at all in 3.1.1."""
    if version != 5:
        return b""
    if not properties:
        return b"\0"
    block = encode_properties(properties, kind)
    return encode_length(len(block)) + block


def _reason(code: int, allowed: dict[int, Reason], kind: PacketKind) -> int:
    if code not in allowed:
        raise UsageError(f"reason code 0x{code:02x} must not stand in {kind.name}")
    return code


def _topic(topic: str, what: str) -> bytes:
    if "+" in topic or "#" in topic:
        raise UsageError(f"{what} {topic!r} contains a wildcard")
    return write_string(topic, what)


def _filter(filter_: str, version: int) -> bytes:
    try:
        check_filter(filter_, shared=version == 5)
    except PeerError as error:
        raise UsageError(f"{filter_!r}: {error.text}") from None
    return write_string(filter_, "the Topic Filter")


def _qos(value: int, what: str) -> int:
    if value not in (0, 1, 2):
        raise UsageError(f"{what} is {value}, not 0, 1 or 2")
    return value


# --- CONNECT and CONNACK


def _connect(packet: Connect, _version: int) -> bytes:
    version = packet.version
    if version not in (4, 5):
        raise UsageError(f"CONNECT has version {version}, not 4 or 5")
    if version == 4 and packet.password is not None and packet.user_name is None:
        raise UsageError("MQTT 3.1.1 has no Password without a User Name")
    if Property.AUTHENTICATION_DATA in packet.properties and Property.AUTHENTICATION_METHOD not in packet.properties:
        raise UsageError("Authentication Data without Authentication Method")
    flags = packet.clean_start << 1
    payload = [write_string(packet.client_id, "the Client Identifier")]
    will = packet.will
    if will is not None:
        flags |= 4 | _qos(will.qos, "Will QoS") << 3 | will.retain << 5
        if not will.topic:
            raise UsageError("the Will Topic is empty")
        payload += (
            _properties(will.properties, version, PacketKind.WILL),
            _topic(will.topic, "the Will Topic"),
            write_binary(will.payload, "the Will Payload"),
        )
    if packet.user_name is not None:
        flags |= 0x80
        payload.append(write_string(packet.user_name, "the User Name"))
    if packet.password is not None:
        flags |= 0x40
        payload.append(write_binary(packet.password, "the Password"))
    level = BRIDGE if packet.bridge and version == 4 else 0
    name = b"\0\x06MQIsdp" + bytes((level | 3,)) if packet.mqisdp and version == 4 else b"\0\x04MQTT" + bytes((level | version,))
    keep_alive = write_u16(packet.keep_alive, "Keep Alive")
    return _frame(0x10, name, bytes((flags,)), keep_alive, _properties(packet.properties, version, PacketKind.CONNECT), *payload)


def _connack(packet: Connack, version: int) -> bytes:
    reason: int = packet.reason
    if packet.session_present and reason:
        raise UsageError("Session Present in a CONNACK that refuses")
    if version == 5:
        _reason(reason, CONNACK_REASONS, PacketKind.CONNACK)
    elif reason > 5:
        try:
            reason = V3_FROM_V5[reason]
        except KeyError:
            raise UsageError(f"MQTT 3.1.1 has no CONNACK for reason code 0x{reason:02x}") from None
    return _frame(0x20, bytes((packet.session_present, reason)), _properties(packet.properties, version, PacketKind.CONNACK))


# --- PUBLISH and its acknowledgements


def _publish(packet: Publish, version: int) -> bytes:
    qos = _qos(packet.qos, "QoS")
    if packet.dup and not qos:
        raise UsageError("DUP at QoS 0")
    if not packet.topic and (version != 5 or Property.TOPIC_ALIAS not in packet.properties):
        raise UsageError("the Topic Name is empty and there is no Topic Alias")
    return _frame(
        0x30 | packet.dup << 3 | qos << 1 | packet.retain,
        _topic(packet.topic, "the Topic Name"),
        _packet_id(packet.packet_id) if qos else b"",
        _properties(packet.properties, version, PacketKind.PUBLISH),
        packet.payload,
    )


def _acknowledgement(first_byte: int, allowed: dict[int, Reason]) -> Callable[[Acknowledgement, int], bytes]:
    kind = PacketKind(first_byte >> 4)

    def write(packet: Acknowledgement, version: int) -> bytes:
        packet_id = _packet_id(packet.packet_id)
        if version != 5 or not (packet.reason or packet.properties):
            return bytes((first_byte, 2)) + packet_id
        reason = bytes((_reason(packet.reason, allowed, kind),))
        if not packet.properties:
            return bytes((first_byte, 3)) + packet_id + reason
        return _frame(first_byte, packet_id, reason, _properties(packet.properties, version, kind))

    return write


# --- SUBSCRIBE and UNSUBSCRIBE


def _subscribe(packet: Subscribe, version: int) -> bytes:
    if not packet.subscriptions:
        raise UsageError("SUBSCRIBE has no Topic Filter")
    parts = [_packet_id(packet.packet_id), _properties(packet.properties, version, PacketKind.SUBSCRIBE)]
    for one in packet.subscriptions:
        parts.append(_filter(one.filter, version) + _options(one, version))
    return _frame(0x82, *parts)


def _options(one: Subscription, version: int) -> bytes:
    qos = _qos(one.qos, "QoS")
    if version != 5:
        return bytes((qos,))
    if one.retain_handling not in (0, 1, 2):
        raise UsageError(f"Retain Handling is {one.retain_handling}, not 0, 1 or 2")
    if one.no_local and one.filter.startswith("$share/"):
        raise UsageError("No Local on a Shared Subscription")
    return bytes((qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4,))


def _suback(packet: Suback, version: int) -> bytes:
    if not packet.reasons:
        raise UsageError("SUBACK has no reason code")
    codes = bytes(_reason(code, SUBACK_REASONS, PacketKind.SUBACK) for code in packet.reasons)
    if version != 5:
        codes = bytes(min(code, 0x80) for code in codes)
    return _frame(0x90, _packet_id(packet.packet_id), _properties(packet.properties, version, PacketKind.SUBACK), codes)


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    if not packet.filters:
        raise UsageError("UNSUBSCRIBE has no Topic Filter")
    parts = [_packet_id(packet.packet_id), _properties(packet.properties, version, PacketKind.UNSUBSCRIBE)]
    return _frame(0xA2, *parts, *(_filter(one, version) for one in packet.filters))


def _unsuback(packet: Unsuback, version: int) -> bytes:
    if version != 5:
        return b"\xb0\x02" + _packet_id(packet.packet_id)
    if not packet.reasons:
        raise UsageError("UNSUBACK has no reason code")
    codes = bytes(_reason(code, UNSUBACK_REASONS, PacketKind.UNSUBACK) for code in packet.reasons)
    return _frame(0xB0, _packet_id(packet.packet_id), _properties(packet.properties, version, PacketKind.UNSUBACK), codes)


# --- the rest


def _pingreq(packet: Pingreq, version: int) -> bytes:
    return b"\xc0\0"


def _pingresp(packet: Pingresp, version: int) -> bytes:
    return b"\xd0\0"


def _disconnect(packet: Disconnect, version: int) -> bytes:
    if version != 5 or not (packet.reason or packet.properties):
        return b"\xe0\0"
    reason = bytes((_reason(packet.reason, DISCONNECT_REASONS, PacketKind.DISCONNECT),))
    if not packet.properties:
        return b"\xe0\x01" + reason
    return _frame(0xE0, reason, _properties(packet.properties, version, PacketKind.DISCONNECT))


def _auth(packet: Auth, version: int) -> bytes:
    if version != 5:
        raise UsageError("MQTT 3.1.1 has no AUTH")
    if not (packet.reason or packet.properties):
        return b"\xf0\0"
    if Property.AUTHENTICATION_METHOD not in packet.properties:
        raise UsageError("AUTH has no Authentication Method")
    reason = bytes((_reason(packet.reason, AUTH_REASONS, PacketKind.AUTH),))
    return _frame(0xF0, reason, _properties(packet.properties, version, PacketKind.AUTH))


_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: _publish,
    Puback: _acknowledgement(0x40, PUBACK_REASONS),
    Pubrec: _acknowledgement(0x50, PUBREC_REASONS),
    Pubrel: _acknowledgement(0x62, PUBREL_REASONS),
    Pubcomp: _acknowledgement(0x70, PUBCOMP_REASONS),
    Subscribe: _subscribe,
    Suback: _suback,
    Unsubscribe: _unsubscribe,
    Unsuback: _unsuback,
    Pingreq: _pingreq,
    Pingresp: _pingresp,
    Disconnect: _disconnect,
    Auth: _auth,
}
