"""Messages on their way through the metabroker, without a packet for each: those that leave for a server, and runs that came in."""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

from ...mqtt.fields import write_string
from ...mqtt.length import encode_length
from ...mqtt.packets import Publish
from ...mqtt.properties import Property, encode_properties

SIZES = 32  # payload sizes whose headers are remembered, for each topic
LONG = 256  # bytes of a topic, with its properties, beyond which nothing is remembered of it
OVERHEAD = 150  # bytes of memory that a message takes beside its contents, in accounts: small ones need a bound, too


ANY_CONTENT = 1 << 32  # of a request of which only the identifier is known


class PublishHeader:
    """What stands before the payload of messages of one topic. qos: 0 or 1. version: of MQTT, 4 or 5. content: see `content_of`."""

    __slots__ = ("_first", "_name", "content", "known", "largest", "qos", "topic", "version")

    def __init__(self, topic: str, qos: int, retain: bool, version: int, largest: int = 0) -> None:
        """largest: bytes of a packet that the server takes; 0: any. Raises UsageError."""
        self._first = bytes((0x30 | qos << 1 | retain,))
        self.topic = topic
        self._name = write_string(topic, "the topic")
        self.qos = qos
        self.content = _content(topic, qos, retain)
        self.version = version
        self.largest = largest - len(self._name) - 16 if largest else 268_435_455 - 65_600  # bytes of a payload
        self.known: dict[int, bytes] = {}

    def speaking(self, version: int) -> PublishHeader:
        """The same in another version of MQTT."""
        other = PublishHeader(self.topic, self.qos, bool(self._first[0] & 1), version)
        other.largest = self.largest
        return other

    def of(self, size: int) -> bytes:
        """For a payload of this size: all up to the packet identifier, at QoS 0 up to the payload."""
        head = self.known.get(size)
        if head is None:
            middle = (2 if self.qos else 0) + (self.version == 5)
            length = encode_length(len(self._name) + middle + size)
            head = self._first + length + self._name + (b"\0" if self.version == 5 and not self.qos else b"")
            if len(self._name) <= LONG:
                if len(self.known) >= SIZES:
                    self.known.clear()
                self.known[size] = head
        return head


Outgoing = tuple[PublishHeader, bytes]  # a message that leaves


def weight(publish: Publish, overhead: int = OVERHEAD) -> int:
    """Bytes that a message counts where it waits: all that its sender may make large, with an overhead for it and for each property."""
    size = overhead + len(publish.topic) + len(publish.payload)
    for key, value in publish.properties.items():
        if key == Property.USER_PROPERTY:
            size += sum([OVERHEAD + len(name) + len(text) for name, text in value])
        elif isinstance(value, str | bytes):
            size += OVERHEAD + len(value)
    return size


class IncomingRun(NamedTuple):
    """A run of messages that has come, not retained. At QoS 1 `acknowledge_run` takes `acks`, or a part of it, four bytes a message.

    identifiers: Subscription Identifiers, in order.
    """

    topic: str
    qos: int
    payloads: list[bytes]
    identifiers: tuple[int, ...]
    acks: bytes
    epoch: int

    def singles(self) -> list[Publish]:
        """The same as packets."""
        properties: dict[int, Any] = {Property.SUBSCRIPTION_IDENTIFIER: list(self.identifiers)} if self.identifiers else {}
        acks = self.acks
        return [
            Publish(self.topic, payload, self.qos, False, False, acks[4 * i + 2] << 8 | acks[4 * i + 3] if acks else 0, dict(properties))
            for i, payload in enumerate(self.payloads)
        ]


def content_of(publish: Publish) -> int:
    """A checksum by which a repeated request is told from another one with the same identifier."""
    seed = _content(publish.topic, publish.qos, publish.retain)
    if publish.properties:
        seed = crc32(encode_properties(publish.properties), seed)
    return crc32(publish.payload, seed)


def _content(topic: str, qos: int, retain: bool) -> int:
    return crc32(topic.encode(), qos << 1 | retain)


def fits(publish: Publish, largest: int) -> bool:
    """Whether a publication is no larger than this, properties included."""
    if not largest:
        return True
    properties = len(encode_properties(publish.properties))
    return len(publish.payload) + len(publish.topic.encode()) + properties + 16 <= largest  # 16: header, lengths, identifier
