"""Messages on their way to the remote: publisher confirms at QoS 1 and 2, nothing at QoS 0. Each has a channel of its own, so that what
happens on one disturbs nobody on the other.

A message of QoS 1 or 2 is kept until the remote has confirmed it, and is sent again, in order, on a new connection.

The remote answers a mistake (a topic that the user may not write to) by closing the channel, and says not which message it was. Then those
without a confirmation are sent again one at a time; the one that closes the channel while it is alone was it. A topic that was refused so
is not sent again during the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from aio_pika.abc import AbstractConnection
from aiormq import exceptions, spec
from aiormq.channel import Channel

from ....base.cache import Cache
from ....mqtt.packets import Publish
from ....mqtt.reasons import Reason
from ...protocol.events import Event, Published, Trouble
from ...protocol.messages import weight
from . import mapping
from .errors import UNWRITABLE, Over, code_of, reason_of, words

WINDOW = 1000  # messages without a confirmation; each is a task of the library's
DRAIN = 65_536  # bytes of QoS 0 after which the socket is waited for
PATIENCE = 30.0  # seconds for a channel
REMEMBERED = 1000  # topics that were refused


async def open_channel(connection: AbstractConnection, confirms: bool = False) -> Channel:
    """A channel of the library's lower layer, which makes fewer objects for a message."""
    channel = connection.channel(publisher_confirms=confirms, on_return_raises=False)
    async with asyncio.timeout(PATIENCE):
        await channel.initialize()
    lower = await channel.get_underlay_channel()
    assert isinstance(lower, Channel)
    return lower


class Plain:
    """Messages of QoS 0. tell: takes events."""

    def __init__(self, exchange: str, tell: Callable[[Event], None]) -> None:
        self.bytes = 0
        self._exchange = exchange
        self._tell = tell
        self._waiting: deque[Publish] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def publish(self, publish: Publish) -> None:
        """Send a message, or keep it until there is a connection."""
        self._waiting.append(publish)
        self.bytes += weight(publish)
        self._empty.clear()
        self._wake.set()

    async def run(self, connection: AbstractConnection, name: str) -> None:
        """Send what comes. name: begins message identifiers. Raises Over."""
        number = 0
        while True:
            channel = await open_channel(connection)
            channel.closing.add_done_callback(lambda _: self._wake.set())
            left = DRAIN
            while not channel.is_closed:
                if not self._waiting:
                    self._empty.set()
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                publish = self._waiting[0]
                number += 1
                left = left - weight(publish) if left > 0 else DRAIN
                try:
                    await self._send(channel, publish, f"{name}-{number}", left <= 0)
                except exceptions.ChannelInvalidStateError:
                    break
                self._waiting.popleft()
                self.bytes -= weight(publish)
            error = closed_with(channel)
            self._tell(Trouble(f"messages of QoS 0 are lost: {words(error)}"))

    async def _send(self, channel: Channel, publish: Publish, message_id: str, drain: bool) -> None:
        try:
            await channel.basic_publish(
                publish.payload,
                exchange=self._exchange,
                routing_key=mapping.routing_key(publish.topic),
                properties=mapping.to_amqp(publish, message_id),
                wait=drain,
            )
        except UNWRITABLE:  # it was taken before the remote's limits were known
            self._tell(Trouble(f"a message of QoS 0 cannot be written: {publish.topic[:80]!r}"))

    async def idle(self) -> None:
        """Return when everything has left."""
        await self._empty.wait()


def closed_with(channel: Channel) -> BaseException:
    """Why the server has closed a channel. Raises Over unless it was a mistake of ours that concerns only this channel."""
    closing = channel.closing
    error = closing.exception() if closing.done() and not closing.cancelled() else None
    if not isinstance(error, exceptions.AMQPChannelError) or code_of(error) == 404:
        raise Over(words(error))
    return error


class _Sent(NamedTuple):
    """A message and its token."""

    publish: Publish
    token: int
    message_id: str


class _Flight(NamedTuple):
    """A message on the way. task: waits for its confirmation."""

    sent: _Sent
    task: asyncio.Task[None]


class Publisher:
    """Messages of QoS 1 and 2. name: begins their identifiers, which the remote's users may use to remove repeats. tell: takes events."""

    def __init__(self, exchange: str, name: str, tell: Callable[[Event], None]) -> None:
        self.bytes = 0
        self._exchange = exchange
        self._name = name
        self._tell = tell
        self._number = 0
        self._careful = 0  # so many are to be sent one at a time
        self._waiting: deque[_Sent] = deque()
        self._flight: dict[int, _Flight] = {}  # in the order of sending
        self._ids: set[str] = set()  # of those; the library tells by them which message has come back
        self._sends = 0
        self._refused: Cache[str, None] = Cache(REMEMBERED)
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def publish(self, publish: Publish, token: int) -> None:
        """Send a message, or keep it until it can be sent."""
        self._number += 1
        self._waiting.append(_Sent(publish, token, mapping.message_id(publish) or f"{self._name}-{self._number}"))
        self.bytes += weight(publish)
        self._empty.clear()
        self._wake.set()

    def refused(self, topic: str) -> bool:
        """Whether the user may not write to a topic."""
        return topic in self._refused

    async def idle(self) -> None:
        """Return when everything is confirmed."""
        await self._empty.wait()

    async def run(self, connection: AbstractConnection) -> None:
        """Send what comes. Raises Over."""
        self._refused.clear()
        self._careful = 0
        self.again()
        while True:
            channel = await open_channel(connection, confirms=True)
            channel.closing.add_done_callback(lambda _: self._wake.set())
            try:
                while not channel.is_closed:
                    self._more(channel)
                    self._wake.clear()
                    await self._wake.wait()
            finally:
                await self._end()
            self._blame(closed_with(channel))

    def _more(self, channel: Channel) -> None:
        """Send what has waited, in order, as far as there is room."""
        while self._waiting and len(self._flight) < (1 if self._careful else WINDOW) and self._waiting[0].message_id not in self._ids:
            sent = self._waiting.popleft()
            self._sends += 1
            self._ids.add(sent.message_id)
            task = asyncio.get_running_loop().create_task(self._send(channel, self._sends, sent), name="amqp-publish")
            self._flight[self._sends] = _Flight(sent, task)

    async def _send(self, channel: Channel, number: int, sent: _Sent) -> None:
        """One message, until it is confirmed or refused; when the channel ends before, it stays in flight."""
        publish = sent.publish
        try:
            result = await channel.basic_publish(
                publish.payload,
                exchange=self._exchange,
                routing_key=mapping.routing_key(publish.topic),
                properties=mapping.to_amqp(publish, sent.message_id),
                mandatory=True,
                wait=False,
            )
        except exceptions.DeliveryError:
            self._settled(number, Reason.QUOTA_EXCEEDED)
        except UNWRITABLE:  # it was taken before the remote's limits were known
            self._settled(number, Reason.TOPIC_NAME_INVALID)
        except (exceptions.AMQPError, exceptions.ChannelInvalidStateError, ConnectionError):
            self._wake.set()
        else:
            self._settled(number, Reason.SUCCESS if isinstance(result, spec.Basic.Ack) else Reason.NO_MATCHING_SUBSCRIBERS)

    def _settled(self, number: int, reason: Reason) -> None:
        sent = self._flight.pop(number).sent
        self._ids.discard(sent.message_id)
        self._careful = max(self._careful - 1, 0)
        self.bytes -= weight(sent.publish)
        self._tell(Published(sent.token, reason))
        if self._waiting:
            self._wake.set()
        elif not self._flight:
            self._empty.set()

    async def _end(self) -> None:
        """The channel has ended: nothing is on the way any more."""
        tasks = [flight.task for flight in self._flight.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _blame(self, error: BaseException) -> None:
        """The remote has closed the channel because of a message."""
        code = code_of(error)
        if len(self._flight) == 1:
            [(number, flight)] = self._flight.items()
            self._settled(number, reason_of(code))
            if code == 403:
                self._refuse(flight.sent.publish.topic)
        else:
            self._careful = len(self._flight)
        self._tell(Trouble(words(error)))
        self.again()

    def again(self) -> None:
        """What is in flight is to be sent once more."""
        self._waiting.extendleft(flight.sent for flight in reversed(self._flight.values()))
        self._flight.clear()
        self._ids.clear()

    def _refuse(self, topic: str) -> None:
        self._refused.keep(topic, None)
