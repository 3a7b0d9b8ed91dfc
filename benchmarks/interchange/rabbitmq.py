"""RPC over quorum queues of RabbitMQ, beside the exchanges of the interchange: a queue for requests and one for responses.

Every message is persistent and confirmed to its publisher; the server acknowledges a request when its response is confirmed, and the
client acknowledges responses, as our services do. Frames are those of pamqp, sent and read by the loop without a client library.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pamqp import commands, frame, header
from pamqp.body import ContentBody
from pamqp.heartbeat import Heartbeat

CHANNEL = 1
PREFETCH = 1000
SOON = 0.01  # seconds
KEPT = 2  # the delivery mode of persistent messages
Taken = Callable[[bytes, commands.Basic.Properties, int], None]  # body, properties, delivery tag


class Party(asyncio.Protocol):
    """One of the two clients: it declares a quorum queue and consumes from it. taken: gets each message."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._data = b""
        self._published = self._tag = 0
        self._pending: tuple[int, commands.Basic.Properties] | None = None
        self.ready, self.closed = (asyncio.get_running_loop().create_future() for _ in range(2))
        self.taken: Taken = lambda body, properties, tag: None
        self.confirmed: dict[int, Callable[[], None]] = {}  # by the number of the publish

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(b"AMQP\x00\x00\x09\x01")  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 7 and len(self._data) >= 8 + int.from_bytes(self._data[3:7], "big"):
            used, channel, found = frame.unmarshal(self._data)
            self._data = self._data[used:]
            self._came(channel, found)

    def send(self, *parts: Any, channel: int = CHANNEL) -> None:
        self._transport.write(b"".join([frame.marshal(one, channel) for one in parts]))  # type: ignore[attr-defined]

    def _came(self, channel: int, found: Any) -> None:
        match found:
            case commands.Connection.Start():
                self.send(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), channel=0)
            case commands.Connection.Tune():
                self.send(commands.Connection.TuneOk(found.channel_max, found.frame_max, 0), commands.Connection.Open("/"), channel=0)
            case commands.Connection.OpenOk():
                self.send(commands.Channel.Open())
            case commands.Channel.OpenOk():
                declare = commands.Queue.Declare(queue=self._queue, durable=True, arguments={"x-queue-type": "quorum"})
                self.send(commands.Confirm.Select(), commands.Basic.Qos(prefetch_count=PREFETCH), declare)
            case commands.Queue.DeclareOk():
                self.send(commands.Basic.Consume(queue=self._queue))
            case commands.Basic.ConsumeOk():
                self.ready.set_result(None)
            case commands.Basic.Ack():
                self._acknowledged(found)
            case commands.Basic.Deliver():
                self._tag = found.delivery_tag or 0
            case header.ContentHeader():
                self._pending = self._tag, found.properties
            case ContentBody():
                assert self._pending is not None
                self.taken(found.value, self._pending[1], self._pending[0])
            case commands.Connection.CloseOk():
                self.closed.set_result(None)
            case commands.Confirm.SelectOk() | commands.Basic.QosOk() | Heartbeat():
                pass
            case _:
                raise AssertionError(f"{found} on channel {channel}")

    def _acknowledged(self, found: commands.Basic.Ack) -> None:
        numbers = [one for one in self.confirmed if one <= found.delivery_tag] if found.multiple else [found.delivery_tag]
        for number in numbers:
            self.confirmed.pop(number)()

    def publish(self, queue: str, body: bytes, properties: commands.Basic.Properties, confirmed: Callable[[], None]) -> None:
        self._published += 1
        self.confirmed[self._published] = confirmed
        about = header.ContentHeader(body_size=len(body), properties=properties)
        self.send(commands.Basic.Publish(routing_key=queue), about, ContentBody(body))

    async def close(self) -> None:
        """Leave when everything is confirmed and acknowledged."""
        while self.confirmed:  # noqa: ASYNC110
            await asyncio.sleep(SOON)
        self.send(commands.Connection.Close(200, "", 0, 0), channel=0)
        await self.closed
        self._transport.close()

    def acknowledge(self, tag: int) -> None:
        self.send(commands.Basic.Ack(tag))


async def exchanges(port: int, body: bytes, count: int, at_once: int) -> tuple[float, list[float]]:
    """Exchange so many: seconds in all, and those of each."""
    loop = asyncio.get_running_loop()
    _, shop = await loop.create_connection(lambda: Party("answers"), "127.0.0.1", port)
    _, bank = await loop.create_connection(lambda: Party("bank"), "127.0.0.1", port)
    await asyncio.gather(shop.ready, bank.ready)
    begun: list[float] = []
    times: list[float] = []
    done = loop.create_future()

    def answer(request: bytes, properties: commands.Basic.Properties, tag: int) -> None:
        more = commands.Basic.Properties(correlation_id=properties.correlation_id, delivery_mode=KEPT)
        bank.publish(properties.reply_to or "", request, more, lambda: bank.acknowledge(tag))

    def ask() -> None:
        more = commands.Basic.Properties(correlation_id=str(len(begun)), reply_to="answers", delivery_mode=KEPT)
        begun.append(time.perf_counter())
        shop.publish("bank", body, more, lambda: None)

    def came(_body: bytes, properties: commands.Basic.Properties, tag: int) -> None:
        times.append(time.perf_counter() - begun[int(properties.correlation_id or 0)])
        shop.acknowledge(tag)
        if len(times) == count:
            done.set_result(None)
        elif len(begun) < count:
            ask()

    bank.taken, shop.taken = answer, came
    start = time.perf_counter()
    for _ in range(min(at_once, count)):
        ask()
    await done
    took = time.perf_counter() - start
    await asyncio.gather(shop.close(), bank.close())
    return took, times
