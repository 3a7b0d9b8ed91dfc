"""A broker inside a program that makes invoices of orders: each order becomes one invoice, and both count or neither.

Start it with an address and a folder, then publish orders: python examples/translate.py mqtt://127.0.0.1:1883 shop-data

mosquitto_sub -V mqttv5 -q 1 -i clerk -t '$queue/billing'
mosquitto_pub -V mqttv5 -q 1 -t '$queue/orders' -m '3 cranes'
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from mqmesh import Broker, Hooks, QueueMessage, Translation
from mqmesh.broker.config import parse

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"
DATA = sys.argv[2] if len(sys.argv) > 2 else "shop-data"


def invoice(order: QueueMessage) -> QueueMessage | None:
    """An order that is empty makes no invoice."""
    return order._replace(payload=b"invoice: " + order.payload, content_type="text/plain") if order.payload else None


class Shop(Hooks):
    """What becomes of messages."""

    translations = (Translation("orders", "billing", invoice),)


async def main() -> None:
    table = {"listen": [ADDRESS], "data": DATA, "queues": {"orders": {}, "billing": {}}}
    async with Broker(parse(table, "translate.py", Path()), hooks=[Shop()]) as broker:
        print(f"listening at {broker.addresses[0]}", flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()  # until Ctrl-C


asyncio.run(main())
