"""A worker of the demo's pool in a process of its own, which the demo kills.

`python -m mqmesh.cli.demo.worker URL NAME QUEUE`

It takes orders in transactions, says each on stdout, as one JSON line: number, and how often it was given to somebody before. What it
cannot read goes back into the queue.
"""

from __future__ import annotations

import json
import sys
import time

WORK = 0.01  # seconds that an order takes
UNREADABLE = "???"


def main(url: str, name: str, queue: str) -> None:
    """Take orders until the process is ended."""
    from ...client import AckMode, ConnectionFactory

    factory = ConnectionFactory(url, client_id=name, queue_prefetch=4, retry_last=0.5)
    with factory.create_context(AckMode.SESSION_TRANSACTED) as context, context.create_consumer(context.create_queue(queue)) as orders:
        print("ready", flush=True)
        for order in orders:
            if order.body == UNREADABLE:
                context.rollback()
                continue
            time.sleep(WORK)
            said = {"number": order.get_int_property("number"), "shop": order.get_string_property("shop")}
            print(json.dumps({**said, "before": order.delivery_count - 1}), flush=True)
            context.commit()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
