"""The stored queue: the subscriber goes away, messages come, it returns and gets them all.

The way in is timed from the first message to the last acknowledgement, the way out from the subscriber's CONNECT to its last
message. Every message is judged as in the other measurements, and a probe behind the last one shows that nothing comes twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

import psutil

from benchmarks.load_generator import wire
from benchmarks.load_generator.load import Load, broker_cpu
from benchmarks.load_generator.subscriber import Subscriber
from benchmarks.spec import Result


def measure(load: Load) -> Result:
    """One publisher, one subscriber, `Spec.messages`. The Result is that of the way out, with `way_in` in it."""
    spec = load.spec
    if not (spec.messages and spec.persistent and spec.qos and spec.publishers == spec.subscribers == 1):
        raise ValueError("a queue is stored for one persistent subscriber of QoS 1 or 2, from one publisher")
    number = load.begin()
    (publisher,), (before,) = load.publishers, load.subscribers
    targets, publisher.targets = publisher.targets, []  # what the subscriber has not got is not in flight now
    load.leave(before)
    load.limit = spec.messages
    way_in = timed(load, lambda: publisher.sent - publisher.in_flight())
    load.limit = 0
    started = time.perf_counter()
    slow = load.slow_packets()
    after = Subscriber(spec.exit, "subscriber0", load.traffics, spec.ca, True, before)
    load.enter(after)
    result = timed(load, load.received, started)
    result.slow_packets = load.slow_packets() - slow
    result.way_in = asdict(way_in)
    publisher.targets = targets
    load.finish(number, result)
    return result


def timed(load: Load, count: Callable[[], int], started: float | None = None) -> Result:
    """Serve the sockets until `count` is at all messages; WireError when it does not move for the spec's patience."""
    spec = load.spec
    brokers = [psutil.Process(pid) for pid in spec.pids]
    cpu, own = broker_cpu(brokers), time.process_time()
    start = moved = started or time.perf_counter()
    done = 0
    while done < spec.messages:
        load.step(1.0)
        now, before = time.perf_counter(), done
        done = count()
        if done > before:
            moved = now
        elif now - moved > spec.patience:
            raise wire.WireError(f"nothing moves any more after {done:,} of {spec.messages:,} messages")
    took = time.perf_counter() - start
    return Result(done, took, done / took, generator_cpu=time.process_time() - own, broker_cpu=broker_cpu(brokers) - cpu)
