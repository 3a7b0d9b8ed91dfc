"""Many publishers with one message in flight each: the load of a broker that hears from many clients now and then.

A publisher sends its next message as soon as every subscriber has the last one and, at QoS 1, the broker has acknowledged it. So every
message reaches the broker in a packet of its own, and the broker shows what a message costs that has no company.

The generator must be faster than the broker: a client does its work when its socket is readable, nobody looks at all clients.
Each delivery is compared with the next message of its publisher, as one piece of bytes; what differs goes through the exact decoder.
The generator and the broker have cores of their own (`cores.py`).
"""

from __future__ import annotations

from benchmarks.load_generator import wire
from benchmarks.load_generator.cores import separate_cores
from benchmarks.load_generator.load import Load
from benchmarks.load_generator.publisher import Publisher
from benchmarks.load_generator.subscriber import Source, Subscriber
from benchmarks.load_generator.traffic import Traffic
from benchmarks.spec import Spec

READ = 1 << 14  # bytes of one recv


class SinglePublisher(Publisher):
    """A publisher with one message in flight.

    missing: deliveries and acknowledgements that the message in flight still lacks.
    """

    def __init__(self, load: OneInFlight, traffic: Traffic, targets: list[Source]) -> None:
        super().__init__(load.spec.entry, f"publisher{traffic.publisher}", traffic, targets, load.spec.ca, load.spec.web)
        self.load = load
        self.missing = 0
        self.wanted = len(targets) + (traffic.qos > 0)

    def send_next(self) -> None:
        """Send the next message, unless the stream has ended."""
        if self.sent >= self.load.limit:
            return
        index = self.sent % self.traffic.cycle
        offsets = self.stream.offsets
        self.sent += 1
        self.missing = self.wanted
        self.push(self.view[offsets[index] : offsets[index + 1]])

    def arrived(self, count: int = 1) -> None:
        """Some deliveries or acknowledgements of the message in flight have come."""
        self.missing -= count
        if not self.missing:
            self.send_next()

    def readable(self) -> None:
        """An acknowledgement has come: the one that is expected, or something to look at closely."""
        expected = self.expected.get(wire.PUBACK)
        data = self.sock.recv(READ)
        known = expected is not None and not self.kept and len(data) == expected.size and expected.count < self.sent
        if known and expected is not None and expected.block(data):
            self.arrived()
        else:
            self.judge(data)

    def judge(self, data: bytes) -> None:
        """Acknowledgements of any form."""
        if not data:
            raise wire.WireError("the broker closed the connection")
        expected = self.expected.get(wire.PUBACK)
        before = expected.count if expected else 0
        self.read(memoryview(data))
        if expected and expected.count > before:
            self.arrived(expected.count - before)


class SingleSubscriber(Subscriber):
    """A subscriber of publishers with one message in flight each.

    number_at: where the low byte of a publisher's number stands in a frame of less than 130 bytes; 0 until the stream starts.
    """

    def __init__(self, load: OneInFlight, number: int, traffics: list[Traffic]) -> None:
        super().__init__(load.spec.exit, f"subscriber{number}", traffics, load.spec.ca, load.spec.persistent, web=load.spec.web)
        self.load = load
        self.number_at = 0

    def start(self) -> None:
        """The probes are over: it is known how the broker frames what it delivers."""
        for source in self.sources.values():
            stream = source.stream
            if stream is None:
                raise wire.WireError("no probe shows how the broker frames a delivery")
            long = stream.offsets[1] >= 130  # the Remaining Length has two bytes
            self.number_at = stream.offsets[1] - len(source.traffic.payloads[0]) + 1 - long

    def readable(self) -> None:
        """Deliveries have come."""
        data = self.sock.recv(READ)
        if not data:
            raise wire.WireError("the broker closed the connection")
        if self.kept:
            data = bytes(self.kept) + data
            self.kept.clear()
        done, used, answer = self.whole(data) if self.number_at else ([], 0, b"")
        if answer:
            self.push(answer)
        self.load.deliveries += len(done)
        publishers = self.load.publishers
        for number in done:
            publishers[number].arrived()
        if used < len(data):
            self.judge(data[used:])

    def whole(self, data: bytes) -> tuple[list[int], int, bytes]:
        """The publishers whose next messages stand at the beginning of `data`, how many bytes these take, and their acknowledgements."""
        done: list[int] = []
        answer = b""
        sources, at, qos = self.sources, self.number_at, self.qos
        position, end = 0, len(data)
        while position + at < end:
            number = data[position + at + (data[position + 1] >> 7)]
            source = sources.get(number)
            if source is None:
                break
            stream = source.stream
            assert stream is not None
            index = source.received % source.cycle
            begin, stop = stream.offsets[index], stream.offsets[index + 1]
            after = position + stop - begin
            if qos:
                split = stream.pid_offset
                middle = position + split
                if not split or not data.startswith(stream.data[begin : begin + split], position):
                    break
                if not data.startswith(stream.data[begin + split + 2 : stop], middle + 2):
                    break
                answer += b"\x40\x02" + data[middle : middle + 2]
            elif not data.startswith(stream.data[begin:stop], position):
                break
            source.received += 1
            done.append(number)
            position = after
        return done, position, answer

    def judge(self, data: bytes) -> None:
        """Packets of any form, complete or not."""
        before = [source.received for source in self.sources.values()]
        self.slow(data)
        if self.load.limit == 0 and not self.number_at:
            return
        for count, (number, source) in zip(before, self.sources.items(), strict=True):
            if source.received > count:
                self.load.deliveries += source.received - count
                self.load.publishers[number].arrived(source.received - count)


class OneInFlight(Load):
    """The clients of one measurement.

    deliveries: so far, in order or counted as missing.
    first: publishers that have not sent their first message.
    """

    publishers: list[SinglePublisher]  # type: ignore[assignment]
    subscribers: list[SingleSubscriber]  # type: ignore[assignment]

    def __init__(self, spec: Spec) -> None:
        if spec.qos > 1 or spec.gateway or spec.window != spec.publishers:
            raise ValueError("one message in flight for each publisher, at QoS 0 or 1, and no gateway")
        if spec.publishers > (256 if spec.pairs else 100):
            raise ValueError("a subscriber tells 100 publishers apart, pairs 256")
        self.deliveries = 0
        self.first: list[SinglePublisher] = []
        super().__init__(spec)

    def subscriber(self, number: int) -> SingleSubscriber:
        """See `Load.subscriber`."""
        return SingleSubscriber(self, number, [self.traffics[number]] if self.spec.pairs else self.traffics)

    def publisher(self, traffic: Traffic) -> SinglePublisher:
        """See `Load.publisher`."""
        return SinglePublisher(self, traffic, [s.sources[traffic.publisher] for s in self.subscribers if traffic.publisher in s.sources])

    def begin(self) -> int:
        """See `Load.begin`."""
        number = super().begin()
        for subscriber in self.subscribers:
            subscriber.start()
        separate_cores(self.spec.pids)
        self.first = self.publishers
        return number

    def warm_up(self) -> float:
        """See `Load.warm_up`. It begins when every publisher has used all its topics, so that the broker knows them."""
        self.until(lambda: all(publisher.sent >= self.spec.topics for publisher in self.publishers), self.spec.patience)
        return super().warm_up()

    def pump(self) -> bool:
        """Send the first message of each publisher; the later ones follow without being asked for."""
        first, self.first = self.first, []
        for publisher in first:
            publisher.send_next()
        return False

    def received(self) -> int:
        """See `Load.received`."""
        return self.deliveries
