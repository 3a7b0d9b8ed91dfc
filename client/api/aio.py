"""The `asyncio` form of `Context`. It uses the same session and never blocks the event loop.

Connecting, subscribing, closing and committing wait for the broker, so they run in a thread. Sending and receiving do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..core.errors import JMSError
from ..core.settings import AckMode
from ..message.destinations import Destination, Queue, TemporaryQueue, Topic
from ..message.messages import Message
from .browser import QueueBrowser
from .connection import Connection
from .consumer import MessageConsumer
from .context import Context, Producer
from .factory import ConnectionFactory
from .message_factory import MessageMaker

if TYPE_CHECKING:
    from .context import Body

T = TypeVar("T")


class AsyncProducer(Producer):
    """A `Producer` whose `send` is awaited."""

    async def send(self, destination: Destination, body: Body) -> Self:  # type: ignore[override] # awaited here
        """Send. Returns once the broker has the message, in a transaction at once."""
        loop = asyncio.get_running_loop()
        session, message = self.context.session, self.prepare(body)
        if session.acknowledge_mode is AckMode.SESSION_TRANSACTED:
            session.send(message, destination, self.options, self.completion_listener)
            return self
        answer: asyncio.Future[None] = loop.create_future()

        def set_result(error: JMSError | None) -> None:
            if answer.done():
                return  # cancelled
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        def done(sent: Message, error: JMSError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(set_result, error)

        while session.async_sends.full:  # `Session.send` would wait and block the loop
            await asyncio.to_thread(session.async_sends.wait_for_room)
            session.check_open()
        session.send(message, destination, self.options, done)
        timeout = session.connection.settings.send_timeout
        try:
            await asyncio.wait_for(answer, timeout)
        except TimeoutError as error:
            text = f"sending to {destination.name!r}: not answered within {timeout:g} s; it may still be sent"
            raise JMSError(text, "timeout") from error
        return self


class AsyncConsumer:
    """``async for message in consumer``, or ``await consumer.receive(timeout)``."""

    def __init__(self, consumer: MessageConsumer) -> None:
        self.consumer = consumer
        self._loop = asyncio.get_running_loop()
        self._available = asyncio.Event()
        consumer.on_available = self._notify

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._available.set)

    async def receive(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 # as the blocking twin
        """The next message; None after `timeout` seconds, or when the consumer is closed."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            self._available.clear()
            message = self.consumer.receive_no_wait()
            if message is not None or self.consumer.closed or self.consumer.session.closed:
                return message
            waits = [
                wait
                for wait in (None if deadline is None else deadline - loop.time(), self.consumer.seconds_until_due())
                if wait is not None
            ]
            if deadline is not None and deadline <= loop.time():
                return None
            try:
                async with asyncio.timeout(max(min(waits), 0) if waits else None):
                    await self._available.wait()
            except TimeoutError:
                continue

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        while (message := await self.receive()) is not None:
            yield message

    async def close(self) -> None:
        await asyncio.to_thread(self.consumer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncQueueBrowser:
    """``async for message in browser``."""

    def __init__(self, browser: QueueBrowser) -> None:
        self.browser = browser

    async def __aiter__(self) -> AsyncIterator[Message]:
        messages = iter(self.browser)
        while (message := await asyncio.to_thread(next, messages, None)) is not None:
            yield message

    async def close(self) -> None:
        await asyncio.to_thread(self.browser.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncContext(MessageMaker):
    """``async with AsyncContext(factory) as context``. It makes messages as `Context` does.

    Any task may send and receive. Only one task at a time may use a transaction.
    """

    def __init__(
        self,
        factory: ConnectionFactory,
        acknowledge_mode: AckMode = AckMode.AUTO,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._open: Callable[[], Context] = functools.partial(factory.create_context, acknowledge_mode, user, password)
        self.context: Context

    async def __aenter__(self) -> Self:
        self.context = await asyncio.to_thread(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.context.close)

    @property
    def connection(self) -> Connection:
        return self.context.connection

    def create_producer(self) -> AsyncProducer:
        return AsyncProducer(self.context)

    def create_topic(self, name: str) -> Topic:
        return self.context.create_topic(name)

    def create_queue(self, name: str) -> Queue:
        return self.context.create_queue(name)

    def create_temporary_topic(self) -> Topic:
        return self.context.create_temporary_topic()

    async def create_temporary_queue(self) -> TemporaryQueue:
        return await asyncio.to_thread(self.context.create_temporary_queue)

    async def _consumer(self, make: Callable[..., MessageConsumer], *arguments: Any) -> AsyncConsumer:
        return AsyncConsumer(await asyncio.to_thread(make, *arguments))

    async def create_consumer(self, destination: Destination, selector: str = "", no_local: bool = False) -> AsyncConsumer:
        return await self._consumer(self.context.create_consumer, destination, selector, no_local)

    async def create_durable_consumer(self, topic: Topic, name: str, selector: str = "", no_local: bool = False) -> AsyncConsumer:
        return await self._consumer(self.context.create_durable_consumer, topic, name, selector, no_local)

    async def create_shared_consumer(self, topic: Topic, name: str, selector: str = "") -> AsyncConsumer:
        return await self._consumer(self.context.create_shared_consumer, topic, name, selector)

    async def create_shared_durable_consumer(self, topic: Topic, name: str, selector: str = "") -> AsyncConsumer:
        return await self._consumer(self.context.create_shared_durable_consumer, topic, name, selector)

    async def recipient(self, name: str, alternatives: Iterable[str] = (), **declared: Any) -> AsyncConsumer:
        """See `Context.recipient`."""
        return AsyncConsumer(await asyncio.to_thread(functools.partial(self.context.recipient, name, alternatives, **declared)))

    async def create_browser(self, queue: Queue, selector: str = "") -> AsyncQueueBrowser:
        return AsyncQueueBrowser(await asyncio.to_thread(self.context.create_browser, queue, selector))

    async def unsubscribe(self, name: str) -> None:
        await asyncio.to_thread(self.context.unsubscribe, name)

    async def commit(self) -> None:
        await asyncio.to_thread(self.context.commit)

    def rollback(self) -> None:
        self.context.rollback()

    def recover(self) -> None:
        self.context.recover()

    def acknowledge(self) -> None:
        self.context.acknowledge()
