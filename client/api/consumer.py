"""A consumer: one subscription, on a link of its own."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar, cast

from ..core.errors import IllegalStateError, JMSError, of_outcome
from ..core.settings import Waiter
from ..core.transport import NEVER, Incoming, Link, LinkSpec, Outcome
from ..message.destinations import Topic
from ..message.messages import Message
from ..message.selector import Selector
from .inbox import Held, Inbox

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger("mqmesh.client")

B = TypeVar("B")

MessageListener = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer consumes. filter: as it is sent, ``$share/...`` where shared. name: of a durable or shared one."""

    topic: Topic
    filter: str
    client_id: str
    durable: bool = False
    shared: bool = False
    name: str = ""
    selector: str = ""
    no_local: bool = False

    @property
    def identifier(self) -> int:
        """The Subscription Identifier: the same for the same topic, selector and noLocal, so that what the broker kept under another
        definition of a durable subscription is told apart. 1 to 268,435,455."""
        text = "\n".join((self.filter, self.selector, str(self.no_local)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 268_435_455 + 1


class MessageConsumer:
    """Made by a session. Take messages with `receive`, by iteration, or have them brought to `message_listener`.

    The methods in the second part are the link's (`transport.LinkHandler`), called by the network thread.
    """

    def __init__(self, session: Session, subscription: Subscription, release: Callable[[], None]) -> None:
        self.session, self.subscription, self._release = session, subscription, release
        settings, transport = session.connection.settings, session.connection.transport
        selector = Selector(subscription.selector) if subscription.selector.strip() else None
        own = session.connection.prefix if subscription.no_local else ""
        self.inbox = Inbox(None if transport.evaluates_selectors else selector, own, subscription.identifier, settings.once_window)
        self.listener: MessageListener | None = None
        self.closed = self._finished = False
        self.error: JMSError | None = None
        self.on_available: Callable[[], None] | None = None  # for asyncio: called by the network thread when something may be there
        self._connected = threading.Event()
        self._was_up = False
        self._trouble = ""
        expiry = settings.durable_keep if subscription.durable else settings.session_keep
        self._spec = LinkSpec(subscription.client_id, min(expiry, NEVER), subscription.durable, settings.prefetch)
        self.link: Link

    # the application's side

    @property
    def destination(self) -> Topic:
        return self.subscription.topic

    @property
    def message_selector(self) -> str | None:
        return self.subscription.selector or None

    @property
    def message_listener(self) -> MessageListener | None:
        return self.listener

    @message_listener.setter
    def message_listener(self, listener: MessageListener | None) -> None:
        """Have each message brought by the session's thread. Returns once the listener that was set before is not running any more."""
        self._check()
        self.session.set_listener(self, listener)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; waits for `timeout` seconds, without one until there is one. None: nothing came, or the consumer was closed."""
        return self.session.take(self, None if timeout is None else time.monotonic() + max(timeout, 0))

    def receive_no_wait(self) -> Message | None:
        """A message that is already here, or None."""
        return self.session.take(self, 0.0)

    def receive_body(self, wanted: type[B], timeout: float | None = None) -> B | None:
        """The body of the next message, as `receive`. `MessageFormatError` when it has none of that type, or is a stream: in modes AUTO and
        DUPS_OK that message stays the next one, in the others it counts as delivered (8.6)."""
        message = self.session.take(self, None if timeout is None else time.monotonic() + max(timeout, 0), wanted)
        return None if message is None else cast(B, message.body)

    def receive_body_no_wait(self, wanted: type[B]) -> B | None:
        """The body of a message that is already here, or None."""
        return self.receive_body(wanted, 0.0)

    def __iter__(self) -> Iterator[Message]:
        """Messages until the consumer is closed."""
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """End: a `receive` that waits returns None, a listener that runs is waited for (not by itself). Closing again does nothing.

        Messages delivered and not acknowledged can still be acknowledged or rolled back; the link stays until then.
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
        """Connect and subscribe; raises the broker's refusal."""
        connection = self.session.connection
        with self.session.cond:  # a session that is resumed sends at once: `link` must be set by then
            self.link = connection.transport.open(self._spec, self)
        try:
            settings = connection.settings
            if not self._connected.wait(settings.connect_timeout):
                raise JMSError(
                    f"no connection for the consumer of {self.destination} within {settings.connect_timeout:g} s: {self._trouble}",
                    "timeout",
                )
            if self.error is not None:
                raise self.error
            answer = Waiter()
            selector = self.subscription.selector if connection.transport.evaluates_selectors else ""
            self.link.subscribe(self.subscription.filter, 1, self.subscription.identifier, answer, selector)
            answer.wait(
                settings.connect_timeout, f"subscribing to {self.subscription.filter!r}", "the broker may or may not have subscribed"
            )
        except JMSError:
            self.closed = True
            self.finish()
            raise

    def finish(self, wait: bool = True) -> Waiter | None:
        """Close the link; what is durable stays at the broker. Without `wait`: what to wait for, None if there is nothing."""
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
            self.ended(done)
        return done

    def ended(self, done: Waiter) -> None:
        """Wait for the end of the link."""
        done.wait(self.session.connection.settings.connect_timeout, "closing the consumer", "its connection is being ended")

    def seconds_until_due(self) -> float | None:
        """Until a delayed message is due; None when there is none."""
        with self.session.cond:
            due = self.inbox.next_due()
        return None if due is None else max(due - now(), 0) / 1000 + 0.001

    def acknowledge(self, done: list[Held]) -> None:
        """With the session's lock held."""
        for token in self.inbox.acknowledge(done):
            self.link.acknowledge(token)

    # the link's side

    def received(self, incoming: Incoming) -> None:
        with self.session.cond:
            if self.closed:
                return  # not acknowledged: a durable subscription gets it again
            token = self.inbox.arrive(incoming, now())
            if token is not None:
                self.link.acknowledge(token)
            self.session.cond.notify_all()
        if self.on_available is not None:
            self.on_available()

    def up(self, resumed: bool) -> None:
        if self._was_up and not resumed:
            self.session.connection.report(
                JMSError(f"the broker has lost the session of the consumer of {self.destination}; subscribed again", "session_lost")
            )
        self._was_up = True
        self._connected.set()

    def down(self, text: str, word: str = "") -> None:
        log.info("event=consumer_down destination=%s text=%s", self.destination, text)
        self._trouble = text

    def told(self, text: str, word: str) -> None:
        self.session.connection.report(JMSError(f"consumer of {self.destination}: {text}", word))

    def failed(self, outcome: Outcome) -> None:
        error = of_outcome(outcome, f"consumer of {self.destination}{outcome.text and ': '}{outcome.text}")
        with self.session.cond:
            self.error = error
            self.session.cond.notify_all()
        if self._connected.is_set():
            self.session.connection.report(error)
        self._connected.set()
        if self.on_available is not None:
            self.on_available()


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
