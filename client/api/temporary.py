"""Temporary queues of one connection (6.2.2): its broker makes them, and they end with the session of the link that asks for them."""

from __future__ import annotations

import threading
from typing import Protocol

from ..core.errors import JMSError
from ..core.settings import Settings
from ..core.transport import Transport
from ..message.destinations import TemporaryQueue, no_queues
from .questions import QueueRequests


class Owner(Protocol):
    """The connection."""

    transport: Transport
    settings: Settings

    def link_id(self) -> str: ...

    def report(self, error: JMSError) -> None: ...

    def delete_temporary_queue(self, queue: TemporaryQueue) -> None: ...


class TemporaryQueues:
    """See the module. The link is opened with the first of them."""

    def __init__(self, connection: Owner) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # held while the broker is asked
        self._requests: QueueRequests | None = None
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def make(self) -> TemporaryQueue:
        """Raises `JMSError`: the broker has no queues, or makes no more."""
        if not self._connection.transport.declares:
            raise no_queues("a temporary queue")
        with self._lock:
            answer = self._asker().ask({"do": "temporary"})
            queue = TemporaryQueue(answer["queue"], answer["key"], self._connection)
            self._names.add(queue.name)
        return queue

    def _asker(self) -> QueueRequests:
        if self._requests is None:
            connection = self._connection
            requests = QueueRequests(connection.transport, connection.link_id(), connection.settings, self._lost)
            try:
                requests.open()
            except BaseException:
                requests.close()
                raise
            self._requests = requests
        return self._requests

    def delete(self, queue: TemporaryQueue) -> None:
        """It ends now. Raises `JMSError`."""
        with self._lock:
            if queue.name in self._names and self._requests is not None:
                self._requests.ask({"do": "delete", "name": queue.name})
                self._names.discard(queue.name)

    def _lost(self) -> None:
        """The broker has lost the link's session, and with it the queues."""
        names, self._names = self._names, set()
        if names:
            text = f"the broker has lost the session of this connection, and its {len(names)} temporary queues with it"
            self._connection.report(JMSError(text, "session_lost"))

    def close(self) -> None:
        """They end."""
        with self._lock:
            requests, self._requests = self._requests, None
            self._names.clear()
        if requests is not None:
            requests.close()
