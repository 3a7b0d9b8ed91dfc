"""The Variable Byte Integer (1.5.5), which says how long packets and property blocks are. It has one to four bytes."""

from __future__ import annotations

from .errors import MalformedPacket

LONGEST_LENGTH = 268_435_455
LARGEST_PACKET = LONGEST_LENGTH + 5  # bytes of a packet with its fixed header


def encode_length(value: int) -> bytes:
    """The bytes of a length of 0 to 268,435,455, in the shortest form [MQTT-1.5.5-1]. Raises ValueError beyond."""
    if value < 128:
        return bytes((value,))
    if value > LONGEST_LENGTH:
        raise ValueError(f"{value} does not fit a variable byte integer (at most {LONGEST_LENGTH})")
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        if not value:
            out.append(low)
            return bytes(out)
        out.append(low | 0x80)


def read_length(data: bytes | bytearray, position: int, end: int, what: str = "the Remaining Length") -> tuple[int, int]:
    """(length, position after it) of a length from a peer; (-1, position) while it is incomplete before `end`.

    what: for errors. Raises MalformedPacket for more than four bytes and for another form than the shortest [MQTT-1.5.5-1].
    """
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    length = shift = 0
    for index in range(position, min(position + 4, end)):
        byte = data[index]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise MalformedPacket(f"{what} is not in its shortest form", "MQTT-1.5.5-1")
            return length, index + 1
        shift += 7
    if position + 4 <= end:
        raise MalformedPacket(f"{what} is longer than four bytes", "1.5.5")
    return -1, position


def known_length(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """(length, position after it) of a length that has been checked. Raises IndexError if the data ends in it."""
    length = shift = 0
    while True:
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, position
        shift += 7
