"""A recipient in a process of its own, that SIGSTOP can hang: `python -m benchmarks.recipients.worker SYSTEM TUNED PORTS WHO FILE`.

It writes a line for each message to FILE: its number, the time (CLOCK_MONOTONIC, which all processes share), and 1 where the message says
that somebody may have it already. The first line is `ready`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from benchmarks.recipients.system import number_of
from benchmarks.recipients.systems import system


def main(name: str, tuned: str, ports: str, who: str, file: str) -> None:
    """Receive until the process ends."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    said = False

    def record(data: bytes, marked: bool) -> None:
        os.write(out, b"%d %.6f %d\n" % (number_of(data), time.monotonic(), marked))

    def ready() -> None:
        nonlocal said
        if not said:
            said = True
            os.write(out, b"ready\n")

    asyncio.run(system(name, tuned == "tuned").receive([int(port) for port in ports.split(",")], who, record, ready))


if __name__ == "__main__":
    main(*sys.argv[1:])
