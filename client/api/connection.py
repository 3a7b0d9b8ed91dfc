"""A connection: one client of one broker, its sessions, and the link that they all send on (6.1)."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from ...mqtt.reasons import Reason
from ..core.directory import Directory
from ..core.errors import IllegalStateError, InvalidClientIDError, InvalidDestinationError, JMSError, error_from_outcome
from ..core.settings import AckMode, Settings, Waiter
from ..core.shared_link import SharedLinks
from ..core.transport import Incoming, Link, LinkSpec, Outcome, Transport
from ..message.destinations import (
    TEMPORARY,
    Destination,
    Queue,
    TemporaryQueue,
    TemporaryTopic,
    filter_to_consume,
    is_temporary,
    no_queues,
)
from .session import Session
from .subscriptions import SubscriptionRegistry, broker_has_queues
from .temporary import TemporaryQueues

log = logging.getLogger("mqmesh.client")

ExceptionListener = Callable[[JMSError], None]


@dataclass(frozen=True, slots=True)
class ConnectionMetaData:
    """Versions and names of this implementation (6.1.6)."""

    jms_version: str = "3.1"
    jms_provider_name: str = "mqmesh"
    provider_version: str = "0.1.0"
    jmsx_property_names: tuple[str, ...] = ("JMSXGroupID", "JMSXGroupSeq", "JMSXDeliveryCount")


class Connection:
    """Made by a factory. A new connection is stopped: its sessions can send, and receive after `start`.

    A thread of the connection calls `exception_listener` with errors that no method can raise: a broken connection (code
    ``connection_lost``; the client connects again by itself), ``session_lost``, ``given_up``, and final refusals.
    """

    def __init__(self, transport: Transport, settings: Settings, client_id: str | None, directory: Directory | None = None) -> None:
        self.transport, self.settings, self.directory = transport, settings, directory
        self.uid = uuid.uuid4().hex
        self.prefix = f"ID:{self.uid}:"
        self.metadata = ConnectionMetaData()
        self.exception_listener: ExceptionListener | None = None
        self._client_id = client_id
        self._lock = threading.Lock()  # guards the lists below; nothing is called while it is held
        self._sessions: list[Session] = []
        self.subscriptions = SubscriptionRegistry()
        self._temporary: set[str] = set()
        self._temporary_queues = TemporaryQueues(self)
        self._numbers, self._temporary_numbers = itertools.count(1), itertools.count(1)
        self._started = self._closed = self._used = False
        self._queues_seen = False
        self._reports: queue.SimpleQueue[JMSError | None] = queue.SimpleQueue()
        self._reporter: threading.Thread | None = None
        self.publisher = self._open_publisher()
        self.shared_links = SharedLinks(transport, self.link_id, settings.session_keep)

    # the application's side

    @property
    def client_id(self) -> str | None:
        return self._client_id

    @client_id.setter
    def client_id(self, client_id: str) -> None:
        """Set it before anything else is done with the connection (6.1.2)."""
        self._check()
        if self._client_id or self._used:
            raise IllegalStateError("the client identifier can be set once, before the connection is used (6.1.2)")
        self._client_id = check_client_id(client_id)
        old, self.publisher = self.publisher, self._open_publisher()
        old.close(True, lambda outcome: None)

    def create_session(self, transacted: bool = False, acknowledge_mode: AckMode = AckMode.AUTO) -> Session:
        """Make a session. transacted: the same as acknowledge mode SESSION_TRANSACTED."""
        self._check()
        self._used = True
        mode = AckMode.SESSION_TRANSACTED if transacted else AckMode(acknowledge_mode)
        session = Session(self, mode)
        with self._lock:
            self._sessions.append(session)
            session.running = self._started
        return session

    create_topic_session = create_session

    def start(self) -> None:
        """Start, or resume, delivery."""
        self._check()
        self._used = True
        with self._lock:
            self._started = True
        for session in self._list():
            session.run(True)

    def stop(self) -> None:
        """Stop delivery until `start`. Returns when no listener runs; `receive` continues to wait (6.1.5). Not from a listener."""
        self._check()
        self._not_from_a_listener("stop")
        with self._lock:
            self._started = False
        for session in self._list():
            session.run(False)

    def close(self) -> None:
        """Close the sessions, then disconnect. Waits for running listeners. A second call does nothing. Not from a message listener."""
        self._not_from_a_listener("close")
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            for session in self._list():
                session.close()
            self._temporary_queues.close()
            done = Waiter()
            self.publisher.close(True, done)
            done.wait(self.settings.connect_timeout, "closing the connection", "it is being closed")
        finally:
            self.transport.close()
            self._reports.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise IllegalStateError("the connection is closed")

    def _not_from_a_listener(self, what: str) -> None:
        if any(session.dispatcher.current for session in self._list()):
            raise IllegalStateError(f"a listener cannot {what} its own connection (6.1.8): do it from another thread")

    def _list(self) -> list[Session]:
        with self._lock:
            return list(self._sessions)

    # for sessions

    def next_message_id(self) -> str:
        return f"{self.prefix}{next(self._numbers)}"

    def link_id(self) -> str:
        """The MQTT client identifier of a link that is not durable."""
        return f"{quote(self._client_id, safe='')}:{uuid.uuid4().hex}" if self._client_id else unique_client_id()

    def remove_session(self, session: Session) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)

    def create_temporary_topic(self) -> TemporaryTopic:
        topic = TemporaryTopic(f"{TEMPORARY}{self.uid}/{next(self._temporary_numbers)}", self)
        with self._lock:
            self._temporary.add(topic.name)
        return topic

    def create_temporary_queue(self) -> TemporaryQueue:
        return self._temporary_queues.make()

    def check_destination(self, destination: Destination, consuming: bool) -> None:
        """Raises `InvalidDestinationError` for a deleted temporary destination, and for consuming from another connection's.

        For a queue, raises `JMSError` where the broker has none.
        """
        if not is_temporary(destination):
            if isinstance(destination, Queue) and not self._has_queues():
                raise no_queues(f"{'consuming from' if consuming else 'sending to'} the queue {destination.name!r}")
            return
        if isinstance(destination, Queue):
            if consuming and destination.name not in self._temporary_queues:
                raise InvalidDestinationError(f"the temporary queue {destination.name!r} is deleted, or is another connection's (6.2.2)")
            return
        ours = destination.name.startswith(f"{TEMPORARY}{self.uid}/")
        if consuming and not ours:
            raise InvalidDestinationError("only its own connection can consume from a temporary topic (6.2.2)")
        if ours and destination.name not in self._temporary:
            raise InvalidDestinationError(f"the temporary topic {destination.name!r} is deleted")

    def _has_queues(self) -> bool:
        """Whether the broker has queues: it may have got the first one since our link connected."""
        if not self._queues_seen and not self.publisher.has_queues and self.transport.declares:
            self._queues_seen = broker_has_queues(self.transport, unique_client_id(), self.settings.connect_timeout)
        return self._queues_seen or self.publisher.has_queues

    def delete_temporary_queue(self, queue: TemporaryQueue) -> None:
        if self.subscriptions.has_topic(queue.address):
            raise JMSError("the temporary queue has consumers: close them first (6.2.2)", "in_use")
        self._temporary_queues.delete(queue)

    def delete_temporary_topic(self, topic: TemporaryTopic) -> None:
        filter_ = filter_to_consume(topic)
        if self.subscriptions.has_topic(filter_):
            raise JMSError("the temporary topic has consumers: close them first (6.2.2)", "in_use")
        with self._lock:
            self._temporary.discard(topic.name)

    def report(self, error: JMSError) -> None:
        """Pass an error to the exception listener, on a thread of its own. The listener may call anything, `close` too."""
        log.warning("event=client_exception code=%s text=%s", error.error_code, error)
        if self.exception_listener is None:
            return
        with self._lock:
            if self._reporter is None:
                self._reporter = threading.Thread(target=self._run_reporter, name="mqmesh-exceptions", daemon=True)
                self._reporter.start()
        self._reports.put(error)

    def _run_reporter(self) -> None:
        while (error := self._reports.get()) is not None:
            listener = self.exception_listener
            try:
                if listener is not None:
                    listener(error)
            except Exception:
                log.exception("event=exception_listener_failed")

    def _open_publisher(self) -> Link:
        handler = _PublisherHandler(self)
        name = self._client_id
        spec = LinkSpec(name or unique_client_id(), self.settings.session_keep, sends=True, exclusive=name is not None)
        link = self.transport.open(spec, handler)
        handler.wait(self.settings.connect_timeout)
        return link


def check_client_id(client_id: str) -> str:
    """The JMS client identifier. Raises `InvalidClientIDError` unless it is a string that is not empty."""
    try:
        if isinstance(client_id, str) and 0 < len(client_id.encode()) <= 65535 and "\0" not in client_id:
            return client_id
    except UnicodeEncodeError:
        pass
    raise InvalidClientIDError(f"client_id {client_id!r}: expected a string that is not empty", "client_id")


class _PublisherHandler:
    """The handler of the link that the connection sends on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._first = threading.Event()
        self._up = False
        self._error: JMSError | None = None

    def wait(self, timeout: float) -> None:
        """Return once connected. Raises the error of the first attempt."""
        if not self._first.wait(timeout):
            raise JMSError(f"the broker does not answer within {timeout:g} s", "timeout")
        if self._error is not None:
            raise self._error

    def received(self, incoming: Incoming) -> None:
        """Never called: this link has no subscriptions."""

    def connected(self, resumed: bool) -> None:
        self._up = True
        self._first.set()

    def disconnected(self, text: str, word: str = "") -> None:
        if not self._first.is_set():
            self._error = error_from_outcome(Outcome(Reason.SERVER_UNAVAILABLE, text, word or "connect"), text)
            self._first.set()
        elif self._up:
            self._up = False
            self._connection.report(JMSError(f"{text}; connecting again", word or "connection_lost"))

    def notified(self, text: str, word: str) -> None:
        self._connection.report(JMSError(text, word))

    def failed(self, outcome: Outcome) -> None:
        error = error_from_outcome(outcome, outcome.text)
        if not self._first.is_set():
            self._error = error
            self._first.set()
        else:
            self._connection.report(error)


def unique_client_id() -> str:
    """An MQTT client identifier for a session that is never resumed."""
    return f"jms-{uuid.uuid4().hex}"
