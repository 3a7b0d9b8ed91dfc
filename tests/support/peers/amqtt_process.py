"""amqtt's client as a program: `python amqtt_process.py PORT CLIENT FILTER...`; see `talking_client.py`."""

from __future__ import annotations

import asyncio
import logging
import sys

from amqtt.client import MQTTClient
from amqtt.errors import AMQTTError, ConnectError


async def _connected(port: str, name: str, filters: list[str]) -> MQTTClient:
    client = MQTTClient(client_id=name, config={"auto_reconnect": False, "keep_alive": 60})
    await client.connect(f"mqtt://127.0.0.1:{port}", cleansession=False)
    await client.subscribe([(one, 1) for one in filters])
    print("ready", flush=True)
    return client


async def _main() -> None:
    port, name, *filters = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    clients = [await _connected(port, name, filters)]
    publishing = asyncio.create_task(_publish(clients))
    while not publishing.done():
        try:
            message = await clients[-1].deliver_message()
        except (AMQTTError, ConnectError, OSError, asyncio.CancelledError):
            message = None
        if message is not None:
            print(message.topic, bytes(message.data).decode(), flush=True)
        else:  # the connection is gone, and its own reconnection gives up too early
            clients.append(await _connected(port, name, filters))


async def _publish(clients: list[MQTTClient]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        topic, body = line.decode().split()
        await clients[-1].publish(topic, body.encode(), qos=1)


if __name__ == "__main__":
    asyncio.run(_main())
