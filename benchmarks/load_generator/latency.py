"""One message at a time: the time from `send` of a PUBLISH to the `recv` that completes its delivery.

Blocking sockets and the same few lines for every broker. The acknowledgements of QoS 1 are exchanged between two messages,
outside the measured time; each delivery is decoded and compared there too.

The generator keeps to one core and the brokers to the others. Left alone, the scheduler puts both on one core in some runs
and on two in others, and waking an idle core costs more than the broker's own work, so that the figures of one broker have two values.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import psutil

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.load_generator.cores import separate_cores
from benchmarks.load_generator.gateway import CYCLE, FIRST, FIRST_PROBE, Member, request, unpacked
from benchmarks.load_generator.traffic import PROBE, PROBE_HEADER, PROBE_PIDS, Traffic
from benchmarks.spec import Result, Spec


class Client(Connection):
    """A blocking client."""

    def next(self) -> wire.Packet:
        """The next packet, whatever it takes."""
        while (found := wire.next_packet(self.kept, 0)) is None:
            data = self.sock.recv(65536)
            if not data:
                raise wire.WireError("the broker closed the connection")
            self.kept += data
        del self.kept[: found.end]
        return found


class Pair:
    """A publisher and a subscriber that exchange single messages."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.traffic = Traffic(0, spec.qos, spec.version, 1, spec.sizes, CYCLE if spec.gateway == "out" else 1000)
        self.subscriber = Client(spec.exit, "subscriber0", spec.version, spec.ca)
        self.subscribe()
        self.publisher = Client(spec.entry, "publisher0", spec.version, spec.ca)

    def subscribe(self) -> None:
        """The subscriber asks for the messages."""
        self.subscriber.subscribe(self.traffic.topic_filter, self.spec.qos)

    def ready(self) -> None:
        """Probe until one arrives, then wait for a last one behind it."""
        end, number = time.monotonic() + self.spec.patience, 0
        self.subscriber.sock.settimeout(0.1)
        while True:
            self.send(self.traffic.probe(number))
            try:
                self.take_probe()
                break
            except TimeoutError:
                if time.monotonic() > end:
                    raise wire.WireError(f"no probe arrived within {self.spec.patience:.0f} s") from None
            number += 1
        self.subscriber.sock.settimeout(self.spec.patience)
        self.publisher.sock.settimeout(self.spec.patience)
        self.send(self.traffic.probe(number + 1))
        while self.take_probe() != number + 1:
            pass

    def send(self, frame: bytes) -> None:
        """Publish a probe and, at QoS 1, take its acknowledgement."""
        self.publisher.sock.sendall(frame)
        if self.spec.qos:
            self.take_puback(0)

    def take_puback(self, pid: int) -> None:
        """The acknowledgement of `pid` (0: of any probe)."""
        packet = self.publisher.next()
        got = wire.decode_acknowledgement(packet.first, packet.body)
        if packet.first >> 4 != wire.PUBACK or (got != pid if pid else got < PROBE_PIDS):
            raise wire.WireError(f"packet type {packet.first >> 4} for {got} came where PUBACK for {pid} was expected")

    def take(self, packet: wire.Packet) -> wire.Publication:
        """Decode and acknowledge a delivery."""
        if packet.first >> 4 != wire.PUBLISH:
            raise wire.WireError(f"packet type {packet.first >> 4} came to a subscriber")
        publication = wire.decode_publish(packet.first, packet.body, self.spec.version)
        if publication.qos:
            self.subscriber.sock.sendall(wire.acknowledgement(wire.PUBACK, publication.pid))
        return publication

    def take_probe(self) -> int:
        """The number of the probe that comes."""
        _, index, number = PROBE_HEADER.unpack_from(self.take(self.subscriber.next()).payload)
        if index != PROBE:
            raise wire.WireError("a message came before it was sent")
        return int(number)

    def exchange(self, index: int) -> tuple[float, bool]:
        """Send message `index` of the cycle: seconds until it was there, and whether it was the right one."""
        frame = self.frame(index)
        clock, send = time.perf_counter, self.publisher.sock.send
        start = clock()
        send(frame)
        packet = self.subscriber.next()
        took = clock() - start
        right = self.take(packet).payload == self.traffic.payloads[index]
        self.settle(index)
        return took, right

    def frame(self, index: int) -> bytes:
        """What publishes message `index` of the cycle."""
        stream = self.traffic.stream(True)
        return stream.data[stream.offsets[index] : stream.offsets[index + 1]]

    def settle(self, index: int) -> None:
        """Take what the publisher is answered."""
        if self.spec.qos:
            self.take_puback(index + 1)


class AskingPair(Pair):
    """The publisher is a client of a metabroker; its requests have the QoS of its messages, and no answer at QoS 0."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.session = Member(self.publisher, "publisher0", spec.remote).session
        topic, qos = self.traffic.topic(0), spec.qos
        self.frames = [request(self.session, FIRST + i, topic, payload, qos, i + 1) for i, payload in enumerate(self.traffic.payloads)]

    def send(self, frame: bytes) -> None:
        """Ask for a probe to be published."""
        publication = wire.decode_publish(frame[0], wire.next_packet(frame, 0).body, 4)  # type: ignore[union-attr]
        number = PROBE_HEADER.unpack_from(publication.payload)[2]
        pid = PROBE_PIDS + number % 500
        self.publisher.sock.sendall(request(self.session, FIRST_PROBE + number, publication.topic, publication.payload, self.spec.qos, pid))
        self.answered(FIRST_PROBE + number, pid)

    def frame(self, index: int) -> bytes:
        """See `Pair.frame`."""
        return self.frames[index]

    def settle(self, index: int) -> None:
        """See `Pair.settle`."""
        self.answered(FIRST + index, index + 1)

    def answered(self, message: int, pid: int) -> None:
        """Take the acknowledgement of a request and the answer to it, at QoS 1."""
        left = 2 if self.spec.qos else 0
        while left:
            packet = self.publisher.next()
            left -= 1
            if packet.first >> 4 == wire.PUBLISH:
                publication = wire.decode_publish(packet.first, packet.body, 4)
                self.publisher.sock.sendall(wire.acknowledgement(wire.PUBACK, publication.pid))
                said = unpacked(publication.payload)
                if said.get("code") != 0 or said.get("message") != message:
                    raise wire.WireError(f"the metabroker says {said} where an answer to {message} was expected")
            elif packet.first >> 4 != wire.PUBACK or wire.decode_acknowledgement(packet.first, packet.body) != pid:
                raise wire.WireError(f"packet type {packet.first >> 4} came where PUBACK for {pid} was expected")


class HearingPair(Pair):
    """The subscriber is a client of a metabroker."""

    def subscribe(self) -> None:
        """See `Pair.subscribe`."""
        member = Member(self.subscriber, "subscriber0", self.spec.remote)
        topics = [self.traffic.topic_filter.decode()]
        member.ask(f"{member.session}/subscribe", message=1, topics=topics, qos=self.spec.qos)

    def take(self, packet: wire.Packet) -> wire.Publication:
        """See `Pair.take`."""
        publication = super().take(packet)
        return publication._replace(payload=unpacked(publication.payload)["payload"])


BLOCK, UNCOUNTED = 40, 3  # messages of a block; before them
PAIRS = {"": Pair, "out": AskingPair, "in": HearingPair}


class Leg:
    """What is measured in turn with others. times: of all messages, in seconds; blocks: the median of each block."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.times: list[float] = []
        self.blocks: list[float] = []
        self.wrong = 0
        self._next = 0
        pair.ready()

    def exchange(self, count: int) -> list[float]:
        """Send so many messages, one after the other: how long each took."""
        took = []
        for _ in range(count):
            seconds, right = self.pair.exchange(self._next % self.pair.traffic.cycle)
            self._next += 1
            self.wrong += not right
            took.append(seconds)
        return took

    def block(self) -> None:
        """Measure a block. The first messages after the other's turn do not count."""
        self.exchange(UNCOUNTED)
        took = self.exchange(BLOCK)
        self.times += took
        self.blocks.append(statistics.median(took))


def measure(spec: Spec) -> Result:
    """A Result with p50 and p99 in seconds, and what arrived wrong.

    With `spec.single` the two are measured in turn, in blocks of `BLOCK` messages, first the one and then the other: what the machine does
    beside changes slowly, compared with that, and falls on both alike.
    """
    if spec.qos > 1:
        raise ValueError("latency is measured at QoS 0 and 1")
    legs = [Leg(PAIRS[spec.gateway](spec))]
    if spec.single[1]:
        legs.append(Leg(Pair(replace(spec, entry=spec.single, exit=spec.single, gateway="", remote=("", 0)))))
    separate_cores(spec.pids + spec.single_pids)
    for leg in legs:
        leg.exchange(max(20, spec.least // 10))
    brokers = [psutil.Process(pid) for pid in spec.pids]
    before, own = sum(sum(p.cpu_times()[:2]) for p in brokers), time.process_time()
    start, aim = time.perf_counter(), spec.seconds * len(legs)
    while time.perf_counter() - start < aim or len(legs[0].times) < spec.least:
        turn = legs if len(legs[0].blocks) % 2 else legs[::-1]
        for leg in turn:
            leg.block()
    seconds = time.perf_counter() - start
    cpu, own = sum(sum(p.cpu_times()[:2]) for p in brokers) - before, time.process_time() - own
    for leg in legs:
        leg.pair.publisher.close()
        leg.pair.subscriber.close()
    times = sorted(legs[0].times)
    wrong = sum(leg.wrong for leg in legs)
    result = Result(len(times), seconds, len(times) / seconds, corrupt=wrong, generator_cpu=own, broker_cpu=cpu)
    result.p50, result.p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    if spec.single[1]:
        whole, single = legs
        result.direct = statistics.median(single.times)
        result.added = statistics.median([one - other for one, other in zip(whole.blocks, single.blocks, strict=True)])
    return result
