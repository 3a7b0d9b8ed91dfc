"""Messages of different topics and sizes without properties, held as topics and payloads.

This is what the mesh holds in custody and what it delivers of messages that are not alike. It becomes frames by one join over a flat list
of parts. What differs from recipient to recipient (packet identifiers, envelopes) stands at a fixed stride in that list and is put in
with one slice assignment, so that each message costs some slots of a list, whatever its topic and size.

Invariants: no retain flag, no properties, no expiry; topics are validated.
"""

from __future__ import annotations

from ..length import encode_length
from .batch import Batch
from .forms import form_of, keep_form
from .run import PAIRS, Run

HEADLINES_MAX = 20_000  # fixed headers kept for one first byte
PART_BYTES = 8  # of a part of a frame in a list


class Headlines(dict[int, bytes]):
    """Remaining Length -> fixed header, for one first byte; made when first asked for."""

    __slots__ = ("_first",)

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = bytes((first,))

    def __missing__(self, remaining: int) -> bytes:
        if len(self) >= HEADLINES_MAX:
            self.clear()
        headline = self[remaining] = self._first + encode_length(remaining)
        return headline


HEADLINES = {first: Headlines(first) for first in range(0x30, 0x3E)}


class PartsBatch(Batch):
    """Messages of QoS `qos`.

    names: their topics as they stand on the wire, with two bytes of length in front.
    """

    __slots__ = ("_payloads", "names")

    topic = b""
    properties = b""
    retain = False
    expiry = None

    def __init__(self, names: list[bytes], payloads: list[bytes], qos: int, received: float) -> None:
        self.qos = qos
        self.received = received
        self.mark = None
        self.forms = None
        self.count = len(names)
        self.names = names
        self.length = -(-(sum(map(len, names)) + sum(map(len, payloads))) // len(names))
        self._payloads = payloads

    @property
    def topics(self) -> list[bytes]:
        """See `Batch`."""
        return [name[2:] for name in self.names]

    @property
    def payloads(self) -> list[bytes]:
        """See `Batch`."""
        return self._payloads

    def messages(self) -> list[tuple[bytes, bytes]]:
        """See `Batch`."""
        return list(zip(self.topics, self._payloads, strict=True))

    def parts(self) -> PartsBatch:
        """See `Batch`."""
        return self

    def written(self) -> tuple[bytes, int]:
        """See `Batch`."""
        return b"".join(self.flat(0x30 | self.qos << 1, b"\0\0" if self.qos else b"")), 4

    def part(self, start: int, stop: int) -> PartsBatch:
        """See `Batch`."""
        made = PartsBatch(self.names[start:stop], self._payloads[start:stop], self.qos, self.received)
        if self.mark is not None:
            made.mark = self.mark.part(start, stop)
        return made

    def chosen(self, indexes: list[int]) -> PartsBatch:
        """See `Batch`."""
        made = PartsBatch([self.names[i] for i in indexes], [self._payloads[i] for i in indexes], self.qos, self.received)
        if self.mark is not None:
            made.mark = self.mark.chosen(indexes)
        return made

    def single(self, index: int) -> Run:
        """See `Batch`."""
        made = Run(self.names[index][2:], self.qos, False, [self._payloads[index]], b"", None, self.received)
        if self.mark is not None:
            made.mark = self.mark.part(index, index + 1)
        return made

    def block(self, version: int, retain: bool = False, more: bytes = b"") -> bytes:
        """See `Batch`."""
        key = (version, retain, more if version == 5 else b"")
        block: bytes | None = form_of(self, key)
        if block is None:
            block = b"".join(self.flat(0x30 | retain, _block_of(version, key[2])))
            keep_form(self, key, block, len(block))
        return block

    def stamped(
        self, version: int, qos: int, retain: bool, more: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """See `Batch`."""
        key = (version, qos, retain, more if version == 5 else b"")
        block = _block_of(version, key[3])
        flat: list[bytes] | None = form_of(self, key)
        if flat is None and count < self.count:
            return self.part(start, start + count).stamped(version, qos, retain, more, 0, count, first, duplicate)
        if flat is None:
            flat = self.flat(0x30 | qos << 1 | retain, b"\0\0" + block)
            keep_form(self, key, flat, PART_BYTES * len(flat))
        stamped = flat[4 * start : 4 * (start + count)]
        if block:
            stamped[2::4] = [number + block for number in PAIRS.of(first, count)]
        else:
            stamped[2::4] = PAIRS.of(first, count)
        if duplicate:
            stamped[0::4] = [bytes((0x38 | qos << 1 | retain,)) + headline[1:] for headline in stamped[0::4]]
        return b"".join(stamped)

    def flat(self, first: int, between: bytes, more: int = 0, start: int = 0) -> list[bytes]:
        """The parts of the frames from message `start` on, four each: fixed header, topic, what stands between, payload.

        first: first byte. between: put between topic and payload. more: bytes that will stand there besides.
        """
        headlines = HEADLINES[first]
        more += len(between)
        names, payloads = (self.names[start:], self._payloads[start:]) if start else (self.names, self._payloads)
        return [
            part
            for name, payload in zip(names, payloads, strict=True)
            for part in (headlines[len(name) + len(payload) + more], name, between, payload)
        ]


def _block_of(version: int, more: bytes) -> bytes:
    """The property block of each message: nothing for version 4."""
    return encode_length(len(more)) + more if version == 5 else b""
