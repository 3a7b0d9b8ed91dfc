"""Which messages a batch holds, for the journal: a `Source` for what is published together, a `Mark` for a part of it.

A batch of a journalled topic carries a mark (`Batch.mark`); its parts carry parts of the mark. So whoever sends, drops or acknowledges
messages can say which ones, whatever became of the batch on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgpack

from .kinds import NOBODY

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch

PACKED = 1  # version of `Mark.packed`


class Span(NamedTuple):
    """Messages of a source, from `start` up to `stop`, that have consecutive sequences. brokers: how many others they are for."""

    start: int
    stop: int
    origin: int
    epoch: int
    stream: int
    first: int
    brokers: int = 0


class Piece:
    """Messages that differ in their sequence only. base: sequence of the first, less its index in the source. size: payload bytes of one.

    values: columns that all their events have alike (`COMMON` in writing/notes.py).
    """

    __slots__ = ("base", "size", "trace", "values")

    def __init__(self, base: int, size: int, values: tuple[int, ...], trace: str | None) -> None:
        self.base = base
        self.size = size
        self.values = values
        self.trace = trace


class Source:
    """Messages that were published together, or that a neighbour brought together.

    spans: their ids; complete once they are published.
    topics: one topic, or one for each message.
    sizes: payload bytes: of each message alike, or of one after the other.
    properties: the encoded MQTT 5 properties that they have in common.
    published: microseconds since 1970, at the origin.
    client, user: of the publisher, "" where it is not known here.
    sender: number of the neighbour that brought them; of this broker where they were published here.
    batch: the messages themselves, until values of their payloads are written.
    counted: number of the event whose weight has this source's in it (`Recorder`).
    """

    __slots__ = (
        "batch",
        "call",
        "client",
        "counted",
        "piece",
        "properties",
        "protocol",
        "published",
        "qos",
        "read",
        "sender",
        "sizes",
        "spans",
        "topics",
        "trace",
        "user",
        "version",
    )

    def __init__(self, topics: bytes | list[bytes], sizes: int | list[int], qos: int, properties: bytes = b"") -> None:
        self.topics = topics
        self.sizes = sizes
        self.qos = qos
        self.properties = properties
        self.spans: list[Span] = []
        self.published = 0
        self.client = ""
        self.user = ""
        self.version = 0
        self.protocol = 0
        self.sender = NOBODY
        self.read = False  # `call` and `trace` are known
        self.call = 0
        self.trace: str | None = None
        self.batch: Batch | None = None
        self.counted = 0
        self.piece: Piece | Literal[False] | None = None  # all of it, if it is one piece; None: nobody has looked yet

    def size(self, index: int) -> int:
        """Payload bytes of one message."""
        return self.sizes if isinstance(self.sizes, int) else self.sizes[index]

    def topic(self, index: int) -> bytes:
        return self.topics if isinstance(self.topics, bytes) else self.topics[index]

    def stretches(self, indexes: range | list[int]) -> list[tuple[Span, int, int]]:
        """These messages as stretches of one topic and consecutive sequences: (span, first index, count)."""
        found: list[tuple[Span, int, int]] = []
        whole = isinstance(self.topics, bytes)
        if len(self.spans) == 1 and whole and isinstance(indexes, range) and indexes.step == 1:
            return [(self.spans[0], indexes.start, len(indexes))] if indexes else []
        for index in indexes:
            span = next((one for one in self.spans if one.start <= index < one.stop), None)
            if span is None:
                continue
            if found:
                last, first, count = found[-1]
                if last is span and first + count == index and (whole or self.topics[first] == self.topics[index]):
                    found[-1] = (span, first, count + 1)
                    continue
            found.append((span, index, 1))
        return found


class Mark:
    """Some of the messages of a source. indexes: which."""

    __slots__ = ("indexes", "source")

    def __init__(self, source: Source, indexes: range | list[int]) -> None:
        self.source = source
        self.indexes = indexes

    def part(self, start: int, stop: int) -> Mark:
        """See `mqtt.batch.batch.Mark`."""
        return Mark(self.source, self.indexes[start:stop])

    def chosen(self, indexes: list[int]) -> Mark:
        """See `mqtt.batch.batch.Mark`."""
        return Mark(self.source, [self.indexes[index] for index in indexes])

    def packed(self) -> bytes:
        """For a store that keeps the messages."""
        source = self.source
        spans = [(span.origin, span.epoch, span.stream, span.first + first - span.start, n) for span, first, n in self.stretches()]
        sizes = source.sizes if isinstance(source.sizes, int) else [source.sizes[index] for index in self.indexes]
        values = [PACKED, spans, source.published, source.client, source.user, source.version, source.protocol, source.sender, sizes]
        return bytes(msgpack.packb(values))

    def stretches(self) -> list[tuple[Span, int, int]]:
        """See `Source.stretches`."""
        return self.source.stretches(self.indexes)


def unpacked(data: bytes, topics: bytes | list[bytes], qos: int, properties: bytes) -> Mark | None:
    """What `Mark.packed` gave; None where it is of another version."""
    values = msgpack.unpackb(data)
    if values[0] != PACKED:
        return None
    _, spans, published, client, user, version, protocol, sender, sizes = values[:9]
    source = Source(topics, sizes, qos, properties)
    start = 0
    for origin, epoch, stream, first, count in spans:
        source.spans.append(Span(start, start + count, origin, epoch, stream, first))
        start += count
    source.published, source.client, source.user = published, client, user
    source.version, source.protocol, source.sender = version, protocol, sender
    return Mark(source, range(start))


def part_of(data: bytes, start: int, stop: int) -> bytes:
    """What `Mark.packed` gives of some of the messages that `data` stands for; b"" for b""."""
    mark = unpacked(data, b"", 0, b"") if data else None
    return b"" if mark is None else mark.part(start, stop).packed()
