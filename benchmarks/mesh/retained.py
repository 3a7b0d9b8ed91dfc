"""How much memory a retained topic takes at a broker of a mesh: its record for the mesh, and what subscribers find.

    python -m benchmarks.mesh.retained [--topics 200000]

Each topic has 40 bytes, its payload some 20. Half of them are published here, the other half come from a neighbour. The figure is the
growth of the process, content included.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from pathlib import Path

from mqmesh.broker.ledger import Ledger
from mqmesh.broker.routing.retained import Retained
from mqmesh.mesh.retained.record import Key, Kind, Record
from mqmesh.mesh.retained.replica import Replica
from mqmesh.mqtt.batch.run import Run


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(count: int) -> tuple[float, float]:
    """Retain so many messages: bytes of memory a topic, and how many of them are content."""
    offset = time.time() - time.monotonic()
    replica = Replica(1, 1, offset, 604_800.0, False, time.monotonic())
    ledger = Ledger(2**40)
    retained = Retained(ledger)
    publisher = ledger.account("192.0.2.1", "user")
    content = 0
    gc.collect()
    before = resident()
    for number in range(count):
        now = time.monotonic()
        topic = b"plant/%d/line/%d/sensor/%06d/temperature" % (number % 10, number // 10 % 90 + 10, number)
        payload = b"21.5 degrees, ok %d" % number
        content += len(topic) + len(payload)
        if number % 2:
            record = replica.put(Run(topic, 1, True, [payload], received=now), 0, now)
            retained.store(record.run(offset, now), always=True, payer=publisher)
        else:
            wall = int((now + offset) * 1000)
            replica.merge(Record(topic, Key(wall, 2, 1), Kind.VALUE, 1, b"", payload, wall - 1, None), now)
            for update in replica.updates:
                retained.store(update.record.run(offset, now), always=True)
            replica.updates.clear()
    gc.collect()
    return (resident() - before) / count, content / count


def main() -> None:
    """The command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=200_000, help="retained messages (200000)")
    given = parser.parse_args()
    memory, content = measure(given.topics)
    print(f"{memory:.0f} bytes a topic, {content:.0f} of them its name and payload")


if __name__ == "__main__":
    main()
