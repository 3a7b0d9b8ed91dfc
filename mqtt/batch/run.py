"""A *run*: PUBLISH packets in a row that differ in nothing but their payload bytes and packet identifiers.

The broker's unit of work is not the message but the run. A publisher that sends quickly puts many packets of one
topic, one QoS, one size into one TCP segment; they are recognised by comparing bytes, and what is done once for
the run (look up the topic, choose recipients, patch identifiers or visited bits, append to an output list) costs
the same for one message and for a thousand. A lone message is a run of one: there is no second path.

Invariants
- all payloads of a run have the same length, so that each *variant* (protocol version, QoS, retain flag, further
  properties) is a block of frames of one size, and a field at a known offset is a strided slice of that block;
- a run is immutable once made; variants are built when first asked for and shared by all recipients.

What it does not know: recipients, sessions, links, clocks.
"""

from __future__ import annotations

from typing import NamedTuple

# PID_HIGH[p:p+k] and PID_LOW[p:p+k] are the byte columns of the packet identifiers p, p+1, .. p+k-1.
from ..length import encode_length

PID_HIGH = b"".join(bytes((high,)) * 256 for high in range(256))
PID_LOW = bytes(range(256)) * 256
_pids = bytearray(2 * 65536)
_pids[::2], _pids[1::2] = PID_HIGH, PID_LOW
PIDS = bytes(_pids)  # the identifier p in two bytes, at 2*p


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


class Run:
    """`count` messages of one topic, QoS, retain flag, property block and payload length.

    topic: UTF-8 bytes, already validated. qos: the publisher's. retain: the publisher's flag.
    properties: the encoded MQTT 5 properties that travel to subscribers (no length in front; no Topic Alias, no
    Subscription Identifier); b"" from a 3.1.1 publisher. expiry: Message Expiry Interval in seconds, None without.
    received: when the broker took it, in seconds of the caller's clock.
    """

    __slots__ = ("_own", "_payloads", "_raw", "_variants", "count", "expiry", "length", "properties", "qos", "received", "retain", "topic")

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
    ) -> None:
        """Give either `payloads`, or `raw` = (data, first payload's offset, frame size, payload length) to cut them from later."""
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expiry = expiry
        self.received = received
        self._payloads = payloads
        self._raw = raw
        self._own = 0
        self._variants: dict[tuple[int, int, bool, bytes], Frames] | None = None
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
        if self._payloads is None:
            assert self._raw is not None
            data, offset, size, length = self._raw
            self._payloads = [data[i : i + length] for i in range(offset, offset + self.count * size, size)]
        return self._payloads

    def messages(self) -> list[tuple[bytes, bytes]]:
        """(topic, payload) of each message, in order."""
        return [(self.topic, payload) for payload in self.payloads]

    def expired(self, now: float) -> bool:
        """Whether its lifetime is over (MQTT-3.3.2-5); `now` on the clock of `received`. A lifetime of 0 is for those who are there."""
        return self.expiry is not None and now - self.received > self.expiry

    def as_received(self, version: int) -> None:
        """The raw frames are good for recipients of this version as they are: QoS, retain flag and properties are the run's own."""
        self._own = version

    def seed(self, version: int, qos: int, retain: bool, properties: bytes, frames: Frames) -> None:
        """Give a variant that exists already: the bytes as they were received."""
        if self._variants is None:
            self._variants = {}
        self._variants[(version, qos, retain, properties)] = frames

    def frames(self, version: int, qos: int, retain: bool = False, properties: bytes = b"") -> Frames:
        """The run as PUBLISH frames, DUP clear, for one kind of recipient; packet identifiers are whatever they are.

        version: 4 or 5. qos: the delivery's. properties: the *whole* encoded property block without its length
        (ignored for version 4); pass ``run.properties`` for the message's own, or those with more behind them.
        """
        if version == self._own and qos == self.qos and retain == self.retain and (version == 4 or properties == self.properties):
            assert self._raw is not None
            data, offset, size, _ = self._raw
            if qos and version == 5:
                offset -= len(properties) + (1 if len(properties) < 128 else len(encode_length(len(properties))))
            return Frames(data, size, offset - 2 if qos else 0)
        key = (version, qos, retain, properties if version == 5 else b"")
        if self._variants is None:
            self._variants = {}
        frames = self._variants.get(key)
        if frames is None:
            frames = self._variants[key] = self._encode(*key)
        return frames

    def stamped(
        self, version: int, qos: int, retain: bool, properties: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """`count` messages from `start` on as PUBLISH packets of QoS 1 or 2 with the identifiers first, first+1, ...

        version, qos, retain, properties: as in `frames`. duplicate: with DUP set.
        """
        data, size, offset = self.frames(version, qos, retain, properties)
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

    def _encode(self, version: int, qos: int, retain: bool, properties: bytes) -> Frames:
        topic = self.topic
        middle = b"\0\0" if qos else b""
        if version == 5:
            middle += encode_length(len(properties)) + properties
        header = bytes((0x30 | qos << 1 | retain,))
        length = encode_length(2 + len(topic) + len(middle) + self.length)
        prefix = b"".join((header, length, len(topic).to_bytes(2, "big"), topic, middle))
        pid_offset = len(header) + len(length) + 2 + len(topic) if qos else 0
        return Frames(prefix + prefix.join(self.payloads), len(prefix) + self.length, pid_offset)

    def part(self, start: int, stop: int) -> Run:
        """The messages from `start` up to `stop` as a run of their own, order kept; it holds on to no other bytes than theirs."""
        if self._raw is not None and self._payloads is None:
            data, offset, size, length = self._raw
            raw = (data[start * size : stop * size], offset, size, length)
            piece = Run(self.topic, self.qos, self.retain, None, self.properties, self.expiry, self.received, raw)
            piece._own = self._own
            return piece
        return self._with(self.payloads[start:stop])

    def every(self, start: int, step: int) -> Run:
        """Each `step`-th message from `start` on, as a run of their own, order kept."""
        return self._with(self.payloads[start::step])

    def chosen(self, indexes: list[int]) -> Run:
        """The messages at these places as a run of their own."""
        payloads = self.payloads
        return self._with([payloads[i] for i in indexes])

    def _with(self, payloads: list[bytes]) -> Run:
        return Run(self.topic, self.qos, self.retain, payloads, self.properties, self.expiry, self.received)
