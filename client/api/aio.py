"""The `asyncio` form of `Context`. It uses the same session and never blocks the event loop.

Connecting, subscribing, closing and committing wait for the broker, so they run in a thread. Sending and receiving do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..core.errors import IllegalStateError, JMSError
from ..core.settings import AckMode
from ..message.destinations import Destination, Queue, TemporaryQueue, TemporaryTopic, Topic
from ..message.messages import Message
from .browser import QueueBrowser
from .connection import Connection, ConnectionMetaData, ExceptionListener
from .consumer import MessageConsumer
from .context import Context, Producer
from .factory import ConnectionFactory
from .message_factory import MessageMaker
from .session import Session

if TYPE_CHECKING:
    from .context import Body

T = TypeVar("T")
B = TypeVar("B")


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
            async with asyncio.timeout(timeout):  # Python 3.11's `wait_for` forgets a cancellation that comes with the answer
                await answer
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

    @property
    def destination(self) -> Destination:
        return self.consumer.destination

    @property
    def message_selector(self) -> str | None:
        return self.consumer.message_selector

    @property
    def dropped(self) -> int:
        """See `MessageConsumer.dropped`."""
        return self.consumer.dropped

    @property
    def closed(self) -> bool:
        return self.consumer.closed

    async def receive(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 # as the blocking twin
        """The next message; None after `timeout` seconds, or when the consumer is closed."""
        return await self._receive(self.consumer.receive_no_wait, timeout)

    def receive_no_wait(self) -> Message | None:
        """A message that has arrived already, or None."""
        return self.consumer.receive_no_wait()

    async def receive_body(self, wanted: type[B], timeout: float | None = None) -> B | None:  # noqa: ASYNC109 # as the blocking twin
        """See `MessageConsumer.receive_body`."""
        return await self._receive(functools.partial(self.consumer.receive_body_no_wait, wanted), timeout)

    def receive_body_no_wait(self, wanted: type[B]) -> B | None:
        """See `MessageConsumer.receive_body_no_wait`."""
        return self.consumer.receive_body_no_wait(wanted)

    async def _receive(self, take: Callable[[], T | None], timeout: float | None) -> T | None:  # noqa: ASYNC109 # as above
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            self._available.clear()
            found = take()
            if found is not None or self.consumer.closed or self.consumer.session.closed:
                return found
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

    @property
    def queue(self) -> Queue:
        return self.browser.queue

    @property
    def message_selector(self) -> str | None:
        return self.browser.message_selector

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
    """``async with AsyncContext(factory) as context``. It has what `Context` has.

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
        self._context: Context | None = None

    @classmethod
    def _of(cls, context: Context) -> AsyncContext:
        made = cls.__new__(cls)
        made._context = context
        return made

    @property
    def context(self) -> Context:
        """The `Context` underneath. Raises `IllegalStateError` before ``async with``."""
        if self._context is None:
            raise IllegalStateError("the context is not open: use it as `async with AsyncContext(factory) as context`")
        return self._context

    async def __aenter__(self) -> Self:
        if self._context is None:
            self._context = await asyncio.to_thread(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create_context(self, acknowledge_mode: AckMode = AckMode.AUTO) -> AsyncContext:
        """Another session of the same connection. See `Context.create_context`."""
        return AsyncContext._of(await asyncio.to_thread(self.context.create_context, acknowledge_mode))

    async def close(self) -> None:
        """See `Context.close`."""
        await asyncio.to_thread(self.context.close)

    @property
    def connection(self) -> Connection:
        return self.context.connection

    @property
    def session(self) -> Session:
        return self.context.session

    @property
    def client_id(self) -> str | None:
        return self.context.client_id

    @property
    def metadata(self) -> ConnectionMetaData:
        return self.context.metadata

    @property
    def session_mode(self) -> AckMode:
        return self.context.session_mode

    @property
    def exception_listener(self) -> ExceptionListener | None:
        return self.context.exception_listener

    @exception_listener.setter
    def exception_listener(self, listener: ExceptionListener | None) -> None:
        """Called by a thread of the connection, not by the event loop."""
        self.context.exception_listener = listener

    @property
    def auto_start(self) -> bool:
        return self.context.auto_start

    @auto_start.setter
    def auto_start(self, start: bool) -> None:
        self.context.auto_start = start

    async def start(self) -> None:
        await asyncio.to_thread(self.context.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self.context.stop)

    def create_producer(self) -> AsyncProducer:
        return AsyncProducer(self.context)

    def create_topic(self, name: str) -> Topic:
        return self.context.create_topic(name)

    def create_queue(self, name: str) -> Queue:
        return self.context.create_queue(name)

    def create_temporary_topic(self) -> TemporaryTopic:
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
