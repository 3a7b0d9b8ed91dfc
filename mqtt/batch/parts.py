"""Messages of different topics and sizes without properties, held as topics and payloads: a run that has no frames yet.

Such a run is what the mesh holds in custody and what it delivers of a span. It becomes frames by one join over a flat list of parts, in
which what differs from recipient to recipient (packet identifiers, envelopes) stands at a fixed stride and is put in with one
slice assignment. So each message costs some slots of a list, whatever its topic and size.

Invariants: no retain flag, no properties, no expiry; topics are validated.
"""

from __future__ import annotations

from ..length import encode_length
from .packets import PacketBatch
from .run import PIDS, Run

HEADLINES_MAX = 20_000  # fixed headers kept for one first byte


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


HEADLINES = {first: Headlines(first) for first in (0x30, 0x32, 0x34, 0x3A, 0x3C)}


class PartsBatch(PacketBatch):
    """Messages of QoS `qos`. names: their topics as they stand on the wire, two bytes of length in front."""

    __slots__ = ("_flats", "_given", "names")

    def __init__(self, names: list[bytes], payloads: list[bytes], qos: int, received: float) -> None:
        self.topic = b""
        self.qos = qos
        self.retain = False
        self.properties = b""
        self.expiry = None
        self.received = received
        self.count = len(names)
        self.names = names
        self.length = -(-(sum(map(len, names)) + sum(map(len, payloads))) // len(names))  # on average, for accounts of memory
        self._given = payloads
        self._flats: dict[tuple[int, int], list[bytes]] | None = None
        self._encoded = None

    @property
    def topics(self) -> list[bytes]:
        """The topics in order."""
        return [name[2:] for name in self.names]

    @property
    def payloads(self) -> list[bytes]:
        """The payloads in order."""
        return self._given

    def loose(self) -> PartsBatch:
        """This very run."""
        return self

    def written(self) -> tuple[bytes, int]:
        """See `PacketBatch.written`."""
        return b"".join(self.flat(0x30 | self.qos << 1, b"\0\0" if self.qos else b"")), 4

    def messages(self) -> list[tuple[bytes, bytes]]:
        """(topic, payload) of each message, in order."""
        return list(zip(self.topics, self._given, strict=True))

    def part(self, start: int, stop: int) -> PartsBatch:
        """The messages from `start` up to `stop`, order kept."""
        return PartsBatch(self.names[start:stop], self._given[start:stop], self.qos, self.received)

    def single(self, index: int) -> Run:
        """One of the messages as a run."""
        return Run(self.names[index][2:], self.qos, False, [self._given[index]], b"", None, self.received)

    def encoded(self, version: int, qos: int) -> tuple[bytes, list[int]]:
        """The frames for recipients of a version at QoS 0."""
        assert not qos, "frames of QoS 1 and 2 are made for each recipient"
        if self._encoded is None:
            self._encoded = {}
        encoded = self._encoded.get((version, 0))
        if encoded is None:
            encoded = self._encoded[version, 0] = b"".join(self.flat(0x30, b"\0" if version == 5 else b"")), []
        return encoded

    def stamped(
        self, version: int, qos: int, retain: bool, properties: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """See `Run.stamped`."""
        key = (version, qos)
        if self._flats is None:
            self._flats = {}
        flat = self._flats.get(key)
        if flat is None:
            flat = self._flats[key] = self.flat(0x30 | qos << 1, b"\0\0\0" if version == 5 else b"\0\0")
        stamped = flat[4 * start : 4 * (start + count)]
        if version == 5:
            stamped[2::4] = [PIDS[at : at + 2] + b"\0" for at in range(2 * first, 2 * (first + count), 2)]
        else:
            stamped[2::4] = [PIDS[at : at + 2] for at in range(2 * first, 2 * (first + count), 2)]
        if duplicate:
            stamped[0::4] = [bytes((0x38 | qos << 1,)) + headline[1:] for headline in stamped[0::4]]
        return b"".join(stamped)

    def flat(self, first: int, between: bytes, more: int = 0, start: int = 0) -> list[bytes]:
        """The parts of the frames from message `start` on, four each: fixed header, topic, what stands between, payload.

        first: first byte. between: put between topic and payload. more: bytes that will stand there besides.
        """
        headlines = HEADLINES[first]
        more += len(between)
        names, payloads = (self.names[start:], self._given[start:]) if start else (self.names, self._given)
        return [
            part
            for name, payload in zip(names, payloads, strict=True)
            for part in (headlines[len(name) + len(payload) + more], name, between, payload)
        ]
