"""The clients of one measurement and the loop that drives them: one process is every publisher and subscriber.

Closed loop: a fixed number of messages is in flight. Probes show that every path exists. A warm-up shows how fast the broker is.
Then the wall time of a fixed number of deliveries is taken, in the middle of a stream that does not stop. At last the stream
ends, everything in flight must arrive, and a last probe makes sure that nothing more follows.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from functools import partial

import psutil

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.load_generator.gateway import CYCLE, Asker, Hearer
from benchmarks.load_generator.publisher import Publisher
from benchmarks.load_generator.subscriber import Subscriber
from benchmarks.load_generator.traffic import Traffic
from benchmarks.spec import Result, Spec

UNLIMITED = 1 << 62


class Load:
    """The clients of one measurement and the loop that drives them."""

    def __init__(self, spec: Spec) -> None:
        if not spec.subscribers or (spec.pairs and spec.subscribers != spec.publishers):
            raise ValueError("no subscriber, or not as many as publishers where they are pairs")
        if spec.gateway and (spec.version != 4 or (spec.gateway == "in" and spec.publishers > 1 and not spec.pairs)):
            raise ValueError("clients of a metabroker speak MQTT 3.1.1 here and hear one publisher each")
        self.spec = spec
        self.epoll = select.epoll()
        window = max(1, spec.window // spec.publishers)
        cycle = max(window, CYCLE) if spec.gateway == "out" else window
        self.traffics = [Traffic(i, spec.qos, spec.version, spec.topics, spec.sizes, cycle) for i in range(spec.publishers)]
        self.clients: dict[int, Connection] = {}
        self.subscribers = [self.subscriber(i) for i in range(spec.subscribers)]
        self.publishers = [self.publisher(traffic) for traffic in self.traffics]
        self.sources = [source for subscriber in self.subscribers for source in subscriber.sources.values()]
        self.limit = 0
        for client in (*self.subscribers, *self.publishers):
            client.register(self.epoll)
            self.clients[client.fd] = client

    def subscriber(self, number: int) -> Subscriber:
        """Subscriber `number`: of its own publisher when there are pairs, else of all."""
        traffics = [self.traffics[number]] if self.spec.pairs else self.traffics
        if self.spec.gateway == "in":
            return Hearer(self.spec.exit, f"subscriber{number}", traffics[0], self.spec.remote)
        return Subscriber(self.spec.exit, f"subscriber{number}", traffics, self.spec.ca, self.spec.persistent, web=self.spec.web)

    def leave(self, subscriber: Subscriber) -> None:
        """The subscriber says goodbye."""
        self.epoll.unregister(subscriber.fd)
        del self.clients[subscriber.fd]
        self.subscribers.remove(subscriber)
        subscriber.close()

    def enter(self, subscriber: Subscriber) -> None:
        """A subscriber comes, or comes back."""
        self.subscribers.append(subscriber)
        subscriber.register(self.epoll)
        self.clients[subscriber.fd] = subscriber

    def publisher(self, traffic: Traffic) -> Publisher:
        """The publisher of this traffic."""
        targets = [s.sources[traffic.publisher] for s in self.subscribers if traffic.publisher in s.sources]
        name = f"publisher{traffic.publisher}"
        if self.spec.gateway == "out":
            return Asker(self.spec.entry, name, traffic, targets, self.spec.remote, max(1, self.spec.window // self.spec.publishers))
        return Publisher(self.spec.entry, name, traffic, targets, self.spec.ca, self.spec.web)

    def step(self, timeout: float) -> None:
        """Wait for sockets, serve them, send what the windows allow."""
        more = self.limit > 0 and self.pump()
        for fd, event in self.epoll.poll(0 if more else timeout):
            client = self.clients[fd]
            if event & ~select.EPOLLOUT:
                client.readable()
            if event & select.EPOLLOUT:
                client.writable()

    def pump(self) -> bool:
        """Send what the windows allow; True if more can go at once."""
        more = False
        for publisher in self.publishers:
            more |= publisher.pump(self.limit)
        return more

    def received(self) -> int:
        """Deliveries so far, in order or counted as missing."""
        return sum([source.received for source in self.sources])

    def probe(self, first: int, patience: float) -> int:
        """Publish probes until one has come on every path, then one more, which must come; the next probe's number."""
        number, end = first, time.monotonic() + patience

        def every_path() -> bool:
            return all(any(probe >= first for probe in source.probes) for source in self.sources)

        while not every_path():
            if time.monotonic() > end:
                raise wire.WireError(f"no probe arrived within {patience:.0f} s")
            self.publish_probe(number)
            number += 1
            self.until(every_path, 0.1)
        self.publish_probe(number)
        if not self.until(lambda: all(number in source.probes for source in self.sources), patience):
            raise wire.WireError("a probe was lost after another had arrived")
        return number + 1

    def publish_probe(self, number: int) -> None:
        """Every publisher sends that probe."""
        for publisher in self.publishers:
            publisher.probe(number)

    def until(self, done: Callable[[], bool], patience: float) -> bool:
        """Serve the sockets until `done()`; False if that takes longer than `patience` seconds."""
        end = time.monotonic() + patience
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.step(left)
        return True

    def run(self) -> Result:
        """Warm up, measure, end the stream, judge."""
        number = self.begin()
        slow = self.slow_packets()
        self.limit = UNLIMITED
        rate = self.warm_up()
        if rate:
            result = self.measure(max(self.spec.least, int(rate * self.spec.seconds)))
        else:
            result = Result(error="the stream stopped in the warm-up")
        result.slow_packets = self.slow_packets() - slow
        self.finish(number, result)
        return result

    def begin(self) -> int:
        """Probe every path, then make all ready to publish; the next probe's number."""
        number = self.probe(0, self.spec.patience)
        if not self.until(self.idle, self.spec.patience):
            raise wire.WireError("a probe was delivered and not acknowledged")
        for publisher in self.publishers:
            publisher.start()
        return number

    def idle(self) -> bool:
        """Whether nothing waits to be sent and every probe of QoS 1 or 2 is acknowledged."""
        return not any(publisher.left or publisher.probes for publisher in self.publishers)

    def slow_packets(self) -> int:
        """Packets that went through the exact decoder."""
        return sum(client.slow_packets for client in (*self.subscribers, *self.publishers))

    def warm_up(self) -> float:
        """Run for the warm-up's time; deliveries per second in its second half, 0 if the stream stops."""
        start = time.perf_counter()
        middle = end = 0.0
        half = count = 0
        while end - start < self.spec.warm_up or count == half:
            self.step(1.0)
            end, count = time.perf_counter(), self.received()
            if not middle and end - start >= self.spec.warm_up / 2:
                middle, half = end, count
            if end - start > self.spec.patience:
                return 0.0
        return (count - half) / (end - middle)

    def measure(self, deliveries: int) -> Result:
        """The wall time of that many deliveries, or of what arrives within four times the expected time."""
        brokers = [psutil.Process(pid) for pid in self.spec.pids]
        cpus, own = [broker_cpu([one]) for one in brokers], time.process_time()
        first, start = self.received(), time.perf_counter()
        goal, patience = first + deliveries, max(4 * self.spec.seconds, self.spec.patience)
        count, end = first, start
        while count < goal and end - start < patience:
            self.step(1.0)
            count, end = self.received(), time.perf_counter()
        took = end - start
        result = Result(count - first, took, (count - first) / took)
        result.generator_cpu = time.process_time() - own
        result.processes = [(one.name(), broker_cpu([one]) - cpu) for one, cpu in zip(brokers, cpus, strict=True)]
        result.broker_cpu = sum(cpu for _, cpu in result.processes)
        return result

    def finish(self, number: int, result: Result) -> None:
        """Stop the stream, wait for what is in flight, fence it with a probe and count what went wrong."""
        self.limit = 0
        while any(publisher.in_flight() for publisher in self.publishers):
            before = self.progress()
            if not self.until(partial(self.changed, before), self.spec.patience / 2):
                result.notes.append("the stream stopped before everything had arrived")
                break
        else:
            self.probe(number, self.spec.patience)
        for publisher in self.publishers:
            result.lost += sum(publisher.sent - source.received for source in publisher.targets)
        result.lost += sum(len(source.missing) for source in self.sources)
        result.duplicates = sum(source.duplicates for source in self.sources)
        result.disorder = sum(source.disorder for source in self.sources)
        result.corrupt = sum(source.corrupt for source in self.sources)

    def progress(self) -> tuple[int, int]:
        """Changes when anything arrives."""
        return self.received(), sum(publisher.in_flight() for publisher in self.publishers)

    def changed(self, before: tuple[int, int]) -> bool:
        """Whether there is progress since."""
        return self.progress() != before

    def close(self) -> None:
        """Disconnect all clients."""
        for client in self.clients.values():
            client.close()
        self.epoll.close()


def broker_cpu(brokers: list[psutil.Process]) -> float:
    """User and system time of the brokers so far."""
    return sum(sum(process.cpu_times()[:2]) for process in brokers)
