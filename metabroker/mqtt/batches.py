"""Batches at a connection of the metabroker: outgoing batches of PUBLISH packets, incoming runs of them.

An `OutgoingBatch` is messages of QoS 0 or 1 in a row, each a payload with the `PublishHeader` of its topic. No packet object is made for a
message: its header depends only on topic and length and is remembered, and packet identifiers are slices of a table. In flight a batch is
one entry, under the packet identifier of its first message that is not acknowledged.

An incoming run is frames of one size that differ only in packet identifier and payload (as in broker/publish/parse.py). What is checked
for the first frame holds for all. A topic and properties that were checked once are not decoded again.

It does not know sockets, sessions of the metabroker, or times.
"""

from __future__ import annotations

from ...base.cache import Cache
from ...mqtt.batch.run import PIDS
from ...mqtt.decode import decode
from ...mqtt.packets import Publish
from ...mqtt.properties import Property
from ..protocol.messages import LONG, OVERHEAD, IncomingRun, Outgoing

# What is remembered is bounded, whatever clients and remotes send:
TOPICS = 1024  # of a connection
PIDS5 = b"".join(pid.to_bytes(2, "big") + b"\0" for pid in range(65536))  # an identifier and no properties, at 3*p


class OutgoingBatch:
    """IncomingRun from place `done` on, all of QoS `qos`, with packet identifiers from `first` on (0: not sent).

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

    def cut(self, place: int) -> OutgoingBatch:
        """The messages from a place in `messages` on become a burst of their own, which is returned; identifiers and order stay."""
        rest = OutgoingBatch(self.messages[place:], self.qos, self.token, self.start + place)
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


class RunScanner:
    """Finds runs in what a server sends. version: of MQTT, 4 or 5."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._known: Cache[bytes, tuple[str, tuple[int, ...]]] = Cache(TOPICS)  # topic and property block as they stand in the packet

    def run(self, data: bytes, position: int, start: int, stop: int, epoch: int) -> tuple[IncomingRun, int] | None:
        """The run that begins with the PUBLISH at `position`, and where it ends; None if the packet has to be decoded by itself.

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
        return IncomingRun(known[0], qos, payloads, known[1], acks, epoch), after

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
