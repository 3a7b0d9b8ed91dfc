"""Subscriptions: what a consumer consumes, which subscriptions of a connection have consumers, and the end of durable ones (8.3)."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from ..core.errors import IllegalStateError, JMSError, error_from_outcome
from ..core.settings import Waiter
from ..core.transport import Incoming, LinkSpec, Outcome, Transport
from ..message.destinations import Destination, durable_client_id, queue_client_id
from ..message.values import check_text


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer consumes.

    topic: the topic, topic filter or queue of the application.
    filter: the filter that is sent to the broker, ``$share/...`` for a shared subscription.
    client_id: MQTT client identifier of the consumer's link; "": it shares that of its connection.
    name: of a durable or shared subscription.
    user: User Properties of CONNECT.
    said: User Properties of SUBSCRIBE.
    prefetch: Receive Maximum; 0: that of the settings.
    """

    topic: Destination
    filter: str
    client_id: str = ""
    durable: bool = False
    shared: bool = False
    name: str = ""
    selector: str = ""
    no_local: bool = False
    user: tuple[tuple[str, str], ...] = ()
    prefetch: int = 0
    said: tuple[tuple[str, str], ...] = ()

    @property
    def identifier(self) -> int:
        """The Subscription Identifier, 1 to 268,435,455. It depends on topic, selector and noLocal, so that the client recognises messages
        that the broker kept for an earlier definition of a durable subscription."""
        text = "\n".join((self.filter, self.selector, str(self.no_local)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 268_435_455 + 1


class SubscriptionRegistry:
    """The subscriptions of one connection that have a consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[int, Subscription] = {}

    def register(self, subscription: Subscription) -> None:
        """Add a consumer's subscription. Raises `IllegalStateError` if an unshared durable one has a consumer already."""
        with self._lock:
            if subscription.durable and any(each.client_id == subscription.client_id for each in self._subscriptions.values()):
                raise has_consumer_error(subscription.name)
            self._subscriptions[id(subscription)] = subscription

    def unregister(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.pop(id(subscription), None)

    def has_durable(self, name: str) -> bool:
        """Whether a durable subscription of this name has a consumer."""
        with self._lock:
            return any(each.durable and each.name == name for each in self._subscriptions.values())

    def has_topic(self, filter_: str) -> bool:
        """Whether some consumer consumes from this topic filter."""
        with self._lock:
            return any(each.topic.address == filter_ for each in self._subscriptions.values())

    def free_client_id(self, client_id: str, name: str, instance: str) -> str:
        """The MQTT client identifier for one more consumer of a shared durable subscription."""
        return self._free(shared_client_id(client_id, name, instance, number) for number in itertools.count())

    def free_queue_client_id(self, client_id: str, queue: str) -> str:
        """The MQTT client identifier for one more consumer of a queue."""
        return self._free(queue_client_id(client_id, queue, number) for number in itertools.count(1))

    def _free(self, candidates: Iterator[str]) -> str:
        with self._lock:
            used = {each.client_id for each in self._subscriptions.values()}
        return next(candidate for candidate in candidates if candidate not in used)


def shared_client_id(client_id: str, name: str, instance: str, number: int) -> str:
    """The MQTT client identifier of a program's consumer `number` of a shared durable subscription."""
    return durable_client_id(client_id, name, f"{instance}.{number}")


def shared_filter(client_id: str | None, name: str, filter_: str) -> str:
    """The filter of a shared subscription. Subscriptions of different JMS client identifiers are different ones."""
    group = (quote(client_id, safe="") + ":" if client_id else "") + quote(name, safe="")
    return f"$share/{group}/{filter_}"


def check_subscription_name(name: str) -> str:
    """The name. Raises `JMSError` unless it is a string that is not empty."""
    if not isinstance(name, str) or not name:
        raise JMSError("a subscription's name is a string that is not empty", "name")
    return check_text(name, "a subscription's name")


def has_consumer_error(name: str) -> IllegalStateError:
    """The error for a durable subscription that is in use."""
    return IllegalStateError(f"the durable subscription {name!r} has a consumer, or messages that are not acknowledged (8.3.3)")


def end_broker_session(transport: Transport, client_id: str, timeout: float) -> bool:
    """End the broker's session of a client identifier. Returns whether there was one.

    Resuming the session shows whether it exists. A clean session then replaces it, and ends itself. timeout: seconds for each step.
    """
    existed = _open_and_close(transport, LinkSpec(client_id, 60, resume=True, prefetch=1), timeout)[0]
    if existed:
        _open_and_close(transport, LinkSpec(client_id, 0), timeout)
    return existed


def broker_has_queues(transport: Transport, client_id: str, timeout: float) -> bool:
    """Whether the broker has queues now: it says so when a link connects. client_id: of nobody else. timeout: seconds for each step."""
    return _open_and_close(transport, LinkSpec(client_id, 0), timeout)[1]


def _open_and_close(transport: Transport, spec: LinkSpec, timeout: float) -> tuple[bool, bool]:
    """Whether the broker had the session, and whether it has queues."""
    probe = _SessionProbe(timeout)
    link = transport.open(spec, probe)
    try:
        return probe.wait(), link.has_queues
    finally:
        done = Waiter()
        link.close(True, done)
        done.wait(timeout, "closing a link", "its session may still exist")


class _SessionProbe:
    """The handler of a link that is opened to see what the broker says, or to end a session."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._event = threading.Event()
        self._existed = False
        self._error: JMSError | None = None
        self._last_failure = ""

    def wait(self) -> bool:
        """Whether the broker had the session."""
        if not self._event.wait(self._timeout):
            raise JMSError(f"no connection to ask the broker: {self._last_failure}", "timeout")
        if self._error is not None:
            raise self._error
        return self._existed

    def received(self, incoming: Incoming) -> None:
        """The message is not acknowledged. It ends with the session."""

    def connected(self, resumed: bool) -> None:
        self._existed = resumed
        self._event.set()

    def disconnected(self, text: str, word: str = "") -> None:
        self._last_failure = text

    def notified(self, text: str, word: str) -> None:
        """Ignored: the session ends."""

    def failed(self, outcome: Outcome) -> None:
        self._error = error_from_outcome(outcome, outcome.text)
        self._event.set()
