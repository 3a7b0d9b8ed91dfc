"""NATS JetStream with a pull consumer that two recipients share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NothingCame
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.peers import Deployment, binary, first_line, free_port, listens
from benchmarks.recipients.system import Record, Sender, Sent, System, number_of, payload

BATCH = 10
WAIT = 5.0  # seconds of one pull


class JetStream(System):
    """A message that a recipient has not acknowledged goes to the next pull after `ack_wait`."""

    name = "NATS JetStream, pull consumer"

    @property
    def settings(self) -> str:
        return f"ack_wait {3 if self.tuned else 30} s"

    def version(self) -> str:
        return first_line([binary("NATS_SERVER", "nats-server"), "--version"])

    def deploy(self, folder: Path) -> Deployment:
        folder.mkdir(parents=True)
        deployment = Deployment(folder, ports=[free_port()])
        config = folder / "nats.conf"
        config.write_text(f'host: 127.0.0.1\nport: {deployment.ports[0]}\njetstream {{ store_dir: "{folder}/jetstream" }}\n')
        deployment.start("nats", [binary("NATS_SERVER", "nats-server"), "-c", str(config)], listens(deployment.ports[0]))
        return deployment

    async def prepare(self, ports: list[int]) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{ports[0]}")
        stream = client.jetstream()
        await stream.add_stream(name="orders", subjects=["orders"])
        config = ConsumerConfig(durable_name="workers", ack_policy=AckPolicy.EXPLICIT, ack_wait=3 if self.tuned else None)
        await stream.add_consumer("orders", config)
        await client.close()

    def sender(self, ports: list[int], sent: Sent) -> Sender:
        return _Sender(sent, ports[0])

    async def receive(self, ports: list[int], who: str, record: Record, ready: Callable[[], None]) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{ports[0]}", max_reconnect_attempts=-1)
        subscription = await client.jetstream().pull_subscribe_bind("workers", "orders")
        ready()
        while True:
            try:
                messages = await subscription.fetch(BATCH, WAIT)
            except NothingCame:
                continue
            for message in messages:
                record(message.data, message.metadata.num_delivered > 1)
                await message.ack()


class _Sender(Sender):
    """told: what an advisory of the stream's consumer says of a message, by its place in the stream."""

    def __init__(self, sent: Sent, port: int) -> None:
        super().__init__(sent)
        self.port = port
        self.client: Client | None = None
        self.stream: JetStreamContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self.client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        self.stream = self.client.jetstream()

        async def told(message: Msg) -> None:
            if b"max_deliver" in message.data:
                self.sent.told.setdefault(number_of(message.data), time.monotonic())

        await self.client.subscribe("$JS.EVENT.ADVISORY.>", cb=told)

    def send(self, number: int) -> None:
        task = asyncio.ensure_future(self._send(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, number: int) -> None:
        assert self.stream is not None
        await self.stream.publish("orders", payload(number))
        self.sent.confirmed[number] = time.monotonic()

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()
