"""What the metabroker keeps of its sessions and remotes, as values of a store: tables, keys, and msgpack records.

    remote   CLIENT-ID               the remote broker, as whom, and as which client we are known there
    session  SESSION                 whose it is, at which remote, whether it is durable
    filter   SESSION 0 FILTER        the QoS that a session holds a filter with
    asked    CLIENT-ID 0 FILTER      the filter as the remote knows it: its age, QoS and Subscription Identifiers
    acked    SESSION                 the last publication that the client of a durable session has acknowledged
    request  SESSION 0 SEQUENCE      an identifier of a request to publish, the code of its answer (-1: under way), and `content_of` it
    life     metabroker              how often a metabroker has begun with this store
    life     number                  the number that tells it from other metabrokers
    taken    NUMBER                  another metabroker whose store was taken over, and given up in the same commit, with its requests moved

The messages themselves are runs and deliveries: `in/SESSION` for the client, `out/SESSION` for the remote.
What it does not know: which of them belong together (`restore.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgpack

from ...store.records import StoredDelivery, StoredRun

REMOTE, SESSION, FILTER, ASKED, ACKED, REQUEST, LIFE, TAKEN = "remote", "session", "filter", "asked", "acked", "request", "life", "taken"
INCOMING, OUTGOING = "in/", "out/"  # recipients, followed by the session


class Changes(Protocol):
    """Where changes go: the open batch of a `Writer`, or of a `Coalescer`."""

    def put_run(self, run: StoredRun) -> None:
        """Store a run."""

    def put_delivery(self, delivery: StoredDelivery) -> None:
        """Store a delivery."""

    def delete_delivery(self, recipient: str, order: int) -> bool:
        """Delete a delivery."""

    def delete_recipient(self, recipient: str) -> None:
        """Delete all deliveries of a recipient."""

    def put_value(self, table: str, key: bytes, value: bytes) -> None:
        """Set a value."""

    def note_value(self, table: str, key: bytes, value: bytes) -> None:
        """The store gets a value by itself with these changes, before them."""

    def delete_value(self, table: str, key: bytes) -> None:
        """Delete a value."""


class Readable(Protocol):
    """What a store must answer for `restore.py`."""

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table."""

    def deliveries(self) -> Iterator[StoredDelivery]:
        """All deliveries."""

    def run(self, run: int) -> StoredRun | None:
        """One run."""

    def highest_run(self) -> int:
        """The highest id of a run."""


class RemoteRecord(NamedTuple):
    """A remote broker. version: 4 or 5; None: what it understands.

    sealed: the password is encrypted (`sealing.py`). Earlier records have it as it is.
    """

    remote: str
    username: str | None
    password: bytes | None
    version: int | None
    sealed: bool = False


class SessionRecord(NamedTuple):
    """A session. remote: our client identifier there. seen: when its client was heard, seconds of the wall clock.

    expiry: seconds that a durable session is kept, 0: it is not durable. away: nothing is sent until its client comes back. life: seconds
    that one is kept that is not durable; 0 in records from before that was asked for: as long as the policy says.
    """

    client: str
    remote: str
    seen: float
    expiry: int
    away: bool
    dropped: int
    life: int = 0


class AskedRecord(NamedTuple):
    """A filter at the remote. granted: QoS, -1: not known. numbers: (Subscription Identifier, who asked then; None: too many)."""

    order: int
    granted: int
    numbers: list[tuple[int, list[str] | None]]


def write(value: Any) -> bytes:
    """A record as bytes."""
    return bytes(msgpack.packb(value))


def read(data: bytes) -> Any:
    """What `write` was given, tuples as lists."""
    return msgpack.unpackb(data)


def pair(first: str, second: str) -> bytes:
    """A key of two names; a store takes keys of at most 65,535 bytes."""
    return first.encode() + b"\0" + second.encode("utf-8", "surrogatepass")


def split(key: bytes) -> tuple[str, str]:
    """The names in a key."""
    first, _, second = key.partition(b"\0")
    return first.decode(), second.decode("utf-8", "surrogatepass")


def numbered(session: str, sequence: int) -> bytes:
    """The key of a request."""
    return session.encode() + b"\0" + sequence.to_bytes(8, "big")


def number_in(key: bytes) -> tuple[str, int]:
    """Session and sequence in the key of a request."""
    return key[:-9].decode(), int.from_bytes(key[-8:], "big")
