"""Which message of a durable session is which, over lost connections and restarts of both sides.

Messages of the session are numbered from 1 in the order in which the broker sends them; a Spark offset is the number of the last one of
a batch. The broker sends what is not acknowledged again, in the same order, with the same packet identifiers and with DUP
[MQTT-4.4.0-1, MQTT-4.6.0-1]. So an offset also holds what the last two batches were made of: packet identifier and checksum of each
message. With that list, what comes again after a restart gets its old number:

    at or below the committed offset    Spark is through with it, and its acknowledgement was lost: it is acknowledged again
    above, and in the list              it belongs to the batch that was planned and has to be run again
    not in the list                     it is new

Invariant: numbers are given in the broker's order and never twice. It knows no sockets: `subscriber.py` has them.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any
from zlib import crc32

_MARK = Struct(">HI")
Mark = tuple[int, int]  # packet identifier, checksum


@dataclass(frozen=True)
class Offset:
    """The end of a batch. count: the number of its last message. marks: of the messages up to it, at least those of the last two batches.

    last: how many of them belong to the batch itself.
    """

    count: int = 0
    last: int = 0
    marks: tuple[Mark, ...] = ()

    def json(self) -> dict[str, Any]:
        packed = b"".join(_MARK.pack(*mark) for mark in self.marks)
        return {"count": self.count, "last": self.last, "marks": base64.b64encode(packed).decode()}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Offset:
        return cls(values["count"], values["last"], tuple(_MARK.iter_unpack(base64.b64decode(values["marks"]))))

    @property
    def first(self) -> int:
        """The number of the first mark."""
        return self.count - len(self.marks) + 1


def checksum(topic: str, payload: bytes, correlation: bytes | None = None) -> int:
    """Of what makes a message different from another one with the same packet identifier."""
    return crc32(correlation or b"", crc32(payload, crc32(topic.encode())))


@dataclass(slots=True)
class Entry:
    """A message that is not acknowledged. mark: of the present session; None once the session is another one. row: None: it gives none."""

    mark: Mark | None
    row: Any


class Deliveries:
    """The messages of one session. committed: the number up to which Spark is through."""

    def __init__(self) -> None:
        self.committed = 0
        self.entries: dict[int, Entry] = {}
        self._known: list[Mark] = []  # marks of the numbers from `_first` on
        self._first = 1
        self._at = 0  # the next one that may come again
        self._places: dict[Mark, list[int]] = {}

    @property
    def latest(self) -> int:
        """The number of the newest message, or of the newest that an offset names."""
        return self._first + len(self._known) - 1

    def restore(self, start: Offset, end: Offset | None = None) -> None:
        """Begin where a checkpoint ends. end: of a batch that was planned and not committed."""
        known = end or start
        self.committed = start.count
        self._first, self._known = known.first, list(known.marks)
        self.entries.clear()
        self._index()

    def connected(self, present: bool) -> None:
        """A connection is made. present: the broker has the session; if not, packet identifiers mean nothing any more."""
        self._at = 0
        if not present:
            self._at = len(self._known)
            for entry in self.entries.values():
                entry.mark = None
        self._index()

    def came(self, mark: Mark, again: bool, row: Any) -> bool:
        """A message. again: with DUP. Whether it has to be acknowledged at once, because Spark is through with it."""
        number = self._number(mark) if again else None
        if number is None:
            self._known.append(mark)
            number = self.latest
        elif number <= self.committed:
            return True
        self.entries[number] = Entry(mark, row)
        return False

    def offset(self, start: Offset, count: int) -> Offset:
        """The end of a batch that begins after `start`. count: the number of its last message."""
        kept = start.marks[len(start.marks) - start.last :]
        fresh = self._known[start.count + 1 - self._first : count + 1 - self._first]
        return Offset(count, len(fresh), (*kept, *fresh))

    def whole(self, start: int, end: int) -> bool:
        """Whether all messages of a batch are here."""
        return all(number in self.entries for number in range(start + 1, end + 1))

    def rows(self, start: int, end: int) -> list[Any]:
        """The rows of a batch. All of its messages are here."""
        found = [self.entries[number].row for number in range(start + 1, end + 1)]
        return [row for row in found if row is not None]

    def commit(self, count: int) -> list[Mark]:
        """Spark is through with all messages up to a number: the marks to acknowledge, in order."""
        marks = []
        for number in range(self.committed + 1, count + 1):
            entry = self.entries.pop(number, None)
            if entry is not None and entry.mark is not None:
                marks.append(entry.mark)
        spare = self.committed + 1 - self._first  # the batch before stays: its acknowledgements may be lost
        if spare > 0:
            del self._known[:spare]
            self._first += spare
            self._at = max(0, self._at - spare)
            self._index()
        self.committed = max(self.committed, count)
        return marks

    def _index(self) -> None:
        self._places = {}
        for place in range(self._at, len(self._known)):
            self._places.setdefault(self._known[place], []).append(place)

    def _number(self, mark: Mark) -> int | None:
        places = self._places.get(mark, ())
        found = bisect_left(places, self._at)
        if found == len(places):
            return None
        self._at = places[found] + 1
        return self._first + places[found]


def split(rows: list[Any], parts: int) -> Iterable[list[Any]]:
    """Rows in at most so many parts of nearly one size, in order; none is empty."""
    parts = max(1, min(parts, len(rows)))
    size, more = divmod(len(rows), parts)
    start = 0
    for part in range(parts):
        stop = start + size + (part < more)
        if stop > start:
            yield rows[start:stop]
        start = stop


__all__ = ["Deliveries", "Entry", "Offset", "checksum", "split"]
