"""Cuts the byte stream of a link into whole packets, without touching the packets.

Nearly everything on a link is PUBLISH, and nearly all of it in runs of equal frames. So the unit is not the packet: what
comes out is one bytes object with as many whole PUBLISH packets as the chunk held. The scan looks at fixed headers
only. Where a frame's header repeats right behind it, it looks at the headers' bytes in strides of the frame's size
(`_run_end`): if the first header's bytes stand at each stride, each frame has the same size by induction, and a chunk
of a thousand frames costs a few slices.

Invariants
- the concatenation of all pieces and the kept tail is what was fed;
- a packet that comes in many chunks is copied once, when it is whole;
- a packet above the bound is refused by its header, before it is kept.

It does not know what a packet means, and after an error it takes no more.
"""

from __future__ import annotations

from typing import NamedTuple

from ...mqtt.errors import MalformedPacket, PeerError
from ...mqtt.length import read_length
from ...mqtt.reasons import Reason

PUBLISH = 0x30
_STEPS = 8  # frames looked at one by one before the scan goes over to strides
_LARGE = 65536  # a cut packet of this size is completed alone, a smaller one together with what follows it


class Control(NamedTuple):
    """A packet that is not a PUBLISH: its first byte and what follows the fixed header."""

    first: int
    body: bytes


class Splitter:
    """Feed it chunks; `error` says why it stopped taking them, None while all is well."""

    __slots__ = ("_have", "_largest", "_need", "_parts", "error")

    def __init__(self, largest: int) -> None:
        """largest: the size of the largest packet taken, in bytes, fixed header included."""
        self._largest = largest
        self._parts: list[bytes] = []  # the beginning of a packet whose end has not come
        self._have = 0  # bytes in them
        self._need = 0  # size of that packet, 0 while its header is not whole
        self.error: PeerError | None = None

    @property
    def partial(self) -> bool:
        """Whether a packet is incomplete, or no more is taken."""
        return bool(self._parts) or self.error is not None

    def is_one(self, data: bytes) -> bool:
        """Whether bytes that would come now are one whole PUBLISH, which need not be fed."""
        if self._parts or self.error is not None or len(data) > self._largest or data[0] & 0xF0 != PUBLISH:
            return False
        try:
            length, start = read_length(data, 1, len(data))
        except MalformedPacket:
            return False
        return length >= 0 and start + length == len(data)

    def feed(self, data: bytes) -> list[bytes | Control]:
        """The whole packets up to here: PUBLISH packets as bytes, as many in one as came in a row, others as Control."""
        pieces: list[bytes | Control] = []
        if self.error is not None:
            return pieces
        if self._parts:
            missing = self._need - self._have
            if len(data) < missing:
                self._parts.append(data)
                self._have += len(data)
                return pieces
            alone = self._need > _LARGE
            whole = b"".join((*self._parts, memoryview(data)[:missing] if alone else data))
            data = data[missing:] if alone else b""
            self._parts = []
            pieces += self._scan(whole)
        if data and self.error is None:
            pieces += self._scan(data)
        return pieces

    def _scan(self, data: bytes) -> list[bytes | Control]:
        """The packets of data; keeps the tail. One function, as its parts share the positions and it is the hot path."""
        pieces: list[bytes | Control] = []
        start = position = need = 0
        end = len(data)
        while position + 1 < end:
            first, length, header = data[position], data[position + 1], 2
            if length > 127:
                try:
                    length, header = read_length(data, position + 1, end)
                except MalformedPacket as error:
                    self.error = error
                    break
                if length < 0:
                    break
                header -= position
            need = header + length
            if need > self._largest:
                text = f"a packet of {need} bytes, at most {self._largest} are taken"
                self.error = PeerError(Reason.PACKET_TOO_LARGE, text, "MQTT-3.1.2-24")
                break
            stop = position + need
            if stop > end:
                break
            if first & 0xF0 != PUBLISH:
                if start < position:
                    pieces.append(data[start:position])
                pieces.append(Control(first, data[position + header : stop]))
                start = stop
            elif data.startswith(headline := data[position : position + header], stop):
                stop = _run_end(data, stop, need, headline)
            position = stop
            need = 0
        if start < position:
            pieces.append(data[start:position] if start or position < end else data)
        if position < end and self.error is None:
            self._parts = [data[position:] if position else data]
            self._have, self._need = end - position, need
        return pieces


def _run_end(data: bytes, position: int, size: int, header: bytes) -> int:
    """Where the run of frames ends that all have this header and size; data has that header at position.

    The last frame counted is whole. Strides grow, so that a short run does not pay for a long chunk.
    """
    end = len(data)
    for _ in range(_STEPS):
        if position + size > end or not data.startswith(header, position):
            return position
        position += size
    window = 32
    while (whole := (end - position) // size) > 0:
        count = min(whole, window)
        stop = position + count * size
        for i in range(len(header)):
            column = data[position + i : stop : size]
            if column.count(header[i : i + 1]) != len(column):
                count = min(count, len(column) - len(column.lstrip(header[i : i + 1])))
        position += count * size
        if position < stop:
            break
        window *= 8
    return position
