"""Flow control for messages of QoS 0: which of them ask the metabroker for an answer. Sans-IO.

A message of QoS 0 needs no answer. But a program that sends them in a loop must not outrun the brokers: a broker drops what it has no room
for, and nobody learns of it. So one message in `EVERY`, or in `BYTES` bytes, asks for an answer. The answer shows that all messages before
it have reached the metabroker. While `AHEAD` answers are missing, nothing is sent. All of these messages have QoS 0, because a broker may
deliver QoS 0 before QoS 1. So a question can be lost: then the sender stops for a time and the program is told.

The first message to a topic also asks, so that the program learns what the policy says of the topic. So does a large message, because there
may be no room for it.
"""

from __future__ import annotations

from ...base.cache import Cache
from ..core.transport import Publication

EVERY, BYTES = 100, 65_536
AHEAD = 2
LARGE = 16_384  # bytes
TOPICS = 1000  # remembered


class FlowControl:
    """able: whether the metabroker takes requests without an answer."""

    def __init__(self, able: bool = False) -> None:
        self._able = able
        self._topics: Cache[str, None] = Cache(TOPICS)  # topics whose last answer was good
        self._unconfirmed_messages = self._unconfirmed_bytes = 0  # sent since the last message that asked
        self._unanswered: set[int] = set()  # numbers of requests whose answer confirms earlier messages

    @property
    def may_send(self) -> bool:
        """Whether anything may be sent now."""
        return len(self._unanswered) < AHEAD

    def needs_answer(self, publication: Publication) -> bool:
        """Whether this message must ask for an answer."""
        return (
            publication.qos > 0
            or not self._able
            or publication.topic not in self._topics
            or self._unconfirmed_messages >= EVERY
            or self._unconfirmed_bytes + len(publication.payload) > BYTES
            or len(publication.payload) > LARGE
        )

    def sent_without_answer(self, publication: Publication) -> None:
        """Count a message that was sent without asking for an answer."""
        self._unconfirmed_messages += 1
        self._unconfirmed_bytes += len(publication.payload)

    def sent_with_answer(self, number: int) -> None:
        """Count a request that will be answered."""
        if self._unconfirmed_messages:
            self._unanswered.add(number)
            self._unconfirmed_messages = self._unconfirmed_bytes = 0

    def answered(self, number: int, topic: str, accepted: bool) -> None:
        """An answer has arrived."""
        self._unanswered.discard(number)
        if accepted:
            self._topics.keep(topic, None)

    def disconnected(self) -> None:
        """The connection is lost: missing answers may never arrive."""
        self._unconfirmed_messages = self._unconfirmed_bytes = 0
        self._unanswered.clear()

    def forget_topics(self) -> None:
        """A message was refused: the next message to each topic asks again."""
        self._topics.clear()
