"""Bytes to packets, strictly: what the standard forbids is refused, with its reason code and clause.

One function a packet, in a table indexed by the packet type. Each takes (flags, body, version) and must use up the whole
body. The same code serves servers and clients; rules about who may send what, and all rules about the connection's state
(first packet, topic aliases, quotas), belong to the caller.

Malformed (0x81) is what cannot be read; Protocol Error (0x82) is what can be read and must not be said (1.2, 4.13.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from .errors import MalformedPacket, PeerError, protocol_error
from .fields import read_binary, read_string, read_u16, truncated
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
    Will,
)
from .properties import PacketKind, Properties, Property, decode_properties
from .reasons import (
    AUTH_REASONS,
    CONNACK_REASONS,
    DISCONNECT_REASONS,
    PUBACK_REASONS,
    PUBCOMP_REASONS,
    PUBREC_REASONS,
    PUBREL_REASONS,
    SUBACK_REASONS,
    SUBACK_V4_REASONS,
    UNSUBACK_REASONS,
    ConnectReturn,
    Reason,
)
from .topics import check_filter, check_topic

A = TypeVar("A", bound=Acknowledgement)

# The flags that each packet type must have (table 2-2); PUBLISH has its own rules, type 0 is forbidden.
_FLAGS = (None, 0, 0, None, 0, 0, 2, 0, 2, 0, 2, 0, 0, 0, 0, 0)


def check_first_byte(first_byte: int) -> None:
    """Raise `MalformedPacket` if no packet can begin with this byte: packet type 0, reserved flags, QoS 3, DUP at QoS 0.

    The flags of CONNECT are checked with its body.
    """
    kind, flags = first_byte >> 4, first_byte & 15
    if kind == PacketKind.CONNECT:
        return  # they are reserved or not used, as the version says that stands in its body
    if kind == PacketKind.PUBLISH:
        if flags & 6 == 6:
            raise MalformedPacket("PUBLISH has QoS 3", "MQTT-3.3.1-4")
        if flags & 14 == 8:
            raise MalformedPacket("PUBLISH has DUP at QoS 0", "MQTT-3.3.1-2")
    elif kind == 0:
        raise MalformedPacket("packet type 0 is forbidden", "2.1.2")
    elif flags != _FLAGS[kind]:
        raise MalformedPacket(f"{PacketKind(kind).name} has flags {flags}, not {_FLAGS[kind]}", _FLAG_CLAUSES.get(kind, "MQTT-2.1.3-1"))


_FLAG_CLAUSES: dict[int, str] = {
    PacketKind.PUBREL: "MQTT-3.6.1-1",
    PacketKind.SUBSCRIBE: "MQTT-3.8.1-1",
    PacketKind.UNSUBSCRIBE: "MQTT-3.10.1-1",
    PacketKind.DISCONNECT: "MQTT-3.14.1-1",
    PacketKind.AUTH: "MQTT-3.15.1-1",
}


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    """Read one packet.

    first_byte: the fixed header's first byte. body: what follows the Remaining Length, whole. version: 4 or 5, of the
    connection (3 counts as 4); CONNECT states its own. Raises `MalformedPacket` or `PeerError`, nothing else.
    """
    check_first_byte(first_byte)
    return _DECODERS[first_byte >> 4](first_byte & 15, body, version)


def decode_in_steps(first_byte: int, body: bytes, version: int) -> tuple[Subscribe | Unsubscribe, Iterator[None]]:
    """`decode` of a SUBSCRIBE or UNSUBSCRIBE for whoever must not be held up by thousands of topic filters.

    Returns the packet without filters, and the steps that read one each. The steps raise as `decode` does: behind the last one the
    packet is whole and well-formed.
    """
    check_first_byte(first_byte)
    return _begin_subscribe(body, version) if first_byte >> 4 == PacketKind.SUBSCRIBE else _begin_unsubscribe(body, version)


def _done(body: bytes, position: int, kind: PacketKind) -> None:
    if position != len(body):
        raise MalformedPacket(f"{len(body) - position} bytes follow the end of {kind.name}", "4.13.1")


def _read_packet_id(body: bytes, position: int) -> tuple[int, int]:
    packet_id, position = read_u16(body, position, "the Packet Identifier")
    if not packet_id:
        raise protocol_error("the Packet Identifier is 0", "MQTT-2.2.1-3")
    return packet_id, position


def _properties(body: bytes, position: int, version: int, kind: PacketKind) -> tuple[Properties, int]:
    return decode_properties(body, position, kind) if version == 5 else ({}, position)


def _reason(code: int, allowed: dict[int, Reason], kind: PacketKind, clause: str) -> Reason:
    reason = allowed.get(code)
    if reason is None:
        raise protocol_error(f"reason code 0x{code:02x} must not stand in {kind.name}", clause)
    return reason


# --- CONNECT and CONNACK


def _connect(flags: int, body: bytes, version: int) -> Connect:
    level, bridge, position = _protocol(body)
    if flags and level != 3:
        raise MalformedPacket(f"CONNECT has flags {flags}, not 0", "MQTT-2.1.3-1")
    version = 5 if level == 5 else 4
    if position + 3 > len(body):
        raise truncated("the variable header of CONNECT")
    connect_flags = body[position]
    _check_connect_flags(connect_flags, level)
    keep_alive = body[position + 1] << 8 | body[position + 2]
    properties, position = _properties(body, position + 3, version, PacketKind.CONNECT)
    if Property.AUTHENTICATION_DATA in properties and Property.AUTHENTICATION_METHOD not in properties:
        raise protocol_error("Authentication Data without Authentication Method", "3.1.2.11.10")
    client_id, position = read_string(body, position, "the Client Identifier")
    will = user_name = password = None
    if connect_flags & 0x04:
        will, position = _will(body, position, version, connect_flags)
    if connect_flags & 0x80:
        user_name, position = read_string(body, position, "the User Name")
    if connect_flags & 0x40:
        password, position = read_binary(body, position, "the Password")
    _done(body, position, PacketKind.CONNECT)
    return Connect(client_id, version, bool(connect_flags & 2), keep_alive, user_name, password, will, properties, level == 3, bridge)


def _protocol(body: bytes) -> tuple[int, bool, int]:
    """Protocol name and level: (3, 4 or 5, whether the bit of a bridge is set, position behind them)."""
    name, position = read_binary(body, 0, "the Protocol Name")
    if name not in (b"MQTT", b"MQIsdp"):
        raise PeerError(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"the Protocol Name is {name[:16]!r}, not MQTT", "MQTT-3.1.2-1")
    if position == len(body):
        raise truncated("the Protocol Version")
    level = body[position]
    bridge = level in (BRIDGE | 3, BRIDGE | 4)
    if bridge:
        level &= ~BRIDGE
    if level not in ((4, 5) if name == b"MQTT" else (3,)):
        raise PeerError(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"{name.decode()} has no Protocol Version {level} here", "MQTT-3.1.2-2")
    return level, bridge, position + 1


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 1 and level != 3:  # MQTT 3.1 does not use this bit, nor the flags in front; it does not say what they are
        raise MalformedPacket("the reserved Connect Flag is set", "MQTT-3.1.2-3")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise MalformedPacket("Will QoS is 3", "MQTT-3.1.2-12")
    elif flags & 0x18:
        raise MalformedPacket("Will QoS without Will Flag", "MQTT-3.1.2-11")
    elif flags & 0x20:
        raise MalformedPacket("Will Retain without Will Flag", "MQTT-3.1.2-13")
    if level != 5 and flags & 0xC0 == 0x40:
        raise MalformedPacket("Password without User Name", "3.1.1 MQTT-3.1.2-22")


def _will(body: bytes, position: int, version: int, flags: int) -> tuple[Will, int]:
    properties, position = _properties(body, position, version, PacketKind.WILL)
    raw, position = read_binary(body, position, "the Will Topic")
    topic = check_topic(raw)
    payload, position = read_binary(body, position, "the Will Payload")
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), properties), position


def _connack(flags: int, body: bytes, version: int) -> Connack:
    if len(body) < 2:
        raise truncated("CONNACK")
    if body[0] > 1:
        raise MalformedPacket("a reserved Connect Acknowledge Flag is set", "MQTT-3.2.2-1")
    reason: int
    if version == 5:
        reason = _reason(body[1], CONNACK_REASONS, PacketKind.CONNACK, "MQTT-3.2.2-8")
    elif body[1] <= 5:
        reason = ConnectReturn(body[1])
    else:
        raise protocol_error(f"CONNACK has the reserved return code {body[1]}", "3.1.1 3.2.2.3")
    if reason and body[0]:
        raise protocol_error("Session Present in a CONNACK that refuses", "MQTT-3.2.2-6")
    properties, position = _properties(body, 2, version, PacketKind.CONNACK)
    _done(body, position, PacketKind.CONNACK)
    return Connack(body[0] == 1, reason, properties)


# --- PUBLISH and its acknowledgements


def _publish(flags: int, body: bytes, version: int) -> Publish:
    raw, position = read_binary(body, 0, "the Topic Name")
    qos = flags >> 1 & 3
    packet_id = 0
    if qos:
        packet_id, position = _read_packet_id(body, position)
    properties, position = _properties(body, position, version, PacketKind.PUBLISH)
    if raw:
        topic = check_topic(raw)
    elif Property.TOPIC_ALIAS in properties:
        topic = ""
    else:
        raise protocol_error("the Topic Name is empty and there is no Topic Alias", "3.3.2.1" if version == 5 else "MQTT-4.7.3-1")
    return Publish(topic, body[position:], qos, bool(flags & 1), bool(flags & 8), packet_id, properties)


def _acknowledgement(make: type[A], allowed: dict[int, Reason], kind: PacketKind, clause: str) -> Callable[[int, bytes, int], A]:
    def read(flags: int, body: bytes, version: int) -> A:
        packet_id, position = _read_packet_id(body, 0)
        size = len(body)
        if size == 2:
            return make(packet_id)
        if version != 5:
            raise MalformedPacket(f"{kind.name} has {size} bytes, not 2", "4.13.1")
        reason = _reason(body[2], allowed, kind, clause)
        if size == 3:
            return make(packet_id, reason)
        properties, position = decode_properties(body, 3, kind)
        _done(body, position, kind)
        return make(packet_id, reason, properties)

    return read


# --- SUBSCRIBE and UNSUBSCRIBE


def _subscribe(flags: int, body: bytes, version: int) -> Subscribe:
    packet, steps = _begin_subscribe(body, version)
    for _ in steps:
        pass
    return packet


def _begin_subscribe(body: bytes, version: int) -> tuple[Subscribe, Iterator[None]]:
    packet_id, position = _read_packet_id(body, 0)
    properties, position = _properties(body, position, version, PacketKind.SUBSCRIBE)
    packet = Subscribe(packet_id, [], properties)
    return packet, _read_subscriptions(packet.subscriptions, body, position, version)


def _read_subscriptions(subscriptions: list[Subscription], body: bytes, position: int, version: int) -> Iterator[None]:
    while position < len(body):
        filter_, position = read_string(body, position, "the Topic Filter")
        check_filter(filter_, shared=version == 5)
        if position == len(body):
            raise truncated("the Subscription Options")
        subscriptions.append(_subscription(filter_, body[position], version))
        position += 1
        yield
    if not subscriptions:
        raise protocol_error("SUBSCRIBE has no Topic Filter", "MQTT-3.8.3-2")


def _subscription(filter_: str, options: int, version: int) -> Subscription:
    if options & (0xC0 if version == 5 else 0xFC):
        raise MalformedPacket("reserved bits of the Subscription Options are set", "MQTT-3.8.3-5")
    if options & 3 == 3:
        raise protocol_error("the Subscription Options have QoS 3", "3.8.3.1")
    if options & 0x30 == 0x30:
        raise protocol_error("Retain Handling is 3", "3.8.3.1")
    if options & 4 and filter_.startswith("$share/"):
        raise protocol_error("No Local on a Shared Subscription", "MQTT-3.8.3-4")
    return Subscription(filter_, options & 3, bool(options & 4), bool(options & 8), options >> 4)


def _suback(flags: int, body: bytes, version: int) -> Suback:
    packet_id, position = _read_packet_id(body, 0)
    properties, position = _properties(body, position, version, PacketKind.SUBACK)
    allowed = SUBACK_REASONS if version == 5 else SUBACK_V4_REASONS
    reasons = [_reason(code, allowed, PacketKind.SUBACK, "MQTT-3.9.3-2") for code in body[position:]]
    if not reasons:
        raise protocol_error("SUBACK has no reason code", "MQTT-3.8.4-6")
    return Suback(packet_id, reasons, properties)


def _unsubscribe(flags: int, body: bytes, version: int) -> Unsubscribe:
    packet, steps = _begin_unsubscribe(body, version)
    for _ in steps:
        pass
    return packet


def _begin_unsubscribe(body: bytes, version: int) -> tuple[Unsubscribe, Iterator[None]]:
    packet_id, position = _read_packet_id(body, 0)
    properties, position = _properties(body, position, version, PacketKind.UNSUBSCRIBE)
    packet = Unsubscribe(packet_id, [], properties)
    return packet, _read_filters(packet.filters, body, position, version)


def _read_filters(filters: list[str], body: bytes, position: int, version: int) -> Iterator[None]:
    while position < len(body):
        filter_, position = read_string(body, position, "the Topic Filter")
        check_filter(filter_, shared=version == 5)
        filters.append(filter_)
        yield
    if not filters:
        raise protocol_error("UNSUBSCRIBE has no Topic Filter", "MQTT-3.10.3-2")


def _unsuback(flags: int, body: bytes, version: int) -> Unsuback:
    packet_id, position = _read_packet_id(body, 0)
    if version != 5:
        _done(body, position, PacketKind.UNSUBACK)
        return Unsuback(packet_id)
    properties, position = decode_properties(body, position, PacketKind.UNSUBACK)
    reasons = [_reason(code, UNSUBACK_REASONS, PacketKind.UNSUBACK, "MQTT-3.11.3-2") for code in body[position:]]
    if not reasons:
        raise protocol_error("UNSUBACK has no reason code", "MQTT-3.11.3-1")
    return Unsuback(packet_id, reasons, properties)


# --- the rest


def _pingreq(flags: int, body: bytes, version: int) -> Pingreq:
    _done(body, 0, PacketKind.PINGREQ)
    return Pingreq()


def _pingresp(flags: int, body: bytes, version: int) -> Pingresp:
    _done(body, 0, PacketKind.PINGRESP)
    return Pingresp()


def _disconnect(flags: int, body: bytes, version: int) -> Disconnect:
    if not body:
        return Disconnect()
    if version != 5:
        _done(body, 0, PacketKind.DISCONNECT)
    reason = _reason(body[0], DISCONNECT_REASONS, PacketKind.DISCONNECT, "MQTT-3.14.2-1")
    if len(body) == 1:
        return Disconnect(reason)
    properties, position = decode_properties(body, 1, PacketKind.DISCONNECT)
    _done(body, position, PacketKind.DISCONNECT)
    return Disconnect(reason, properties)


def _auth(flags: int, body: bytes, version: int) -> Auth:
    if version != 5:
        raise MalformedPacket("packet type 15 is forbidden in MQTT 3.1.1", "3.1.1 2.2.1")
    if not body:
        return Auth()
    reason = _reason(body[0], AUTH_REASONS, PacketKind.AUTH, "MQTT-3.15.2-1")
    properties, position = decode_properties(body, 1, PacketKind.AUTH)
    if Property.AUTHENTICATION_METHOD not in properties:
        raise protocol_error("AUTH has no Authentication Method", "3.15.2.2.2")
    _done(body, position, PacketKind.AUTH)
    return Auth(reason, properties)


def _forbidden(flags: int, body: bytes, version: int) -> Packet:
    raise MalformedPacket("packet type 0 is forbidden", "2.1.2")


_DECODERS: tuple[Callable[[int, bytes, int], Packet], ...] = (
    _forbidden,
    _connect,
    _connack,
    _publish,
    _acknowledgement(Puback, PUBACK_REASONS, PacketKind.PUBACK, "MQTT-3.4.2-1"),
    _acknowledgement(Pubrec, PUBREC_REASONS, PacketKind.PUBREC, "MQTT-3.5.2-1"),
    _acknowledgement(Pubrel, PUBREL_REASONS, PacketKind.PUBREL, "MQTT-3.6.2-1"),
    _acknowledgement(Pubcomp, PUBCOMP_REASONS, PacketKind.PUBCOMP, "MQTT-3.7.2-1"),
    _subscribe,
    _suback,
    _unsubscribe,
    _unsuback,
    _pingreq,
    _pingresp,
    _disconnect,
    _auth,
)
