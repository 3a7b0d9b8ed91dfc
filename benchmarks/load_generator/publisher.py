"""A publisher that keeps a bounded number of messages in flight.

It sends slices of its precomputed cycle. A message is in flight until every subscriber that it is for has it and, at
QoS 1 and 2, the broker has acknowledged it (PUBACK, PUBCOMP). The acknowledgements that must come are precomputed too and
compared as blocks; PUBRELs are slices of a table. What does not compare goes through the exact decoder.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import CHUNK, Connection
from benchmarks.load_generator.subscriber import Source
from benchmarks.load_generator.traffic import PROBE_PIDS, Traffic, acknowledgements


class Expected:
    """The acknowledgements of one type that must come, in the order of the messages; `count` have come."""

    def __init__(self, kind: int, cycle: int, tail: bytes) -> None:
        self.kind, self.cycle, self.size = kind, cycle, 4 + len(tail)
        self.stream = acknowledgements(kind, cycle, tail)
        first = wire.acknowledgement(kind, 0)[:1]
        self.pattern = re.compile(b"(?:%b..%b)+" % (re.escape(first + bytes((2 + len(tail),))), re.escape(tail)), re.DOTALL)
        self.count = 0
        self.early: set[int] = set()  # indexes acknowledged before their turn

    def block(self, run: bytes) -> int:
        """How many messages the run acknowledges, or 0 if it is not exactly what must come next."""
        if self.early or not self.stream.startswith(run, self.count % self.cycle * self.size):
            return 0
        count = len(run) // self.size
        self.count += count
        return count

    def single(self, pid: int, sent: int) -> None:
        """One acknowledgement, in turn or not; WireError if that message is not waiting for one."""
        index = pid - 1
        ahead = (index - self.count) % self.cycle
        if index in self.early or not 0 <= index < self.cycle or self.count + ahead >= sent:
            raise wire.WireError(f"packet type {self.kind} for packet identifier {pid}, which waits for none")
        self.early.add(index)
        while self.count % self.cycle in self.early:
            self.early.discard(self.count % self.cycle)
            self.count += 1


class Publisher(Connection):
    """A client that publishes one `Traffic`; `targets` are what each subscriber has from it."""

    def __init__(
        self, address: tuple[str, int], client_id: str, traffic: Traffic, targets: list[Source], ca: str = "", web: bool = False
    ) -> None:
        super().__init__(address, client_id, traffic.version, ca, web=web)
        self.traffic = traffic
        self.targets = targets
        self.window = min(traffic.window, self.receive_maximum) if traffic.qos else traffic.window
        self.stream = traffic.stream(True)
        self.view = memoryview(self.stream.data)
        self.sent = 0
        self.probes = 0  # sent at QoS 1 or 2 and not acknowledged yet
        self.probe_acknowledgements: dict[int, bytes] = {}  # packet type -> what the broker writes behind the identifier
        self.last = wire.PUBACK if traffic.qos == 1 else wire.PUBCOMP
        self.expected: dict[int, Expected] = {}
        self.pubrels = acknowledgements(wire.PUBREL, traffic.cycle) if traffic.qos == 2 else b""

    def start(self) -> None:
        """The probes are over: make the tables of acknowledgements as this broker writes them."""
        kinds = {0: (), 1: (wire.PUBACK,), 2: (wire.PUBREC, wire.PUBCOMP)}[self.traffic.qos]
        for kind in kinds:
            tail = self.probe_acknowledgements.get(kind, b"")
            self.expected[kind] = Expected(kind, self.traffic.cycle, tail if not any(tail) else b"")

    def in_flight(self) -> int:
        """Messages that some subscriber does not have yet or that the broker has not acknowledged."""
        done = min([source.received for source in self.targets], default=self.sent)
        if self.expected:
            done = min(done, self.expected[self.last].count)
        return self.sent - done

    def pump(self, limit: int) -> bool:
        """Send what the window allows, at most one chunk and up to message number `limit`; True if more can go at once."""
        if self.left:
            return False
        room = min(self.window - self.in_flight(), limit - self.sent)
        if room <= 0:
            return False
        offsets, cycle = self.stream.offsets, self.traffic.cycle
        index = self.sent % cycle
        begin = offsets[index]
        end = min(offsets[min(index + room, cycle)], offsets[bisect_right(offsets, begin + CHUNK) - 1])
        if end <= begin:
            end = offsets[index + 1]
        position = begin + self.try_send(self.view[begin:end])
        reached = bisect_right(offsets, position) - 1
        self.sent += reached - index
        if position < end:
            self.keep(self.view[position : offsets[reached + 1]])
            self.sent += 1
            return False
        return room > reached - index

    def probe(self, number: int) -> None:
        """Send a probe."""
        self.push(self.traffic.probe(number))
        self.probes += self.traffic.qos > 0

    def read(self, data: memoryview) -> None:
        """Acknowledgements have come."""
        self.kept += data
        while self.kept:
            expected = self.expected.get(self.kept[0] >> 4)
            run = expected.pattern.match(self.kept) if expected else None
            if expected and run and self.block(expected, run.group()):
                del self.kept[: run.end()]
            elif not self.one():
                return

    def block(self, expected: Expected, run: bytes) -> bool:
        """Take a run that is exactly what must come next, and answer PUBRECs; False if it is not."""
        index = expected.count % expected.cycle
        if expected.count + len(run) // expected.size > self.sent:
            return False
        count = expected.block(run)
        if count and expected.kind == wire.PUBREC:
            self.push(self.pubrels[4 * index : 4 * (index + count)])
        return count > 0

    def one(self) -> bool:
        """Take one packet on the slow path; False if none is whole."""
        found = wire.next_packet(self.kept, 0)
        if found is None:
            return False
        del self.kept[: found.end]
        self.packet(found.first, found.body)
        return True

    def packet(self, first: int, body: bytes) -> None:
        """Judge one acknowledgement, whatever its form."""
        kind = first >> 4
        if kind not in (wire.PUBACK, wire.PUBREC, wire.PUBCOMP):
            raise wire.WireError(f"packet type {kind} (0x{first:02x}) came to a publisher: {body[:40].hex()}")
        pid = wire.decode_acknowledgement(first, body)
        if kind == wire.PUBREC:
            self.push(wire.acknowledgement(wire.PUBREL, pid))
        if pid >= PROBE_PIDS:
            self.probe_acknowledgements[kind] = body[2:]
            self.probes -= kind == self.last
        else:
            self.slow_packets += 1
            self.expected[kind].single(pid, self.sent)
