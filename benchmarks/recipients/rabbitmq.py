"""RabbitMQ with a quorum queue of which one consumer is active at a time. Its node is one of its own, in a folder."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractRobustConnection

from benchmarks.peers import Deployment, PeerError, first_line, free_port, listens
from benchmarks.recipients.system import Record, Sender, Sent, System, number_of, payload

PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # what is in PATH changes the user, and shares the cookie of the service
EPMD = "/usr/bin/epmd"
QUEUE = "orders"
ARGUMENTS = {"x-queue-type": "quorum", "x-single-active-consumer": True}
PREFETCH = 20


class RabbitMQ(System):
    """The active consumer is replaced when its connection ends: after two heartbeats without a word."""

    name = "RabbitMQ, quorum queue, single active consumer"

    @property
    def settings(self) -> str:
        return "heartbeat 5 s, the least that its documentation advises" if self.tuned else "heartbeat 60 s"

    def version(self) -> str:
        if not (PROGRAMS / "rabbitmq-server").exists():
            raise PeerError("rabbitmq-server is not installed (apt install rabbitmq-server)")
        return "RabbitMQ " + first_line(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"])

    def deploy(self, folder: Path) -> Deployment:
        folder.mkdir(parents=True)
        port, mapper = free_port(), free_port()
        deployment = Deployment(folder, ports=[port])
        (folder / "none").write_text("")
        (folder / "plugins").write_text("[].\n")
        lines = [f"listeners.tcp.1 = 127.0.0.1:{port}", "log.file = false", "log.console = true", "disk_free_limit.absolute = 1MB"]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        settings = {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
            "RABBITMQ_CONF_ENV_FILE": folder / "none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_DIST_PORT": free_port(),
            "ERL_EPMD_PORT": mapper,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, instead of standing beside it
            "LC_ALL": "C.UTF-8",
        }
        kept = [name for name in os.environ if name.startswith(("RABBITMQ_", "ERL_"))]
        command = ["/usr/bin/env", *[f"--unset={name}" for name in kept], *[f"{name}={value}" for name, value in settings.items()]]
        deployment.start("epmd", [*command, EPMD, "-port", str(mapper), "-address", "127.0.0.1"], listens(mapper))
        deployment.start("rabbitmq", [*command, str(PROGRAMS / "rabbitmq-server")], listens(port))
        deployment.processes.reverse()  # the node ends before its port mapper
        return deployment

    def url(self, port: int) -> str:
        """Where clients connect; how often heartbeats come is the client's wish."""
        return f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat={5 if self.tuned else 60}"

    async def prepare(self, ports: list[int]) -> None:
        connection = await _connect(self.url(ports[0]))
        channel = await connection.channel()
        await channel.declare_queue(QUEUE, durable=True, arguments=dict(ARGUMENTS))
        await connection.close()

    def sender(self, ports: list[int], sent: Sent) -> Sender:
        return _Sender(sent, self.url(ports[0]))

    async def receive(self, ports: list[int], who: str, record: Record, ready: Callable[[], None]) -> None:
        connection = await aio_pika.connect_robust(self.url(ports[0]))
        channel = await connection.channel()
        await channel.set_qos(PREFETCH)
        queue = await channel.declare_queue(QUEUE, durable=True, arguments=dict(ARGUMENTS))

        async def came(message: AbstractIncomingMessage) -> None:
            record(message.body, bool(message.redelivered))
            await message.ack()

        await queue.consume(came)
        ready()
        await asyncio.Event().wait()


async def _connect(url: str) -> AbstractRobustConnection:
    """The node listens some moments before it serves."""
    while True:
        try:
            return await aio_pika.connect_robust(url, timeout=5)
        except (OSError, aio_pika.exceptions.AMQPError, TimeoutError):
            await asyncio.sleep(0.5)


class _Sender(Sender):
    """A message that no queue takes would be returned (mandatory)."""

    def __init__(self, sent: Sent, url: str) -> None:
        super().__init__(sent)
        self.url = url
        self.connection: AbstractRobustConnection | None = None
        self.channel: AbstractChannel | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self.connection = await _connect(self.url)
        self.channel = await self.connection.channel(publisher_confirms=True)

        def returned(_channel: object, message: AbstractIncomingMessage) -> None:
            self.sent.told.setdefault(number_of(message.body), time.monotonic())

        self.channel.return_callbacks.add(returned)

    def send(self, number: int) -> None:
        task = asyncio.ensure_future(self._send(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, number: int) -> None:
        assert self.channel is not None
        message = aio_pika.Message(payload(number), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self.channel.default_exchange.publish(message, QUEUE, mandatory=True)
        self.sent.confirmed[number] = time.monotonic()

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()
