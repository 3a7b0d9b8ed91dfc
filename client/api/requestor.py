"""Request and reply over a temporary topic (6.2.16)."""

from __future__ import annotations

import time
from typing import Self

from ..core.errors import IllegalStateError
from ..core.settings import AckMode
from ..message.destinations import Topic
from ..message.messages import Message
from .session import Session


class TopicRequestor:
    """Sends a request with a temporary topic as `reply_to`, and waits for the reply. One request at a time.

    session: in mode AUTO or DUPS_OK. The requestor closes it.
    """

    def __init__(self, session: Session, topic: Topic) -> None:
        if session.acknowledge_mode not in (AckMode.AUTO, AckMode.DUPS_OK):
            raise IllegalStateError("a requestor needs a session in mode AUTO or DUPS_OK")
        self._session = session
        self._producer = session.create_producer(topic)
        self._replies = session.create_temporary_topic()
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
