"""A session: what is sent and consumed by one thread of control, and the order in which it is acknowledged (6.2).

One condition (`cond`) guards the state of the session and the inboxes of its consumers. Nothing that can block, and no code of the
application, runs while it is held. The network thread takes it to put messages into inboxes, the dispatcher to take the next one out.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ..core.errors import IllegalStateError, JMSError, MessageFormatError, TransactionRolledBackError, of_outcome
from ..core.settings import AckMode, Waiter
from ..core.transport import Outcome, Publication
from ..message.destinations import Destination, Queue, TemporaryTopic, Topic, no_queues, topic_to_send
from ..message.messages import DeliveryMode, Message
from ..message.wire import encode
from .consumer import MessageConsumer, Subscription, now
from .dispatcher import Dispatcher, Job
from .inbox import Held
from .message_factory import MessageMaker
from .producer import CompletionListener, MessageProducer, SendOptions
from .subscriptions import Subscriptions

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("mqmesh.client")
LAZY = 32  # messages that DUPS_OK acknowledges together

Delivered = tuple[MessageConsumer, Held]


@dataclass(slots=True)
class _Pending:
    """A send of a transaction that is not committed yet."""

    publication: Publication
    message: Message
    listener: CompletionListener | None


@dataclass(slots=True)
class _Sending:
    """A send with a completion listener, which has not been called yet. error: of the answer, None for a good one."""

    message: Message
    listener: CompletionListener
    answered: bool = False
    error: JMSError | None = None


class Session(Subscriptions, MessageMaker):
    """Made by a connection. Not for several threads at a time, except `close` (6.2.5).

    The session's listeners run on one thread, which starts with the first of them. From then on other threads may only close the
    session or its consumers and set listeners; everything else belongs into the listeners.
    """

    def __init__(self, connection: Connection, mode: AckMode) -> None:
        self.connection, self.acknowledge_mode = connection, mode
        self.cond = threading.Condition()
        self.running = False
        self.closed = self._closing = False
        self.consumers: list[MessageConsumer] = []
        self.dispatcher = Dispatcher(self.cond, self._find, f"mqmesh-session {connection.uid[:8]}")
        self._unacknowledged: list[Delivered] = []  # in the order of delivery
        self._lazy: list[Delivered] = []  # DUPS_OK: consumed, not told to the broker yet
        self._completing = False  # a completion listener runs
        self._failures: dict[Held, int] = {}  # how often the listener has raised
        self._outbox: list[_Pending] = []
        self._endings: list[tuple[MessageConsumer, Waiter]] = []
        self._async = 0  # sends with a completion listener that has not run yet
        self._sending: dict[int, _Sending] = {}  # whose listeners have not been called, in the order of sending
        self._turn, self._send_numbers = itertools.count(), itertools.count()

    # making things

    def create_topic(self, name: str) -> Topic:
        """name: an MQTT topic name; with wildcards, only to consume from."""
        return Topic(name)

    def create_queue(self, name: str) -> Queue:
        """Raises `JMSError`: needs an mqmesh broker with queues."""
        raise no_queues(f"the queue {name!r}")

    def create_temporary_topic(self) -> TemporaryTopic:
        self.check_open()
        return self.connection.create_temporary_topic()

    def create_temporary_queue(self) -> NoReturn:
        raise no_queues("a temporary queue")

    def create_browser(self, queue: Queue, selector: str = "") -> NoReturn:
        raise no_queues(f"browsing {queue.name!r}")

    def create_producer(self, destination: Destination | None = None) -> MessageProducer:
        """destination None: given with each send."""
        self.check_open()
        if destination is not None:
            topic_to_send(destination)
        return MessageProducer(self, destination)

    def create_publisher(self, topic: Topic | None = None) -> MessageProducer:
        """JMS 1.1's name."""
        return self.create_producer(topic)

    # sending

    def send(self, message: Message, destination: Destination, options: SendOptions, listener: CompletionListener | None = None) -> None:
        """What producers do: set the headers, then send, or keep until `commit`."""
        self.check_open()
        topic_to_send(destination)
        self.connection.check_temporary(destination, consuming=False)
        self._stamp(message, destination, options)
        qos = self.connection.settings.persistent_qos if message.delivery_mode == DeliveryMode.PERSISTENT else 0
        publication = encode(message, qos, now())
        if self.acknowledge_mode is AckMode.SESSION_TRANSACTED:
            self._outbox.append(_Pending(publication, message, listener))
        elif listener is None:
            answer = Waiter()
            self.connection.publisher.publish(publication, answer)
            answer.wait(self.connection.settings.send_timeout, f"sending to {publication.topic!r}", "it may still be sent")
        else:
            self._send_async(publication, message, listener)

    def _stamp(self, message: Message, destination: Destination, options: SendOptions) -> None:
        message.destination = destination
        message.delivery_mode, message.priority = options.delivery_mode, options.priority
        message.timestamp = now()
        message.delivery_time = message.timestamp + options.delivery_delay
        message.expiration = message.delivery_time + options.time_to_live if options.time_to_live else 0
        message.message_id = self.connection.next_message_id()
        message.redelivered, message.delivery_count = False, 0
        message.properties.typed.pop("JMSXDeliveryCount", None)

    def _send_async(self, publication: Publication, message: Message, listener: CompletionListener) -> None:
        with self.cond:
            while self._async >= self.connection.settings.async_sends and not self.dispatcher.current and not self._closing:
                self.cond.wait()  # the listeners are behind
            self._async += 1
            number = next(self._send_numbers)
            self._sending[number] = _Sending(message, listener)
            self.dispatcher.start()

        def done(outcome: Outcome) -> None:
            error = (
                of_outcome(outcome, f"sending to {publication.topic!r}{outcome.text and ': '}{outcome.text}") if outcome.failed else None
            )
            with self.cond:
                sending = self._sending.get(number)
                if sending is not None:
                    sending.answered, sending.error = True, error
                    self._complete_in_order()

        self.connection.publisher.publish(publication, done)

    def _complete_in_order(self) -> None:
        """Call the listeners of what was sent first and is answered (7.3): behind a break the answers may come in another order."""
        while self._sending:
            number, first = next(iter(self._sending.items()))
            if not first.answered:
                return
            del self._sending[number]
            self.dispatcher.post(functools.partial(self._complete, first.message, first.listener, first.error))

    @property
    def full(self) -> bool:
        """Whether a send with a completion listener would wait for earlier ones."""
        return self._async >= self.connection.settings.async_sends

    def wait_for_room(self) -> None:
        with self.cond:
            self.cond.wait_for(lambda: not self.full or self._closing)
        self.check_open()

    def _complete(self, message: Message, listener: CompletionListener, error: JMSError | None) -> None:
        self._completing = True
        try:
            listener(message, error)
        finally:
            self._completing = False
            with self.cond:
                self._async -= 1
                self.cond.notify_all()

    # transactions and acknowledgement

    def commit(self) -> None:
        """Send what the transaction has sent, then acknowledge what it has received.

        Raises `TransactionRolledBackError` when the broker refuses a message or does not answer in time: what was received comes again.
        """
        self._check_transacted()
        pending, self._outbox = self._outbox, []
        answers = [Waiter() for _ in pending]
        for item, answer in zip(pending, answers, strict=True):
            self.connection.publisher.publish(item.publication, answer)
        deadline = time.monotonic() + self.connection.settings.send_timeout
        errors: list[JMSError | None] = []
        for item, answer in zip(pending, answers, strict=True):
            try:
                answer.wait(
                    max(deadline - time.monotonic(), 0.0), f"committing a send to {item.publication.topic!r}", "it may still be sent"
                )
                errors.append(None)
            except JMSError as error:
                errors.append(error)
        with self.cond:
            failed = next((error for error in errors if error is not None), None)
            if failed is None:
                self._acknowledge(self._unacknowledged)
            else:
                self._recover()
        self._await_endings()
        for item, outcome in zip(pending, errors, strict=True):
            if item.listener is not None:
                with self.cond:
                    self._async += 1
                self.dispatcher.post(functools.partial(self._complete, item.message, item.listener, outcome))
        if not self.dispatcher.current:
            with self.cond:  # their listeners have returned before commit does (7.3.4)
                self.cond.wait_for(lambda: not self._async or self._closing)
        if failed is not None:
            sent = tuple(str(item.message.message_id) for item, error in zip(pending, errors, strict=True) if error is None)
            raise TransactionRolledBackError(f"the commit failed: {failed}", failed.error_code, sent) from failed

    def rollback(self) -> None:
        """Forget what the transaction has sent; what it has received comes again."""
        self._check_transacted()
        self._outbox.clear()
        with self.cond:
            self._recover()
        self._await_endings()

    def recover(self) -> None:
        """Deliver again what is not acknowledged, oldest first, marked as redelivered (6.2.10)."""
        self.check_open()
        if self.acknowledge_mode is AckMode.SESSION_TRANSACTED:
            raise IllegalStateError("the session is transacted: use rollback()")
        with self.cond:
            self._flush()
            self._recover()
        self._await_endings()

    def _check_transacted(self) -> None:
        self.check_open()
        if self.acknowledge_mode is not AckMode.SESSION_TRANSACTED:
            raise IllegalStateError("the session is not transacted")
        if self._completing and self.dispatcher.current:
            raise IllegalStateError("a completion listener cannot commit or roll back its own session (7.3.4)")

    def acknowledge_all(self) -> None:
        """`Message.acknowledge` in mode CLIENT: everything delivered so far."""
        self.check_open()
        with self.cond:
            self._acknowledge(self._unacknowledged)
        self._await_endings()

    def _acknowledge_one(self, delivered: Delivered) -> None:
        self.check_open()
        with self.cond:
            if delivered in self._unacknowledged:
                self._acknowledge([delivered])
        self._await_endings()

    def _acknowledge(self, done: list[Delivered]) -> None:
        """With the condition held."""
        done = list(done)
        for consumer, held in done:
            consumer.acknowledge([held])
            self._failures.pop(held, None)
        finished = set(map(id, done))
        self._unacknowledged = [delivered for delivered in self._unacknowledged if id(delivered) not in finished]
        self._end_lingering({consumer for consumer, _ in done})

    def _flush(self) -> None:
        self._acknowledge(self._lazy)
        self._lazy = []

    def _recover(self) -> None:
        back, self._unacknowledged = self._unacknowledged, []
        for consumer, held in back:
            if not consumer.closed:
                consumer.inbox.recover([held], now())
        self._end_lingering({consumer for consumer, _ in back})
        self.cond.notify_all()
        for consumer in self.consumers:
            if consumer.on_available is not None:
                consumer.on_available()

    def _end_lingering(self, consumers: set[MessageConsumer]) -> None:
        """Links of consumers that were closed before their messages were acknowledged."""
        waited_for = {consumer for consumer, _ in self._unacknowledged}
        for consumer in consumers - waited_for:
            if consumer.closed and (done := consumer.finish(wait=False)) is not None:
                self._endings.append((consumer, done))

    def _await_endings(self) -> None:
        """Without the condition: links of closed consumers whose last message has just been acknowledged or given back."""
        while self._endings:
            consumer, done = self._endings.pop()
            consumer.ended(done)

    # receiving

    def take(self, consumer: MessageConsumer, deadline: float | None, wanted: type[Any] | None = None) -> Message | None:
        """The next message of a consumer; deadline: of the monotonic clock, None to wait for ever.

        wanted: of its body; `MessageFormatError` when it is another, and in modes AUTO and DUPS_OK the message stays the next (8.6).
        """
        with self.cond:
            if any(each.listener is not None for each in self.consumers):
                raise IllegalStateError("the session has a message listener: it cannot receive as well (6.2.5)")
            while True:
                if consumer.closed or self._closing:
                    return None
                if consumer.error is not None:
                    raise consumer.error
                held = self._next_of(consumer) if self.running else None
                if held is not None:
                    wrong = wanted is not None and not held.message.is_body_receivable_as(wanted)
                    if wrong and self.acknowledge_mode in (AckMode.AUTO, AckMode.DUPS_OK):
                        consumer.inbox.put_back(held, now())
                        raise MessageFormatError(f"the next message has no body of type {wanted and wanted.__name__}")
                    message = self._deliver(consumer, held)
                    if wrong:
                        raise MessageFormatError(f"the message has no body of type {wanted and wanted.__name__}")
                    return message
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._flush()
                due = self._until_due([consumer])
                self.cond.wait(min((wait for wait in (left, due) if wait is not None), default=None))

    def _next_of(self, consumer: MessageConsumer) -> Held | None:
        held, tokens = consumer.inbox.take(now())
        for token in tokens:
            consumer.link.acknowledge(token)
        return held

    def _until_due(self, consumers: list[MessageConsumer]) -> float | None:
        """Seconds until a delayed message is due."""
        dues = [due for consumer in consumers if (due := consumer.inbox.next_due()) is not None]
        return max(min(dues) - now(), 0) / 1000 + 0.001 if dues else None

    def _deliver(self, consumer: MessageConsumer, held: Held, listening: bool = False) -> Message:
        """With the condition held. What delivery means for acknowledgement is decided here."""
        delivered, mode = (consumer, held), self.acknowledge_mode
        message = held.message
        if mode is AckMode.CLIENT:
            message.acknowledger = self.acknowledge_all
        elif mode is AckMode.INDIVIDUAL:
            message.acknowledger = functools.partial(self._acknowledge_one, delivered)
        if mode is AckMode.AUTO and not listening:
            consumer.acknowledge([held])
        elif mode is AckMode.DUPS_OK and not listening:
            self._acknowledge_lazily(delivered)
        else:
            self._unacknowledged.append(delivered)
        return message

    def _acknowledge_lazily(self, delivered: Delivered) -> None:
        self._lazy.append(delivered)
        if len(self._lazy) >= min(LAZY, max(self.connection.settings.prefetch // 2, 1)):
            self._flush()

    # listeners

    def set_listener(self, consumer: MessageConsumer, listener: Callable[[Message], None] | None) -> None:
        with self.cond:
            consumer.listener = listener
            if listener is not None:
                self.dispatcher.start()
            self.cond.notify_all()
            if not self.dispatcher.current:
                self.cond.wait_for(lambda: not self.dispatcher.busy)

    def _find(self) -> Job | float | None:
        """The dispatcher's question, with the condition held: the next message for a listener, consumers in turn."""
        listening = [consumer for consumer in self.consumers if consumer.listener is not None and not consumer.closed]
        if not self.running or self._closing or not listening:
            return None
        first = next(self._turn) % len(listening)
        for consumer in listening[first:] + listening[:first]:
            held = self._next_of(consumer)
            if held is not None:
                message = self._deliver(consumer, held, listening=True)
                return functools.partial(self._listen, consumer, held, message)
        self._flush()
        return self._until_due(listening)

    def _listen(self, consumer: MessageConsumer, held: Held, message: Message) -> None:
        try:
            if consumer.listener is not None:
                consumer.listener(message)
        except BaseException as error:  # also SystemExit: a message whose listener did not return is not consumed
            log.exception("event=listener_failed destination=%s message=%s", consumer.destination, message.message_id)
            self._listener_failed(consumer, held, error)
            return
        with self.cond:
            delivered = next((each for each in self._unacknowledged if each[1] is held), None)
            if delivered is None:
                return  # recovered, rolled back or acknowledged by the listener
            if self.acknowledge_mode is AckMode.AUTO:
                self._acknowledge([delivered])
            elif self.acknowledge_mode is AckMode.DUPS_OK:
                self._unacknowledged.remove(delivered)
                self._acknowledge_lazily(delivered)

    def _listener_failed(self, consumer: MessageConsumer, held: Held, error: BaseException) -> None:
        """AUTO and DUPS_OK deliver the message again at once, some times; the other modes go on with the next message (8.7)."""
        if self.acknowledge_mode not in (AckMode.AUTO, AckMode.DUPS_OK):
            return
        with self.cond:
            delivered = next((each for each in self._unacknowledged if each[1] is held), None)
            if delivered is None:
                return
            self._failures[held] = self._failures.get(held, 0) + 1
            if self._failures[held] <= self.connection.settings.redeliveries and not consumer.closed:
                self._unacknowledged.remove(delivered)
                consumer.inbox.recover([held], now())
                return
            self._acknowledge([delivered])
        given_up = JMSError(
            f"message {held.message.message_id} of {consumer.destination} given up: its listener raised {error!r}", "given_up"
        )
        given_up.__cause__ = error
        self.connection.report(given_up)

    # consumers

    def add_consumer(self, subscription: Subscription, release: Callable[[], None]) -> MessageConsumer:
        self.check_open()
        consumer = MessageConsumer(self, subscription, release)
        consumer.open()
        with self.cond:
            self.consumers.append(consumer)
            self.cond.notify_all()
        return consumer

    def close_consumer(self, consumer: MessageConsumer) -> None:
        with self.cond:
            if consumer.closed:
                return
            consumer.closed = True
            self.cond.notify_all()
            if not self.dispatcher.current:
                self.cond.wait_for(lambda: not self.dispatcher.busy)
            self._flush()
            if consumer in self.consumers:
                self.consumers.remove(consumer)
            lingering = any(each is consumer for each, _ in self._unacknowledged)
        if not lingering:
            consumer.finish()
        if consumer.on_available is not None:
            consumer.on_available()

    # life

    def run(self, running: bool) -> None:
        """Start or stop delivery. Stopping returns when no listener runs any more and no `receive` is about to return (6.1.5)."""
        with self.cond:
            self.running = running
            self.cond.notify_all()
            if not running:
                self.cond.wait_for(lambda: not self.dispatcher.busy)
            for consumer in self.consumers:
                if consumer.on_available is not None:
                    consumer.on_available()

    def check_open(self) -> None:
        if self.closed or (self._closing and not self.dispatcher.current):
            raise IllegalStateError("the session is closed")

    def close(self) -> None:
        """Roll back, wait for listeners and for sends that are under way, close the consumers (6.2.15). Not from a listener."""
        if self.dispatcher.current:
            raise IllegalStateError("a listener cannot close its own session (6.2.15): close it from another thread")
        with self.cond:
            if self._closing:
                self.cond.wait_for(lambda: self.closed)
                return
            self._closing = True
            self.cond.notify_all()
            self.cond.wait_for(lambda: not self.dispatcher.busy)
            self.cond.wait_for(lambda: not self._async, self.connection.settings.send_timeout)
            unanswered, self._sending = self._sending, {}
            self._flush()
            self._outbox.clear()
            consumers = {*self.consumers, *(consumer for consumer, _ in self._unacknowledged)}
            self._unacknowledged = []
            self.consumers = []
        for one in unanswered.values():
            late = JMSError("the session was closed before the broker had answered; the message may have been sent", "timeout")
            self.dispatcher.post(functools.partial(self._complete, one.message, one.listener, one.error if one.answered else late))
        self.dispatcher.end()
        try:
            for consumer in consumers:
                consumer.closed = True
                consumer.finish()
                if consumer.on_available is not None:
                    consumer.on_available()
        finally:
            with self.cond:
                self.closed = True
                self.cond.notify_all()
            self.connection.forget_session(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unique_client_id() -> str:
    """An MQTT client identifier for a link that nobody will resume."""
    return f"jms-{uuid.uuid4().hex}"
