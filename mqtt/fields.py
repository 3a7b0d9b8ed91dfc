"""The data types of MQTT (1.5), read from and written to bytes.

Readers take the bytes and a position and return the value and the position after it; each raises `MalformedPacket` when
the bytes end early or the value is ill-formed. Writers raise `UsageError` for what does not fit. Nothing here knows packets.
"""

from __future__ import annotations

import re

from .errors import MalformedPacket, UsageError
from .length import LONGEST_LENGTH, encode_length, read_length

MAX_STRING = 65_535
# U+0000 to U+001F, U+007F to U+009F, U+FDD0 to U+FDEF, and the last two of each plane
_DOUBTFUL = re.compile(
    rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xef\xb7[\x90-\xaf]|\xef\xbf[\xbe\xbf]|[\xf0-\xf4][\x8f\x9f\xaf\xbf]\xbf[\xbe\xbf]"
)


def truncated(what: str) -> MalformedPacket:
    """The packet ends inside `what`."""
    return MalformedPacket(f"the packet ends inside {what}", "4.13.1")


def read_u16(data: bytes, position: int, what: str) -> tuple[int, int]:
    """A Two Byte Integer (1.5.2)."""
    end = position + 2
    if end > len(data):
        raise truncated(what)
    return data[position] << 8 | data[position + 1], end


def read_varint(data: bytes, position: int, what: str) -> tuple[int, int]:
    """A Variable Byte Integer of at most 4 bytes, in its shortest form [MQTT-1.5.5-1]."""
    end = len(data)
    if position < end and (value := data[position]) < 0x80:  # most have one byte
        return value, position + 1
    value, after = read_length(data, position, end, what)
    if value < 0:
        raise truncated(what)
    return value, after


def read_binary(data: bytes, position: int, what: str) -> tuple[bytes, int]:
    """Binary Data (1.5.6): a two-byte length and that many bytes."""
    start = position + 2
    if start > len(data):
        raise truncated(what)
    end = start + (data[position] << 8 | data[position + 1])
    if end > len(data):
        raise truncated(what)
    return data[start:end], end


def read_string(data: bytes, position: int, what: str) -> tuple[str, int]:
    """A UTF-8 Encoded String (1.5.4), well-formed and without U+0000."""
    raw, end = read_binary(data, position, what)
    return text(raw, what), end


def text(raw: bytes, what: str) -> str:
    """Decode UTF-8 strictly: no surrogates, no overlong forms [MQTT-1.5.4-1], no U+0000 [MQTT-1.5.4-2]."""
    try:
        value = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(f"{what} is not well-formed UTF-8: {error.reason} at byte {error.start}", "MQTT-1.5.4-1") from None
    if "\0" in value:
        raise MalformedPacket(f"{what} contains U+0000", "MQTT-1.5.4-2")
    return value


def doubtful(raw: bytes) -> bool:
    """Whether valid UTF-8 has characters over which a receiver may close the connection: control characters and non-characters (1.5.4).

    Mosquitto does; mqmesh takes them.
    """
    return _DOUBTFUL.search(raw) is not None


def write_u16(value: int, what: str) -> bytes:
    """A Two Byte Integer (1.5.2)."""
    if not 0 <= value <= 0xFFFF:
        raise UsageError(f"{what} is {value}, not 0 to 65535")
    return value.to_bytes(2, "big")


def write_u32(value: int, what: str) -> bytes:
    """A Four Byte Integer (1.5.3)."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise UsageError(f"{what} is {value}, not 0 to 4294967295")
    return value.to_bytes(4, "big")


def write_varint(value: int, what: str) -> bytes:
    """A Variable Byte Integer (1.5.5)."""
    if not 0 <= value <= LONGEST_LENGTH:
        raise UsageError(f"{what} is {value}, not 0 to {LONGEST_LENGTH}")
    return encode_length(value)


def write_binary(value: bytes, what: str) -> bytes:
    """Binary Data (1.5.6)."""
    if len(value) > MAX_STRING:
        raise UsageError(f"{what} has {len(value)} bytes, at most {MAX_STRING} fit")
    return len(value).to_bytes(2, "big") + value


def write_string(value: str, what: str) -> bytes:
    """A UTF-8 Encoded String (1.5.4) of at most 65,535 bytes."""
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} contains a surrogate, which UTF-8 cannot hold") from None
    if "\0" in value:
        raise UsageError(f"{what} contains U+0000")
    if len(raw) > MAX_STRING:
        raise UsageError(f"{what} has {len(raw)} bytes, at most {MAX_STRING} fit")
    return len(raw).to_bytes(2, "big") + raw
