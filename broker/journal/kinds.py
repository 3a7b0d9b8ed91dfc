"""Words and numbers of the journal that need no library: kinds of events, ids of names, text of message ids.

A column of the journal holds numbers. A name (topic, client, account, recipient, reason) has the same number at every broker, so that
tables of several brokers are grouped without a join; the names themselves stand in the dimension files (layout.py).
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from ...base.cache import LONGEST

VERSION = 1  # of the schema; a reader takes its own and older ones
NONE = 0  # the id of no name
NOBODY = -1  # the number of no broker
MESSAGE_ID = re.compile(r"(\d{1,5})\.(\d{1,19})\.([0-3])\.(\d{1,19})")
DIMENSIONS = ("topic", "client", "account", "recipient", "reason")  # kinds of names


class Kind(IntEnum):
    """What an event says. `value`, and which of the other columns are filled, depends on it (docs/journal.md)."""

    PUBLISHED = 1
    REFUSED = 2
    FORWARDED = 3
    RECEIVED = 4
    DELIVERED = 5
    ACKNOWLEDGED = 6
    DROPPED = 7
    EXPIRED = 8
    RETURNED = 9
    FAILED_OVER = 10
    RECIPIENT_STATE = 11
    QUEUE_STATE = 12
    INVOKED = 13
    CONNECTED = 14
    DISCONNECTED = 15
    SUBSCRIBED = 16
    UNSUBSCRIBED = 17
    LINK_UP = 18
    LINK_DOWN = 19
    GATEWAY_SESSION = 20
    GATEWAY_EVENT = 21
    RETAINED_CHANGED = 22
    MANAGED = 23
    CUSTODY_TAKEN = 24
    CUSTODY_RELEASED = 25
    GAP = 26


class Stream(IntEnum):
    """Which of an origin's numberings a sequence is of."""

    QOS0 = 0
    CUSTODY = 1  # QoS 1 and 2
    LOCAL = 2  # the journal's own number, of a message that nobody at another broker wants
    QUEUE = 3  # positions of a queue; the epoch is the number of the queue at its broker


class Invoked(IntEnum):
    """`value` of an invocation of the interchange."""

    DELIVERED = 1
    ENDED = 2
    POSTED = 3


class QueueState(IntEnum):
    """`value` of a queue state (docs/queues.md, "States")."""

    CLEAN = 0
    PUT = 1
    REVEALED = 2
    UNAVAILABLE = 3
    JOURNALLED_BY_PUBLISHER = 4
    DELETED = 5
    GET = 11
    FETCHED = 12
    IN_PROCESS = 13
    UNUSABLE = 14
    DONE = 15
    EXPIRED = 16
    JOURNALLED = 17


QUEUE_STATES = {int(one): one.name.replace("_", " ") for one in QueueState}


class Protocol(IntEnum):
    """How a message came in, or went out."""

    NONE = 0
    MQTT = 1
    MESH = 2
    WEBSOCKET = 3
    IN_PROCESS = 4
    AMQP = 5
    NATS = 6


class MessageId(NamedTuple):
    """Which message: of which life of which broker, in which numbering, and its number there."""

    origin: int
    epoch: int
    stream: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.origin}.{self.epoch}.{self.stream}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """From `origin.epoch.stream.sequence`. Raises ValueError, one line, for anything else."""
        found = MESSAGE_ID.fullmatch(text.strip())
        if found is None:
            raise ValueError(f'"{text[:80]}" is no message id: write origin.epoch.stream.sequence, such as 7.1763850000000.1.42')
        return cls(*map(int, found.groups()))


def _hashed(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True) or 1


def name_id(name: str | bytes) -> int:
    """The id of a name: the first eight bytes (signed, big endian) of its BLAKE2b-8; 0 for an empty name only."""
    return _short_id(name) if len(name) <= LONGEST else _id(name)


@lru_cache(65536)
def _short_id(name: str | bytes) -> int:
    return _id(name) if name else NONE


def _id(name: str | bytes) -> int:
    return _hashed(name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape"))


def call_id(response_topic: str | bytes, correlation: bytes) -> int:
    """The id of a call: of a request's Response Topic and Correlation Data, which its responses carry too."""
    topic = response_topic if isinstance(response_topic, bytes) else response_topic.encode()
    return _hashed(len(topic).to_bytes(4, "big") + topic + correlation)


def identifier_number(text: str) -> int:
    """An identifier of the interchange (hexadecimal) as the journal's columns have it: its first sixteen digits; 0 for none."""
    number = int(text[:16] or "0", 16)
    return number - (1 << 64) if number >> 63 else number


def hop_id(message: MessageId, sender: int, receiver: int) -> int:
    """The id of a message's way from one broker to the next."""
    return _hashed(f"{message}:{sender}:{receiver}".encode())
