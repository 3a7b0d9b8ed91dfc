"""A *run*: PUBLISH packets in a row that differ only in their payload bytes and packet identifiers.

A publisher that sends quickly puts many packets of one topic, one QoS and one size into one TCP segment. They are found by comparing
bytes. A single message is a run of one.

Invariants
- all payloads of a run have the same length, so that each *variant* (protocol version, QoS, retain flag, further
  properties) is a block of frames of one size, and a field at a known offset is a strided slice of that block;
- a run is immutable once made; variants are built when first asked for and shared by all recipients (`forms.py`).

What it does not know: recipients, sessions, links, clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .batch import Batch
from .cutting import part_of_each
from .forms import form_of, keep_form

if TYPE_CHECKING:
    from .parts import PartsBatch

# PID_HIGH[p:p+k] and PID_LOW[p:p+k] are the byte columns of the packet identifiers p, p+1, .. p+k-1.
from ..length import encode_length

PID_HIGH = b"".join(bytes((high,)) * 256 for high in range(256))
PID_LOW = bytes(range(256)) * 256
_pids = bytearray(2 * 65536)
_pids[::2], _pids[1::2] = PID_HIGH, PID_LOW
PIDS = bytes(_pids)  # the identifier p in two bytes, at 2*p


PAYLOADS = "payloads"  # this form of a run: its payloads, cut from the frames as they came


class Pairs:
    """Packet identifiers as objects of two bytes each, made when they are first asked for."""

    def __init__(self) -> None:
        self._made: list[bytes] = []

    def of(self, first: int, count: int) -> list[bytes]:
        """Those of first, first+1, ..., first+count-1."""
        made, stop = self._made, first + count
        if stop > len(made):
            made = self._made = [PIDS[at : at + 2] for at in range(0, 2 * min(2 * stop, 65536), 2)]
        return made[first:stop]


PAIRS = Pairs()


def acknowledgement_table(first_byte: int) -> bytes:
    """All short acknowledgements in order: entry p is the 4 bytes ``first_byte 02 p_high p_low``.

    ``table[4*p : 4*(p+k)]`` is what acknowledges the identifiers p to p+k-1, so that k acknowledgements are
    written with one slice and recognised with one comparison.
    """
    table = bytearray(65536 * 4)
    table[0::4] = bytes([first_byte]) * 65536
    table[1::4] = b"\x02" * 65536
    table[2::4] = PID_HIGH
    table[3::4] = PID_LOW
    return bytes(table)


class Frames(NamedTuple):
    """A block of `count` frames of `size` bytes each; the packet identifier of frame i stands at i*size+pid_offset."""

    data: bytes
    size: int
    pid_offset: int  # 0 when the frames carry no packet identifier (QoS 0)


class Run(Batch):
    """`count` messages of one topic, QoS, retain flag, property block and payload length."""

    __slots__ = ("_payloads", "_raw", "_raw_version", "expiry", "properties", "retain", "topic")

    uniform = True

    def __init__(
        self,
        topic: bytes,
        qos: int,
        retain: bool,
        payloads: list[bytes] | None,
        properties: bytes = b"",
        expiry: int | None = None,
        received: float = 0.0,
        raw: tuple[bytes, int, int, int] | None = None,
        raw_version: int = 0,
    ) -> None:
        """Give `payloads`, or `raw` to cut them from later.

        topic: UTF-8, already validated.
        raw: (data, offset of the first payload, frame size, payload length): the frames as they came.
        raw_version: 4 or 5 when recipients of this version may get the raw frames: their QoS, retain flag and properties are the run's own.
        """
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expiry = expiry
        self.received = received
        self.mark = None
        self.forms = None
        self._payloads = payloads
        self._raw = raw
        self._raw_version = raw_version
        if payloads is not None:
            self.count = len(payloads)
            self.length = len(payloads[0])
        else:
            assert raw is not None
            data, _, size, self.length = raw
            self.count = len(data) // size

    @property
    def payloads(self) -> list[bytes]:
        """The payloads in order, cut from the received bytes when first needed."""
        if self._payloads is not None:
            return self._payloads
        payloads: list[bytes] | None = form_of(self, PAYLOADS)
        if payloads is None:
            assert self._raw is not None
            data, offset, size, length = self._raw
            payloads = part_of_each(data, offset, length, size)
            keep_form(self, PAYLOADS, payloads, len(data))
        return payloads

    def messages(self) -> list[tuple[bytes, bytes]]:
        """See `Batch`."""
        return [(self.topic, payload) for payload in self.payloads]

    @property
    def topics(self) -> list[bytes]:
        """See `Batch`."""
        return [self.topic] * self.count

    def frames(self, version: int, qos: int, retain: bool = False, more: bytes = b"") -> Frames:
        """The run as PUBLISH packets of one size, DUP clear; their packet identifiers are whatever they are."""
        if version == self._raw_version and qos == self.qos and retain == self.retain and (version == 4 or not more):  # `_came_as`
            assert self._raw is not None
            data, offset, size, _ = self._raw
            if qos and version == 5:
                own = len(self.properties)
                offset -= own + (1 if own < 128 else len(encode_length(own)))
            return Frames(data, size, offset - 2 if qos else 0)
        key = (version, qos, retain, more if version == 5 else b"")
        forms = self.forms  # as `form_of` does; hot: once for each recipient
        frames: Frames | None = forms.get(key) if forms is not None else None
        if frames is None:
            frames = self._encode(*key)
            keep_form(self, key, frames, len(frames.data))
        return frames

    def _came_as(self, version: int, qos: int, retain: bool, more: bytes) -> bool:
        """Whether the frames as they came are what such a recipient gets."""
        return version == self._raw_version and qos == self.qos and retain == self.retain and (version == 4 or not more)

    def packets(self) -> tuple[int, Frames]:
        """The run at its own QoS and retain flag, with the least work: the version of the packets, and these. What is made is not kept."""
        version = self._raw_version
        if version:
            return version, self.frames(version, self.qos, self.retain)
        return 4, self._encode(4, self.qos, self.retain, b"")

    def block(self, version: int, retain: bool = False, more: bytes = b"") -> bytes:
        """See `Batch`."""
        return self.frames(version, 0, retain, more).data

    def stamped(
        self, version: int, qos: int, retain: bool, more: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """See `Batch`."""
        if count < self.count and not self._came_as(version, qos, retain, more):
            return self.part(start, start + count).stamped(version, qos, retain, more, 0, count, first, duplicate)
        data, size, offset = self.frames(version, qos, retain, more)
        if len(data) != count * size:
            data = data[start * size : (start + count) * size]
        if count == 1 and not duplicate:
            return b"".join((data[:offset], PIDS[2 * first : 2 * first + 2], data[offset + 2 :]))
        stamped = bytearray(data)
        stamped[offset::size] = PID_HIGH[first : first + count]
        stamped[offset + 1 :: size] = PID_LOW[first : first + count]
        if duplicate:
            stamped[0::size] = bytes((data[0] | 8,)) * count
        return stamped

    def _encode(self, version: int, qos: int, retain: bool, more: bytes) -> Frames:
        topic = self.topic
        middle = b"\0\0" if qos else b""
        if version == 5:
            properties = self.properties + more if more else self.properties
            middle += encode_length(len(properties)) + properties
        header = bytes((0x30 | qos << 1 | retain,))
        length = encode_length(2 + len(topic) + len(middle) + self.length)
        prefix = b"".join((header, length, len(topic).to_bytes(2, "big"), topic, middle))
        pid_offset = len(header) + len(length) + 2 + len(topic) if qos else 0
        return Frames(prefix + prefix.join(self.payloads), len(prefix) + self.length, pid_offset)

    def part(self, start: int, stop: int) -> Run:
        """See `Batch`."""
        if self._raw is not None:
            data, offset, size, length = self._raw
            raw = (data[start * size : stop * size], offset, size, length)
            made = Run(self.topic, self.qos, self.retain, None, self.properties, self.expiry, self.received, raw, self._raw_version)
        else:
            made = self._with(self.payloads[start:stop])
        if self.mark is not None:
            made.mark = self.mark.part(start, stop)
        return made

    def every(self, start: int, step: int) -> Run:
        """See `Batch`."""
        made = self._with(self.payloads[start::step])
        if self.mark is not None:
            made.mark = self.mark.chosen(list(range(start, self.count, step)))
        return made

    def chosen(self, indexes: list[int]) -> Run:
        """See `Batch`."""
        payloads = self.payloads
        made = self._with([payloads[i] for i in indexes])
        if self.mark is not None:
            made.mark = self.mark.chosen(indexes)
        return made

    def single(self, index: int) -> Run:
        """See `Batch`."""
        return self.part(index, index + 1)

    def parts(self) -> PartsBatch:
        """See `Batch`."""
        from .parts import PartsBatch

        name = len(self.topic).to_bytes(2, "big") + self.topic
        made = PartsBatch([name] * self.count, self.payloads, self.qos, self.received)
        made.mark = self.mark
        return made

    def _with(self, payloads: list[bytes]) -> Run:
        return Run(self.topic, self.qos, self.retain, payloads, self.properties, self.expiry, self.received)
