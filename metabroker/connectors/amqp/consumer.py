"""Subscriptions at the remote: a queue of ours, bound to the exchange with a key for each filter.

The queue is durable and is declared with the first subscription. It outlives a lost connection, and the remote's own death, for `expiry`
seconds; what comes meanwhile waits there, up to `length` messages, then the oldest make room. When the metabroker leaves in order the queue
is deleted. Bindings are asked for on a channel of their own, one after the other: a mistake closes it, and then it is made anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from aio_pika.abc import AbstractConnection
from aiormq import exceptions
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel

from ....mqtt.reasons import Reason
from ...protocol.events import Dropped, Event, Message, Subscribed, Trouble
from . import mapping
from .errors import UNWRITABLE, Over, code_of, reason_of, words
from .guard import Guard
from .mapping import Unmappable
from .publisher import open_channel

PREFETCH = 500  # messages that the remote sends before the first is acknowledged
GRANTED = 1  # QoS: a queue gives each message at least once


class _Asking(NamedTuple):
    """A binding that is asked for, or given up (token 0)."""

    filter: str
    token: int
    qos: int


class Consumer:
    """queue: its name, the same in each connection. expiry: seconds. length: messages. tell: takes events."""

    def __init__(self, exchange: str, queue: str, expiry: int, length: int, tell: Callable[[Event], None]) -> None:
        self._exchange = exchange
        self._queue = queue
        self._arguments: dict[str, Any] = {
            "x-expires": min(expiry * 1000, mapping.LONGEST_EXPIRY),
            "x-max-length": length,
        }
        self._tell = tell
        self._asked: deque[_Asking] = deque()
        self._wake = asyncio.Event()
        self._epoch = 0
        self._guard: Guard | None = None
        self._control: Channel | None = None  # of bindings
        self._channel: Channel | None = None  # of the queue
        self._acks: list[int] = []  # delivery tags
        self._acked_to = 0  # all tags up to this one are acknowledged to the remote
        self._beyond: set[int] = set()  # and these
        self._acks_wake = asyncio.Event()
        self._over = ""

    # Askings

    def subscribe(self, filter_: str, qos: int, token: int) -> None:
        """Bind the queue for a filter."""
        self._asked.append(_Asking(filter_, token, qos))
        self._wake.set()

    def unsubscribe(self, filter_: str) -> None:
        """Give a filter up."""
        self._asked.append(_Asking(filter_, 0, 0))
        self._wake.set()

    async def open(self, connection: AbstractConnection) -> Channel:
        """Make the channel for bindings. Raises ChannelNotFoundEntity when there is no exchange."""
        channel = self._control = await open_channel(connection)
        await channel.exchange_declare(self._exchange, exchange_type="topic", passive=True)
        return channel

    def begin(self, epoch: int, guard: Guard) -> None:
        """There is a connection. epoch: goes with its messages."""
        self._epoch, self._guard = epoch, guard
        self._channel = None
        self._over = ""
        self._asked.clear()
        self._acks.clear()
        self._beyond.clear()
        self._acked_to = 0

    async def run(self, connection: AbstractConnection) -> None:
        """Bind and unbind what is asked for, one after the other. Raises Over."""
        control = self._control
        assert control is not None
        while True:
            while not self._asked:
                self._wake.clear()
                await self._wake.wait()
                if self._over:
                    raise Over(self._over)
            asking = self._asked[0]
            reason: int = min(asking.qos, GRANTED)
            try:
                key = mapping.binding_key(asking.filter)
                await self._opened(connection)
                if asking.token:
                    await control.queue_bind(self._queue, self._exchange, key)
                else:
                    await control.queue_unbind(self._queue, self._exchange, key)
            except (Unmappable, *UNWRITABLE):
                reason = Reason.TOPIC_FILTER_INVALID
            except exceptions.AMQPChannelError as error:
                code = code_of(error)
                if code == 404 or (self._channel is not None and self._channel.is_closed):  # no queue, no exchange: begin anew
                    raise Over(words(error)) from error
                reason = reason_of(code)
                if control.is_closed:
                    control = await self.open(connection)
                else:
                    self._tell(Trouble(words(error)))
            self._asked.popleft()
            self._tell(Subscribed(asking.token, reason) if asking.token else Dropped(asking.filter))

    async def _opened(self, connection: AbstractConnection) -> Channel:
        """The channel of the queue, which is declared and read from then on. Raises AMQPChannelError."""
        if self._channel is not None:
            return self._channel
        channel = await open_channel(connection)
        try:
            await channel.queue_declare(self._queue, durable=True, arguments=self._arguments)
        except exceptions.ChannelPreconditionFailed as error:
            self._tell(Trouble(words(error)))  # we have had it under other limits: it is taken as it is
            channel = await open_channel(connection)
            await channel.queue_declare(self._queue, passive=True)
        await channel.basic_qos(prefetch_count=PREFETCH)
        channel.closing.add_done_callback(lambda closing: self._end("" if closing.cancelled() else words(closing.exception())))
        channel.on_consumer_cancel_callbacks.add(lambda _: self._end("our queue is gone"))
        self._channel = channel
        await channel.basic_consume(self._queue, self._come, consumer_tag=self._queue)
        return channel

    def _end(self, text: str) -> None:
        self._over = self._over or text or "connection lost"
        self._wake.set()

    async def leave(self, forget: bool) -> None:
        """Acknowledge what is to be acknowledged, and take no more; forget: delete the queue."""
        if self._channel is not None:
            await self._acknowledge_all(self._channel)
            await self._channel.basic_cancel(self._queue)
        if forget and self._control is not None:
            await self._control.queue_delete(self._queue)

    # IncomingRun

    async def _come(self, message: DeliveredMessage) -> None:
        """A message; the library makes a task of it, which begins in the order of the messages."""
        tag = message.delivery_tag
        guard = self._guard
        if tag is None or guard is None or message.channel is not self._channel:
            return
        size = guard.too_large.pop(tag, 0)
        topic = mapping.topic_of(message.routing_key)
        if topic is None or size:
            why = f"it has {size} bytes" if size else "its routing key is no topic"
            self._tell(Trouble(f"a message is dropped: {why}: {(message.routing_key or '')[:80]!r}"))
            self.acknowledge(tag, self._epoch)
            return
        publish = mapping.from_amqp(topic, message.body, message.header.properties, bool(message.redelivered))
        if publish.qos:
            publish.packet_id = tag
        else:
            self.acknowledge(tag, self._epoch)
        self._tell(Message(publish, self._epoch))

    def acknowledge(self, tag: int, epoch: int) -> None:
        """Acknowledge a message. One of an earlier connection is skipped."""
        if epoch == self._epoch:
            self._acks.append(tag)
            self._acks_wake.set()

    async def run_acks(self) -> None:
        """Pass acknowledgements on."""
        while True:
            self._acks_wake.clear()
            if self._acks and self._channel is not None and not self._channel.is_closed:
                await self._acknowledge_all(self._channel)
            else:
                await self._acks_wake.wait()

    async def _acknowledge_all(self, channel: Channel) -> None:
        """One frame for all that follow each other from the oldest on, one for each of the others."""
        tags = sorted(self._acks)
        self._acks.clear()
        last, fresh = 0, set(tags)
        following = self._acked_to + 1
        while following in fresh or following in self._beyond:
            if following in fresh:  # it has to be one that the remote still waits for
                last = following
            self._beyond.discard(following)
            following += 1
        self._acked_to = following - 1
        if last:
            await channel.basic_ack(last, multiple=True, wait=False)
        for tag in tags:
            if tag > self._acked_to:
                self._beyond.add(tag)
                await channel.basic_ack(tag, wait=False)
