"""Many messages as one, at a connection of the metabroker: bursts of PUBLISH packets that leave, runs of them that come.

What leaves: a `Burst` is messages of QoS 0 or 1 in a row, each a payload with the `Head` of its topic. No packet is built for one of them:
what stands before the payload depends on nothing but topic and length and is remembered, and the packet identifiers are cut from a
table. In flight a burst is one entry, under the packet identifier of its first message that is not acknowledged.

What comes: frames of one size that differ in nothing but packet identifier and payload are a run (as in broker/publish/parse.py). What was
checked for the first holds for all, and a topic and properties that were checked once are not decoded again.

What it does not know: sockets, sessions of the metabroker, times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...base.cache import Cache
from ...mqtt.batch.run import PIDS
from ...mqtt.decode import decode
from ...mqtt.fields import write_string
from ...mqtt.length import encode_length
from ...mqtt.packets import Publish
from ...mqtt.properties import Property

# What is remembered is bounded, whatever clients and remotes send:
SIZES = 32  # of payloads, for each topic
TOPICS = 1024  # of a connection
LONG = 256  # bytes of a topic, with its properties, beyond which nothing is remembered of it
OVERHEAD = 150  # bytes of memory that a message takes beside its payload, in accounts: small ones need a bound, too
PIDS5 = b"".join(pid.to_bytes(2, "big") + b"\0" for pid in range(65536))  # an identifier and no properties, at 3*p


class Head:
    """What stands before the payload of messages of one topic. qos: 0 or 1. version: of MQTT, 4 or 5."""

    __slots__ = ("_first", "_name", "known", "largest", "qos", "topic", "version")

    def __init__(self, topic: str, qos: int, retain: bool, version: int, largest: int = 0) -> None:
        """largest: bytes of a packet that the server takes; 0: any. Raises UsageError."""
        self._first = bytes((0x30 | qos << 1 | retain,))
        self.topic = topic
        self._name = write_string(topic, "the topic")
        self.qos = qos
        self.version = version
        self.largest = largest - len(self._name) - 16 if largest else 268_435_455 - 65_600  # bytes of a payload
        self.known: dict[int, bytes] = {}

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


Outgoing = tuple[Head, bytes]  # a message that leaves


class Burst:
    """Messages from place `done` on, all of QoS `qos`, with packet identifiers from `first` on (0: not sent).

    token, start: the first of `messages` is number `start` of what was published under the token. serial: place in the order of sending.
    size: bytes of all payloads with `OVERHEAD` for each, for accounts.
    """

    __slots__ = ("done", "first", "messages", "qos", "serial", "size", "start", "token")

    def __init__(self, messages: list[Outgoing], qos: int, token: int, start: int = 0) -> None:
        self.messages = messages
        self.qos = qos
        self.token = token
        self.start = start
        self.first = self.done = self.serial = 0
        self.size = sum([len(payload) for _, payload in messages]) + OVERHEAD * len(messages)

    def cut(self, place: int) -> Burst:
        """The messages from a place in `messages` on become a burst of their own, which is returned; identifiers and order stay."""
        rest = Burst(self.messages[place:], self.qos, self.token, self.start + place)
        rest.first = self.first + place if self.first else 0
        rest.serial = self.serial
        rest.done = max(0, self.done - place)
        del self.messages[place:]
        self.size -= rest.size
        return rest

    def encode(self, out: list[bytes], version: int, dup: bool = False) -> None:
        """Append PUBLISH packets for what is not done."""
        messages = self.messages[self.done :] if self.done else self.messages
        if not self.qos:
            for head, payload in messages:
                out.append(head.known.get(len(payload)) or head.of(len(payload)))
                out.append(payload)
            return
        table, width = (PIDS5, 3) if version == 5 else (PIDS, 2)
        at = width * (self.first + self.done)
        for head, payload in messages:
            begin = head.known.get(len(payload)) or head.of(len(payload))
            if dup:
                begin = bytes((begin[0] | 8,)) + begin[1:]
            out += (begin, table[at : at + width], payload)
            at += width


class Messages(NamedTuple):
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


class Scanner:
    """Finds runs in what a server sends. version: of MQTT, 4 or 5."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._known: Cache[bytes, tuple[str, tuple[int, ...]]] = Cache(TOPICS)  # topic and property block as they stand in the packet

    def run(self, data: bytes, position: int, start: int, stop: int, epoch: int) -> tuple[Messages, int] | None:
        """The run that begins with the PUBLISH at `position`, and where it ends; None where the packet has to be looked at alone.

        start, stop: of its body. Its first byte is 0x30 or 0x32. Raises what `decode` raises.
        """
        if stop - start < 2:
            return None
        qos = data[position] >> 1 & 1
        topic_end = start + 2 + (data[start] << 8 | data[start + 1])
        payload = topic_end + 2 * qos
        if payload > stop:
            return None
        if self.version == 5:
            if payload >= stop or data[payload] >= 128:
                return None
            payload += 1 + data[payload]
            if payload > stop:
                return None
        tail = data[topic_end + 2 * qos : payload]
        name = data[start:topic_end] + tail
        known = self._known.get(name) or self._learn(name, data[position], data[start:stop])
        if known is None:
            return None
        size = stop - position
        after = stop
        if qos:
            head = data[position:topic_end]
            tail_at = topic_end + 2 - position
            while data.startswith(head, after) and data.startswith(tail, after + tail_at):
                after += size
        else:
            head = data[position:payload]
            while data.startswith(head, after):
                after += size
        if after > len(data):
            after -= size
        at = payload - position
        payloads = [data[i + at : i + size] for i in range(position, after, size)]
        acks = b""
        if qos:
            made = bytearray(b"\x40\x02\0\0" * len(payloads))
            made[2::4] = high = data[topic_end:after:size]
            made[3::4] = low = data[topic_end + 1 : after : size]
            if 0 in low and 0 in [a | b for a, b in zip(high, low, strict=True)]:
                return None  # identifier 0: an error that decoding names
            acks = bytes(made)
        return Messages(known[0], qos, payloads, known[1], acks, epoch), after

    def known(self, name: bytes) -> tuple[str, tuple[int, ...]] | None:
        """Topic and Subscription Identifiers of a name that was learnt."""
        return self._known.get(name)

    def _learn(self, name: bytes, first: int, body: bytes) -> tuple[str, tuple[int, ...]] | None:
        """Topic and Subscription Identifiers of a PUBLISH; None if it has other properties."""
        packet = decode(first, body, self.version)
        assert isinstance(packet, Publish)
        if packet.properties.keys() - {Property.SUBSCRIPTION_IDENTIFIER} or not packet.topic:
            return None
        known = (packet.topic, tuple(packet.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())))
        if len(name) <= LONG:
            self._known.keep(name, known)
        return known
