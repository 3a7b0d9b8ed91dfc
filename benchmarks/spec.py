"""What the runner asks of the load generator, as it travels between the two processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Spec:
    """One measurement.

    kind: one of
        "throughput": a fixed number of messages is in flight,
        "one-in-flight": each publisher sends its next message when the last one has arrived everywhere,
        "latency": one message at a time,
        "stored": `messages` come while the subscriber is away, then it returns.
    entry, exit: (host, port) for publishers and subscribers.
    pairs: subscriber i takes from publisher i only.
    version: 4 (3.1.1) or 5.
    topics: used in turn by each publisher.
    sizes: smallest and largest payload in bytes.
    window: messages in flight, shared by the publishers.
    seconds: aimed at for the measured part, after `warm_up` seconds.
    least: deliveries to measure at least.
    patience: seconds without progress that count as failure.
    persistent: subscribers keep their sessions.
    pids: the broker's processes.
    tls: whether clients use TLS; ca: the PEM file of the authority that they trust then.
    web: clients use WebSocket.
    gateway: "out" where publishers, "in" where subscribers are clients of a metabroker that brings them to the broker at `remote`; ""
        where there is none.
    single: of a latency, a broker whose own is measured in turn with it, in small blocks; its processes are `single_pids`.
    """

    entry: tuple[str, int]
    exit: tuple[str, int]
    kind: str = "throughput"
    publishers: int = 1
    subscribers: int = 1
    pairs: bool = False
    qos: int = 0
    version: int = 4
    topics: int = 1
    sizes: tuple[int, int] = (64, 64)
    window: int = 20_000
    seconds: float = 2.0
    warm_up: float = 0.5
    least: int = 100
    patience: float = 10.0
    persistent: bool = False
    messages: int = 0
    pids: list[int] = field(default_factory=list)
    tls: bool = False
    ca: str = ""
    web: bool = False
    gateway: str = ""
    remote: tuple[str, int] = ("", 0)
    single: tuple[str, int] = ("", 0)
    single_pids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """JSON has no tuples."""
        self.entry = (self.entry[0], self.entry[1])
        self.exit = (self.exit[0], self.exit[1])
        self.remote = (self.remote[0], self.remote[1])
        self.single = (self.single[0], self.single[1])
        self.sizes = (self.sizes[0], self.sizes[1])


@dataclass(slots=True)
class Result:
    """What one measurement found. Times in seconds, CPU times within the measured interval.

    processes: name and CPU time of each process of the brokers, where it is measured.
    way_in: of a "stored" measurement, the fields of a Result for the messages that came in; the others are of their way out.
    direct: where a latency is compared with that of one broker, the p50 of a single Mosquitto.
    added: by how much the p50 of the whole path is above that of the single Mosquitto: the median over pairs of neighbouring blocks of a
        few messages each.
    """

    deliveries: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    lost: int = 0
    duplicates: int = 0
    disorder: int = 0
    corrupt: int = 0
    slow_packets: int = 0
    generator_cpu: float = 0.0
    broker_cpu: float = 0.0
    processes: list[tuple[str, float]] = field(default_factory=list)
    p50: float = 0.0
    p99: float = 0.0
    direct: float = 0.0
    added: float = 0.0
    error: str = ""
    notes: list[str] = field(default_factory=list)
    way_in: dict[str, Any] | None = None
