"""What a broker keeps in its store of queues at several sites.

    table    key                value
    queues   "h" number         the queues that another broker is the home of, with their terms
    queues   "p" serial         a parcel that has come and is not in the log of the queues yet
    queues   "r" parcel         a parcel that came back from a home that is gone: it waits for another one
    queues   "s" hash           a subscriber whose session ends with its connection: queue, member, site, life of that

What it does not know: what these mean.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgpack

from ...persistence.table import Table

if TYPE_CHECKING:
    from ...persistence.commits import Persistence
    from .fleeting import Where, Who

TABLE = "queues"
ARRIVED, BACK, SUBSCRIBER = b"p", b"r", b"s"


class Kept:
    """What an earlier life has left. arrived: parcels by their serials. back: by their numbers. fleeting: where subscribers were."""

    def __init__(self) -> None:
        self.homes: dict[int, dict[str, int]] = {}
        self.arrived: dict[bytes, bytes] = {}
        self.back: dict[bytes, bytes] = {}
        self.fleeting: dict[Who, Where] = {}


class Keeping(Table):
    """The table of one broker."""

    def __init__(self) -> None:
        super().__init__(TABLE)

    def read(self, persistence: Persistence) -> Kept:
        """What is there. Raises StoreError."""
        self.persistence = persistence
        kept = Kept()
        for key, value in self.values():
            if key[:1] == b"h":
                names = msgpack.unpackb(value)
                kept.homes[int.from_bytes(key[1:], "big")] = names if isinstance(names, dict) else dict.fromkeys(names, 0)
            elif key[:1] == ARRIVED:
                kept.arrived[key[1:]] = value
            elif key[:1] == BACK:
                kept.back[key[1:]] = value
            elif key[:1] == SUBSCRIBER:
                queue, member, site, life = msgpack.unpackb(value)
                kept.fleeting[queue, member] = site, life
        return kept

    def put_homes(self, number: int, names: dict[str, int]) -> None:
        """The queues of a broker, with their terms; none: it is the home of none."""
        self.put(b"h" + number.to_bytes(2, "big"), msgpack.packb(names) if names else None)

    def put_fleeting(self, who: Who, where: Where | None) -> None:
        """Where a subscriber is whose session ends with its connection; None: it is none any more."""
        key = blake2b(msgpack.packb(who), digest_size=16).digest()  # of any length of name
        self.put(SUBSCRIBER + key, msgpack.packb((*who, *where)) if where is not None else None)

    def put_parcel(self, kind: bytes, key: bytes, body: bytes | None) -> None:
        """A parcel; None: it need not be kept any more."""
        self.put(kind + key, body)
