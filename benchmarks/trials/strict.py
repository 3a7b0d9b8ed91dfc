"""Clients with a persistent session that keep every rule of MQTT's QoS 1 and 2, over as many connections as it takes.

They judge a broker that is killed: a client resends exactly what the protocol says it must, remembers exactly what it may rely on,
and counts what a broker must never do. Written apart from the broker (see `wire.py`).

A message is 2 bytes publisher, 8 bytes sequence, then filler that follows from the sequence. A publisher sends sequences from 1 on.

What they do not know: processes, when a broker dies.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.load_generator import wire

HEADER = struct.Struct(">HQ")
FILLER = bytes(range(256)) * 9
SIZES = (10, 64, 64, 64, 300, 2000)
MOST = 2**32 - 1  # of a Session Expiry Interval: never


def message(publisher: int, sequence: int) -> bytes:
    """The payload with this sequence."""
    size = SIZES[sequence // 7 % len(SIZES)]
    return HEADER.pack(publisher, sequence) + FILLER[sequence & 255 : (sequence & 255) + size - HEADER.size]


@dataclass(slots=True)
class Judge:
    """What one subscriber has from one publisher.

    qos: of the delivery. seen: sequences that came. last: the highest. twice: repeats that QoS 2 forbids. again: repeats at QoS 1.
    disorder: messages that came for the first time behind a later one; first_disorder: the first of them.
    """

    qos: int
    seen: set[int] = field(default_factory=set)
    last: int = 0
    twice: int = 0
    again: int = 0
    disorder: int = 0
    corrupt: int = 0
    first_disorder: str = ""

    def take(self, publisher: int, sequence: int, payload: bytes) -> None:
        """A message has come."""
        if payload != message(publisher, sequence):
            self.corrupt += 1
        elif sequence in self.seen:
            if self.qos == 2:
                self.twice += 1
            else:
                self.again += 1
        else:
            self.seen.add(sequence)
            if sequence < self.last:
                self.disorder += 1
                self.first_disorder = self.first_disorder or f"first {sequence} behind {self.last}"
            self.last = max(self.last, sequence)


class Session(asyncio.Protocol):
    """A client identifier with its session state. present: what the broker said of the session when it last let us in.

    faults: what the broker did that it must not, by name.
    """

    def __init__(self, client_id: str, version: int, receive_maximum: int = 0) -> None:
        self.client_id = client_id
        self.version = version
        self.receive_maximum = receive_maximum
        self.established = False
        self.up = False
        self.faults: Counter[str] = Counter()
        self.changed: Callable[[], None] = lambda: None
        self._transport: asyncio.Transport | None = None
        self._kept = bytearray()

    async def dial(self, port: int) -> None:
        """Connect and wait for CONNACK; OSError or TimeoutError when there is nobody."""
        loop = asyncio.get_running_loop()
        self._kept.clear()
        await asyncio.wait_for(loop.create_connection(lambda: self, "127.0.0.1", port), 60)
        deadline = loop.time() + 10
        while not self.up:
            if self._transport is None or loop.time() > deadline:
                raise ConnectionResetError("no CONNACK")
            await asyncio.sleep(0.001)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        flags = 0
        properties = b""
        if self.version == 5:
            properties = b"\x11" + MOST.to_bytes(4, "big")
            if self.receive_maximum:
                properties += b"\x21" + self.receive_maximum.to_bytes(2, "big")
            properties = wire.encode_length(len(properties)) + properties
        body = wire.text(b"MQTT") + bytes((self.version, flags)) + (3600).to_bytes(2, "big") + properties
        self.send(wire.packet(0x10, body + wire.text(self.client_id.encode())))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.up = False
        self.changed()

    def leave(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()
        self._transport = None
        self.up = False

    def send(self, data: bytes) -> None:
        """Write, if there is a connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        """SUBSCRIBE; `established` is set by its SUBACK."""
        self.send(wire.subscribe(65535, topic_filter, qos, self.version))

    def data_received(self, data: bytes) -> None:
        self._kept += data
        position = 0
        while found := wire.next_packet(self._kept, position):
            position = found.end
            self._packet(found.first, found.body)
        del self._kept[:position]
        self.changed()

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == wire.CONNACK:
            wire.check_connack(body, self.version)
            if self.established and not body[0] & 1:
                self.faults["session forgotten"] += 1
            self.up = True
            self.resume()
        elif kind == wire.SUBACK:
            self.established = True
        elif kind != wire.DISCONNECT:
            self.packet(first, body)

    def resume(self) -> None:
        """A new connection has the session."""

    def packet(self, first: int, body: bytes) -> None:
        """Any packet of a session."""
        raise NotImplementedError


class Publisher(Session):
    """Publishes `message(number, 1)`, (number, 2), ... at one QoS, at most `window` without an end.

    acknowledged: sequences that the broker has taken over. refused: those it has refused.
    """

    def __init__(self, client_id: str, version: int, number: int, qos: int, topic: bytes, window: int) -> None:
        super().__init__(client_id, version)
        self.number, self.qos, self.topic, self.window = number, qos, topic, window
        self.sent = 0
        self.limit = 0
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self._published: dict[int, int] = {}  # packet identifier -> sequence, in order
        self._released: dict[int, int] = {}
        self._next = 0

    @property
    def idle(self) -> bool:
        """Whether everything is acknowledged through to the end."""
        return self.sent >= self.limit and not self._published and not self._released

    def go(self, limit: int) -> None:
        """Publish up to this sequence."""
        self.limit = limit
        self._pump()

    def resume(self) -> None:
        """Send again what is unfinished, in order [MQTT-4.4.0-1]."""
        for pid, sequence in self._published.items():
            self.send(self._frame(pid, sequence, True))
        for pid in self._released:
            self.send(wire.acknowledgement(wire.PUBREL, pid))
        self._pump()

    def _pump(self) -> None:
        parts = []
        while self.up and self.sent < self.limit and len(self._published) + len(self._released) < self.window:
            self.sent += 1
            self._next = self._next % 60000 + 1
            while self._next in self._published or self._next in self._released:
                self._next = self._next % 60000 + 1
            self._published[self._next] = self.sent
            parts.append(self._frame(self._next, self.sent, False))
        if parts:
            self.send(b"".join(parts))

    def _frame(self, pid: int, sequence: int, dup: bool) -> bytes:
        frame = wire.publish(self.topic, message(self.number, sequence), self.qos, self.version, pid)
        return bytes((frame[0] | 8,)) + frame[1:] if dup else frame

    def packet(self, first: int, body: bytes) -> None:
        kind, pid = first >> 4, int.from_bytes(body[:2], "big")
        refused = len(body) > 2 and body[2] >= 0x80
        if kind == wire.PUBACK and self.qos == 1 and pid in self._published:
            self._done(self._published.pop(pid), refused)
        elif kind == wire.PUBREC and self.qos == 2 and pid in self._published:
            self._done(sequence := self._published.pop(pid), refused)
            if not refused:
                self._released[pid] = sequence
                self.send(wire.acknowledgement(wire.PUBREL, pid))
        elif kind == wire.PUBREC and pid in self._released:
            self.send(wire.acknowledgement(wire.PUBREL, pid))
        elif kind == wire.PUBCOMP and pid in self._released:
            del self._released[pid]
        else:
            self.faults[f"packet type {kind} for an identifier that waits for none"] += 1
        self._pump()

    def _done(self, sequence: int, refused: bool) -> None:
        (self.refused if refused else self.acknowledged).add(sequence)


class Subscriber(Session):
    """Takes what comes and judges it; acknowledges in pieces and late, as `lazy` (0 to 1) says.

    judges: publisher -> what has come from it.
    """

    def __init__(
        self, client_id: str, version: int, judges: dict[int, Judge], receive_maximum: int, lazy: float, dice: random.Random
    ) -> None:
        super().__init__(client_id, version, receive_maximum)
        self.judges = judges
        self.lazy = lazy
        self.dice = dice
        self._open: set[int] = set()  # QoS 2 identifiers that are received and not released
        self._owed: deque[bytes] = deque()

    def resume(self) -> None:
        """What we owed the last connection nobody waits for."""
        self._owed.clear()

    def packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == wire.PUBLISH:
            self._publication(wire.decode_publish(first, body, self.version))
        elif kind == wire.PUBREL:
            pid = int.from_bytes(body[:2], "big")
            self._open.discard(pid)
            self._owe(wire.acknowledgement(wire.PUBCOMP, pid))
        else:
            self.faults[f"packet type {kind}"] += 1
        self.pay(self.lazy)

    def _publication(self, publication: wire.Publication) -> None:
        pid = publication.pid
        if publication.qos == 2:
            self._owe(wire.acknowledgement(wire.PUBREC, pid))
            if pid in self._open:
                if not publication.dup:
                    self.faults["an identifier used again before its end"] += 1
                return
            self._open.add(pid)
        elif publication.qos == 1:
            self._owe(wire.acknowledgement(wire.PUBACK, pid))
        number, sequence = HEADER.unpack_from(publication.payload)
        judge = self.judges[number]
        if publication.qos != judge.qos:
            self.faults[f"QoS {publication.qos} instead of {judge.qos}"] += 1
        judge.take(number, sequence, publication.payload)

    def _owe(self, acknowledgement: bytes) -> None:
        self._owed.append(acknowledgement)

    def pay(self, lazy: float = 0.0) -> None:
        """Send acknowledgements that are owed: all, or some."""
        if self._owed and self.dice.random() >= lazy:
            self.send(b"".join(self._owed))
            self._owed.clear()
