"""Bounds on what one packet may make its receiver do: the number of its properties and of its topic filters.

The standard sets none: a packet of 5 MB may hold a million User Properties or filters, each of which costs the reader far more than its
bytes. `check_bounds` counts before anything is decoded. A packet too short to exceed a bound costs one comparison, any other a walk
over lengths that ends at the bound. What is ill-formed is left to the decoder, which names the rule.
"""

from __future__ import annotations

from .errors import MalformedPacket, PeerError
from .length import read_length
from .properties import PacketKind
from .reasons import Reason

SHORTEST_PROPERTY = 5  # bytes of an empty User Property, the only one that a client may repeat at will
SINGLE = 16  # other properties that one block can hold, each once
SHORTEST_FILTER = 3  # bytes: a length and one character; SUBSCRIBE adds options

_FIXED = {0x01: 1, 0x02: 4, 0x11: 4, 0x13: 2, 0x17: 1, 0x18: 4, 0x19: 1, 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1, 0x25: 1, 0x27: 4}
_FIXED |= {0x28: 1, 0x29: 1, 0x2A: 1}
_VARINT = 0x0B
_PAIR = 0x26


def check_bounds(first: int, body: bytes, version: int, properties: int, filters: int) -> None:
    """Raise `PeerError` (0x97) for a packet with more properties in one block, or more topic filters, than may be.

    first: the fixed header's first byte. body: what follows the Remaining Length. version: of the connection; CONNECT states its own.
    """
    size = len(body)
    kind = first >> 4
    if kind in (PacketKind.SUBSCRIBE, PacketKind.UNSUBSCRIBE):
        _check_filters(body, version, properties, filters, 1 if kind == PacketKind.SUBSCRIBE else 0)
    elif size <= SHORTEST_PROPERTY * properties or kind == PacketKind.PUBLISH:  # PUBLISH: `check_properties`
        return
    elif kind == PacketKind.CONNECT:
        _check_connect(body, properties)
    elif version == 5:
        check_properties(body, 1 if kind in (PacketKind.DISCONNECT, PacketKind.AUTH) else 3, properties)


def check_properties(data: bytes, position: int, most: int) -> int:
    """Count the properties of the block whose length stands at `position`: where the block ends, -1 if that cannot be read.

    Raises `PeerError` (0x97) when there are more than `most`.
    """
    end = len(data)
    if position >= end:
        return -1
    try:
        length, position = read_length(data, position, end)
    except MalformedPacket:
        return -1
    if length < 0:
        return -1
    stop = min(position + length, end)
    if position < stop and length > SHORTEST_PROPERTY * most:
        at = position
        for _ in range(most + SINGLE):
            at = _after(data, at, stop)
            if at >= stop:
                break
        else:
            raise PeerError(Reason.QUOTA_EXCEEDED, f"a packet with more than {most} properties (limits.packet_properties)", "3.3.2.3.7")
    return position + length


def _after(data: bytes, position: int, stop: int) -> int:
    """The position after the property at `position`; `stop` when it cannot be read."""
    identifier = data[position]
    fixed = _FIXED.get(identifier)
    if fixed is not None:
        return position + 1 + fixed
    position += 1
    if identifier == _VARINT:
        while position < stop and data[position] & 0x80:
            position += 1
        return position + 1
    for _ in range(2 if identifier == _PAIR else 1):
        if position + 2 > stop:
            return stop
        position += 2 + (data[position] << 8 | data[position + 1])
    return position


def _check_connect(body: bytes, properties: int) -> None:
    """CONNECT has a block of its own and one of its will, behind the client identifier."""
    if body[:7] != b"\0\4MQTT\5" or len(body) < 10:
        return
    position = check_properties(body, 10, properties)
    if body[7] & 0x04 and 0 < position < len(body) - 1:
        check_properties(body, position + 2 + (body[position] << 8 | body[position + 1]), properties)


def _check_filters(body: bytes, version: int, properties: int, most: int, options: int) -> None:
    """SUBSCRIBE and UNSUBSCRIBE. options: bytes behind each filter."""
    size = len(body)
    if size <= min(SHORTEST_PROPERTY * properties, (SHORTEST_FILTER + options) * most):
        return
    position = 2
    if version == 5:
        position = check_properties(body, position, properties)
    count = 0
    while 0 <= position < size - 1:
        count += 1
        if count > most:
            text = f"a packet with more than {most} topic filters (limits.packet_filters)"
            raise PeerError(Reason.QUOTA_EXCEEDED, text, "3.8.3")
        position += 2 + (body[position] << 8 | body[position + 1]) + options
