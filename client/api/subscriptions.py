"""The kinds of subscription that a session can make, and their names on the wire (8.3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..core.errors import IllegalStateError, InvalidDestinationError, JMSError, of_outcome
from ..core.settings import Waiter
from ..core.transport import Incoming, LinkSpec, Outcome
from ..message.destinations import Destination, Topic, durable_client_id, filter_to_consume
from ..message.selector import Selector
from .consumer import MessageConsumer, Subscription

if TYPE_CHECKING:
    from .connection import Connection


class Subscriptions:
    """The part of `Session` that makes consumers."""

    connection: Connection
    add_consumer: Callable[[Subscription, Callable[[], None]], MessageConsumer]
    check_open: Callable[[], None]

    def create_consumer(self, destination: Destination, selector: str = "", no_local: bool = False) -> MessageConsumer:
        """A subscription that lives as long as the consumer. no_local: without what this connection sends."""
        filter_ = self._filter(destination, selector)
        return self._add(Subscription(Topic(filter_), filter_, self.connection.link_id(), selector=selector, no_local=no_local))

    create_subscriber = create_consumer  # JMS 1.1

    def create_durable_consumer(self, topic: Topic, name: str, selector: str = "", no_local: bool = False) -> MessageConsumer:
        """A subscription that goes on collecting while nobody consumes, until `unsubscribe(name)`. One consumer at a time.

        It belongs to (client identifier of the connection, name). With another topic, selector or no_local it begins anew.
        """
        if not self.connection.client_id:
            raise IllegalStateError("an unshared durable subscription needs a connection with a client identifier (8.3.3): set client_id")
        filter_ = self._filter(topic, selector)
        client_id = durable_client_id(self.connection.client_id, self._name(name))
        return self._add(Subscription(Topic(filter_), filter_, client_id, True, False, name, selector, no_local))

    create_durable_subscriber = create_durable_consumer

    def create_shared_consumer(self, topic: Topic, name: str, selector: str = "") -> MessageConsumer:
        """One of the consumers that divide a subscription among them; it lives as long as the last of them."""
        filter_ = self._filter(topic, selector)
        return self._add(Subscription(Topic(filter_), self._shared(name, filter_), self.connection.link_id(), False, True, name, selector))

    def create_shared_durable_consumer(self, topic: Topic, name: str, selector: str = "") -> MessageConsumer:
        """The same, and it goes on collecting while nobody consumes. Each program gives its factory another `instance`."""
        filter_ = self._filter(topic, selector)
        slot = self.connection.free_slot(self._name(name))
        client_id = durable_client_id(self.connection.client_id or "", name, f"{self.connection.settings.instance}.{slot}")
        return self._add(Subscription(Topic(filter_), self._shared(name, filter_), client_id, True, True, name, selector))

    def unsubscribe(self, name: str) -> None:
        """End a durable subscription, shared or not: the broker forgets it and what it holds. Not while a consumer uses it.

        Of a shared one, the sessions of this program (`instance`) end. Raises `InvalidDestinationError` when there is none of that name.
        """
        self.check_open()
        if self.connection.in_use(self._name(name)):
            raise IllegalStateError(f"the durable subscription {name!r} has a consumer, or messages that are not acknowledged (8.3.3)")
        found = self._forget(durable_client_id(self.connection.client_id, name)) if self.connection.client_id else False
        slot = 0
        while self._forget(durable_client_id(self.connection.client_id or "", name, f"{self.connection.settings.instance}.{slot}")):
            found, slot = True, slot + 1
        if not found:
            raise InvalidDestinationError(f"there is no durable subscription {name!r}")

    def _forget(self, client_id: str) -> bool:
        """Whether there was such a session; it is gone when this returns: a new one has taken its place, which ends by itself."""
        existed = self._visit(LinkSpec(client_id, 60, resume=True, prefetch=1))
        if existed:
            self._visit(LinkSpec(client_id, 0))
        return existed

    def _visit(self, spec: LinkSpec) -> bool:
        timeout = self.connection.settings.connect_timeout
        visitor = _Visitor(timeout)
        link = self.connection.transport.open(spec, visitor)
        try:
            return visitor.wait()
        finally:
            done = Waiter()
            link.close(True, done)
            done.wait(timeout, "ending the subscription", "it may still exist")

    def _filter(self, destination: Destination, selector: str) -> str:
        self.check_open()
        filter_ = filter_to_consume(destination)
        self.connection.check_temporary(destination, consuming=True)
        if selector.strip():
            Selector(selector)
        return filter_

    def _name(self, name: str) -> str:
        if not isinstance(name, str) or not name:
            raise JMSError("a subscription's name is a string that is not empty", "name")
        return name

    def _shared(self, name: str, filter_: str) -> str:
        client_id = self.connection.client_id
        group = (quote(client_id, safe="") + ":" if client_id else "") + quote(self._name(name), safe="")
        return f"$share/{group}/{filter_}"

    def _add(self, subscription: Subscription) -> MessageConsumer:
        connection = self.connection
        connection.enter(subscription)
        return self.add_consumer(subscription, lambda: connection.leave(subscription))


class _Visitor:
    """Listens to a link that is opened to end a session."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._event = threading.Event()
        self._existed = False
        self._error: JMSError | None = None
        self._trouble = ""

    def wait(self) -> bool:
        """Whether the broker had the session."""
        if not self._event.wait(self._timeout):
            raise JMSError(f"no connection to end the subscription: {self._trouble}", "timeout")
        if self._error is not None:
            raise self._error
        return self._existed

    def received(self, incoming: Incoming) -> None:
        """Not acknowledged, and gone with the session."""

    def up(self, resumed: bool) -> None:
        self._existed = resumed
        self._event.set()

    def down(self, text: str, word: str = "") -> None:
        self._trouble = text

    def told(self, text: str, word: str) -> None:
        """Of no interest: it ends."""

    def failed(self, outcome: Outcome) -> None:
        self._error = of_outcome(outcome, outcome.text)
        self._event.set()
