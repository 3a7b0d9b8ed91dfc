"""MQTT packets as bytes, both ways, written for this suite alone: it shares no code with the broker.

Writing is free: any packet can be put together, also those that nobody may send. Reading is strict: `read` takes what a *server* may
send and nothing else, so that each test also finds wrong flags, lengths that are not minimal, reason codes or properties out of place,
ill-formed strings, wildcards in topic names and packet identifiers of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NAMES = [
    "RESERVED",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
]
PINGREQ = b"\xc0\0"
BOM = "\ufeff"

# Properties (5.0 table 2-4): name -> (identifier, type, packets from the server that may carry it)
_ANSWERS = "PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK"
PROPERTIES: dict[str, tuple[int, str, str]] = {
    "payload_format": (0x01, "byte", "PUBLISH"),
    "message_expiry": (0x02, "u32", "PUBLISH"),
    "content_type": (0x03, "string", "PUBLISH"),
    "response_topic": (0x08, "string", "PUBLISH"),
    "correlation_data": (0x09, "binary", "PUBLISH"),
    "subscription_identifier": (0x0B, "varint", "PUBLISH"),
    "session_expiry": (0x11, "u32", "CONNACK"),
    "assigned_client_id": (0x12, "string", "CONNACK"),
    "server_keep_alive": (0x13, "u16", "CONNACK"),
    "authentication_method": (0x15, "string", "CONNACK AUTH"),
    "authentication_data": (0x16, "binary", "CONNACK AUTH"),
    "request_problem": (0x17, "byte", ""),
    "will_delay": (0x18, "u32", ""),
    "request_response": (0x19, "byte", ""),
    "response_information": (0x1A, "string", "CONNACK"),
    "server_reference": (0x1C, "string", "CONNACK DISCONNECT"),
    "reason_string": (0x1F, "string", f"CONNACK DISCONNECT AUTH {_ANSWERS}"),
    "receive_maximum": (0x21, "u16", "CONNACK"),
    "topic_alias_maximum": (0x22, "u16", "CONNACK"),
    "topic_alias": (0x23, "u16", "PUBLISH"),
    "maximum_qos": (0x24, "byte", "CONNACK"),
    "retain_available": (0x25, "byte", "CONNACK"),
    "user": (0x26, "pair", f"CONNACK PUBLISH DISCONNECT AUTH {_ANSWERS}"),
    "maximum_packet_size": (0x27, "u32", "CONNACK"),
    "wildcard_available": (0x28, "byte", "CONNACK"),
    "subscription_identifier_available": (0x29, "byte", "CONNACK"),
    "shared_available": (0x2A, "byte", "CONNACK"),
}
_BY_NUMBER = {number: (name, kind, packets.split()) for name, (number, kind, packets) in PROPERTIES.items()}
_REPEATABLE = ("user", "subscription_identifier")
_NEVER_0 = ("receive_maximum", "maximum_packet_size", "subscription_identifier", "topic_alias")

# Reason codes that a server may use (5.0 tables 3-1, 3-4 to 3-9 and 3-10, 3-13)
_PUBLISHED = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
REASONS: dict[str, set[int]] = {
    "CONNACK": {0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    "PUBACK": _PUBLISHED,
    "PUBREC": _PUBLISHED,
    "PUBREL": {0x00, 0x92},
    "PUBCOMP": {0x00, 0x92},
    "SUBACK": {0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    "UNSUBACK": {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    # without 0x04, which is the client's
    "DISCONNECT": {0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)},
    "AUTH": {0x00, 0x18},
}


class Unlawful(AssertionError):
    """The server sent what no server may send."""


# Writing


def varint(number: int) -> bytes:
    """A variable byte integer, as short as it can be."""
    out = bytearray()
    while True:
        number, digit = divmod(number, 128)
        out.append(digit | (0x80 if number else 0))
        if not number:
            return bytes(out)


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def binary(data: bytes) -> bytes:
    return u16(len(data)) + data


def string(text: str | bytes) -> bytes:
    """A string with its length; bytes are taken as they are, well-formed or not."""
    return binary(text.encode() if isinstance(text, str) else text)


def packet(first: int, *body: bytes) -> bytes:
    """Any packet: first byte, Remaining Length, body."""
    whole = b"".join(body)
    return bytes((first,)) + varint(len(whole)) + whole


def one_property(name: str, value: Any) -> bytes:
    number, kind, _ = PROPERTIES[name]
    if kind == "pair":
        data = string(value[0]) + string(value[1])
    elif kind in ("string", "binary"):
        data = string(value)
    elif kind == "varint":
        data = varint(value)
    else:
        data = int(value).to_bytes({"byte": 1, "u16": 2, "u32": 4}[kind], "big")
    return bytes((number,)) + data


def properties(given: dict[str, Any] | bytes | None) -> bytes:
    """A property block with its length. A list stands for a property that is repeated; bytes are the block as it is."""
    if isinstance(given, bytes):
        return varint(len(given)) + given
    block = b""
    for name, value in (given or {}).items():
        for one in value if isinstance(value, list) else [value]:
            block += one_property(name, one)
    return varint(len(block)) + block


@dataclass
class Will:
    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


def connect(
    client_id: str | bytes = "",
    version: int = 5,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    user: str | bytes | None = None,
    password: bytes | None = None,
    flags: int | None = None,
    name: str | bytes | None = None,
    level: int | None = None,
    **given: Any,
) -> bytes:
    """CONNECT. flags: the whole byte, instead of what the rest says. given: properties; `block` is their bytes as they are."""
    found = (0x02 if clean else 0) | (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
    if will is not None:
        found |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
    level = version if level is None else level
    name = ("MQIsdp" if version == 3 else "MQTT") if name is None else name
    body = [string(name), bytes((level, found if flags is None else flags)), u16(keep_alive)]
    if version == 5:
        body.append(properties(given.pop("block", given)))
    body.append(string(client_id))
    if will is not None:
        if version == 5:
            body.append(properties(will.properties))
        body += [string(will.topic), binary(will.payload)]
    if user is not None:
        body.append(string(user))
    if password is not None:
        body.append(binary(password))
    return packet(0x10, *body)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    version: int = 5,
    **given: Any,
) -> bytes:
    """PUBLISH. A packet identifier stands in it when one is given, whatever the QoS."""
    first = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    body = [string(topic)]
    if packet_id is not None:
        body.append(u16(packet_id))
    if version == 5:
        body.append(properties(given.pop("block", given)))
    return packet(first, *body, payload)


def acknowledge(kind: str, packet_id: int, reason: int | None = None, **given: Any) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; with a reason, of MQTT 5."""
    first = NAMES.index(kind) << 4 | (2 if kind == "PUBREL" else 0)
    body = u16(packet_id)
    if reason is not None:
        body += bytes((reason,))
        if given:
            body += properties(given)
    return packet(first, body)


def subscribe(packet_id: int, *filters: tuple[str | bytes, int], version: int = 5, **given: Any) -> bytes:
    """SUBSCRIBE. filters: (filter, its options byte)."""
    body = [u16(packet_id)]
    if version == 5:
        body.append(properties(given.pop("block", given)))
    for topic_filter, options in filters:
        body += [string(topic_filter), bytes((options,))]
    return packet(0x82, *body)


def unsubscribe(packet_id: int, *filters: str | bytes, version: int = 5, **given: Any) -> bytes:
    body = [u16(packet_id)]
    if version == 5:
        body.append(properties(given.pop("block", given)))
    return packet(0xA2, *body, *[string(one) for one in filters])


def disconnect(reason: int | None = None, **given: Any) -> bytes:
    if reason is None:
        return b"\xe0\0"
    return packet(0xE0, bytes((reason,)), *([properties(given)] if given else []))


def auth(reason: int | None, **given: Any) -> bytes:
    return packet(0xF0, *([] if reason is None else [bytes((reason,)), properties(given)]))


# Reading


@dataclass
class Packet:
    """One packet of the server. size: of the whole of it in bytes; the rest as far as its kind has it."""

    kind: str
    size: int
    packet_id: int = 0
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False


class Reader:
    """Bytes of one packet, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise Unlawful(f"{count} bytes are due, {len(self.data)} are left")
        piece, self.data = self.data[:count], self.data[count:]
        return piece

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def varint(self) -> int:
        raw = b""
        while not raw or raw[-1] & 0x80:
            raw += self.take(1)
            if len(raw) > 4:
                raise Unlawful("a variable byte integer of more than 4 bytes")
        number = sum((digit & 0x7F) << 7 * place for place, digit in enumerate(raw))
        if varint(number) != raw:
            raise Unlawful(f"{raw.hex()} is not the shortest form of {number} [MQTT-1.5.5-1]")
        return number

    def string(self) -> str:
        raw = self.take(self.number(2))
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise Unlawful(f"ill-formed UTF-8: {raw!r}") from error
        if "\0" in text:
            raise Unlawful(f"U+0000 in {text!r}")
        return text

    def properties(self, kind: str) -> dict[str, Any]:
        block = Reader(self.take(self.varint()))
        found: dict[str, Any] = {}
        while block.data:
            number = block.varint()
            if number not in _BY_NUMBER:
                raise Unlawful(f"property 0x{number:02x} does not exist")
            name, type_, packets = _BY_NUMBER[number]
            if kind not in packets:
                raise Unlawful(f"{name} has no place in {kind} of a server")
            value = block.value(type_)
            if (type_ == "byte" and value > 1) or (name in _NEVER_0 and not value):
                raise Unlawful(f"{name} is {value}")
            if name in _REPEATABLE:
                found.setdefault(name, []).append(value)
            elif name in found:
                raise Unlawful(f"{name} stands there twice")
            else:
                found[name] = value
        return found

    def value(self, type_: str) -> Any:
        if type_ == "string":
            return self.string()
        if type_ == "binary":
            return self.take(self.number(2))
        if type_ == "varint":
            return self.varint()
        if type_ == "pair":
            return self.string(), self.string()
        return self.number({"byte": 1, "u16": 2, "u32": 4}[type_])


def split(data: bytes) -> tuple[int, bytes, int] | None:
    """The first packet in `data`: (first byte, body, size); None while it is not whole."""
    for end in range(2, 6):
        if len(data) < end:
            return None
        if data[end - 1] < 0x80:
            length = Reader(data[1:end]).varint()
            return (data[0], data[end : end + length], end + length) if len(data) >= end + length else None
    raise Unlawful("a Remaining Length of more than 4 bytes")


def read(first: int, body: bytes, size: int, version: int) -> Packet:
    """A packet of the server. version: 3, 4 or 5. Raises Unlawful."""
    kind = NAMES[first >> 4]
    readers = {"CONNACK": _connack, "PUBLISH": _publish, "SUBACK": _suback, "UNSUBACK": _unsuback, "DISCONNECT": _disconnect, "AUTH": _auth}
    found = Packet(kind, size)
    reader = Reader(body)
    if kind != "PUBLISH" and first & 15 != (2 if kind == "PUBREL" else 0):
        raise Unlawful(f"{kind} has flags {first & 15}")
    if kind in ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP"):
        found.packet_id = reader.number(2)
        if version == 5 and reader.data:
            found.reason = reader.number(1)
            found.properties = reader.properties(kind) if reader.data else {}
    elif kind in readers:
        readers[kind](found, reader, first, version)
    elif kind != "PINGRESP":
        raise Unlawful(f"{kind} is not a server's to send")
    if reader.data:
        raise Unlawful(f"{kind} has {len(reader.data)} bytes too many")
    _check(found, first, version)
    return found


def _check(found: Packet, first: int, version: int) -> None:
    kind = found.kind
    if not found.packet_id and (kind in _ANSWERS.split() or (kind == "PUBLISH" and found.qos)):
        raise Unlawful(f"{kind} has the packet identifier 0")
    allowed = {0, 1, 2, 0x80} if version < 5 and kind == "SUBACK" else set(range(6)) if version < 5 else REASONS.get(kind, {0})
    for reason in [found.reason, *found.reasons]:
        if reason not in allowed:
            raise Unlawful(f"{kind} has the reason code 0x{reason:02x}")
    if version == 3 and 0x80 in found.reasons:
        raise Unlawful("MQTT 3.1 knows no failure in SUBACK")


def _connack(found: Packet, reader: Reader, first: int, version: int) -> None:
    flags = reader.number(1)
    if flags > 1:
        raise Unlawful(f"reserved Connect Acknowledge Flags are set: {flags:#x}")
    found.session_present = flags == 1
    found.reason = reader.number(1)
    if found.reason and flags:
        raise Unlawful("Session Present in a refusal")
    if version == 5:
        found.properties = reader.properties("CONNACK")


def _publish(found: Packet, reader: Reader, first: int, version: int) -> None:
    found.dup, found.qos, found.retain = bool(first & 8), first >> 1 & 3, bool(first & 1)
    if found.qos == 3 or (found.dup and not found.qos):
        raise Unlawful(f"PUBLISH has flags {first & 15}")
    found.topic = reader.string()
    if "+" in found.topic or "#" in found.topic:
        raise Unlawful(f"a wildcard in the topic name {found.topic!r}")
    if found.qos:
        found.packet_id = reader.number(2)
    if version == 5:
        found.properties = reader.properties("PUBLISH")
    if not found.topic and "topic_alias" not in found.properties:
        raise Unlawful("PUBLISH has neither topic name nor alias")
    if "+" in found.properties.get("response_topic", "") or "#" in found.properties.get("response_topic", ""):
        raise Unlawful("a wildcard in the response topic")
    found.payload = reader.take(len(reader.data))


def _suback(found: Packet, reader: Reader, first: int, version: int) -> None:
    found.packet_id = reader.number(2)
    if version == 5:
        found.properties = reader.properties("SUBACK")
    found.reasons = list(reader.take(len(reader.data)))
    if not found.reasons:
        raise Unlawful("SUBACK has no reason code")


def _unsuback(found: Packet, reader: Reader, first: int, version: int) -> None:
    found.packet_id = reader.number(2)
    if version == 5:
        found.properties = reader.properties("UNSUBACK")
        found.reasons = list(reader.take(len(reader.data)))


def _disconnect(found: Packet, reader: Reader, first: int, version: int) -> None:
    if version != 5:
        raise Unlawful("DISCONNECT is not a server's to send before MQTT 5")
    if reader.data:
        found.reason = reader.number(1)
        found.properties = reader.properties("DISCONNECT") if reader.data else {}


def _auth(found: Packet, reader: Reader, first: int, version: int) -> None:
    if version != 5:
        raise Unlawful("AUTH before MQTT 5")
    if reader.data:
        found.reason = reader.number(1)
        found.properties = reader.properties("AUTH")
    if found.reason == 0x18 and "authentication_method" not in found.properties:
        raise Unlawful("AUTH without a method")


def packets_in(data: bytes, version: int) -> Iterator[Packet]:
    """All whole packets in `data`."""
    while (whole := split(data)) is not None:
        first, body, size = whole
        yield read(first, body, size, version)
        data = data[size:]
