"""Which messages of QoS 0 ask the metabroker for an answer, and how many go without one. Sans-IO.

A message of QoS 0 needs no answer, but a program that sends them in a loop must not run ahead of everybody: what finds no room at a
broker is dropped there, and nobody says so. So one in `EVERY` messages, or in `BYTES` bytes, asks; its answer says that all before it
have reached the metabroker; and while `AHEAD` such answers are missing, nothing is sent. All of them go at QoS 0 (a broker may let QoS 0
pass by QoS 1), so that a question may be lost: then the sender is stopped for a time, and told.

The first message to a topic asks, too, so that the program hears what the policy says of it, and so does a large one, for which there
may be no room anywhere.
"""

from __future__ import annotations

from ...base.cache import Cache
from ..core.transport import Publication

EVERY, BYTES = 100, 65_536
AHEAD = 2
LARGE = 16_384  # bytes
TOPICS = 1000  # remembered


class Flow:
    """able: whether the metabroker takes requests that want no answer."""

    def __init__(self, able: bool = False) -> None:
        self._able = able
        self._topics: Cache[str, None] = Cache(TOPICS)  # that were published to
        self._messages = self._bytes = 0  # sent since the last one that asked
        self._missing: set[int] = set()  # numbers of requests that ask for those before them, too

    @property
    def room(self) -> bool:
        """Whether anything may be sent now."""
        return len(self._missing) < AHEAD

    def asks(self, publication: Publication) -> bool:
        """Whether this one has to be answered."""
        return (
            publication.qos > 0
            or not self._able
            or publication.topic not in self._topics
            or self._messages >= EVERY
            or self._bytes + len(publication.payload) > BYTES
            or len(publication.payload) > LARGE
        )

    def went(self, publication: Publication) -> None:
        """Sent without asking."""
        self._messages += 1
        self._bytes += len(publication.payload)

    def asked(self, number: int) -> None:
        """Request `number` goes out and will be answered."""
        if self._messages:
            self._missing.add(number)
            self._messages = self._bytes = 0

    def answered(self, number: int, topic: str, well: bool) -> None:
        """The answer is there."""
        self._missing.discard(number)
        if well:
            self._topics.keep(topic, None)

    def broken(self) -> None:
        """Answers that are missing will not come, perhaps."""
        self._messages = self._bytes = 0
        self._missing.clear()

    def forget(self) -> None:
        """Something was refused: each topic is asked for again."""
        self._topics.clear()
