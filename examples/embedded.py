"""A broker inside a program: who is connected, and how many bytes each client publishes.

Start it with an address, publish to it with any MQTT client, stop it with Ctrl-C: python examples/embedded.py mqtt://127.0.0.1:1883
"""

import asyncio
import contextlib
import sys
from collections import Counter

from mqmesh import Broker, BrokerConfig, Hooks

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"


class Meter(Hooks):
    """Counts what clients publish."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()

    def session_opened(self, client_id: str, user: str | None, address: str, resumed: bool) -> None:
        print(f"{client_id} is connected from {address}", flush=True)

    def session_closed(self, client_id: str, kept: bool) -> None:
        print(f"{client_id} is gone, {'its session waits' if kept else 'its session has ended'}", flush=True)

    def admitted(self, publisher, batch) -> None:
        if publisher is not None:
            self.bytes[publisher] += sum(len(payload) for _, payload in batch.messages())


async def main() -> None:
    meter = Meter()
    config = BrokerConfig(listen=[ADDRESS])
    async with Broker(config, hooks=[meter]) as broker:
        print(f"listening at {broker.addresses[0]}", flush=True)
        broker.publish("site/notice", b"the broker runs inside a program", retain=True)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()  # until Ctrl-C
    for client_id, size in meter.bytes.most_common():
        print(f"{client_id} published {size} bytes")


asyncio.run(main())
