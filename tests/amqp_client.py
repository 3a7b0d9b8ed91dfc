"""aio-pika as the far side of tests: somebody else's AMQP client, in a thread of its own so that tests need no loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

PATIENCE = 90.0


class Pika:
    """A connection to one virtual host."""

    def __init__(self, port: int, vhost: str = "/", user: str = "guest") -> None:
        self.messages: queue.Queue[AbstractIncomingMessage] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self._open(port, vhost, user))

    async def _open(self, port: int, vhost: str, user: str) -> None:
        self._connection = await aio_pika.connect(host="127.0.0.1", port=port, login=user, password=user, virtualhost=vhost)
        self.channel = await self._connection.channel()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def listen(self, key: str, exchange: str = "amq.topic") -> None:
        """Take the messages of a binding key into `messages`."""

        async def take(message: AbstractIncomingMessage) -> None:
            self.messages.put(message)

        async def bind() -> None:
            mailbox = await self.channel.declare_queue(exclusive=True)
            await mailbox.bind(exchange, key)
            await mailbox.consume(take, no_ack=True)

        self.run(bind())

    def publish(self, key: str, body: bytes, exchange: str = "amq.topic", **properties: Any) -> None:
        """Return when the broker has confirmed it."""

        async def publish() -> None:
            where = await self.channel.get_exchange(exchange, ensure=False)
            await where.publish(aio_pika.Message(body, **properties), key, mandatory=False)

        self.run(publish())

    def next(self) -> AbstractIncomingMessage:
        return self.messages.get(timeout=PATIENCE)

    def depth(self, name: str) -> int | None:
        """Messages in a queue; None: there is no such queue."""

        async def ask() -> int | None:
            channel = await self._connection.channel()
            try:
                found = await channel.declare_queue(name, passive=True)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                return None
            await channel.close()
            return found.declaration_result.message_count

        return self.run(ask())

    def close(self) -> None:
        self.run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
