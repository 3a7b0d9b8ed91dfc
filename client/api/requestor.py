"""Request and reply over a temporary topic, or a temporary queue (6.2.16)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from ..core.errors import IllegalStateError
from ..core.settings import AckMode
from ..message.destinations import Destination, Queue, TemporaryQueue, TemporaryTopic, Topic
from ..message.messages import Message
from .session import Session


class _Requestor:
    """Sends a request with a temporary destination as `reply_to`, and waits for the reply. One request at a time.

    session: in mode AUTO or DUPS_OK. The requestor closes it.
    """

    def __init__(self, session: Session, destination: Destination, replies: Callable[[Session], TemporaryTopic | TemporaryQueue]) -> None:
        if session.acknowledge_mode not in (AckMode.AUTO, AckMode.DUPS_OK):
            raise IllegalStateError("a requestor needs a session in mode AUTO or DUPS_OK")
        self._session = session
        self._producer = session.create_producer(destination)
        self._replies = replies(session)
        self._consumer = session.create_consumer(self._replies)

    def request(self, message: Message, timeout: float | None = None) -> Message | None:
        """The first reply, or None after `timeout` seconds. Replies to earlier requests are ignored if their correlation identifier names
        the request."""
        message.reply_to = self._replies
        self._producer.send(message)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            reply = self._consumer.receive(None if deadline is None else max(deadline - time.monotonic(), 0.0))
            if reply is None or reply.correlation_id in (None, message.message_id, message.correlation_id):
                return reply

    def close(self) -> None:
        self._consumer.close()
        self._replies.delete()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TopicRequestor(_Requestor):
    """Requests to a topic; the reply comes to a temporary topic."""

    def __init__(self, session: Session, topic: Topic) -> None:
        super().__init__(session, topic, lambda session: session.create_temporary_topic())


class QueueRequestor(_Requestor):
    """Requests to a queue; the reply comes to a temporary queue."""

    def __init__(self, session: Session, queue: Queue) -> None:
        super().__init__(session, queue, lambda session: session.create_temporary_queue())
