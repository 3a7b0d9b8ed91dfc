"""A subscriber that checks each message: loss, duplicates, order, topic and every byte of the payload.

Strategy: what must come is known to the byte, so it is compared and not parsed.
- QoS 0 from one publisher is one endless stream of bytes, a cycle: one memcmp for each chunk, frames do not matter.
- QoS 0 from several publishers: frames of one size as the rows of a matrix, split into the publishers' runs (or sorted by
  publisher, where runs are short), each part one memcmp.
- QoS 1 and 2: the broker chooses the packet identifiers. They are cut out as two columns, which are also the columns of
  the acknowledgements; the rest is one memcmp.
Whatever does not compare goes through the exact decoder, packet by packet, and is counted there; then the fast path
is tried again. The first probe shows which properties the broker adds, so that its own framing is the one compared.

What it does not know: when the test is over, what the publishers have sent.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import CHUNK, Connection
from benchmarks.load_generator.traffic import HEADER, PROBE, PROBE_HEADER, Stream, Traffic

RELEASES = re.compile(rb"(?:\x62\x02..)+", re.DOTALL)
ACKNOWLEDGEMENTS = {1: b"\x40\x02\0\0" * (CHUNK // 16), 2: b"\x50\x02\0\0" * (CHUNK // 16)}


class Source:
    """What one subscriber has from one publisher. `received` is the number of the next message in order."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.cycle = traffic.cycle
        self.received = 0
        self.missing: set[int] = set()
        self.duplicates = 0
        self.disorder = 0
        self.corrupt = 0
        self.probes: set[int] = set()
        self.properties: bytes | None = None
        self.stream: Stream | None = None
        self.frames: re.Pattern[bytes] | None = None  # a run of PUBLISH frames of the stream's size

    def learn(self, properties: bytes) -> None:
        """The broker delivers with these properties: make the stream to compare with."""
        if properties != self.properties:
            self.properties = properties
            stream = self.stream = self.traffic.stream(False, properties)
            if stream.size:
                self.frames = re.compile(b"(?:%b.{%d})+" % (re.escape(stream.data[:2]), stream.size - 2), re.DOTALL)

    def take(self, publication: wire.Publication) -> None:
        """Judge one message on the slow path."""
        publisher, index = HEADER.unpack_from(publication.payload)
        traffic = self.traffic
        if index == PROBE:
            self.probes.add(PROBE_HEADER.unpack_from(publication.payload)[2])
            self.learn(publication.properties)
            return
        known = publisher == traffic.publisher and index < self.cycle and publication.payload == traffic.payloads[index]
        if not known or publication.topic != traffic.topic(index) or publication.qos != traffic.qos:
            self.corrupt += 1
            return
        self.count(index)

    def count(self, index: int) -> None:
        """Message `index` of the cycle has come."""
        ahead = (index - self.received) % self.cycle
        if ahead <= self.cycle // 2:
            self.missing.update(range(self.received, self.received + ahead))
            self.received += ahead + 1
        elif (number := self.received + ahead - self.cycle) in self.missing:
            self.missing.discard(number)
            self.disorder += 1
        else:
            self.duplicates += 1


class Subscriber(Connection):
    """A client that subscribed to the messages of one publisher or of several.

    persistent: it keeps its session. join: it subscribes here and now. before: its earlier connection, whose session it takes up;
    WireError if the broker has none.
    """

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        traffics: list[Traffic],
        ca: str = "",
        persistent: bool = False,
        before: Subscriber | None = None,
        join: bool = True,
        web: bool = False,
    ) -> None:
        super().__init__(address, client_id, traffics[0].version, ca, persistent, web)
        self.qos = traffics[0].qos
        self.sources: dict[int, Source] = before.sources if before else {traffic.publisher: Source(traffic) for traffic in traffics}
        self.only = next(iter(self.sources.values())) if len(traffics) == 1 else None
        self.payload_size = len(traffics[0].payloads[0])
        self.position = -1  # in the stream of the only source at QoS 0; -1 while the slow path is at work
        self.releases: bytearray = before.releases if before else bytearray()  # QoS 2: the PUBRELs that must come, in order
        if before is None and join:
            self.subscribe(traffics[0].topic_filter if self.only else b"bench/#", self.qos)
        elif before is not None and not self.present:
            raise wire.WireError("the broker has forgotten the subscriber's session")

    def read(self, data: memoryview) -> None:
        """Judge a chunk."""
        if self.position >= 0 and self.only:
            self.compare(self.only, data)
        elif self.qos:
            self.kept += data
            self.split()
        elif self.only:
            self.slow(data)
            self.resume(self.only)
        else:
            self.kept += data
            self.rows()

    # QoS 0, one publisher

    def compare(self, source: Source, data: memoryview) -> None:
        """The chunk continues the stream, or it is judged packet by packet."""
        stream = source.stream
        assert stream
        if stream.data.startswith(data, self.position):
            position = self.position + len(data)
            wraps, self.position = divmod(position, stream.length)
            index = bisect_right(stream.offsets, self.position) - 1
            source.received += (wraps * source.cycle + index) - source.received % source.cycle
            return
        begun = stream.offsets[source.received % source.cycle]
        self.kept[:] = stream.data[begun : self.position]
        self.position = -1
        self.slow(data)
        self.resume(source)

    def resume(self, source: Source) -> None:
        """Back to comparing, if what is kept is the beginning of the message that should come next."""
        if source.stream:
            begun = source.stream.offsets[source.received % source.cycle]
            if source.stream.data.startswith(self.kept, begun):
                self.position = begun + len(self.kept)
                self.kept.clear()

    # QoS 0, several publishers

    def rows(self) -> None:
        """Frames of one size, each publisher's in its own order."""
        streams = [source.stream for source in self.sources.values()]
        size = streams[0].size if streams[0] else 0
        if not size or any(stream is None or stream.size != size for stream in streams):
            self.slow(b"")
            return
        count = min(len(self.kept) // size, CHUNK // size)
        if not count:
            self.slow(b"")
            return
        with memoryview(self.kept) as view:
            data = bytes(view[: count * size])
        publishers = np.frombuffer(data, np.uint8)[size - self.payload_size + 1 :: size]  # the low bytes of their numbers
        edges = [0, *(np.flatnonzero(publishers[1:] != publishers[:-1]) + 1).tolist(), count]
        taken = self.runs(data, size, edges) if len(edges) < 4 * len(self.sources) else self.sorted(data, size, publishers)
        del self.kept[: taken * size]
        if taken < count:
            self.slow(b"")

    def runs(self, data: bytes, size: int, edges: list[int]) -> int:
        """Frames in a few runs, each of one publisher; how many are what must come next."""
        with memoryview(data) as view:
            for begin, end in pairwise(edges):
                source = self.sources.get(data[begin * size + size - self.payload_size + 1])
                if not source or not self.fits(source, view[begin * size : end * size]):
                    return begin
                source.received += end - begin
        return edges[-1]

    def sorted(self, data: bytes, size: int, publishers: np.ndarray[Any, Any]) -> int:
        """Frames of publishers in any mixture: all of them if they are what must come next, else 0."""
        block = np.frombuffer(data, np.uint8).reshape(-1, size)
        parts = [(source, block[publishers == number & 255].tobytes()) for number, source in self.sources.items()]
        if sum(len(part) for _, part in parts) < len(data) or not all(self.fits(source, part) for source, part in parts):
            return 0
        for source, part in parts:
            source.received += len(part) // size
        return len(block)

    @staticmethod
    def fits(source: Source, data: bytes | memoryview) -> bool:
        """Whether these frames are the next ones of their publisher."""
        stream = source.stream
        assert stream
        return stream.data.startswith(data, stream.offsets[source.received % source.cycle])

    # QoS 1 and 2

    def split(self) -> None:
        """Runs of PUBLISH and of PUBREL, in any order."""
        while self.kept:
            if self.kept[0] == 0x62 and (run := RELEASES.match(self.kept)):
                self.released(run.group())
                del self.kept[: run.end()]
            elif not self.publications() and not self.one():
                return

    def publications(self) -> bool:
        """Take the frames at the beginning that look like messages; False if there is none."""
        source = self.only
        stream = source.stream if source else None
        if not source or not stream or not source.frames:
            return False
        count = min(len(self.kept) // stream.size, CHUNK // stream.size)
        if self.qos == 1 and count and self.numbered(source, stream, count):
            return True
        run = source.frames.match(self.kept, 0, count * stream.size)
        if not run:
            return False
        count = run.end() // stream.size
        if not self.numbered(source, stream, count):
            for _ in range(count):
                self.one()
        return True

    def numbered(self, source: Source, stream: Stream, count: int) -> bool:
        """Take `count` frames if they are the next messages but for their packet identifiers, and acknowledge them."""
        size, offset = stream.size, stream.pid_offset
        block = self.kept[: count * size]
        high, low = block[offset::size], block[offset + 1 :: size]
        block[offset::size] = block[offset + 1 :: size] = bytes(count)
        if not stream.data.startswith(block, stream.offsets[source.received % source.cycle]):
            return False
        source.received += count
        del self.kept[: count * size]
        answer = bytearray(ACKNOWLEDGEMENTS[self.qos][: 4 * count])
        answer[2::4], answer[3::4] = high, low
        self.push(answer)
        if self.qos == 2:
            answer[0::4], answer[1::4] = b"\x62" * count, b"\x02" * count
            self.releases += answer
        return True

    def released(self, run: bytes) -> None:
        """PUBRELs have come: in the order of the PUBRECs, each once."""
        if self.releases.startswith(run):
            del self.releases[: len(run)]
        else:
            for i in range(0, len(run), 4):
                self.forget(run[i : i + 4])
        answer = bytearray(run)
        count = len(run) // 4
        answer[0::4] = b"\x70" * count
        self.push(answer)

    def forget(self, release: bytes) -> None:
        """A PUBREL out of turn."""
        for i in range(0, len(self.releases), 4):
            if self.releases[i : i + 4] == release:
                del self.releases[i : i + 4]
                return
        raise wire.WireError(f"a PUBREL for packet identifier {int.from_bytes(release[2:], 'big')}, which is not in use")

    # the slow path

    def one(self) -> bool:
        """Take one packet on the slow path; False if none is whole."""
        found = wire.next_packet(self.kept, 0)
        if found is None:
            return False
        del self.kept[: found.end]
        self.packet(found.first, found.body)
        return True

    def packet(self, first: int, body: bytes) -> None:
        """Judge one packet, whatever its form, and answer it."""
        self.slow_packets += 1
        kind = first >> 4
        if kind == wire.PUBREL:
            pid = wire.decode_acknowledgement(first, body)
            self.released(wire.acknowledgement(wire.PUBREL, pid))
        elif kind == wire.PUBLISH:
            publication = wire.decode_publish(first, body, self.version)
            if publication.qos:
                self.push(wire.acknowledgement(wire.PUBACK if publication.qos == 1 else wire.PUBREC, publication.pid))
            if publication.qos == 2:
                self.releases += wire.acknowledgement(wire.PUBREL, publication.pid)
            source = self.sources.get(HEADER.unpack_from(publication.payload)[0]) if len(publication.payload) >= HEADER.size else None
            if source is None:
                next(iter(self.sources.values())).corrupt += 1
            else:
                source.take(publication)
        else:
            raise wire.WireError(f"packet type {kind} (0x{first:02x}) came to a subscriber: {body[:40].hex()}")
