"""The simplified API (Jakarta Messaging 3.1, chapter 7 and 2.8.3): `Context` is a connection and a session, `Producer` is fluent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from ..core.errors import IllegalStateError, MessageFormatError
from ..core.settings import AckMode
from ..message.bodies import BytesMessage, MapMessage
from ..message.destinations import Destination, Queue, TemporaryQueue, TemporaryTopic, Topic
from ..message.messages import DeliveryMode, Message, TextMessage
from ..message.properties import Properties, PropertyValues
from .browser import QueueBrowser
from .consumer import MessageConsumer
from .message_factory import MessageMaker
from .producer import CompletionListener, SendOptions
from .recipient import Recipient

if TYPE_CHECKING:
    from .connection import Connection, ConnectionMetaData, ExceptionListener

    Body = str | bytes | dict[str, Any] | Message | None


def message_of(body: Body) -> Message:
    """The message for a Python value: str, bytes, dict (a map message) or None (no body). A message is returned unchanged."""
    if isinstance(body, Message):
        return body
    if isinstance(body, str):
        return TextMessage(body)
    if isinstance(body, bytes | bytearray):
        return BytesMessage(bytes(body))
    if isinstance(body, dict):
        return MapMessage(body)
    if body is None:
        return Message()
    raise MessageFormatError(f"{type(body).__name__} is not a body: use str, bytes, dict, or create_object_message(value)")


class Producer(Properties):
    """Sends messages with the options set on it: ``context.create_producer().set_priority(9).send(topic, "text")``. Cheap to create."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.options = SendOptions()
        self.properties = PropertyValues()
        self.correlation_id: str | bytes | None = None
        self.jms_type: str | None = None
        self.reply_to: Destination | None = None
        self.completion_listener: CompletionListener | None = None

    def set_delivery_mode(self, mode: DeliveryMode) -> Self:
        self.options = replace(self.options, delivery_mode=mode)
        return self

    def set_priority(self, priority: int) -> Self:
        self.options = replace(self.options, priority=priority)
        return self

    def set_time_to_live(self, milliseconds: int) -> Self:
        self.options = replace(self.options, time_to_live=milliseconds)
        return self

    def set_delivery_delay(self, milliseconds: int) -> Self:
        self.options = replace(self.options, delivery_delay=milliseconds)
        return self

    def set_property(self, name: str, value: bool | int | float | str | None) -> Self:
        self.properties.set(name, value)
        return self

    def set_correlation_id(self, correlation_id: str | bytes | None) -> Self:
        self.correlation_id = correlation_id
        return self

    def set_type(self, jms_type: str | None) -> Self:
        self.jms_type = jms_type
        return self

    def set_reply_to(self, destination: Destination | None) -> Self:
        self.reply_to = destination
        return self

    def set_async(self, listener: CompletionListener | None) -> Self:
        """With a listener, `send` returns at once."""
        self.completion_listener = listener
        return self

    def prepare(self, body: Body) -> Message:
        """The message for a body, with the headers and properties set here."""
        message = message_of(body)
        for name, value in self.properties.typed.items():
            message.properties.set(name, value[1], value[0])
        message.correlation_id = self.correlation_id if self.correlation_id is not None else message.correlation_id
        message.jms_type = self.jms_type if self.jms_type is not None else message.jms_type
        message.reply_to = self.reply_to if self.reply_to is not None else message.reply_to
        return message

    def send(self, destination: Destination, body: Body) -> Self:
        """Raises as `MessageProducer.send` does."""
        self.context.session.send(self.prepare(body), destination, self.options, self.completion_listener)
        return self


class Context(MessageMaker):
    """One connection with one session. Its first consumer starts it (`auto_start`).

    `create_context` makes another session of the same connection. The connection closes with the last context.
    """

    def __init__(self, connection: Connection, mode: AckMode, shared: list[Context] | None = None) -> None:
        self.connection, self.auto_start = connection, True
        self._mode = mode
        self._family = shared if shared is not None else []
        self._family.append(self)
        self._closed = False
        self.session = connection.create_session(acknowledge_mode=mode)

    def create_context(self, acknowledge_mode: AckMode = AckMode.AUTO) -> Context:
        return Context(self.connection, acknowledge_mode, self._family)

    @property
    def client_id(self) -> str | None:
        return self.connection.client_id

    @property
    def metadata(self) -> ConnectionMetaData:
        return self.connection.metadata

    @property
    def session_mode(self) -> AckMode:
        return self._mode

    @property
    def exception_listener(self) -> ExceptionListener | None:
        return self.connection.exception_listener

    @exception_listener.setter
    def exception_listener(self, listener: ExceptionListener | None) -> None:
        self.connection.exception_listener = listener

    def start(self) -> None:
        self.connection.start()

    def stop(self) -> None:
        self.connection.stop()

    def close(self) -> None:
        """Close the session; the last context closes the connection too. Not from a listener."""
        if self.session.dispatcher.current:
            raise IllegalStateError("a listener cannot close its own context: close it from another thread")
        if self._closed:
            return
        self._closed = True
        self._family.remove(self)
        self.session.close()
        if not self._family:
            self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # sending and messages

    def create_producer(self) -> Producer:
        return Producer(self)

    # destinations

    def create_topic(self, name: str) -> Topic:
        return self.session.create_topic(name)

    def create_queue(self, name: str) -> Queue:
        return self.session.create_queue(name)

    def create_temporary_topic(self) -> TemporaryTopic:
        return self.session.create_temporary_topic()

    def create_temporary_queue(self) -> TemporaryQueue:
        return self.session.create_temporary_queue()

    # consumers

    def _started(self, consumer: MessageConsumer) -> MessageConsumer:
        if self.auto_start:
            self.connection.start()
        return consumer

    def create_consumer(self, destination: Destination, selector: str = "", no_local: bool = False) -> MessageConsumer:
        return self._started(self.session.create_consumer(destination, selector, no_local))

    def create_durable_consumer(self, topic: Topic, name: str, selector: str = "", no_local: bool = False) -> MessageConsumer:
        return self._started(self.session.create_durable_consumer(topic, name, selector, no_local))

    def create_shared_consumer(self, topic: Topic, name: str, selector: str = "") -> MessageConsumer:
        return self._started(self.session.create_shared_consumer(topic, name, selector))

    def create_shared_durable_consumer(self, topic: Topic, name: str, selector: str = "") -> MessageConsumer:
        return self._started(self.session.create_shared_durable_consumer(topic, name, selector))

    def recipient(self, name: str, alternatives: Iterable[str] = (), **declared: Any) -> Recipient:
        """The consumer of an application's messages, which its broker watches. The arguments are those of `Session.create_recipient`."""
        recipient = self.session.create_recipient(name, alternatives, **declared)
        self._started(recipient)
        return recipient

    def create_browser(self, queue: Queue, selector: str = "") -> QueueBrowser:
        """See `Session.create_browser`."""
        return self.session.create_browser(queue, selector)

    def unsubscribe(self, name: str) -> None:
        self.session.unsubscribe(name)

    # acknowledgement

    def acknowledge(self) -> None:
        """In mode CLIENT acknowledge everything delivered so far. In other modes do nothing."""
        if self._mode is AckMode.CLIENT:
            self.session.acknowledge_all()

    def recover(self) -> None:
        self.session.recover()

    def commit(self) -> None:
        self.session.commit()

    def rollback(self) -> None:
        self.session.rollback()
