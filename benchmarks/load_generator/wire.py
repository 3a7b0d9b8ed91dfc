"""MQTT 3.1.1 and 5 packets as the load generator needs them, written apart from the broker that it judges.

The encoder makes the few packets that a publisher and a subscriber send. The decoder is exact and slow: it is what the
fast, comparing paths of `subscriber.py` and `publisher.py` fall back on, so that a broker that frames its packets in
another (legal) way is still judged rightly, only less quickly.

What it does not know: sockets, sequences, what was sent before.
"""

from __future__ import annotations

from typing import NamedTuple

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, DISCONNECT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 14
PID_HIGH = bytes(p >> 8 for p in range(65536))
PID_LOW = bytes(p & 255 for p in range(65536))
RECEIVE_MAXIMUM = 0x21


class WireError(Exception):
    """The broker sent what MQTT forbids, refused us, or closed the connection."""


class Packet(NamedTuple):
    """One whole packet: its first byte, its body (after the remaining length) and where the next one begins."""

    first: int
    body: bytes
    end: int


class Publication(NamedTuple):
    """A decoded PUBLISH. `properties` are the encoded properties without their length (b"" in 3.1.1)."""

    topic: bytes
    qos: int
    pid: int
    properties: bytes
    payload: bytes
    dup: bool
    retain: bool


def encode_length(value: int) -> bytes:
    """A Variable Byte Integer [MQTT-1.5.5-1]."""
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | 0x80 if value else low)
        if not value:
            return bytes(out)


def decode_length(data: bytes | bytearray, position: int) -> tuple[int, int] | None:
    """The Variable Byte Integer at `position` and the position behind it; None if its end has not come yet."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 21:
            raise WireError("a remaining length of more than four bytes")
    return None


def text(value: bytes) -> bytes:
    """A UTF-8 string or binary datum with its two-byte length."""
    return len(value).to_bytes(2, "big") + value


def packet(first: int, body: bytes) -> bytes:
    """A packet from its first byte and body."""
    return bytes((first,)) + encode_length(len(body)) + body


USER, PASSWORD = b"bench", b"a password of the benchmark"  # every client has them; only mqmesh-access asks


def connect(client_id: str, version: int, persistent: bool = False) -> bytes:
    """CONNECT with a clean session or a persistent one; keep alive is an hour, so that no PINGREQ falls into a measurement."""
    body = text(b"MQTT") + bytes((version, 0xC0 if persistent else 0xC2)) + (3600).to_bytes(2, "big")
    properties = b""
    if version == 5:
        properties = b"\x05\x11\xff\xff\xff\xff" if persistent else b"\0"  # Session Expiry Interval: never
    return packet(0x10, body + properties + text(client_id.encode()) + text(USER) + text(PASSWORD))


def subscribe(pid: int, topic_filter: bytes, qos: int, version: int) -> bytes:
    """SUBSCRIBE to one filter."""
    return packet(0x82, pid.to_bytes(2, "big") + (b"\0" if version == 5 else b"") + text(topic_filter) + bytes((qos,)))


def publish(topic: bytes, payload: bytes, qos: int, version: int, pid: int = 0, properties: bytes = b"") -> bytes:
    """PUBLISH with DUP and RETAIN clear."""
    body = text(topic) + (pid.to_bytes(2, "big") if qos else b"")
    if version == 5:
        body += encode_length(len(properties)) + properties
    return packet(0x30 | qos << 1, body + payload)


def acknowledgement(kind: int, pid: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP in its short form, which means success in both versions."""
    return bytes((kind << 4 | (2 if kind == PUBREL else 0), 2)) + pid.to_bytes(2, "big")


def next_packet(data: bytes | bytearray, position: int) -> Packet | None:
    """The packet that begins at `position`, or None when it is not whole yet."""
    if position >= len(data):
        return None
    found = decode_length(data, position + 1)
    if found is None:
        return None
    length, start = found
    if start + length > len(data):
        return None
    return Packet(data[position], bytes(data[start : start + length]), start + length)


def decode_publish(first: int, body: bytes, version: int) -> Publication:
    """The PUBLISH in `body`; WireError when it is not one that MQTT allows."""
    qos = first >> 1 & 3
    if qos == 3:
        raise WireError("a PUBLISH with QoS 3")
    position = 2 + int.from_bytes(body[:2], "big")
    topic, pid, properties = body[2:position], 0, b""
    if qos:
        pid = int.from_bytes(body[position : position + 2], "big")
        position += 2
        if not pid:
            raise WireError("a PUBLISH with packet identifier 0")
    if version == 5:
        found = decode_length(body, position)
        if found is None:
            raise WireError("a PUBLISH that ends in its properties")
        length, position = found
        properties = body[position : position + length]
        position += length
    if position > len(body):
        raise WireError("a PUBLISH that ends in its header")
    return Publication(topic, qos, pid, properties, body[position:], bool(first & 8), bool(first & 1))


def decode_acknowledgement(first: int, body: bytes) -> int:
    """The packet identifier of a PUBACK, PUBREC, PUBREL or PUBCOMP that reports success; WireError otherwise."""
    reason = body[2] if len(body) > 2 else 0
    if len(body) < 2 or reason >= 0x80:
        raise WireError(f"packet type {first >> 4} refuses with reason 0x{reason:02x}")
    return int.from_bytes(body[:2], "big")


def check_connack(body: bytes, version: int) -> int:
    """The broker's Receive Maximum (65,535 where it does not say one); WireError when it refuses the connection."""
    if len(body) < 2 or body[1]:
        raise WireError(f"the broker refuses the connection: {body.hex()}")
    if version == 5:
        found = decode_length(body, 2)
        if found:
            length, position = found
            return _receive_maximum(body[position : position + length])
    return 65535


# Sizes of the CONNACK properties with a fixed length; the others are strings (one, or a pair for 0x26).
_FIXED = {0x11: 4, 0x13: 2, 0x21: 2, 0x22: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}


def _receive_maximum(properties: bytes) -> int:
    position = 0
    while position < len(properties):
        name = properties[position]
        position += 1
        if name == RECEIVE_MAXIMUM:
            return int.from_bytes(properties[position : position + 2], "big")
        if name in _FIXED:
            position += _FIXED[name]
            continue
        for _ in range(2 if name == 0x26 else 1):
            position += 2 + int.from_bytes(properties[position : position + 2], "big")
    return 65535
