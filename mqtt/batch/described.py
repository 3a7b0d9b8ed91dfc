"""Messages of one topic and one expiry, of different sizes, each with its own properties: what a queue gives of messages that have some.

As with `PartsBatch` it becomes frames by one join over a flat list of parts. What stands between topic and payload (packet identifier
and properties) is different for each message.

Invariants: no retain flag; topic and properties are validated.
"""

from __future__ import annotations

from ..length import encode_length
from .batch import Batch
from .parts import HEADLINES
from .run import PIDS, Run


class DescribedBatch(Batch):
    """Messages of QoS `qos`. described: the encoded properties of each message, without their length in front."""

    __slots__ = ("_payloads", "described", "expiry", "topic")

    properties = b""
    retain = False

    def __init__(self, topic: bytes, payloads: list[bytes], described: list[bytes], qos: int, expiry: int | None, received: float) -> None:
        self.topic = topic
        self.qos = qos
        self.expiry = expiry
        self.received = received
        self.mark = None
        self.count = len(payloads)
        self.described = described
        self._payloads = payloads
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
        payloads, described = [self._payloads[at] for at in indexes], [self.described[at] for at in indexes]
        made = DescribedBatch(self.topic, payloads, described, self.qos, self.expiry, self.received)
        if self.mark is not None:
            made.mark = self.mark.chosen(indexes)
        return made

    def single(self, index: int) -> Run:
        """See `Batch`."""
        made = Run(self.topic, self.qos, False, [self._payloads[index]], self.described[index], self.expiry, self.received)
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
        numbers = [PIDS[at : at + 2] for at in range(2 * first, 2 * (first + count), 2)]
        return self._frames(version, 0x30 | duplicate << 3 | qos << 1 | retain, numbers, more, start)

    def _frames(self, version: int, first: int, numbers: list[bytes], more: bytes, start: int) -> bytes:
        """Frames of messages from `start` on, one for each packet identifier. first: their first byte."""
        name = len(self.topic).to_bytes(2, "big") + self.topic
        headlines, size = HEADLINES[first], len(name)
        found: list[bytes] = []
        for at, number in enumerate(numbers, start):
            payload = self._payloads[at]
            if version == 5:
                own = self.described[at] + more
                number += encode_length(len(own)) + own
            found += (headlines[size + len(number) + len(payload)], name, number, payload)
        return b"".join(found)
