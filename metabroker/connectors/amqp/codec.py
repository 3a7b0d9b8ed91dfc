"""AMQP 0-9-1 on the wire: frames, methods, field tables, properties of messages. Only what a client of an exchange needs.

A frame is a type, a channel, a length, that many bytes and an end mark. A method is named by two numbers, class and method; METHODS says
which arguments each has. A message is a method, a frame with its properties, and its body cut into frames.

What a publisher put into the properties is anybody's: RabbitMQ passes it on without reading all of it. So `properties` and `table` may
meet any bytes; nested tables are stepped over, never entered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....mqtt.errors import PeerError
from ....mqtt.reasons import Reason

GREETING = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
OVERHEAD = 8  # bytes of a frame beside its payload
LARGEST_FRAME = 131_072
BEAT = struct.pack(">BHIB", HEARTBEAT, 0, 0, END)

Key = tuple[int, int]
START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CLOSE, CLOSE_OK = (10, 40), (10, 41), (10, 50), (10, 51)
BLOCKED, UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 10), (20, 11), (20, 40), (20, 41)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK, BIND, BIND_OK = (50, 10), (50, 11), (50, 20), (50, 21)
DELETE, DELETE_OK, UNBIND, UNBIND_OK = (50, 40), (50, 41), (50, 50), (50, 51)
QOS, QOS_OK, CONSUME, CONSUME_OK, CANCEL = (60, 10), (60, 11), (60, 20), (60, 21), (60, 30)
PUBLISH, RETURN, DELIVER, ACK, NACK = (60, 40), (60, 50), (60, 60), (60, 80), (60, 120)
SELECT, SELECT_OK = (85, 10), (85, 11)

# B octet (and bits), H short, I long, Q long long, s short text, S long text, T table
METHODS: dict[Key, str] = {
    START: "BBTSS",
    START_OK: "TsSs",
    TUNE: "HIH",
    TUNE_OK: "HIH",
    OPEN: "ssB",
    OPEN_OK: "s",
    CLOSE: "HsHH",
    CLOSE_OK: "",
    BLOCKED: "s",
    UNBLOCKED: "",
    CHANNEL_OPEN: "s",
    CHANNEL_OPEN_OK: "S",
    CHANNEL_CLOSE: "HsHH",
    CHANNEL_CLOSE_OK: "",
    EXCHANGE_DECLARE: "HssBT",
    EXCHANGE_DECLARE_OK: "",
    QUEUE_DECLARE: "HsBT",
    QUEUE_DECLARE_OK: "sII",
    BIND: "HsssBT",
    BIND_OK: "",
    DELETE: "HsB",
    DELETE_OK: "I",
    UNBIND: "HsssT",
    UNBIND_OK: "",
    QOS: "IHB",
    QOS_OK: "",
    CONSUME: "HssBT",
    CONSUME_OK: "s",
    CANCEL: "sB",
    PUBLISH: "HssB",
    RETURN: "Hsss",
    DELIVER: "sQBss",
    ACK: "QB",
    NACK: "QB",
    SELECT: "B",
    SELECT_OK: "",
}
# Of a message, in the order of their flags, from the highest bit on.
PROPERTIES = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "T"),
    ("delivery_mode", "B"),
    ("priority", "B"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "Q"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)
_NUMBERS = {"B": 1, "H": 2, "I": 4, "Q": 8}
# Values in a table: their letters, as RabbitMQ reads them.
_SCALARS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f", "d": ">d", "T": ">Q"}


class Decimal(NamedTuple):
    """A number with a fixed number of decimal places."""

    places: int
    digits: int


class Nested(NamedTuple):
    """A table in a table, written and never read."""

    table: Table


Value = bool | int | float | Decimal | Nested | bytes | list["Value"] | None
Table = list[tuple[bytes, Value]]
Argument = int | bytes | Table


class Frame(NamedTuple):
    """One frame without its end mark."""

    kind: int
    channel: int
    payload: bytes


class Malformed(ValueError):
    """Bytes that are not what they should be."""


class Framer:
    """Cuts a stream into frames. largest: bytes of a frame."""

    def __init__(self, largest: int = LARGEST_FRAME) -> None:
        self.largest = largest
        self._kept = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete. Raises PeerError."""
        data = self._kept + data if self._kept else data
        self._kept = b""
        start, end = 0, len(data)
        while end - start >= 7:
            if data.startswith(b"AMQP", start):
                raise PeerError(Reason.UNSUPPORTED_PROTOCOL_VERSION, "the server does not speak AMQP 0-9-1", "")
            kind, channel, size = struct.unpack_from(">BHI", data, start)
            if size + OVERHEAD > self.largest or kind not in (METHOD, HEADER, BODY, HEARTBEAT):
                raise PeerError(Reason.MALFORMED_PACKET, "the server does not speak AMQP, or its frames are too large", "")
            last = start + 7 + size
            if last >= end:
                break
            if data[last] != END:
                raise PeerError(Reason.MALFORMED_PACKET, "a frame does not end where it should", "")
            yield Frame(kind, channel, data[start + 7 : last])
            start = last + 1
        self._kept = data[start:]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, key: Key, *values: Argument | str | bool) -> bytes:
    """A frame with a method. Raises Malformed when a value does not fit."""
    return frame(METHOD, channel, struct.pack(">HH", *key) + _encode(METHODS[key], values))


def content(channel: int, properties: dict[str, Argument | str], body: bytes, largest: int) -> bytes:
    """The frames of a message behind its method. Raises Malformed when the properties do not fit into a frame of `largest` bytes."""
    encoded = encode_properties(properties)
    if len(encoded) + 12 + OVERHEAD > largest:
        raise Malformed("the properties are too long")
    parts = [frame(HEADER, channel, struct.pack(">HHQ", 60, 0, len(body)) + encoded)]
    step = largest - OVERHEAD
    parts += [frame(BODY, channel, body[start : start + step]) for start in range(0, len(body), step)]
    return b"".join(parts)


def encode_properties(properties: dict[str, Argument | str]) -> bytes:
    """Flags and values. Raises Malformed."""
    flags, bit, parts = 0, 1 << 15, []
    for name, letter in PROPERTIES:
        value = properties.get(name)
        if value is not None:
            flags |= bit
            parts.append(_encode(letter, (value,)))
        bit >>= 1
    return struct.pack(">H", flags) + b"".join(parts)


def read_method(payload: bytes) -> tuple[Key, list[Argument]]:
    """Name and arguments. Raises PeerError."""
    try:
        key = struct.unpack_from(">HH", payload)
        if key not in METHODS:
            raise Malformed(f"the server sends a method that is not known, {key[0]}.{key[1]}")
        return (key[0], key[1]), _decode(METHODS[key[0], key[1]], payload, 4)[0]
    except (Malformed, struct.error) as error:
        raise PeerError(Reason.MALFORMED_PACKET, f"a method cannot be read: {error}", "") from None


def read_header(payload: bytes) -> tuple[int, bytes]:
    """Of a message: the length of its body, and its properties for `properties`. Raises PeerError."""
    if len(payload) < 14:
        raise PeerError(Reason.MALFORMED_PACKET, "the header of a message is cut off", "")
    return int(struct.unpack_from(">Q", payload, 4)[0]), payload[12:]


def properties(data: bytes) -> dict[str, Argument]:
    """Properties of a message by name. Raises Malformed."""
    if len(data) < 2:
        raise Malformed("flags are cut off")
    flags, at = int(struct.unpack_from(">H", data)[0]), 2
    if flags & 1:
        raise Malformed("there are more flags than properties")
    found: dict[str, Argument] = {}
    bit = 1 << 15
    for name, letter in PROPERTIES:
        if flags & bit:
            (value,), at = _decode(letter, data, at)
            found[name] = value
        bit >>= 1
    return found


def text(value: Argument) -> str:
    """A short or long text for people."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def number(value: Argument) -> int:
    """An argument that is a number."""
    return value if isinstance(value, int) else 0


def _encode(letters: str, values: Sequence[Argument | str | bool]) -> bytes:
    parts = []
    for letter, value in zip(letters, values, strict=True):
        if letter == "T":
            assert isinstance(value, list)
            data = b"".join(_encode("s", (name,)) + _encode_value(item) for name, item in value)
            parts.append(struct.pack(">I", len(data)) + data)
        elif letter in _NUMBERS:
            parts.append(struct.pack(">" + letter, value))
        else:
            data = value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]
            if letter == "s" and len(data) > 255:
                raise Malformed("a short text has at most 255 bytes")
            parts.append(struct.pack(">B" if letter == "s" else ">I", len(data)) + data)
    return b"".join(parts)


def _encode_value(value: Value) -> bytes:
    match value:
        case None:
            return b"V"
        case bool():
            return b"t" + struct.pack(">B", value)
        case int():
            return (b"b" + struct.pack(">b", value)) if -128 <= value < 128 else b"l" + struct.pack(">q", value)
        case float():
            return b"d" + struct.pack(">d", value)
        case bytes():
            return b"S" + struct.pack(">I", len(value)) + value
        case Nested(table):
            return b"F" + _encode("T", (table,))
        case list():
            data = b"".join(_encode_value(item) for item in value)
            return b"A" + struct.pack(">I", len(data)) + data
        case _:
            raise Malformed("there is no such value in a table")


def _decode(letters: str, data: bytes, at: int) -> tuple[list[Argument], int]:
    values: list[Argument] = []
    for letter in letters:
        size = _NUMBERS.get(letter)
        if size is not None:
            values.append(struct.unpack(">" + letter, _piece(data, at, size))[0])
            at += size
            continue
        size = 1 if letter == "s" else 4
        length = int.from_bytes(_piece(data, at, size), "big")
        piece = _piece(data, at + size, length)
        at += size + length
        values.append(table(piece) if letter == "T" else piece)
    return values, at


def _piece(data: bytes, at: int, size: int) -> bytes:
    piece = data[at : at + size]
    if len(piece) < size:
        raise Malformed("it is cut off")
    return piece


def table(data: bytes) -> Table:
    """Names and values, in order; a nested table is None. Raises Malformed."""
    found: Table = []
    at = 0
    while at < len(data):
        length = data[at]
        name = _piece(data, at + 1, length)
        value, at = _value(data, at + 1 + length, True)
        found.append((name, value))
    return found


def _value(data: bytes, at: int, outer: bool) -> tuple[Value, int]:
    letter = chr(_piece(data, at, 1)[0])
    at += 1
    if letter in _SCALARS:
        form = _SCALARS[letter]
        size = struct.calcsize(form)
        return struct.unpack(form, _piece(data, at, size))[0], at + size
    match letter:
        case "t":
            return _piece(data, at, 1) != b"\0", at + 1
        case "V":
            return None, at
        case "D":
            places, digits = struct.unpack(">Bi", _piece(data, at, 5))
            return Decimal(places, digits), at + 5
        case "S" | "x" | "A" | "F":
            piece = _piece(data, at + 4, int.from_bytes(_piece(data, at, 4), "big"))
            at += 4 + len(piece)
            if letter == "S":
                return piece, at
            return (_array(piece) if letter == "A" and outer else None), at
        case _:
            raise Malformed("there is a value of an unknown type")


def _array(data: bytes) -> list[Value]:
    values: list[Value] = []
    at = 0
    while at < len(data):
        value, at = _value(data, at, False)
        values.append(value)
    return values
