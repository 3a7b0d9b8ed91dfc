"""`Batch`: messages of one publisher that came together and are moved together.

The broker and the mesh work on batches, not on messages: what is done once for a batch (find the route, choose recipients, write packet
identifiers, append to an output list) costs the same for one message and for a thousand. There are three kinds:

    Run          messages of one topic, size and property block: frames in strides              mqtt/batch/run.py
    PacketBatch  frames of different topics, sizes and properties, as a client sent them        mqtt/batch/packets.py
    PartsBatch   messages of different topics and sizes, without properties, as separate parts  mqtt/batch/parts.py

Each kind answers every question below, so that no caller has to know which one it holds. `uniform` tells those that can do more with a run.

Invariant: a batch is never changed. Its encodings are made when they are first asked for, and shared by all recipients (`forms.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from .forms import Forms
    from .parts import PartsBatch


class Mark(Protocol):
    """Which messages these are, to whoever writes down what becomes of them. Parts of a batch have parts of its mark."""

    def part(self, start: int, stop: int) -> Mark:
        """Of the messages from `start` up to `stop`."""

    def chosen(self, indexes: list[int]) -> Mark:
        """Of the messages at these places, in this order."""

    def packed(self) -> bytes:
        """For a store that keeps the messages."""


class Batch:
    """Messages of one QoS.

    count: how many messages.
    qos: the publisher's.
    retain: the publisher's flag.
    topic: of a run, in UTF-8; b"" where topics differ.
    properties: of a run: the encoded MQTT 5 properties that travel to subscribers, without their length in front, without Topic Alias and
        Subscription Identifier. b"" where each message has its own.
    expiry: Message Expiry Interval in seconds; None without.
    received: when the broker took it, in seconds of the caller's clock.
    length: payload bytes of each message of a run; else the average size of a message in bytes, for accounts of memory.
    uniform: it is a run.
    mark: which messages these are; None: nobody writes that down. Set later.
    forms: what was made of it, as long as it is one of the last (`forms.py`). Set later.

    The methods that encode take `version` (4 or 5), the `qos` and `retain` of the delivery, and `more`: encoded properties that follow
    each message's own (ignored for version 4).
    """

    __slots__ = ("count", "forms", "length", "mark", "qos", "received")

    uniform: ClassVar[bool] = False
    count: int
    forms: Forms | None
    length: int
    mark: Mark | None
    qos: int
    received: float
    topic: bytes
    properties: bytes
    retain: bool
    expiry: int | None

    def block(self, version: int, retain: bool = False, more: bytes = b"") -> bytes:
        """All messages as PUBLISH packets of QoS 0."""
        raise NotImplementedError

    def stamped(
        self, version: int, qos: int, retain: bool, more: bytes, start: int, count: int, first: int, duplicate: bool
    ) -> bytes | bytearray:
        """`count` messages from `start` on as PUBLISH packets of QoS 1 or 2 with the identifiers first, first+1, ...

        duplicate: with DUP set.
        """
        raise NotImplementedError

    def messages(self) -> list[tuple[bytes, bytes]]:
        """(topic, payload) of each message, in order."""
        raise NotImplementedError

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return self.count * self.length if self.uniform else sum(map(len, self.payloads))

    @property
    def topics(self) -> list[bytes]:
        """The topic of each message, in order."""
        return [topic for topic, _ in self.messages()]

    @property
    def payloads(self) -> list[bytes]:
        """The payload of each message, in order."""
        return [payload for _, payload in self.messages()]

    def part(self, start: int, stop: int) -> Batch:
        """The messages from `start` up to `stop`, order kept. It holds on to no other bytes than theirs."""
        raise NotImplementedError

    def chosen(self, indexes: list[int]) -> Batch:
        """The messages at these places, in this order."""
        raise NotImplementedError

    def every(self, start: int, step: int) -> Batch:
        """Each `step`-th message from `start` on, order kept."""
        return self.chosen(list(range(start, self.count, step)))

    def single(self, index: int) -> Batch:
        """One of the messages as a run."""
        raise NotImplementedError

    def parts(self) -> PartsBatch:
        """The messages as topics and payloads. Only for messages without properties, retain flag and expiry."""
        raise NotImplementedError

    def written(self) -> tuple[bytes, int]:
        """For batches without retain flag and expiry: all as PUBLISH packets of their own QoS, and the version that these are written in.

        `PacketBatch` makes the same of it again.
        """
        return self.parts().written()

    def expired(self, now: float) -> bool:
        """Whether its lifetime is over (MQTT-3.3.2-5); `now` on the clock of `received`. A lifetime of 0 is for those who are there."""
        return self.expiry is not None and now - self.received > self.expiry
