"""A broker without sockets: connections that are given bytes and whose writes are kept. For property tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from mqmesh.broker.client.connection import Connection
from mqmesh.broker.config import BrokerConfig, Limits
from mqmesh.broker.server import Broker
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Connect, Subscribe, Subscription
from mqmesh.mqtt.properties import Property

T = TypeVar("T")


class FakeTransport(asyncio.Transport):
    """Keeps what is written; reports `buffered` as its unsent bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True
        self.buffered = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Wire:
    """One client on a `FakeTransport`."""

    def __init__(self, broker: Broker, version: int) -> None:
        self.version = version
        self.transport = FakeTransport()
        self.connection = Connection(broker.site)
        self.connection.connection_made(self.transport)

    def give(self, data: bytes, end_round: bool = True) -> None:
        """Bytes from the client. end_round: nothing else is read in this round of the event loop."""
        self.connection.data_received(data)
        if end_round:
            self.connection.site.rounds.end()

    def send(self, *packets: Any) -> None:
        self.give(b"".join(encode(packet, self.version) for packet in packets))

    def connect(self, name: str, *subscriptions: Subscription, identifier: int = 0, **properties: Any) -> Wire:
        found = {Property[key.upper()]: value for key, value in properties.items()}
        self.send(Connect(name, self.version, properties=found))
        if subscriptions:
            self.send(Subscribe(1, list(subscriptions), {Property.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}))
        self.take()
        return self

    def take(self) -> bytes:
        """What was written to the client since the last call."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return data

    def packets(self) -> list[Any]:
        """The same as packets."""
        return [decode(first, body, self.version) for first, body in Framer().feed(self.take())]


class StillLoop(asyncio.SelectorEventLoop):
    """Its clock stands still, so that two runs of one story are alike on a busy machine, too."""

    def time(self) -> float:
        return 1000.0


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run a story of brokers without sockets to its end; no time passes in it."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(story)


async def started(**limits: Any) -> Broker:
    """A broker that listens nowhere; its timers do not matter."""
    limits.setdefault("sys_interval", 0)
    broker = Broker(BrokerConfig(listen=[], limits=replace(Limits(), **limits)))
    broker.context.turns.clock = lambda: 0.0  # no piece of work is too long
    await broker.start()
    return broker
