"""Cutting a stream of bytes into packets (2.1).

A `Framer` is fed with whatever the transport delivers and returns the packets that are complete, as (first byte, body).
It judges a packet by its first bytes: an impossible first byte, a bad Remaining Length or a packet beyond the size limit is an
error before a byte of the body is kept, so that a peer cannot make it buffer more than `max_size` bytes and one chunk.

Invariants: the packets returned do not depend on how the stream was cut into chunks; after an error nothing more comes.
It does not know packets beyond their fixed header.
"""

from __future__ import annotations

from .decode import check_first_byte
from .errors import PeerError
from .length import read_length
from .reasons import Reason


def single_body(data: bytes) -> int:
    """Where the body begins, if `data` is one whole packet and nothing else, of 5 to 16,386 bytes; otherwise 0."""
    size = len(data)
    if size < 5:
        return 0
    length = data[1]
    if length < 128:
        return 2 if length + 2 == size else 0
    high = data[2]
    return 3 if 0 < high < 128 and length - 128 + (high << 7) + 3 == size else 0


class Framer:
    """max_size: the largest packet in bytes, fixed header included (the Maximum Packet Size we announced)."""

    __slots__ = ("_buffer", "_need", "error", "max_size")

    def __init__(self, max_size: int = 268_435_460) -> None:
        self.max_size = max_size
        self.error: PeerError | None = None
        self._buffer = bytearray()  # the beginning of a packet
        self._need = 0  # that packet's size, 0 while unknown

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take bytes; return the packets that they complete, as (first byte, body), in order.

        If a bad packet follows good ones in `data`, the good ones are returned, `error` is set, and the next call raises it.
        Raises `MalformedPacket`, or `PeerError` with PACKET_TOO_LARGE [MQTT-3.2.2-15].
        """
        if self.error is not None:
            raise self.error
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        self._need = 0
        frames: list[tuple[int, bytes]] = []
        try:
            position = self._cut(data, frames)
        except PeerError as error:
            self.error = error
            if not frames:
                raise
            return frames
        self._buffer += data[position:]
        return frames

    def _cut(self, data: bytes, frames: list[tuple[int, bytes]]) -> int:
        """Append the whole packets of `data` to `frames`; how many bytes they have."""
        position = 0
        while True:
            header = self.header(data, position)
            if header is None:
                return position
            start, end = header
            if end > len(data):
                self._need = end - position
                return position
            frames.append((data[position], data[start:end]))
            position = end

    def unfinished(self) -> int:
        """How many bytes of an incomplete packet are held."""
        return len(self._buffer)

    def header(self, data: bytes, position: int) -> tuple[int, int] | None:
        """(start of the body, end of the packet), or None while the fixed header is incomplete."""
        if position >= len(data):
            return None
        check_first_byte(data[position])
        length, start = read_length(data, position + 1, len(data))
        if length < 0:
            return None
        if start + length - position > self.max_size:
            text = f"a packet of {start + length - position} bytes, at most {self.max_size} are allowed"
            raise PeerError(Reason.PACKET_TOO_LARGE, text, "MQTT-3.2.2-15")
        return start, start + length
