"""Entries in RabbitMQ: a stream (a queue of the type `stream`) for each segment.

    NAME.SEGMENT     a stream
    NAME             a stream, whose last message is the catalogue: who opened the log last, and which segments there are
    NAME.lock        a queue that only the connection which writes may use

AMQP has no list of queues: so the catalogue. Everything is written by the connection that has the lock, which the server gives to the next
one when nothing of this one is on its way any more. A broker whose connection was lost, and another one had the lock since, finds another
word than its own in the catalogue, and is shut out.

A stream does not say where its end is. Who reads to the end writes a message without an entry there, and reads until that comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, NamedTuple

from aiormq import Connection, exceptions, spec
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel

from ..port import Away
from .aside import AsideProduct, T
from .entries import HEAD, LARGEST, Place
from .url import parsed, taken_over

PATIENCE = 10.0  # seconds for an answer: a stream is made at several nodes
LOCK_WAIT = 10.0  # seconds: the server may not have noticed yet that a killed broker is gone
PAUSE = 0.05
LEAVING = 2.0  # seconds for a connection to end in order
HEARTBEAT = 20  # seconds
PAGE = 64  # entries on the way at once
STREAM: dict[str, Any] = {"x-queue-type": "stream"}
CATALOGUE = STREAM | {"x-max-length-bytes": 1_000_000, "x-stream-max-segment-size-bytes": 500_000}
NO_QUEUE = "no queue"  # what the server says of one that does not exist
END = "end"  # type of a message without an entry

logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # what happens is told by whoever calls


class _Connected(NamedTuple):
    connection: Connection
    channel: Channel  # with confirms


class _Arrived(NamedTuple):
    offset: int
    kind: str | None
    name: str | None
    body: bytes


class RabbitMQ(AsideProduct):
    """See `Product`. url: `amqp://` or `amqps://`, with `name`."""

    def __init__(self, url: str) -> None:
        self._url = parsed(url)
        super().__init__("rabbitmq")
        self.shown = self._url.shown
        self.largest = LARGEST
        self._word = str(uuid.uuid4())
        self._opened = False
        self._segments: set[int] = set()  # as the catalogue has them
        self._next: dict[int, int] = {}  # what the next message of a stream has as its offset, where that is known
        self._connection: _Connected | None = None
        self._lock = asyncio.Lock()  # one task connects

    def _queue(self, number: int) -> str:
        return f"{self._url.name}.{number}"

    # ---- errors

    async def _told(self, work: Coroutine[Any, Any, T]) -> T:
        """What the library raises, as the port has it. The connection ends: what was sent and not confirmed is unknown."""
        try:
            return await work
        except (exceptions.AMQPError, exceptions.ChannelInvalidStateError, OSError, asyncio.CancelledError) as error:
            await self._lose()
            if isinstance(error, OSError) and error.errno in (errno.EBUSY, errno.EINVAL):
                raise
            said = [one for one in error.args if isinstance(one, str)]
            text = "no answer" if isinstance(error, TimeoutError) or not said else " ".join(said[-1].split())
            kind = OSError if isinstance(error, exceptions.ChannelClosed) else Away
            raise kind(errno.EIO, f"{self.shown}: {text}") from error

    # ---- the connection

    async def _connected(self) -> _Connected:
        async with self._lock:
            found = self._connection
            if found is None or found.channel.is_closed or found.connection.is_closed:
                await self._lose()
                async with asyncio.timeout(PATIENCE + LOCK_WAIT):
                    found = self._connection = await self._connect()
                    if self._opened:
                        owner, _ = await self._catalogue(found)
                        if owner != self._word:
                            raise taken_over(self.shown)
            return found

    async def _connect(self) -> _Connected:
        connection = Connection(f"{self._url.bare}?heartbeat={HEARTBEAT}")
        try:
            async with asyncio.timeout(PATIENCE):
                await connection.connect({"connection_name": f"mqmesh {self._url.name}"})
            await self._take_lock(connection)
            return _Connected(connection, await _channel(connection, True))
        except BaseException:
            await connection.close()
            raise

    async def _take_lock(self, connection: Connection) -> None:
        end = asyncio.get_running_loop().time() + LOCK_WAIT
        while True:
            channel = await _channel(connection)
            try:
                await channel.queue_declare(f"{self._url.name}.lock", exclusive=True)
                return
            except exceptions.ChannelLockedResource:
                if asyncio.get_running_loop().time() >= end:
                    text = "is open in another broker: stop that broker, or give this one another name (?name=...)"
                    raise OSError(errno.EBUSY, f"{self.shown} {text}") from None
            await asyncio.sleep(PAUSE)

    async def _lose(self) -> None:
        connection, self._connection = self._connection, None
        self._next.clear()
        if connection is not None:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                async with asyncio.timeout(LEAVING):
                    await connection.connection.close()

    # ---- the catalogue

    async def _open(self) -> list[int]:
        connected = await self._connected()
        await connected.channel.queue_declare(self._url.name, durable=True, arguments=CATALOGUE)
        _, numbers = await self._catalogue(connected)
        self._segments = {number for number in numbers if await self._is_there(connected.connection, number)}
        await self._write_catalogue(connected)
        self._opened = True
        return sorted(self._segments)

    async def _catalogue(self, connected: _Connected) -> tuple[str, list[int]]:
        """Who opened the log last, and which segments it has had last."""
        last = b'["", []]'
        async for one in self._to_end(connected, self._url.name):
            last = one.body if one.kind != END else last
        owner, numbers = json.loads(last)
        return owner, numbers

    async def _write_catalogue(self, connected: _Connected) -> None:
        await _publish(connected.channel, self._url.name, json.dumps([self._word, sorted(self._segments)]).encode())

    async def _is_there(self, connection: Connection, number: int) -> bool:
        channel = await _channel(connection)
        try:
            await channel.queue_declare(self._queue(number), passive=True)
        except exceptions.ChannelNotFoundEntity as error:
            if NO_QUEUE not in str(error):  # it is there, and nobody leads it now
                raise Away(errno.EIO, str(error)) from error
            return False
        await channel.close()
        return True

    # ---- entries

    async def _messages(self, connected: _Connected, queue: str, start: Place | None) -> AsyncGenerator[_Arrived, None]:
        """What a stream has, from an offset on, without an end."""
        channel = await _channel(connected.connection)
        arrived: asyncio.Queue[DeliveredMessage | None] = asyncio.Queue()
        channel.closing.add_done_callback(lambda _: arrived.put_nowait(None))

        async def take(message: DeliveredMessage) -> None:
            arrived.put_nowait(message)

        try:
            await channel.basic_qos(prefetch_count=PAGE)
            await channel.basic_consume(queue, take, arguments={"x-stream-offset": "first" if start is None else int(start)})
            while True:
                async with asyncio.timeout(PATIENCE):
                    message = await arrived.get()
                if message is None or message.delivery_tag is None:
                    raise exceptions.ConnectionClosed("connection lost")
                await channel.basic_ack(message.delivery_tag, wait=False)
                properties = message.header.properties
                offset = int((properties.headers or {})["x-stream-offset"])  # type: ignore[arg-type]
                yield _Arrived(offset, properties.message_type, properties.message_id, message.body)
        finally:
            if not channel.is_closed:
                await channel.close()

    async def _to_end(self, connected: _Connected, queue: str) -> AsyncGenerator[_Arrived, None]:
        """All that a stream has; last a message without an entry."""
        name = uuid.uuid4().hex
        async with asyncio.timeout(PATIENCE):
            if not await _ended(connected.channel, queue, name):
                await self._wake(connected.channel)
                while not await _ended(connected.channel, queue, name):  # noqa: ASYNC110 - the server tells of it to nobody
                    await asyncio.sleep(PAUSE)
        async with contextlib.aclosing(self._messages(connected, queue, None)) as messages:
            async for one in messages:
                yield one
                if one.name == name:
                    return

    async def _wake(self, channel: Channel) -> None:
        """A server that was killed looks for its streams when the first one is made (RabbitMQ 3.10)."""
        name = f"{self._url.name}.{uuid.uuid4().hex}"
        await channel.queue_declare(name, durable=True, arguments=STREAM)
        await channel.queue_delete(name)

    async def _fetch(self, number: int, start: Place | None, most: int | None) -> list[tuple[Place, bytes]]:
        connected = await self._connected()
        found: list[tuple[Place, bytes]] = []
        size = 0
        source = self._messages(connected, self._queue(number), start) if most is not None else self._to_end(connected, self._queue(number))
        async with contextlib.aclosing(source) as messages:
            async for one in messages:
                if most is None:
                    self._next[number] = one.offset + 1
                if one.kind != END:
                    found.append((one.offset, one.body))
                    size += len(one.body) - HEAD.size
                if most is not None and size >= most:
                    break
        return found

    async def _send(self, entries: list[tuple[int, bytes]]) -> list[Place]:
        connected = await self._connected()
        numbers = {number for number, _ in entries}
        for number in sorted(numbers):
            if number not in self._segments:
                await connected.channel.queue_declare(self._queue(number), durable=True, arguments=STREAM)
                self._segments.add(number)
                await self._write_catalogue(connected)
                self._next[number] = 0
            elif number not in self._next:
                await self._fetch(number, None, None)
        await asyncio.gather(*[_publish(connected.channel, self._queue(number), data) for number, data in entries])
        places: list[Place] = []
        for number, _ in entries:
            places.append(self._next[number])
            self._next[number] += 1
        return places

    async def _delete(self, number: int) -> None:
        connected = await self._connected()
        await connected.channel.queue_delete(self._queue(number))
        self._next.pop(number, None)
        if number in self._segments:
            self._segments.remove(number)
            await self._write_catalogue(connected)


async def _channel(connection: Connection, confirms: bool = False) -> Channel:
    async with asyncio.timeout(PATIENCE):
        channel = await connection.channel(publisher_confirms=confirms, on_return_raises=True)
    assert isinstance(channel, Channel)
    return channel


async def _ended(channel: Channel, queue: str, name: str) -> bool:
    """Whether a message without an entry is in a stream: after a start of the server a stream has no leader for a while."""
    try:
        await _publish(channel, queue, b"", END, name)
    except exceptions.DeliveryError:
        return False
    return True


async def _publish(channel: Channel, queue: str, body: bytes, kind: str | None = None, name: str | None = None) -> None:
    """Until it is confirmed. Raises what the library does, OSError."""
    properties = spec.Basic.Properties(delivery_mode=2, message_type=kind, message_id=name)
    confirmed = await channel.basic_publish(body, routing_key=queue, properties=properties, mandatory=True, timeout=PATIENCE)
    if not isinstance(confirmed, spec.Basic.Ack):
        raise OSError(errno.EIO, "the server does not take it")
