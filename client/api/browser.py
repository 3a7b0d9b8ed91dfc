"""Browsing a queue: the messages that wait in it, which stay there (Jakarta Messaging 3.1, 4.1).

A browser asks its broker over a link of its own, page by page, with requests to `$mqmesh/queues` (docs/queues.md).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, Self

from ..core.errors import IllegalStateError
from ..core.transport import Incoming, Properties
from ..message.destinations import Queue
from ..message.messages import Message
from ..message.selector import Selector, selects_all
from ..message.wire import decode
from .questions import QueueRequests

PAGE = 100  # messages of one answer at most


class QueueBrowser:
    """Made by a session. Each iteration begins anew with the oldest message, and sees what waits when it comes there.

    Messages are in the order in which they were put, whatever their priority. Delayed messages, and those that a consumer has, do not wait.
    """

    def __init__(self, queue: Queue, selector: str, requests: QueueRequests, release: Callable[[QueueBrowser], None]) -> None:
        self.queue, self.message_selector = queue, selector or None
        self._wanted = {"selector": Selector(selector).text} if not selects_all(selector) else {}
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
            page = self._requests.ask({"do": "peek", "name": self.queue.name, "from": begin, "most": PAGE, "whole": True, **self._wanted})
            begin = page["more"]
            yield from map(_message_of, filter(lambda row: row["waits"], page["messages"]))

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
