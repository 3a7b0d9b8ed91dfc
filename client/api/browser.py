"""Browsing a queue: the messages that wait in it, which stay there (Jakarta Messaging 3.1, 4.1).

A browser asks its broker over a link of its own, page by page, with requests to `$mqmesh/queues` (docs/queues.md).
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, Self

from ...base.queues import ANSWER
from ..core.errors import IllegalStateError, JMSError, error_from_outcome
from ..core.settings import Settings, Waiter
from ..core.transport import Incoming, LinkSpec, Outcome, Properties, Transport
from ..message.destinations import Queue
from ..message.messages import Message
from ..message.selector import Selector
from ..message.wire import decode
from .inbox import lookup
from .questions import Questions

PAGE = 100  # messages of one answer at most


class QueueBrowser:
    """Made by a session. Each iteration begins anew with the oldest message, and sees what waits when it comes there.

    Messages are in the order in which they were put, whatever their priority. Delayed messages, and those that a consumer has, do not wait.
    """

    def __init__(self, queue: Queue, selector: str, requests: QueueRequests, release: Callable[[QueueBrowser], None]) -> None:
        self.queue, self.message_selector = queue, selector or None
        self._selector = Selector(selector) if selector.strip() else None
        self._requests, self._release = requests, release
        self._closed = False

    def open(self) -> None:
        """Connect. Raises `JMSError`."""
        try:
            self._requests.open()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Message]:
        """The messages that wait. Raises `JMSError` for what the broker refuses, also by rules of access: a browser reads payloads."""
        begin: int | None = 0
        while begin is not None:
            if self._closed:
                raise IllegalStateError("the browser is closed")
            page = self._requests.ask({"do": "peek", "name": self.queue.name, "from": begin, "most": PAGE, "whole": True})
            begin = page["more"]
            for message in map(_message_of, filter(lambda row: row["waits"], page["messages"])):
                if self._selector is None or self._selector.matches(lookup(message)):
                    yield message

    def close(self) -> None:
        """End the browser's link."""
        if not self._closed:
            self._closed = True
            self._release(self)
            self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _message_of(row: dict[str, Any]) -> Message:
    correlation = row["correlation"]
    properties = Properties(
        row["text"] or None,
        None,
        row["content_type"],
        row["response_topic"],
        None if correlation is None else b64decode(correlation),
        tuple((name, value) for name, value in row["user"]),
    )
    message = decode(Incoming(row["topic"], b64decode(row["payload"]), 1, False, properties))
    message.delivery_count, message.redelivered = row["deliveries"], row["deliveries"] > 0
    return message


class QueueRequests:
    """Requests to a broker about its queues, over a link of its own. It is the handler of that link, see `transport.LinkHandler`."""

    def __init__(self, transport: Transport, client_id: str, settings: Settings) -> None:
        self._settings = settings
        self._connected = threading.Event()
        self._error: JMSError | None = None
        self._last_failure = ""
        self._questions = Questions()
        self._link = transport.open(LinkSpec(client_id, settings.session_keep), self)

    def open(self) -> None:
        """Wait for the connection, and listen for answers. Raises `JMSError`."""
        timeout = self._settings.connect_timeout
        if not self._connected.wait(timeout):
            raise JMSError(f"no connection to ask about queues within {timeout:g} s: {self._last_failure}", "timeout")
        if self._error is not None:
            raise self._error
        subscribed = Waiter()
        self._link.subscribe(ANSWER, 1, 0, subscribed)
        subscribed.wait(timeout, "subscribing to answers about queues", "nothing is changed")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The broker's answer to a request. Raises `JMSError` with what it says is wrong."""
        if self._error is not None:
            raise self._error
        return self._questions.ask(self._link, request).wait(self._settings.send_timeout)

    def close(self) -> None:
        """End the link."""
        done = Waiter()
        self._link.close(True, done)
        done.wait(self._settings.connect_timeout, "closing the browser", "its connection is being ended")

    def received(self, incoming: Incoming) -> None:
        """An answer."""
        self._link.acknowledge(incoming.token)
        self._questions.answered(incoming)

    def connected(self, resumed: bool) -> None:
        self._connected.set()

    def disconnected(self, text: str, word: str = "") -> None:
        self._last_failure = text

    def notified(self, text: str, word: str) -> None:
        """Nothing that a request needs."""

    def failed(self, outcome: Outcome) -> None:
        self._error = error_from_outcome(outcome, f"asking about queues{outcome.text and ': '}{outcome.text}")
        self._questions.fail(self._error)
        self._connected.set()
