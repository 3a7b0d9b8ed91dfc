"""Frames of one publisher that differ in topic, size and properties, moved as the block of bytes in which they came.

Traffic whose messages are not alike makes no long runs. But frames of one QoS, without retain flag and without properties that a broker
acts on, whose topics have the same recipients, can still be moved together. A recipient of the same version at QoS 0 gets the block
as it came. At QoS 1 and 2 the packet identifiers are written at their offsets. Only for a recipient of another version or QoS are
the frames taken apart.

Invariants: every frame has the same first byte (no DUP, no retain); no property block holds a Topic Alias, a Message Expiry Interval or
a Subscription Identifier; everything is validated before.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import NamedTuple

from ..length import encode_length, known_length
from .batch import Batch
from .forms import form_of, keep_form
from .parts import PartsBatch
from .run import PIDS, Run

FRAMES = "frames"  # this form of a batch: where its frames are
FRAME_BYTES = 200  # of one of them in memory


class Frame(NamedTuple):
    """Places in the block: the frame begins at `start`, its topic's length at `topic`, its payload at `payload`; it ends at `stop`."""

    start: int
    topic: int
    topic_end: int
    payload: int
    stop: int


class PacketBatch(Batch):
    """`count` messages of QoS `qos` as they came from a client of `version`."""

    __slots__ = ("_block", "_offsets", "_starts", "_version")

    topic = b""
    properties = b""
    retain = False
    expiry = None

    def __init__(self, block: bytes, version: int, qos: int, count: int, received: float, offsets: list[int] | None = None) -> None:
        """block: the frames. offsets: where the packet identifiers stand in it, when the caller knows."""
        self.qos = qos
        self.received = received
        self.mark = None
        self.forms = None
        self.count = count
        self.length = -(-len(block) // count)
        self._block = block
        self._version = version
        self._offsets = offsets
        self._starts: array[int] | None = None

    def block(self, version: int, retain: bool = False, more: bytes = b"") -> bytes:
        """See `Batch`."""
        if version == self._version and not self.qos and not retain and not more:
            return self._block
        return self.encoded(version, 0, retain, more)[0]

    def stamped(
        self, version: int, qos: int, retain: bool, more: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """See `Batch`."""
        if count < self.count:
            return self.part(start, start + count).stamped(version, qos, retain, more, 0, count, first, duplicate)
        data, offsets = self.encoded(version, qos, retain, more)
        if count == 1 and not duplicate:
            offset = offsets[0]
            return b"".join((data[:offset], PIDS[2 * first : 2 * first + 2], data[offset + 2 :]))
        stamped = bytearray(data)
        at = 2 * first
        for offset in offsets:
            stamped[offset : offset + 2] = PIDS[at : at + 2]
            at += 2
        if duplicate:
            position = 0
            while position < len(stamped):
                stamped[position] |= 8
                position = _end(stamped, position)
        return stamped

    def written(self) -> tuple[bytes, int]:
        """All of it as one block of frames at its own QoS, and their version: `PacketBatch` makes the same of it again."""
        return self._block, self._version

    def encoded(self, version: int, qos: int, retain: bool = False, more: bytes = b"") -> tuple[bytes, list[int]]:
        """The frames for one kind of recipient, and where their packet identifiers stand (at QoS 0 nowhere)."""
        if version == self._version and qos == self.qos and not retain and (not more or version == 4):
            if qos and self._offsets is None:
                self._offsets = [frame.topic_end for frame in self._cut()]
            return self._block, self._offsets or []
        key = (version, qos, retain, more if version == 5 else b"")
        encoded: tuple[bytes, list[int]] | None = form_of(self, key)
        if encoded is None:
            encoded = self._encode_all(*key)
            keep_form(self, key, encoded, len(encoded[0]))
        return encoded

    def _encode_all(self, version: int, qos: int, retain: bool, more: bytes) -> tuple[bytes, list[int]]:
        block = self._block
        header = bytes((0x30 | qos << 1 | retain,))
        identifier = b"\0\0" if qos else b""
        properties = b""
        parts: list[bytes] = []
        offsets = []
        size = 0
        for _, topic, topic_end, payload, stop in self._cut():
            if version == 5:
                properties = block[topic_end + 2 if self.qos else topic_end : payload] or b"\0"
                if more:
                    properties = _unprefixed(properties) + more
                    properties = encode_length(len(properties)) + properties
            body = topic_end - topic + len(identifier) + len(properties) + stop - payload
            length = encode_length(body)
            if qos:
                offsets.append(size + 1 + len(length) + topic_end - topic)
            size += 1 + len(length) + body
            parts += (header, length, block[topic:topic_end], identifier, properties, block[payload:stop])
        return b"".join(parts), offsets

    def _places(self) -> array[int]:
        """Where each frame begins, and where the last one ends; found when first needed. It stays: there may be many parts."""
        if self._starts is None:
            block, position = self._block, 0
            starts = array("I", (0,))
            while position < len(block):
                position = _end(block, position)
                starts.append(position)
            self._starts = starts
        return self._starts

    def _cut(self) -> list[Frame]:
        """The frames' places, found when first needed."""
        frames: list[Frame] | None = form_of(self, FRAMES)
        if frames is None:
            frames = [self._frame(position, stop) for position, stop in pairwise(self._places())]
            keep_form(self, FRAMES, frames, FRAME_BYTES * len(frames))
        return frames

    def _frame(self, position: int, stop: int) -> Frame:
        """The frame that begins at `position`."""
        block = self._block
        topic = position + 2
        while block[topic - 1] >= 128:
            topic += 1
        topic_end = payload = topic + 2 + (block[topic] << 8 | block[topic + 1])
        if self.qos:
            payload += 2
        if self._version == 5:
            length, payload = known_length(block, payload)
            payload += length
        return Frame(position, topic, topic_end, payload, stop)

    def parts(self) -> PartsBatch:
        """See `Batch`."""
        block = self._block
        names, payloads = [], []
        skip = (2 if self.qos else 0) + (1 if self._version == 5 else 0)
        position, end = 0, len(block)
        while position < end:
            length = block[position + 1]
            start = position + 2
            shift = 7
            while length >> shift:  # the high bit of its last byte so far says that another one follows
                length += (block[start] - 1) << shift
                start += 1
                shift += 7
            position = start + length
            topic_end = start + 2 + (block[start] << 8 | block[start + 1])
            names.append(block[start:topic_end])
            payloads.append(block[topic_end + skip : position])
        made = PartsBatch(names, payloads, self.qos, self.received)
        made.mark = self.mark
        return made

    def messages(self) -> list[tuple[bytes, bytes]]:
        """See `Batch`."""
        block = self._block
        return [(block[frame.topic + 2 : frame.topic_end], block[frame.payload : frame.stop]) for frame in self._cut()]

    def part(self, start: int, stop: int) -> PacketBatch:
        """See `Batch`."""
        places = self._places()
        made = PacketBatch(self._block[places[start] : places[stop]], self._version, self.qos, stop - start, self.received)
        if self.mark is not None:
            made.mark = self.mark.part(start, stop)
        return made

    def chosen(self, indexes: list[int]) -> PacketBatch:
        """See `Batch`."""
        places = self._places()
        block = b"".join([self._block[places[index] : places[index + 1]] for index in indexes])
        made = PacketBatch(block, self._version, self.qos, len(indexes), self.received)
        if self.mark is not None:
            made.mark = self.mark.chosen(indexes)
        return made

    def single(self, index: int) -> Run:
        """See `Batch`."""
        block = self._block
        places = self._places()
        _, topic, topic_end, payload, stop = self._frame(places[index], places[index + 1])
        properties = b""
        if self._version == 5:
            properties = _unprefixed(block[topic_end + 2 if self.qos else topic_end : payload])
        made = Run(block[topic + 2 : topic_end], self.qos, False, [block[payload:stop]], properties, None, self.received)
        if self.mark is not None:
            made.mark = self.mark.part(index, index + 1)
        return made


def _end(block: bytes | bytearray, position: int) -> int:
    """Where the frame that begins at `position` ends."""
    length, start = known_length(block, position + 1)
    return start + length


def _unprefixed(properties: bytes) -> bytes:
    """A property block without the length in front of it."""
    _, start = known_length(properties, 0)
    return properties[start:]
