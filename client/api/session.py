"""A session: one thread of control that sends and consumes, and the order in which messages are acknowledged (6.2).

One condition (`cond`) guards the state of the session and the inboxes of its consumers. Nothing that can block, and no code of the
application, runs while it is held. The network thread takes it to put messages into inboxes. The dispatcher takes it to get the next one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ...base.queues import KEY, REORDERS, SELECTOR
from ..core.errors import IllegalStateError, InvalidDestinationError, JMSError, MessageFormatError, TransactionRolledBackError
from ..core.settings import AckMode, Waiter
from ..core.transport import Publication
from ..message.destinations import (
    Destination,
    Queue,
    TemporaryQueue,
    TemporaryTopic,
    Topic,
    durable_client_id,
    filter_to_consume,
    topic_to_send,
)
from ..message.messages import DeliveryMode, Message
from ..message.selector import Selector, selects_all
from ..message.wire import encode
from .async_sends import AsyncSends
from .browser import QueueBrowser
from .consumer import MessageConsumer, QueueConsumer, now
from .dispatcher import Dispatcher, Job
from .inbox import ReceivedMessage
from .message_factory import MessageMaker
from .producer import CompletionListener, MessageProducer, SendOptions
from .questions import Question, QueueRequests
from .recipient import LEASE, PREFIX, Declaration, Recipient, check_lease, subscription_of
from .subscriptions import (
    Subscription,
    check_subscription_name,
    end_broker_session,
    has_consumer_error,
    shared_client_id,
    shared_filter,
)

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("mqmesh.client")
DEFERRED = 32  # messages that DUPS_OK acknowledges together

C = TypeVar("C", bound=MessageConsumer)
Delivered = tuple[MessageConsumer, ReceivedMessage]
Settled = tuple[set[MessageConsumer], list[Question]]


@dataclass(slots=True)
class _Pending:
    """A send of a transaction that is not committed."""

    publication: Publication
    message: Message
    listener: CompletionListener | None


class Session(MessageMaker):
    """Made by a connection. Only `close` may be called by several threads at a time (6.2.5).

    The session's listeners run on one thread, which starts with the first of them. From then on, other threads may only close the
    session or its consumers, and set listeners. Everything else belongs in the listeners.
    """

    def __init__(self, connection: Connection, mode: AckMode) -> None:
        self.connection, self.acknowledge_mode = connection, mode
        self.cond = threading.Condition()
        self.running = False
        self.closed = self._closing = False
        self.consumers: list[MessageConsumer] = []
        self.dispatcher = Dispatcher(self.cond, self._next_job, f"mqmesh-session {connection.uid[:8]}")
        self._unacknowledged: list[Delivered] = []  # in the order of delivery
        self._deferred: list[Delivered] = []  # DUPS_OK: consumed, to be acknowledged together
        self._failures: dict[ReceivedMessage, int] = {}  # how often the listener has raised
        self._outbox: list[_Pending] = []  # sends of the transaction
        self._browsers: list[QueueBrowser] = []
        self._closing_links: list[tuple[MessageConsumer, Waiter]] = []  # of closed consumers
        self.async_sends = AsyncSends(self.cond, self.dispatcher, connection.settings.async_sends)
        self._listening: set[MessageConsumer] = set()  # consumers with a listener
        self._ready: dict[MessageConsumer, None] = {}  # those that may have a message for it, in the order of their turns
        self._delayed: dict[MessageConsumer, None] = {}  # those that have only messages that are not due

    # destinations and producers

    def create_topic(self, name: str) -> Topic:
        """name: an MQTT topic name. One with wildcards can only be consumed from."""
        return Topic(name)

    def create_queue(self, name: str) -> Queue:
        """name: of a queue of the broker. Using it raises `JMSError` where the broker has no queues."""
        return Queue(name)

    def create_temporary_topic(self) -> TemporaryTopic:
        self.check_open()
        return self.connection.create_temporary_topic()

    def create_temporary_queue(self) -> TemporaryQueue:
        """A queue that ends with this connection, and that only it consumes from. Raises `JMSError` where the broker has no queues."""
        self.check_open()
        return self.connection.create_temporary_queue()

    def create_producer(self, destination: Destination | None = None) -> MessageProducer:
        """destination None: given with each send."""
        self.check_open()
        if destination is not None:
            topic_to_send(destination)
        return MessageProducer(self, destination)

    create_publisher = create_sender = create_producer  # JMS 1.1

    # sending

    def send(self, message: Message, destination: Destination, options: SendOptions, listener: CompletionListener | None = None) -> None:
        """Called by producers: set the headers, then send; in a transaction keep the message until `commit`."""
        self.check_open()
        topic_to_send(destination)
        self.connection.check_destination(destination, consuming=False)
        self._set_headers(message, destination, options)
        qos = self.connection.settings.persistent_qos if message.delivery_mode == DeliveryMode.PERSISTENT else 0
        publication = encode(message, qos, now(), self.connection.publisher.has_delays)
        if self.acknowledge_mode is AckMode.SESSION_TRANSACTED:
            self._outbox.append(_Pending(publication, message, listener))
        elif listener is None:
            answer = Waiter()
            self.connection.publisher.publish(publication, answer)
            answer.wait(self.connection.settings.send_timeout, f"sending to {publication.topic!r}", "it may still be sent")
        else:
            self.async_sends.publish(self.connection.publisher, publication, message, listener)

    def _set_headers(self, message: Message, destination: Destination, options: SendOptions) -> None:
        message.destination = destination
        message.delivery_mode, message.priority = options.delivery_mode, options.priority
        message.timestamp = now()
        message.delivery_time = message.timestamp + options.delivery_delay
        message.expiration = message.delivery_time + options.time_to_live if options.time_to_live else 0
        message.message_id = self.connection.next_message_id()
        message.redelivered, message.delivery_count = False, 0
        message.properties.typed.pop("JMSXDeliveryCount", None)

    # transactions and acknowledgement

    def commit(self) -> None:
        """Send the messages of the transaction, then acknowledge those that it has received.

        Raises `TransactionRolledBackError` when the broker refuses a message, does not answer in time, or has given messages of a queue to
        others. Received messages then come again.
        """
        self._check_transacted()
        pending, self._outbox = self._outbox, []
        with self.cond:
            lost = self._lost(self._unacknowledged)
        errors = self._send_all(pending) if lost is None else [lost] * len(pending)
        failed = lost or next((error for error in errors if error is not None), None)
        with self.cond:
            failed = failed or self._lost(self._unacknowledged)
            if failed is not None:
                self._recover()
            settled = self._settle(self._unacknowledged)
        failed = self._confirm(settled) or failed
        for item, outcome in zip(pending, errors, strict=True):
            if item.listener is not None:
                self.async_sends.complete(item.message, item.listener, outcome)
        if not self.dispatcher.current:
            with self.cond:  # their listeners have returned before commit does (7.3.4)
                self.async_sends.wait_until_complete()
        if failed is not None:
            sent = tuple(str(item.message.message_id) for item, error in zip(pending, errors, strict=True) if error is None)
            raise TransactionRolledBackError(f"the commit failed: {failed}", failed.error_code, sent) from failed

    def _send_all(self, pending: list[_Pending]) -> list[JMSError | None]:
        """Send messages of a transaction, and wait for the answers: the error of each."""
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
        return errors

    def _lost(self, delivered: list[Delivered]) -> JMSError | None:
        """The error for messages of a queue that the broker has given to others, because the connection broke. With the condition held."""
        lost = [held.message.message_id for consumer, held in delivered if consumer.is_lost(held)]
        if not lost:
            return None
        return JMSError(f"the connection broke: {len(lost)} messages of queues are for others, or come again", "connection_lost")

    def rollback(self) -> None:
        """Drop the sends of the transaction. Received messages come again."""
        self._check_transacted()
        self._outbox.clear()
        with self.cond:
            self._recover()
        self._await_closing_links()

    def recover(self) -> None:
        """Deliver messages that are not acknowledged again, oldest first, marked as redelivered (6.2.10)."""
        self.check_open()
        if self.acknowledge_mode is AckMode.SESSION_TRANSACTED:
            raise IllegalStateError("the session is transacted: use rollback()")
        with self.cond:
            self._acknowledge_deferred()
            self._recover()
        self._await_closing_links()

    def _check_transacted(self) -> None:
        self.check_open()
        if self.acknowledge_mode is not AckMode.SESSION_TRANSACTED:
            raise IllegalStateError("the session is not transacted")
        if self.async_sends.in_listener:
            raise IllegalStateError("a completion listener cannot commit or roll back its own session (7.3.4)")

    def acknowledge_all(self) -> None:
        """`Message.acknowledge` in mode CLIENT: acknowledge everything delivered so far. Raises `JMSError` for messages of a queue that the
        broker has given to others, because the connection broke; the rest is acknowledged."""
        self._acknowledge_by_application(None)

    def _acknowledge_one(self, delivered: Delivered) -> None:
        self._acknowledge_by_application(delivered)

    def _acknowledge_by_application(self, only: Delivered | None) -> None:
        self.check_open()
        with self.cond:
            done = self._unacknowledged if only is None else [only] if only in self._unacknowledged else []
            lost = self._lost(done)
            for consumer, held in done if lost is not None else ():
                if consumer.is_lost(held):
                    consumer.recover(held)
            settled = self._settle(done)
        failed = self._confirm(settled) or lost
        if failed is not None:
            raise failed

    def _acknowledge(self, done: list[Delivered]) -> None:
        """With the condition held."""
        self._close_finished_links(self._settle(done)[0])

    def _settle(self, done: list[Delivered]) -> Settled:
        """Acknowledge messages: the consumers that had them, and what brokers are to answer. With the condition held."""
        held_by: dict[MessageConsumer, list[ReceivedMessage]] = {}
        for consumer, held in done:
            held_by.setdefault(consumer, []).append(held)
            self._failures.pop(held, None)
        questions = [question for consumer, messages in held_by.items() for question in consumer.acknowledge(messages)]
        finished = set(map(id, done))
        self._unacknowledged = [delivered for delivered in self._unacknowledged if id(delivered) not in finished]
        return set(held_by), questions

    def _confirm(self, settled: Settled) -> JMSError | None:
        """Wait for the answers of queues that answer acknowledgements: the error of one of them. Without the condition."""
        consumers, questions = settled
        error = None
        deadline = time.monotonic() + self.connection.settings.send_timeout
        for question in questions:
            try:
                question.wait(max(deadline - time.monotonic(), 0.0))
            except JMSError as failed:
                error = failed
        with self.cond:
            self._close_finished_links(consumers)
        self._await_closing_links()
        return error

    def _acknowledge_deferred(self) -> None:
        self._acknowledge(self._deferred)
        self._deferred = []

    def _recover(self) -> None:
        back, self._unacknowledged = self._unacknowledged, []
        for consumer, held in back:
            consumer.recover(held)
        self._close_finished_links({consumer for consumer, _ in back})
        self.cond.notify_all()
        for consumer in self.consumers:
            if consumer.on_available is not None:
                consumer.on_available()

    def _close_finished_links(self, consumers: set[MessageConsumer]) -> None:
        """Close the links of closed consumers whose last message is acknowledged or given back."""
        waited_for = {consumer for consumer, _ in self._unacknowledged}
        for consumer in consumers - waited_for:
            if consumer.closed and (done := consumer.finish(wait=False)) is not None:
                self._closing_links.append((consumer, done))

    def _await_closing_links(self) -> None:
        """Wait for the links that `_close_finished_links` closes. Without the condition."""
        while self._closing_links:
            consumer, done = self._closing_links.pop()
            consumer.wait_closed(done)

    # receiving

    def receive(self, consumer: MessageConsumer, deadline: float | None, wanted: type[Any] | None = None) -> Message | None:
        """The next message of a consumer, None after the deadline or when the consumer is closed.

        deadline: of the monotonic clock; None: wait for ever.
        wanted: type of the body. `MessageFormatError` for another one. In modes AUTO and DUPS_OK the message then stays the next (8.6).
        """
        with self.cond:
            if self._listening:
                raise IllegalStateError("the session has a message listener: it cannot receive as well (6.2.5)")
            while True:
                if consumer.closed or self._closing:
                    return None
                if consumer.error is not None:
                    raise consumer.error
                held = self._take_next(consumer) if self.running else None
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
                self._acknowledge_deferred()
                if left is None and consumer.is_full and self.running:
                    raise IllegalStateError(
                        f"{consumer.destination}: all {consumer.prefetch} messages that this consumer may have (queue_prefetch) are not "
                        "acknowledged, so none can come: acknowledge or commit first"
                    )
                due = self._seconds_until_due([consumer])
                self.cond.wait(min((wait for wait in (left, due) if wait is not None), default=None))

    def _take_next(self, consumer: MessageConsumer) -> ReceivedMessage | None:
        held, tokens = consumer.inbox.next_message(now())
        consumer.drop(tokens)
        return held

    def _seconds_until_due(self, consumers: Iterable[MessageConsumer]) -> float | None:
        """Seconds until a delayed message is due."""
        dues = [due for consumer in consumers if (due := consumer.inbox.next_due()) is not None]
        return max(min(dues) - now(), 0) / 1000 + 0.001 if dues else None

    def _deliver(self, consumer: MessageConsumer, held: ReceivedMessage, listening: bool = False) -> Message:
        """Deliver a message and note, or make, its acknowledgement as the mode says. With the condition held."""
        delivered, mode = (consumer, held), self.acknowledge_mode
        message = held.message
        if mode is AckMode.CLIENT:
            message.acknowledger = self.acknowledge_all
        elif mode is AckMode.INDIVIDUAL:
            message.acknowledger = functools.partial(self._acknowledge_one, delivered)
        if mode is AckMode.AUTO and not listening:
            consumer.acknowledge([held])
        elif mode is AckMode.DUPS_OK and not listening:
            self._acknowledge_later(delivered)
        else:
            self._unacknowledged.append(delivered)
        return message

    def _acknowledge_later(self, delivered: Delivered) -> None:
        self._deferred.append(delivered)
        if len(self._deferred) >= min(DEFERRED, max(delivered[0].prefetch // 2, 1)):
            self._acknowledge_deferred()

    # listeners

    def set_listener(self, consumer: MessageConsumer, listener: Callable[[Message], None] | None) -> None:
        with self.cond:
            consumer.listener = listener
            if listener is not None:
                self._listening.add(consumer)
                self.may_have(consumer)
                self.dispatcher.start()
            else:
                self._listening.discard(consumer)
            self.cond.notify_all()
            if not self.dispatcher.current:
                self.cond.wait_for(lambda: not self.dispatcher.busy)

    def _next_job(self) -> Job | float | None:
        """For the dispatcher: the next message for a listener. Consumers take turns. With the condition held."""
        if not self.running or self._closing:
            return None
        for consumer in [one for one in self._delayed if (due := one.inbox.next_due()) is None or due <= now()]:
            del self._delayed[consumer]
            self._ready[consumer] = None
        while self._ready:
            consumer = next(iter(self._ready))
            del self._ready[consumer]
            held = self._take_next(consumer) if consumer in self._listening else None
            if held is not None:
                self._ready[consumer] = None  # behind the others
                message = self._deliver(consumer, held, listening=True)
                return functools.partial(self._call_listener, consumer, held, message)
            if consumer in self._listening and consumer.inbox.next_due() is not None:
                self._delayed[consumer] = None
        self._acknowledge_deferred()
        return self._seconds_until_due(self._delayed)

    def may_have(self, consumer: MessageConsumer) -> None:
        """A consumer may have a message for its listener. With the condition held."""
        if consumer in self._listening:
            self._ready.setdefault(consumer)

    def _call_listener(self, consumer: MessageConsumer, held: ReceivedMessage, message: Message) -> None:
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
                self._acknowledge_later(delivered)

    def _listener_failed(self, consumer: MessageConsumer, held: ReceivedMessage, error: BaseException) -> None:
        """In AUTO and DUPS_OK deliver the message again at once, up to `redeliveries` times, or give it back to its queue.

        In other modes continue with the next one (8.7).
        """
        if self.acknowledge_mode not in (AckMode.AUTO, AckMode.DUPS_OK):
            return
        with self.cond:
            delivered = next((each for each in self._unacknowledged if each[1] is held), None)
            if delivered is None:
                return
            if not consumer.broker_counts:
                self._failures[held] = self._failures.get(held, 0) + 1
            if consumer.broker_counts or (self._failures[held] <= self.connection.settings.redeliveries and not consumer.closed):
                self._unacknowledged.remove(delivered)
                consumer.recover(held)
                self._close_finished_links({consumer})
                return
            self._acknowledge([delivered])
        given_up = JMSError(
            f"message {held.message.message_id} of {consumer.destination} given up: its listener raised {error!r}", "given_up"
        )
        given_up.__cause__ = error
        self.connection.report(given_up)

    # consumers

    def create_consumer(self, destination: Destination, selector: str = "", no_local: bool = False) -> MessageConsumer:
        """A consumer whose subscription ends with it, or of a queue. no_local: without the messages that this connection sends.

        The selector of a consumer of a queue is judged by the broker: what does not fit waits for others. A queue has no no_local.
        """
        if isinstance(destination, Queue):
            return self._create_queue_consumer(destination, selector, no_local)
        filter_ = self._check_filter(destination, selector)
        link_id = self.connection.link_id() if self.connection.settings.own_links else ""
        return self._add_consumer(Subscription(Topic(filter_), filter_, link_id, selector=selector, no_local=no_local))

    create_subscriber = create_receiver = create_consumer  # JMS 1.1

    def _create_queue_consumer(self, queue: Queue, selector: str, no_local: bool) -> MessageConsumer:
        self.check_open()
        address = filter_to_consume(queue)
        self.connection.check_destination(queue, consuming=True)
        if no_local:
            raise JMSError(f"a consumer of the queue {queue.name!r} takes what anybody sends: queues have no no_local", "no_local")
        connection = self.connection
        name = connection.client_id
        link_id = connection.subscriptions.free_queue_client_id(name, queue.name) if name else connection.link_id()
        said = [(REORDERS, "1"), *([(KEY, queue.key)] if isinstance(queue, TemporaryQueue) else [])]
        if not selects_all(selector):
            said.append((SELECTOR, Selector(selector).text))
        prefetch = connection.settings.queue_prefetch
        subscription = Subscription(queue, address, link_id, selector=selector, prefetch=prefetch, said=tuple(said))
        return self._add_consumer(subscription, QueueConsumer)

    def create_durable_consumer(self, topic: Topic, name: str, selector: str = "", no_local: bool = False) -> MessageConsumer:
        """A consumer of a subscription that collects messages until `unsubscribe(name)`, also without a consumer. One consumer at a time.

        The subscription belongs to the connection's client identifier and the name. Another topic, selector or no_local replaces it.
        """
        client_id = self.connection.client_id
        if not client_id:
            raise IllegalStateError("an unshared durable subscription needs a connection with a client identifier (8.3.3): set client_id")
        filter_ = self._check_filter(topic, selector)
        link_id = durable_client_id(client_id, check_subscription_name(name))
        return self._add_consumer(Subscription(Topic(filter_), filter_, link_id, True, False, name, selector, no_local))

    create_durable_subscriber = create_durable_consumer

    def create_shared_consumer(self, topic: Topic, name: str, selector: str = "") -> MessageConsumer:
        """One of several consumers that share a subscription: each message goes to one of them. It ends with the last of them."""
        filter_ = self._check_filter(topic, selector)
        shared = shared_filter(self.connection.client_id, check_subscription_name(name), filter_)
        return self._add_consumer(Subscription(Topic(filter_), shared, self.connection.link_id(), False, True, name, selector))

    def create_shared_durable_consumer(self, topic: Topic, name: str, selector: str = "") -> MessageConsumer:
        """The same, and the subscription collects messages without a consumer too. Each program gives its factory another `instance`."""
        filter_ = self._check_filter(topic, selector)
        connection = self.connection
        shared = shared_filter(connection.client_id, check_subscription_name(name), filter_)
        link_id = connection.subscriptions.free_client_id(connection.client_id or "", name, connection.settings.instance)
        return self._add_consumer(Subscription(Topic(filter_), shared, link_id, True, True, name, selector))

    def create_recipient(
        self,
        name: str,
        alternatives: Iterable[str] = (),
        message_interval: float | None = None,
        fault_interval: float | None = None,
        defunct_interval: float | None = None,
        *,
        consents: Iterable[str] = (),
        probe: bool = False,
        client: str | None = None,
        prefix: str = PREFIX,
        lease: float = LEASE,
    ) -> Recipient:
        """The consumer of an application's messages, `prefix`/`name`/#. The broker watches it, see `Declaration` for the arguments.

        client: MQTT client identifier of its session; the name without it.
        lease: seconds, if the factory has a directory.
        Raises `JMSError`: a wrong argument, a refusal of the broker or of the directory, a connection through a metabroker.
        """
        self.check_open()
        declaration = Declaration.of(name, alternatives, (message_interval, fault_interval, defunct_interval), consents, probe)
        connection = self.connection
        if not connection.transport.declares:
            raise JMSError("a recipient needs a direct connection to its broker", "recipient")
        subscription = subscription_of(declaration, client or name, connection.client_id, prefix)
        filter_to_consume(subscription.topic)
        registry = connection.subscriptions
        registry.register(subscription)
        release = functools.partial(registry.unregister, subscription)
        try:
            recipient = Recipient(self, subscription, release, declaration, connection.directory, check_lease(lease))
        except BaseException:
            release()
            raise
        return self._opened(recipient)

    def unsubscribe(self, name: str) -> None:
        """End a durable subscription, shared or not. The broker drops its messages. No consumer may use it.

        Of a shared one, only the sessions of this program (`instance`) end. Raises `InvalidDestinationError` for an unknown name.
        """
        self.check_open()
        connection, timeout = self.connection, self.connection.settings.connect_timeout
        if connection.subscriptions.has_durable(check_subscription_name(name)):
            raise has_consumer_error(name)
        client_id = connection.client_id or ""
        found = bool(client_id) and end_broker_session(connection.transport, durable_client_id(client_id, name), timeout)
        for number in itertools.count():
            if not end_broker_session(
                connection.transport, shared_client_id(client_id, name, connection.settings.instance, number), timeout
            ):
                break
            found = True
        if not found:
            raise InvalidDestinationError(f"there is no durable subscription {name!r}")

    def _check_filter(self, destination: Destination, selector: str) -> str:
        """The topic filter of a topic that may be consumed from. Raises `JMSError` for a wrong destination or selector."""
        self.check_open()
        if isinstance(destination, Queue):
            raise InvalidDestinationError(f"a subscription with a name is to a topic, not to the queue {destination.name!r}")
        filter_ = filter_to_consume(destination)
        self.connection.check_destination(destination, consuming=True)
        selects_all(selector)
        return filter_

    def _add_consumer(self, subscription: Subscription, kind: type[MessageConsumer] = MessageConsumer) -> MessageConsumer:
        registry = self.connection.subscriptions
        registry.register(subscription)
        return self._opened(kind(self, subscription, functools.partial(registry.unregister, subscription)))

    def _opened(self, consumer: C) -> C:
        consumer.open()
        with self.cond:
            self.consumers.append(consumer)
            self.cond.notify_all()
        return consumer

    def create_browser(self, queue: Queue, selector: str = "") -> QueueBrowser:
        """What waits in a queue, as far as the selector matches. Nothing is taken out; the session need not be started."""
        self.check_open()
        if not isinstance(queue, Queue):
            raise InvalidDestinationError(f"{queue!r} is no queue: use session.create_queue(name)")
        topic_to_send(queue)
        connection = self.connection
        connection.check_destination(queue, consuming=True)
        requests = QueueRequests(connection.transport, connection.link_id(), connection.settings)
        browser = QueueBrowser(queue, selector, requests, self._closed_browser)
        with self.cond:
            self._browsers.append(browser)
        browser.open()
        return browser

    def _closed_browser(self, browser: QueueBrowser) -> None:
        with self.cond:
            if browser in self._browsers:
                self._browsers.remove(browser)

    def close_consumer(self, consumer: MessageConsumer) -> None:
        with self.cond:
            if consumer.closed:
                return
            consumer.closed = True
            self._listening.discard(consumer)
            self._delayed.pop(consumer, None)
            self.cond.notify_all()
            if not self.dispatcher.current:
                self.cond.wait_for(lambda: not self.dispatcher.busy)
            self._acknowledge_deferred()
            if consumer in self.consumers:
                self.consumers.remove(consumer)
            unfinished = any(each is consumer for each, _ in self._unacknowledged)
        if not unfinished:
            consumer.finish()
        if consumer.on_available is not None:
            consumer.on_available()

    # life

    def run(self, running: bool) -> None:
        """Start or stop delivery. Stopping returns when no listener runs and no `receive` is about to return (6.1.5)."""
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
        """Roll back, wait for listeners and for sends under way, close the consumers (6.2.15). Not from a listener."""
        if self.dispatcher.current:
            raise IllegalStateError("a listener cannot close its own session (6.2.15): close it from another thread")
        with self.cond:
            if self._closing:
                self.cond.wait_for(lambda: self.closed)
                return
            self._closing = True
            self.async_sends.start_closing()
            self.cond.notify_all()
            self.cond.wait_for(lambda: not self.dispatcher.busy)
            self.async_sends.wait_until_complete(self.connection.settings.send_timeout)
            self._acknowledge_deferred()
            self._outbox.clear()
            consumers = {*self.consumers, *(consumer for consumer, _ in self._unacknowledged)}
            self._unacknowledged = []
            self.consumers = []
        self.async_sends.close()
        self.dispatcher.end()
        try:
            for browser in list(self._browsers):
                browser.close()
            for consumer in consumers:
                consumer.closed = True
                consumer.finish()
                consumer.end_lease()
                if consumer.on_available is not None:
                    consumer.on_available()
        finally:
            with self.cond:
                self.closed = True
                self.cond.notify_all()
            self.connection.remove_session(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
