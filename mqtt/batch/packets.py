"""Messages of one publisher that differ in topic, size and properties, treated as one: a run whose frames are not alike.

Traffic that is not uniform makes no long runs. But frames of one QoS, without retain flag and without properties that a broker acts
on, whose topics have the same recipients, can still be moved together: as the block of bytes that came. For a recipient of
the same version at QoS 0 the block is what is sent. At QoS 1 and 2 the identifiers are written at their offsets. Only for a
recipient of another version or QoS are the frames taken apart.

Invariants: every frame has the same first byte (no DUP, no retain); no property block holds a Topic Alias, a Message Expiry Interval or
a Subscription Identifier; all is validated before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..length import encode_length, known_length
from .run import PIDS, Run

if TYPE_CHECKING:
    from .parts import PartsBatch


class Frame(NamedTuple):
    """Places in the block: the frame begins at `start`, its topic's length at `topic`, its payload at `payload`; it ends at `stop`."""

    start: int
    topic: int
    topic_end: int
    payload: int
    stop: int


class PacketBatch(Run):
    """`count` messages of QoS `qos` as they came from a client of `version`.

    offsets: where the packet identifiers stand in the block, when the caller knows.
    """

    __slots__ = ("_block", "_encoded", "_frames", "_offsets", "_version")

    def __init__(self, block: bytes, version: int, qos: int, count: int, received: float, offsets: list[int] | None = None) -> None:
        self.topic = b""
        self.qos = qos
        self.retain = False
        self.properties = b""
        self.expiry = None
        self.received = received
        self.count = count
        self.length = -(-len(block) // count)  # on average, for accounts of memory
        self._block = block
        self._version = version
        self._offsets = offsets
        self._frames: list[Frame] | None = None
        self._encoded: dict[tuple[int, int], tuple[bytes, list[int]]] | None = None

    def stamped(
        self, version: int, qos: int, retain: bool, properties: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """See `Run.stamped`."""
        if count < self.count:
            return self.part(start, start + count).stamped(version, qos, retain, properties, 0, count, first, duplicate)
        data, offsets = self.encoded(version, qos)
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

    def encoded(self, version: int, qos: int) -> tuple[bytes, list[int]]:
        """The frames for recipients of a version at a QoS, and where their identifiers stand (at QoS 0 nowhere)."""
        if version == self._version and qos == self.qos:
            if qos and self._offsets is None:
                self._offsets = [frame.topic_end for frame in self._cut()]
            return self._block, self._offsets or []
        if self._encoded is None:
            self._encoded = {}
        encoded = self._encoded.get((version, qos))
        if encoded is None:
            encoded = self._encoded[version, qos] = self._encode_all(version, qos)
        return encoded

    def _encode_all(self, version: int, qos: int) -> tuple[bytes, list[int]]:
        block = self._block
        header = bytes((0x30 | qos << 1,))
        identifier = b"\0\0" if qos else b""
        properties = b""
        parts: list[bytes] = []
        offsets = []
        size = 0
        for _, topic, topic_end, payload, stop in self._cut():
            if version == 5:
                properties = block[topic_end + 2 if self.qos else topic_end : payload] or b"\0"
            body = topic_end - topic + len(identifier) + len(properties) + stop - payload
            length = encode_length(body)
            if qos:
                offsets.append(size + 1 + len(length) + topic_end - topic)
            size += 1 + len(length) + body
            parts += (header, length, block[topic:topic_end], identifier, properties, block[payload:stop])
        return b"".join(parts), offsets

    def _cut(self) -> list[Frame]:
        """The frames' places, found when first needed."""
        if self._frames is None:
            block = self._block
            self._frames = []
            position = 0
            while position < len(block):
                stop = _end(block, position)
                topic = position + 2
                while block[topic - 1] >= 128:
                    topic += 1
                topic_end = payload = topic + 2 + (block[topic] << 8 | block[topic + 1])
                if self.qos:
                    payload += 2
                if self._version == 5:
                    length, payload = known_length(block, payload)
                    payload += length
                self._frames.append(Frame(position, topic, topic_end, payload, stop))
                position = stop
        return self._frames

    @property
    def payloads(self) -> list[bytes]:
        """The payloads in order."""
        return [self._block[frame.payload : frame.stop] for frame in self._cut()]

    def loose(self) -> PartsBatch:
        """The same messages as topics and payloads; there must be no properties."""
        from .parts import PartsBatch

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
        return PartsBatch(names, payloads, self.qos, self.received)

    def messages(self) -> list[tuple[bytes, bytes]]:
        """(topic, payload) of each message, in order."""
        block = self._block
        return [(block[frame.topic + 2 : frame.topic_end], block[frame.payload : frame.stop]) for frame in self._cut()]

    def part(self, start: int, stop: int) -> PacketBatch:
        """The messages from `start` up to `stop`, order kept; it holds on to no other bytes than theirs."""
        frames = self._cut()
        begin = frames[start].start
        return PacketBatch(self._block[begin : frames[stop - 1].stop], self._version, self.qos, stop - start, self.received)

    def single(self, index: int) -> Run:
        """One of the messages as a run."""
        block = self._block
        _, topic, topic_end, payload, stop = self._cut()[index]
        properties = b""
        if self._version == 5:
            start = topic_end + 2 if self.qos else topic_end
            while block[start] >= 128:
                start += 1
            properties = block[start + 1 : payload]
        return Run(block[topic + 2 : topic_end], self.qos, False, [block[payload:stop]], properties, None, self.received)


def _end(block: bytes | bytearray, position: int) -> int:
    """Where the frame that begins at `position` ends."""
    length, start = known_length(block, position + 1)
    return start + length
