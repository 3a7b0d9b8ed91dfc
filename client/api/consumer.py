"""A consumer: one subscription. A durable or shared one has a link of its own, others share that of their connection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, cast

from ...base.queues import ANSWER, POSITION
from ...mqtt.reasons import Reason
from ..core.errors import IllegalStateError, JMSError, error_from_outcome
from ..core.settings import Waiter
from ..core.transport import NEVER, Incoming, Link, LinkSpec, Outcome
from ..message.destinations import Destination
from ..message.messages import Message
from ..message.selector import Selector
from .inbox import Inbox, QueueInbox, ReceivedMessage
from .questions import Question, Questions, ranges
from .subscriptions import Subscription

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger("mqmesh.client")

B = TypeVar("B")

REPORT = 1.0  # seconds between two reports of dropped messages
GIVEN_BACK = Reason.UNSPECIFIED_ERROR  # of a PUBACK: somebody gets the message again

MessageListener = Callable[[Message], None]


class MessageConsumer:
    """Made by a session. Get messages with `receive`, by iteration, or by a `message_listener`.

    The methods of the last part are those of `transport.LinkHandler`. The network thread calls them.
    """

    broker_counts = False  # the broker counts deliveries, and says when there were too many

    def __init__(self, session: Session, subscription: Subscription, release: Callable[[], None]) -> None:
        self.session, self.subscription, self._release = session, subscription, release
        settings = session.connection.settings
        selector = Selector(subscription.selector) if subscription.selector.strip() else None
        own = session.connection.prefix if subscription.no_local else ""
        self.inbox = Inbox(selector, own, subscription.identifier, settings.once_window, (settings.inbox, settings.inbox_bytes))
        self.listener: MessageListener | None = None
        self.closed = self._finished = False
        self.error: JMSError | None = None
        self.on_available: Callable[[], None] | None = None  # for asyncio: the network thread calls it when there may be a message
        self._connected = threading.Event()
        self._was_up = False
        self._reported_drops = 0
        self._report_drops_at = 0.0  # not before
        self._last_failure = ""
        expiry = settings.durable_keep if subscription.durable else settings.session_keep
        self.prefetch = subscription.prefetch or settings.prefetch
        self._spec = LinkSpec(subscription.client_id, min(expiry, NEVER), subscription.durable, self.prefetch, user=subscription.user)
        self.link: Link

    # the application's side

    @property
    def destination(self) -> Destination:
        return self.subscription.topic

    @property
    def message_selector(self) -> str | None:
        return self.subscription.selector or None

    @property
    def dropped(self) -> int:
        """Messages of QoS 0 that came while the inbox had no room, so far."""
        return self.inbox.dropped

    @property
    def message_listener(self) -> MessageListener | None:
        return self.listener

    @message_listener.setter
    def message_listener(self, listener: MessageListener | None) -> None:
        """Have the session's thread call the listener with each message. Returns when the previous listener does not run any more."""
        self._check()
        self.session.set_listener(self, listener)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message. Waits for up to `timeout` seconds, for ever without one. None: no message came, or the consumer was closed."""
        return self.session.receive(self, None if timeout is None else time.monotonic() + max(timeout, 0))

    def receive_no_wait(self) -> Message | None:
        """A message that has arrived already, or None."""
        return self.session.receive(self, 0.0)

    def receive_body(self, wanted: type[B], timeout: float | None = None) -> B | None:
        """The body of the next message, see `receive`. `MessageFormatError` if it has another type or is a stream: in modes AUTO and
        DUPS_OK the message then stays the next one, in the others it counts as delivered (8.6)."""
        message = self.session.receive(self, None if timeout is None else time.monotonic() + max(timeout, 0), wanted)
        return None if message is None else cast(B, message.body)

    def receive_body_no_wait(self, wanted: type[B]) -> B | None:
        """The body of a message that has arrived already, or None."""
        return self.receive_body(wanted, 0.0)

    def __iter__(self) -> Iterator[Message]:
        """Messages until the consumer is closed."""
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """Close the consumer. A waiting `receive` returns None. Waits for a running listener, unless it is the caller.

        Delivered messages can still be acknowledged or rolled back. The link stays until then.
        """
        self.session.close_consumer(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        self.session.check_open()
        if self.closed:
            raise IllegalStateError("the consumer is closed")

    # opening and closing the link, by the session

    def open(self) -> None:
        """Connect and subscribe. Raises the broker's refusal."""
        connection = self.session.connection
        with self.session.cond:  # a resumed session sends at once: `link` must be set before
            if self.subscription.client_id:
                self.link = connection.transport.open(self._spec, self)
            else:
                self.link = connection.shared_links.open(self, self.prefetch)
        try:
            settings = connection.settings
            if not self._connected.wait(settings.connect_timeout):
                raise JMSError(
                    f"no connection for the consumer of {self.destination} within {settings.connect_timeout:g} s: {self._last_failure}",
                    "timeout",
                )
            if self.error is not None:
                raise self.error
            answer = Waiter()
            self.link.subscribe(self.subscription.filter, 1, self.subscription.identifier, answer, self.subscription.said)
            answer.wait(
                settings.connect_timeout, f"subscribing to {self.subscription.filter!r}", "the broker may or may not have subscribed"
            )
        except JMSError:
            self.closed = True
            self.finish()
            raise

    def finish(self, wait: bool = True) -> Waiter | None:
        """Close the link. A durable subscription stays at the broker. Without `wait`, returns what to wait for, if anything."""
        with self.session.cond:
            if self._finished:
                return None
            self._finished = True
        done = Waiter()

        def ended(outcome: Outcome) -> None:
            self._release()
            done(outcome)

        self.link.close(not self.subscription.durable, ended)
        if wait:
            self.wait_closed(done)
        return done

    def end_lease(self) -> None:
        """The session closes: a recipient leaves its directory."""

    def wait_closed(self, done: Waiter) -> None:
        """Wait until the link is closed."""
        done.wait(self.session.connection.settings.connect_timeout, "closing the consumer", "its connection is being ended")

    def seconds_until_due(self) -> float | None:
        """Seconds until a delayed message is due, None without one."""
        with self.session.cond:
            due = self.inbox.next_due()
        return None if due is None else max(due - now(), 0) / 1000 + 0.001

    def acknowledge(self, done: list[ReceivedMessage]) -> list[Question]:
        """Acknowledge messages to the broker: what it is to answer. MQTT answers no acknowledgement. With the session's condition held."""
        return self._done(self.inbox.acknowledge(done))

    def _done(self, tokens: list[object]) -> list[Question]:
        for token in tokens:
            self.link.acknowledge(token)
        return []

    def recover(self, back: ReceivedMessage) -> None:
        """Have a message delivered again. With the session's condition held."""
        if not self.closed:
            self.inbox.recover([back], now())
            self.session.may_have(self)

    def drop(self, tokens: list[object]) -> None:
        """Expired messages, and others that are not delivered. With the session's condition held."""
        self._done(tokens)

    @property
    def is_full(self) -> bool:
        """Whether no message can come until some are acknowledged."""
        return False

    def is_lost(self, held: ReceivedMessage) -> bool:
        """Whether the broker has given a message that is not acknowledged to others."""
        return False

    # the link's side

    def received(self, incoming: Incoming) -> None:
        with self.session.cond:
            if self.closed:  # not acknowledged: a durable subscription receives it again
                if not self.subscription.client_id and incoming.token is not None:
                    self.link.acknowledge(incoming.token)  # for others on this link there is room
                return
            token = self.inbox.add(incoming, now())
            if token is not None:
                self._done([token])
            self.session.may_have(self)
            self.session.cond.notify_all()
            dropped = self.inbox.dropped
        if dropped > self._reported_drops:
            self._report_drops(dropped)
        if self.on_available is not None:
            self.on_available()

    def _report_drops(self, dropped: int) -> None:
        """Tell the exception listener, at most once in `REPORT` seconds."""
        if (at := time.monotonic()) >= self._report_drops_at:
            self._reported_drops, self._report_drops_at = dropped, at + REPORT
            text = f"consumer of {self.destination}: {dropped} messages of QoS 0 dropped so far: more than its inbox may hold wait"
            self.session.connection.report(JMSError(text, "messages_dropped"))

    def connected(self, resumed: bool) -> None:
        if self._was_up and not resumed:
            self.session.connection.report(
                JMSError(f"the broker has lost the session of the consumer of {self.destination}; subscribed again", "session_lost")
            )
        self._was_up = True
        self._connected.set()

    def disconnected(self, text: str, word: str = "") -> None:
        log.info("event=consumer_down destination=%s text=%s", self.destination, text)
        self._last_failure = text

    def notified(self, text: str, word: str) -> None:
        self.session.connection.report(JMSError(f"consumer of {self.destination}: {text}", word))

    def failed(self, outcome: Outcome) -> None:
        error = error_from_outcome(outcome, f"consumer of {self.destination}{outcome.text and ': '}{outcome.text}")
        with self.session.cond:
            self.error = error
            self.session.cond.notify_all()
        if self._connected.is_set():
            self.session.connection.report(error)
        self._connected.set()
        if self.on_available is not None:
            self.on_available()


class _Positioned(NamedTuple):
    """The token of a message whose position in its queue is known. inner: of the link."""

    inner: object
    position: int


def _inner(token: object) -> object:
    return token.inner if isinstance(token, _Positioned) else token


class QueueConsumer(MessageConsumer):
    """A consumer of a queue: a member of it (docs/queues.md). Acknowledged is DONE.

    What is rolled back or recovered, and what a listener does not take, is given back: the broker gives it to somebody again, and counts.
    When the connection breaks, the broker takes everything back that is not acknowledged.

    A queue whose members say by requests what becomes of a message gives each its position. Then PUBACK is not enough: DONE is a request on
    the same link, and its answer confirms that the message is never offered again.
    """

    broker_counts = True

    def __init__(self, session: Session, subscription: Subscription, release: Callable[[], None]) -> None:
        super().__init__(session, subscription, release)
        self.inbox: QueueInbox = QueueInbox(None, "", 0, session.connection.settings.once_window)
        self._questions = Questions()
        self._asks = False

    def recover(self, back: ReceivedMessage) -> None:
        """Give a message back."""
        self.drop(self.inbox.give_back([back]))

    def drop(self, tokens: list[object]) -> None:
        """Give messages back."""
        for token in tokens:
            self.link.acknowledge(_inner(token), GIVEN_BACK)

    def _done(self, tokens: list[object]) -> list[Question]:
        said = {"do": "done", "name": self.destination.name}
        spans = ranges(sorted({token.position for token in tokens if isinstance(token, _Positioned)}))
        questions = [self._questions.ask(self.link, said | {"position": first, "last": last}) for first, last in spans]
        for token in tokens:
            self.link.acknowledge(_inner(token))
        return questions

    def received(self, incoming: Incoming) -> None:
        """A message, or the answer to what was said of one."""
        if incoming.topic == ANSWER:
            self._questions.answered(incoming)
            return
        position = next((value for name, value in incoming.properties.user if name == POSITION), "")
        if position.isascii() and position.isdigit():
            incoming = replace(incoming, token=_Positioned(incoming.token, int(position)))
            if not self._asks:  # answers are QoS 0: they do not wait for room among messages
                self._asks = True
                self.link.subscribe(ANSWER, 0, 0, lambda outcome: None)
        super().received(incoming)

    def failed(self, outcome: Outcome) -> None:
        """See `transport.LinkHandler`."""
        super().failed(outcome)
        self._questions.fail(error_from_outcome(outcome, outcome.text))

    @property
    def is_full(self) -> bool:
        """See `MessageConsumer`."""
        return self.inbox.unanswered >= self.prefetch

    def is_lost(self, held: ReceivedMessage) -> bool:
        """See `MessageConsumer`."""
        return not held.tokens

    def connected(self, resumed: bool) -> None:
        """Nothing is lost with a session: the queue has the messages."""
        super().connected(True)

    def disconnected(self, text: str, word: str = "") -> None:
        """The broker has everything back."""
        super().disconnected(text, word)
        with self.session.cond:
            self.inbox.connection_lost()
        self._questions.fail(JMSError("the connection broke: what was being acknowledged is done, or comes again", "connection_lost"))


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
