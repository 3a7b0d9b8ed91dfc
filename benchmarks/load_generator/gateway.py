"""Clients of a community that use a metabroker, as publisher (`Asker`) and as subscriber (`Hearer`), judged like all others.

A message of QoS 1 that an `Asker` publishes is in flight until the community broker has acknowledged the request, the metabroker has
answered it with code 0 and the subscriber at the remote broker has it. At QoS 0 requests have no `message` and no answer, and an answer is
an error. A `Hearer` checks besides topic, payload and order that the `id` of its
publications grows by one each time. Requests are encoded before the clock starts and answers are compared as blocks of bytes, as in
`publisher.py` and `subscriber.py`; what does not compare is unpacked and judged one by one.

`message` identifiers of a cycle have one size in msgpack, so that a cycle is one piece of memory; no identifier comes again within 40,000.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import msgpack
import numpy as np

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import CHUNK, Connection
from benchmarks.load_generator.publisher import Expected, Publisher
from benchmarks.load_generator.subscriber import ACKNOWLEDGEMENTS, Source, Subscriber
from benchmarks.load_generator.traffic import PROBE_PIDS, Stream, Traffic

FIRST = 1_000_000  # `message` of the first request of a cycle
FIRST_PROBE = 500_000
CYCLE = 20_000  # messages that a cycle is made for at least, in flight
PATIENCE = 60.0  # seconds for an answer to connect
ID = b"\xa2id\xce"  # the key `id` and the first byte of a number of four bytes


def unpacked(body: bytes) -> dict[str, Any]:
    """A body as a map. Raises WireError."""
    try:
        value = msgpack.unpackb(body)
    except ValueError as error:
        raise wire.WireError(f"an answer is no msgpack: {error}") from None
    if not isinstance(value, dict):
        raise wire.WireError("an answer is no map")
    return value


class Member:
    """The conversation of one client with the metabroker, before its connection becomes non-blocking."""

    def __init__(self, connection: Connection, name: str, remote: tuple[str, int]) -> None:
        self.connection = connection
        self.pid = PROBE_PIDS
        connection.sock.settimeout(PATIENCE)
        connection.subscribe(f"metabroker/response/{name}/connack".encode(), 1)
        body = self.ask(f"{name}/connect", client=name, remote=f"mqtt://{remote[0]}:{remote[1]}")
        self.session = str(body["session"])
        connection.subscribe(f"metabroker/response/{self.session}/#".encode(), 1)

    def ask(self, verb: str, **keys: Any) -> dict[str, Any]:
        """Send a request and wait for its answer, which must have code 0."""
        connection = self.connection
        self.pid += 1
        connection.sock.sendall(wire.publish(f"metabroker/request/{verb}".encode(), msgpack.packb(keys), 1, 4, self.pid))
        answer: dict[str, Any] | None = None
        acknowledged = False
        while answer is None or not acknowledged:
            first, body = self.packet()
            if first >> 4 == wire.PUBACK:
                acknowledged = True
            elif first >> 4 == wire.PUBLISH:
                publication = wire.decode_publish(first, body, 4)
                if publication.qos:
                    connection.sock.sendall(wire.acknowledgement(wire.PUBACK, publication.pid))
                answer = unpacked(publication.payload)
        if answer.get("code") != 0:
            raise wire.WireError(f"the metabroker refuses {verb.rpartition('/')[2]}: {answer}")
        return answer

    def packet(self) -> tuple[int, bytes]:
        """The next packet, whatever it is."""
        connection = self.connection
        while (found := wire.next_packet(connection.kept, 0)) is None:
            data = connection.sock.recv(65536)
            if not data:
                raise wire.WireError("the broker closed the connection")
            connection.kept += data
        del connection.kept[: found.end]
        return found.first, found.body


def request(session: str, message: int, topic: bytes, payload: bytes, qos: int, pid: int) -> bytes:
    """A request to publish as a PUBLISH packet of MQTT 3.1.1: of QoS 1, or of QoS 0 and without an answer."""
    asked = {"message": message, "qos": qos} if qos else {}
    body = msgpack.packb({**asked, "topic": topic.decode(), "payload": payload})
    return wire.publish(f"metabroker/request/{session}/publish".encode(), body, min(qos, 1), 4, pid)


def joined(frames: list[bytes], extra: int = 1 << 18) -> Stream:
    """Frames as a stream."""
    data = b"".join(frames)
    sizes = set(map(len, frames))
    repeat = data * (extra // len(data) + 1)
    return Stream(data + repeat[:extra], [0, *accumulate(map(len, frames))], sizes.pop() if len(sizes) == 1 else 0, 0)


class Asker(Publisher):
    """A client that publishes one `Traffic` at a remote broker. window: messages in flight."""

    def __init__(
        self, address: tuple[str, int], client_id: str, traffic: Traffic, targets: list[Source], remote: tuple[str, int], window: int
    ) -> None:
        super().__init__(address, client_id, traffic, targets)
        self.session = Member(self, client_id, remote).session
        self.window = window
        frames = [
            request(self.session, FIRST + i, traffic.topic(i), payload, traffic.qos, i + 1) for i, payload in enumerate(traffic.payloads)
        ]
        self.stream = joined(frames)
        self.view = memoryview(self.stream.data)
        self.last = wire.PUBACK
        self.answered = 0
        self.early: set[int] = set()  # messages answered before their turn
        self.answers: Stream | None = None
        self.pattern: re.Pattern[bytes] | None = None

    def start(self) -> None:
        """The probes are over."""
        if self.traffic.qos:
            self.expected[wire.PUBACK] = Expected(wire.PUBACK, self.traffic.cycle, b"")

    def in_flight(self) -> int:
        """Messages without an answer, or that the subscriber does not have yet."""
        return max(super().in_flight(), self.sent - self.answered if self.traffic.qos else 0)

    def probe(self, number: int) -> None:
        """Send a probe."""
        payload = self.traffic.probe_payload(number)
        self.push(request(self.session, FIRST_PROBE + number, self.traffic.topic(0), payload, self.traffic.qos, PROBE_PIDS + number % 500))
        self.probes += 2 if self.traffic.qos else 0  # PUBACK and answer

    def read(self, data: memoryview) -> None:
        """Acknowledgements and answers have come."""
        self.kept += data
        while self.kept:
            if self.kept[0] >> 4 == wire.PUBLISH and self.pattern and (run := self.pattern.match(self.kept, 0, CHUNK)):
                if not self.block_of_answers(run.end()):
                    self.one()
                continue
            expected = self.expected.get(self.kept[0] >> 4)
            run = expected.pattern.match(self.kept) if expected else None
            if expected and run and self.block(expected, run.group()):
                del self.kept[: run.end()]
            elif not self.one():
                return

    def block_of_answers(self, end: int) -> bool:
        """Take answers that are exactly what must come next but for their packet identifiers; False if they are not."""
        stream = self.answers
        assert stream
        block = self.kept[:end]
        size, offset = stream.size, stream.pid_offset
        count = end // size
        high, low = block[offset::size], block[offset + 1 :: size]
        block[offset::size] = block[offset + 1 :: size] = bytes(count)
        if self.early or self.answered + count > self.sent:
            return False
        if not stream.data.startswith(block, stream.offsets[self.answered % self.traffic.cycle]):
            return False
        self.answered += count
        del self.kept[:end]
        answer = bytearray(ACKNOWLEDGEMENTS[1][: 4 * count])
        answer[2::4], answer[3::4] = high, low
        self.push(answer)
        return True

    def packet(self, first: int, body: bytes) -> None:
        """Judge one packet."""
        if first >> 4 != wire.PUBLISH:
            super().packet(first, body)
            return
        publication = wire.decode_publish(first, body, 4)
        if publication.qos:
            self.push(wire.acknowledgement(wire.PUBACK, publication.pid))
        said = unpacked(publication.payload)
        message = said.get("message")
        if not self.traffic.qos:
            raise wire.WireError(f"the metabroker answers at QoS 0: {said}")
        if publication.topic != f"metabroker/response/{self.session}/puback".encode() or said.get("code") != 0:
            raise wire.WireError(f"the metabroker refuses a message: {said}")
        if type(message) is not int:
            raise wire.WireError(f"an answer to no request: {said}")
        if message < FIRST:
            self.probes -= 1
            self.learn(publication, message)
        else:
            self.slow_packets += 1
            self.single(message - FIRST)

    def single(self, index: int) -> None:
        """One answer, in turn or not."""
        cycle = self.traffic.cycle
        ahead = (index - self.answered) % cycle
        if index in self.early or not 0 <= index < cycle or self.answered + ahead >= self.sent:
            raise wire.WireError(f"an answer to request {index}, which waits for none")
        self.early.add(index)
        while self.answered % cycle in self.early:
            self.early.discard(self.answered % cycle)
            self.answered += 1

    def learn(self, publication: wire.Publication, message: int) -> None:
        """The framing of an answer shows that of the others."""
        if self.answers is not None or not publication.qos:
            return
        body = publication.payload
        place = body.index(msgpack.packb(message))
        frames = []
        for i in range(self.traffic.cycle):
            other = body[:place] + msgpack.packb(FIRST + i) + body[place + 5 :]
            frames.append(wire.publish(publication.topic, other, 1, 4, 0))
        stream = joined(frames)
        head = frames[0][: frames[0].index(publication.topic) + len(publication.topic)]
        self.answers = Stream(stream.data, stream.offsets, stream.size, len(head))
        self.pattern = re.compile(b"(?:%b.{%d})+" % (re.escape(head), stream.size - len(head)), re.DOTALL)


class Hearer(Subscriber):
    """A client that subscribes at a remote broker to the messages of one publisher."""

    def __init__(self, address: tuple[str, int], client_id: str, traffic: Traffic, remote: tuple[str, int]) -> None:
        super().__init__(address, client_id, [traffic], join=False)
        member = Member(self, client_id, remote)
        self.session = member.session
        self.topic = f"metabroker/response/{self.session}/publish".encode()
        answer = member.ask(f"{self.session}/subscribe", message=1, topics=[traffic.topic_filter.decode()], qos=traffic.qos)
        if answer["codes"] != [traffic.qos]:
            raise wire.WireError(f"the metabroker grants {answer['codes']}")
        self.last = 0  # `id` of the last publication
        self.head = b""  # of a frame, up to the packet identifier, as far as it is known
        self.column = 0  # of the `id` in a frame
        self.blocks: Stream | None = None

    def read(self, data: memoryview) -> None:
        """Judge a chunk."""
        self.kept += data
        while self.kept:
            if not self.block() and not self.one():
                return

    def block(self) -> bool:
        """Take the frames at the beginning that are the next messages but for their identifiers; False if there are none."""
        source, stream = self.only, self.blocks
        if source is None or stream is None:
            return False
        size, offset, column = stream.size, stream.pid_offset, self.column
        count = min(len(self.kept) // size, CHUNK // size)
        if not count or not self.kept.startswith(self.head):
            return False
        block = np.frombuffer(self.kept[: count * size], np.uint8).reshape(count, size).copy()
        numbers = block[:, column : column + 4].tobytes()
        if numbers != np.arange(self.last + 1, self.last + 1 + count, dtype=">u4").tobytes():
            return False
        block[:, column : column + 4] = 0
        pids = block[:, offset : offset + 2].copy() if offset else None
        if offset:
            block[:, offset : offset + 2] = 0
        if not stream.data.startswith(block.tobytes(), stream.offsets[source.received % source.cycle]):
            return False
        source.received += count
        self.last += count
        del self.kept[: count * size]
        if pids is not None:
            answer = np.empty((count, 4), np.uint8)
            answer[:, 0], answer[:, 1], answer[:, 2:] = 0x40, 2, pids
            self.push(answer.tobytes())
        return True

    def packet(self, first: int, body: bytes) -> None:
        """Judge one packet, whatever its form, and answer it."""
        self.slow_packets += 1
        if first >> 4 != wire.PUBLISH:
            raise wire.WireError(f"packet type {first >> 4} (0x{first:02x}) came to a subscriber: {body[:40].hex()}")
        publication = wire.decode_publish(first, body, 4)
        if publication.qos:
            self.push(wire.acknowledgement(wire.PUBACK, publication.pid))
        said = unpacked(publication.payload)
        source = self.only
        assert source
        if publication.topic != self.topic:
            raise wire.WireError(f"the metabroker says {said}")
        number = said.get("id")
        if type(number) is not int or number <= self.last:
            source.duplicates += 1
            return
        if number > self.last + 1:
            source.corrupt += number - self.last - 1
        self.last = number
        topic, payload = said.get("topic"), said.get("payload")
        if type(topic) is not str or type(payload) is not bytes or len(payload) < 6 or said.get("retain", False) or said.get("properties"):
            source.corrupt += 1
            return
        source.take(wire.Publication(topic.encode(), int(said.get("qos", 0)), 0, b"", payload, False, False))
        if self.blocks is None:
            self.learn(first, publication, payload, source.traffic)

    def learn(self, first: int, publication: wire.Publication, payload: bytes, traffic: Traffic) -> None:
        """The framing of one publication shows that of the others, once its `id` has the size of theirs."""
        body = publication.payload
        if ID not in body:
            return
        number = body.index(ID) + len(ID)
        place = body.index(payload)
        if place < number:
            return
        middle, tail = body[number + 4 : place], body[place + len(payload) :]
        frames = [
            wire.publish(self.topic, body[:number] + bytes(4) + middle + one + tail, publication.qos, 4, 0) for one in traffic.payloads
        ]
        stream = joined(frames)
        start = frames[0].index(self.topic) + len(self.topic)
        self.head = bytes((first,)) + frames[0][1:start]
        self.column = start + (2 if publication.qos else 0) + number
        self.blocks = Stream(stream.data, stream.offsets, stream.size, start if publication.qos else 0) if stream.size else None
