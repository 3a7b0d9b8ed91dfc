"""What an interchange keeps in its broker's store, in one commit with what it delivers.

    table         key            value
    interchange   "c" call       the call (`calls.py`)
    interchange   "i"            the first count of this life of the home, and the highest one that was issued
    interchange   "o" serial     a delivery that waits (`outbox.py`)
    interchange   "m" service    what a service with a limit has posted this month (`limits.py`)
    interchange   "w" token      a message that waits for another home (`homes.py`)

What it does not know: what these mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgpack

if TYPE_CHECKING:
    from ...broker.persistence.commits import Persistence

TABLE = "interchange"
CALL, COUNTS, OUT, WAITING, POSTED = b"c", b"i", b"o", b"w", b"m"


class Kept:
    """What an earlier process has left. counts: None: this life begins."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.counts: tuple[int, int] | None = None
        self.out: dict[int, bytes] = {}
        self.waiting: dict[bytes, bytes] = {}
        self.posted: dict[str, bytes] = {}


class Keeping:
    """The table of one broker; it keeps nothing where there is no store."""

    def __init__(self, persistence: Persistence | None) -> None:
        self._persistence = persistence

    def read(self) -> Kept:
        """What is there. Raises StoreError."""
        kept = Kept()
        for key, value in list(self._persistence.store.values(TABLE)) if self._persistence is not None else ():
            if key[:1] == CALL:
                kept.calls.append(value)
            elif key == COUNTS:
                born, last = msgpack.unpackb(value)
                kept.counts = born, last
            elif key[:1] == OUT:
                kept.out[int.from_bytes(key[1:], "big")] = value
            elif key[:1] == WAITING:
                kept.waiting[key[1:]] = value
            elif key[:1] == POSTED:
                kept.posted[key[1:].decode()] = value
        return kept

    def put_call(self, call: str, value: bytes | None) -> None:
        """A call as it is now; None: it is forgotten."""
        self._put(CALL + bytes.fromhex(call), value)

    def put_counts(self, born: int, last: int) -> None:
        """The counts as they are now."""
        self._put(COUNTS, msgpack.packb((born, last)))

    def put_out(self, serial: int, value: bytes | None) -> None:
        """A delivery that waits; None: it does not any more."""
        self._put(OUT + serial.to_bytes(8, "big"), value)

    def put_waiting(self, token: bytes, value: bytes | None) -> None:
        """A message that waits for another home; None: it does not any more."""
        self._put(WAITING + token, value)

    def put_posted(self, service: str, value: bytes) -> None:
        """What a service has posted this month."""
        self._put(POSTED + service.encode(), value)

    def _put(self, key: bytes, value: bytes | None) -> None:
        if self._persistence is None:
            return
        if value is None:
            self._persistence.writer.delete_value(TABLE, key)
        else:
            self._persistence.writer.put_value(TABLE, key, value)

    def need_commit(self) -> None:
        """What a client is answered now waits for the commit."""
        if self._persistence is not None:
            self._persistence.need_commit()

    def when_kept(self, then: Callable[[], None]) -> None:
        """Go on when everything so far is on the disk."""
        if self._persistence is None:
            then()
        else:
            self._persistence.when(self._persistence.mark(), then)
