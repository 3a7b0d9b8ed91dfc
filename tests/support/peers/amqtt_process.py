"""amqtt's client as a program: `python amqtt_process.py PORT CLIENT FILTER...`; see `talking_client.py`."""

from __future__ import annotations

import asyncio
import logging
import sys

from amqtt.client import MQTTClient


async def _main() -> None:
    port, name, *filters = sys.argv[1:]
    logging.getLogger("amqtt").setLevel(logging.ERROR)
    client = MQTTClient(client_id=name, config={"auto_reconnect": True, "keep_alive": 60, "reconnect_max_interval": 1})
    await client.connect(f"mqtt://127.0.0.1:{port}", cleansession=False)
    await client.subscribe([(one, 1) for one in filters])
    print("ready", flush=True)
    published = asyncio.create_task(_publish(client))
    while True:
        message = await client.deliver_message()
        if message is not None:
            print(message.topic, bytes(message.data).decode(), flush=True)
        elif published.done():
            return


async def _publish(client: MQTTClient) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        topic, body = line.decode().split()
        await client.publish(topic, body.encode(), qos=1)


if __name__ == "__main__":
    asyncio.run(_main())
