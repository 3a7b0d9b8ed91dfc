"""Messages of one topic and one expiry, of different sizes, each with its own properties or all without: what a queue gives.

As with `PartsBatch` it becomes frames by one join over a flat list of parts, and no step of it is a loop over messages in Python. What
stands between topic and payload (packet identifier and properties) is different for each message.

Invariants: no retain flag; topic and properties are validated.
"""

from __future__ import annotations

from itertools import repeat
from operator import add

from ..length import encode_length
from .batch import Batch
from .parts import HEADLINES
from .run import PAIRS, Run


class Blocks(dict[bytes, bytes]):
    """Encoded properties of a message -> these and `more` behind them, with their length in front; made when first asked for."""

    __slots__ = ("_more",)

    def __init__(self, more: bytes) -> None:
        super().__init__()
        self._more = more

    def __missing__(self, own: bytes) -> bytes:
        found = own + self._more
        found = self[own] = encode_length(len(found)) + found
        return found


class DescribedBatch(Batch):
    """Messages of QoS `qos`. described: the encoded properties of each message, without their length in front; empty: none has any."""

    __slots__ = ("_key", "_parts", "_payloads", "described", "expiry", "topic")

    properties = b""
    retain = False

    def __init__(self, topic: bytes, payloads: list[bytes], described: list[bytes], qos: int, expiry: int | None, received: float) -> None:
        self.topic = topic
        self.qos = qos
        self.expiry = expiry
        self.received = received
        self.mark = None
        self.forms = None
        self.count = len(payloads)
        self.described = described
        self._payloads = payloads
        self._key: tuple[int, int, int, bytes] | None = None
        self._parts: list[bytes] = []
        self.length = -(-(sum(map(len, payloads)) + sum(map(len, described))) // len(payloads)) + len(topic)

    @property
    def payloads(self) -> list[bytes]:
        """See `Batch`."""
        return self._payloads

    def messages(self) -> list[tuple[bytes, bytes]]:
        """See `Batch`."""
        return [(self.topic, payload) for payload in self._payloads]

    def part(self, start: int, stop: int) -> DescribedBatch:
        """See `Batch`."""
        return self._with(list(range(start, stop)))

    def chosen(self, indexes: list[int]) -> DescribedBatch:
        """See `Batch`."""
        return self._with(indexes)

    def _with(self, indexes: list[int]) -> DescribedBatch:
        payloads, described = [self._payloads[at] for at in indexes], [self.described[at] for at in indexes] if self.described else []
        made = DescribedBatch(self.topic, payloads, described, self.qos, self.expiry, self.received)
        if self.mark is not None:
            made.mark = self.mark.chosen(indexes)
        return made

    def single(self, index: int) -> Run:
        """See `Batch`."""
        own = self.described[index] if self.described else b""
        made = Run(self.topic, self.qos, False, [self._payloads[index]], own, self.expiry, self.received)
        if self.mark is not None:
            made.mark = self.mark.part(index, index + 1)
        return made

    def block(self, version: int, retain: bool = False, more: bytes = b"") -> bytes:
        """See `Batch`."""
        return self._frames(version, 0x30 | retain, [b""] * self.count, more, 0)

    def stamped(
        self, version: int, qos: int, retain: bool, more: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """See `Batch`."""
        return self._frames(version, 0x30 | duplicate << 3 | qos << 1 | retain, PAIRS.of(first, count), more, start)

    def _frames(self, version: int, first: int, numbers: list[bytes], more: bytes, start: int) -> bytes:
        """Frames of messages from `start` on, one for each packet identifier. first: their first byte.

        Where these are a part of the batch, the others are mostly asked for next: what all consist of is kept.
        """
        count, wide = len(numbers), 4 if version == 5 else 3
        if count == self.count:
            found = self._laid_out(version, first, len(numbers[0]), more)
        else:
            key = version, first, len(numbers[0]), more
            if self._key != key:
                self._key, self._parts = key, self._laid_out(*key)
            found = self._parts[wide * start : wide * (start + count)]
        found[1::wide] = numbers
        return b"".join(found)

    def _laid_out(self, version: int, first: int, number: int, more: bytes) -> list[bytes]:
        """The parts of all frames but their packet identifiers, which are the second ones. number: the size of these."""
        name = len(self.topic).to_bytes(2, "big") + self.topic
        sizes, own = map(len, self._payloads), []
        if version == 5:
            own = list(map(Blocks(more).__getitem__, self.described or [b""] * self.count))
            sizes = map(add, sizes, map(len, own))
        wide = 4 if own else 3
        found = [b""] * (wide * self.count)
        found[0::wide] = map(add, map(HEADLINES[first].__getitem__, map((len(name) + number).__add__, sizes)), repeat(name))
        if own:
            found[2::wide] = own
        found[wide - 1 :: wide] = self._payloads
        return found
