"""What an interchange keeps in its broker's store, in one commit with what it delivers.

    table         key            value
    interchange   "c" call       the call (`calls.py`)
    interchange   "i"            the first count of this life of the home, and one that none was issued above
    interchange   "o" serial     a delivery that waits (`outbox.py`)
    interchange   "m" service    what a service with a limit has posted this month (`limits.py`)
    interchange   "w" token      a message that waits for another home (`homes.py`)

What it does not know: what these mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from ...broker.persistence.table import Table
from ..identifiers import EACH
from ..refusals import Code, Refusal

if TYPE_CHECKING:
    from ...broker.persistence.commits import Persistence

TABLE = "interchange"
AHEAD = 8 * EACH  # counts: those of 8 ms; a broker takes longer to start
CALL, COUNTS, OUT, WAITING, POSTED = b"c", b"i", b"o", b"w", b"m"


class Kept:
    """What an earlier process has left. counts: None: this life begins."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.counts: tuple[int, int] | None = None
        self.out: dict[int, bytes] = {}
        self.waiting: dict[bytes, bytes] = {}
        self.posted: dict[str, bytes] = {}


class Keeping(Table):
    """The table of one broker."""

    def __init__(self, persistence: Persistence | None) -> None:
        super().__init__(TABLE, persistence)
        self._said = -1  # the highest count that the store has, or will have with the commit that is open

    def read(self) -> Kept:
        """What is there. Raises StoreError."""
        kept = Kept()
        for key, value in self.values():
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

    @property
    def failing(self) -> bool:
        """Whether the store takes nothing now, for example because its disk is full."""
        return self.persistence is not None and self.persistence.error is not None

    def check_room(self, new: bool) -> None:
        """What is posted now can be kept: nothing while the store fails, and nothing that begins a call (`new`) while it is full by its
        quota; what ends calls makes room. Raises Refusal."""
        kept = self.persistence
        if kept is not None and (self.failing or (new and kept.quota.full)) and (text := kept.why()) is not None:
            raise Refusal(Code.UNAVAILABLE, text, "post it again later")

    def put_call(self, call: str, value: bytes | None) -> None:
        """A call as it is now; None: it is forgotten."""
        self.put(CALL + bytes.fromhex(call), value)

    def put_counts(self, born: int, last: int) -> None:
        """Identifiers up to a count are issued. What is kept is somewhat higher, so that not each post writes it."""
        if last > self._said:
            self._said = last + AHEAD
            self.put(COUNTS, msgpack.packb((born, self._said)))

    def put_out(self, serial: int, value: bytes | None) -> None:
        """A delivery that waits; None: it does not any more."""
        self.put(OUT + serial.to_bytes(8, "big"), value)

    def put_waiting(self, token: bytes, value: bytes | None) -> None:
        """A message that waits for another home; None: it does not any more."""
        self.put(WAITING + token, value)

    def put_posted(self, service: str, value: bytes) -> None:
        """What a service has posted this month."""
        self.put(POSTED + service.encode(), value)
