"""An application in a process of its own, which the demo stops with SIGSTOP.

`python -m mqmesh.cli.demo.clerk URL NAME ALTERNATIVES INTERVALS`

It takes the messages of one recipient and says each on stdout, as one JSON line: number, time (monotonic, of the machine), whether it
may be repeated, and who did not take it before. ALTERNATIVES: names with commas, or "-". INTERVALS: three numbers of seconds with commas.
"""

from __future__ import annotations

import json
import sys
import time

PREFETCH = 16  # messages that a stopped clerk has taken and not acknowledged, at most


def main(url: str, name: str, alternatives: str, intervals: str) -> None:
    """Take messages until the process is ended."""
    from ...client import AckMode, ConnectionFactory, failed_over, maybe_repeated

    message, fault, defunct = map(float, intervals.split(","))
    factory = ConnectionFactory(url, prefetch=PREFETCH, retry_last=0.5)
    with factory.create_context(AckMode.INDIVIDUAL) as context:
        recipient = context.recipient(
            name,
            [] if alternatives == "-" else alternatives.split(","),
            message_interval=message,
            fault_interval=fault,
            defunct_interval=defunct,
            consents=["*"],
        )
        print("ready", flush=True)
        for order in recipient:
            said = {"number": order.get_int_property("number"), "at": time.monotonic()}
            print(json.dumps({**said, "repeated": maybe_repeated(order), "before": failed_over(order)}), flush=True)
            order.acknowledge()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
