"""pika as the far side of tests: another AMQP library than the metabroker's, blocking, with a thread for what it hears."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

PATIENCE = 90.0


class Heard(NamedTuple):
    """A message."""

    routing_key: str
    body: bytes
    properties: pika.BasicProperties


class Pika:
    """Two connections to one virtual host: one speaks, one listens."""

    def __init__(self, port: int, vhost: str = "/", user: str = "guest") -> None:
        self.messages: queue.Queue[Heard] = queue.Queue()
        credentials = pika.PlainCredentials(user, user)
        self._where = pika.ConnectionParameters(
            "127.0.0.1", port, vhost, credentials, heartbeat=0, socket_timeout=PATIENCE, stack_timeout=PATIENCE
        )
        self._connection = pika.BlockingConnection(self._where)
        self.channel: BlockingChannel = self._connection.channel()
        self.channel.confirm_delivery()
        self._mailbox = ""
        self._ears: threading.Thread | None = None
        self._stopped = threading.Event()

    def listen(self, key: str, exchange: str = "amq.topic") -> None:
        """Take the messages of a binding key into `messages`."""
        if self._ears is None:
            self._mailbox = self.channel.queue_declare("", auto_delete=True).method.queue
            ready = threading.Event()
            self._ears = threading.Thread(target=self._hear, args=(ready,), daemon=True)
            self._ears.start()
            assert ready.wait(PATIENCE)
        self.channel.queue_bind(self._mailbox, exchange, key)

    def _hear(self, ready: threading.Event) -> None:
        with contextlib.closing(pika.BlockingConnection(self._where)) as connection:

            def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
                self.messages.put(Heard(method.routing_key, body, properties))

            connection.channel().basic_consume(self._mailbox, take, auto_ack=True)
            ready.set()
            while not self._stopped.is_set():
                connection.process_data_events(time_limit=0.2)

    def publish(self, key: str | bytes, body: bytes, exchange: str = "amq.topic", **properties: Any) -> None:
        """Return when the broker has confirmed it. expiration: seconds."""
        if "expiration" in properties:
            properties["expiration"] = str(int(1000 * properties["expiration"]))
        self.channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))  # type: ignore[arg-type]

    def next(self) -> Heard:
        return self.messages.get(timeout=PATIENCE)

    def depth(self, name: str) -> int | None:
        """Messages in a queue; None: there is no such queue."""
        channel = self._connection.channel()
        try:
            found = channel.queue_declare(name, passive=True)
        except ChannelClosedByBroker:
            return None
        channel.close()
        return int(found.method.message_count)

    def close(self) -> None:
        self._stopped.set()
        self._connection.close()
        if self._ears is not None:
            self._ears.join(PATIENCE)
