"""What a publisher sends: a cycle of numbered messages, encoded once, before the clock starts.

Message n of a publisher has the cyclic *index* n mod `cycle`, which stands in its payload with the publisher's number. The
cycle is at least twice as long as the number of messages in flight, so that an index names one message at any time:
nothing is lost or repeated without an index standing where another was expected.

Payload: publisher (2 bytes, big-endian), index (4 bytes), then bytes that differ from message to message. Index 0xFFFFFFFF
marks a *probe*, with a probe number in the next 4 bytes: probes find out whether a path exists, and how the broker frames
what it delivers, and they fence the end of a measurement.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from itertools import accumulate

from benchmarks.load_generator import wire

PROBE = 0xFFFFFFFF
HEADER = struct.Struct(">HI")
PROBE_HEADER = struct.Struct(">HII")
SMALLEST = PROBE_HEADER.size
PROBE_PIDS = 65000  # packet identifiers from here on are for probes; a cycle stays below


@dataclass(slots=True)
class Stream:
    """A cycle of frames in one piece of memory, followed by its own beginning so that a slice may run past the end.

    data: the bytes. offsets: where each frame begins, and at last the length of the cycle. size: of each frame, or 0
    when they differ. pid_offset: of the packet identifier in a frame, or 0.
    """

    data: bytes
    offsets: list[int]
    size: int
    pid_offset: int

    @property
    def length(self) -> int:
        """Bytes of one cycle."""
        return self.offsets[-1]


@dataclass(slots=True)
class Traffic:
    """The messages of one publisher. `sizes` are (smallest, largest) payload bytes; `window` messages may be in flight."""

    publisher: int
    qos: int
    version: int
    topics: int
    sizes: tuple[int, int]
    window: int
    cycle: int = field(init=False)
    payloads: list[bytes] = field(init=False, repr=False)
    streams: dict[tuple[bool, bytes], Stream] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.sizes[0] < SMALLEST:
            raise ValueError(f"a payload of {self.sizes[0]} bytes cannot hold its number (at least {SMALLEST})")
        cycles = -(-max(2 * self.window, 2048) // self.topics)
        self.cycle = cycles * self.topics
        if self.qos and self.cycle >= PROBE_PIDS:
            raise ValueError(f"{self.window} messages in flight at QoS {self.qos} are too many (at most {PROBE_PIDS // 2 - 1000})")
        chance = random.Random(self.publisher)
        low, high = self.sizes
        filler = chance.randbytes(high + 4096)
        lengths = [chance.randint(low, high) if low < high else low for _ in range(self.cycle)]
        self.payloads = [
            HEADER.pack(self.publisher, i) + filler[i * 7 % 4096 : i * 7 % 4096 + length - HEADER.size] for i, length in enumerate(lengths)
        ]

    @property
    def topic_filter(self) -> bytes:
        """What a subscriber subscribes to for these messages."""
        return self.topic(0) if self.topics == 1 else b"bench/%02d/+" % self.publisher

    def topic(self, index: int) -> bytes:
        """The topic of a message."""
        if self.topics == 1:
            return b"bench/%02d" % self.publisher
        return b"bench/%02d/%04d" % (self.publisher, index % self.topics)

    def probe(self, number: int) -> bytes:
        """The frame of a probe."""
        return wire.publish(self.topic(0), self.probe_payload(number), self.qos, self.version, PROBE_PIDS + number % 500)

    def probe_payload(self, number: int) -> bytes:
        """What a probe carries."""
        return PROBE_HEADER.pack(self.publisher, PROBE, number).ljust(self.sizes[0], b".")

    def stream(self, numbered: bool, properties: bytes = b"") -> Stream:
        """The cycle as frames, made when first asked for.

        numbered: with packet identifiers 1, 2, ..  as the publisher sends them, or with zeros, as a subscriber compares
        them. properties: encoded MQTT 5 properties that the broker adds.
        """
        key = numbered and self.qos > 0, properties
        if key not in self.streams:
            self.streams[key] = self._stream(*key)
        return self.streams[key]

    def _stream(self, numbered: bool, properties: bytes, extra: int = 1 << 18) -> Stream:
        qos, version, topic = self.qos, self.version, self.topic
        frames = [
            wire.publish(topic(i), payload, qos, version, i + 1 if numbered else 0, properties) for i, payload in enumerate(self.payloads)
        ]
        data = b"".join(frames)
        offsets = [0, *accumulate(map(len, frames))]
        sizes = set(map(len, frames))
        size = sizes.pop() if len(sizes) == 1 else 0
        repeat = data * (extra // len(data) + 1)
        pid_offset = frames[0].index(topic(0)) + len(topic(0)) if qos and size else 0
        return Stream(data + repeat[:extra], offsets, size, pid_offset)


def acknowledgements(kind: int, count: int, tail: bytes = b"", extra: int = 1 << 18) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP for the identifiers 1 to `count`, over and over, `extra` bytes past one cycle.

    tail: what the broker writes behind the packet identifier (b"", or a reason code 0 and an empty property length).
    """
    size = 4 + len(tail)
    block = bytearray((wire.acknowledgement(kind, 0)[:1] + bytes((2 + len(tail),)) + b"\0\0" + tail) * count)
    block[2::size] = wire.PID_HIGH[1 : count + 1]
    block[3::size] = wire.PID_LOW[1 : count + 1]
    return bytes(block) * (extra // len(block) + 2)
