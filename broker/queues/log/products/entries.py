"""Segments in another product: each is a stream of entries there, which is only appended to.

    entry     8 bytes: an offset in the segment; then bytes, which take the place of all that the segment has from this offset on

So what is given up is cut off by an entry without bytes. In memory is, of each segment, where the product has an entry of every `STRIDE`
bytes: what is between is read from there on.

What it does not know: products, what is in a segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from struct import Struct
from threading import Lock
from typing import NamedTuple, Protocol

from ..places.rows import RowSegments

STRIDE = 128 << 10
LARGEST = 512 << 10  # bytes of an entry; what is longer is several
HEAD = Struct(">Q")

Place = int | str  # of an entry, as its product counts
_OFFSET = itemgetter(0)


class Product(Protocol):
    """What keeps entries. Every method blocks, and raises OSError: `Away`, where the product cannot be reached.

    shown: where it is, without a password. largest: bytes of an entry, known after `open`. fetch: may be called by any thread.
    """

    shown: str
    largest: int

    def open(self) -> list[int]:
        """Have nobody else write from now on who did so far: the segments that there are."""

    def fetch(self, number: int, start: Place | None, most: int | None) -> list[tuple[Place, bytes]]:
        """Entries of a segment from a place on until they have `most` bytes, which are there; None: from the first, to the last."""

    def send(self, entries: list[tuple[int, bytes]]) -> list[Place]:
        """Append entries to segments, in order: where they are. After an error the first ones of them may be there."""

    def delete(self, number: int) -> None:
        """A segment goes, if it is there."""

    def close(self) -> None:
        """The end."""


class _Written(NamedTuple):
    number: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class _Window(NamedTuple):
    """What was read last."""

    number: int
    place: Place
    size: int
    entries: list[tuple[int, bytes]]


class _Index:
    """A segment. marks: (offset, place of the entry), in order. end: of the segment."""

    __slots__ = ("_cut", "end", "marks")

    def __init__(self) -> None:
        self.marks: list[tuple[int, Place]] = []
        self.end = 0
        self._cut = True

    def note(self, place: Place, offset: int, size: int) -> None:
        """An entry is there."""
        if offset != self.end:
            self.cut(offset)
        if self._cut or offset + size - self.marks[-1][0] > STRIDE:
            self.marks.append((offset, place))
            self._cut = False
        self.end = offset + size

    def cut(self, offset: int) -> None:
        """What is from an offset on is gone."""
        while self.marks and self.marks[-1][0] >= offset:
            self.marks.pop()
        self.end = offset
        self._cut = True

    def find(self, offset: int) -> tuple[int, Place, int]:
        """From which entry on an offset is read: its own offset, its place, and where what is read from it ends."""
        at = bisect_right(self.marks, offset, key=_OFFSET)
        begin, place = self.marks[at - 1]
        return begin, place, self.marks[at][0] if at < len(self.marks) else self.end


class EntrySegments(RowSegments):
    """See `Segments`. product: keeps them."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self._product = product
        self._lock = Lock()  # of the indexes
        self._found: dict[int, _Index | None] = {}  # None: it is not read yet
        self._pending: list[_Written] = []
        self._window: _Window | None = None
        self._whole: tuple[int, bytearray] = (0, bytearray())  # the segment that was read while the log is opened

    def open(self) -> list[int]:
        """Shut out another broker, and find the segments."""
        self._found = dict.fromkeys(self._product.open())
        return sorted(self._found)

    def name_of(self, number: int) -> str:
        """The product, and the segment."""
        return f"{self._product.shown}: segment {number}"

    def close(self) -> None:
        """Close the connection."""
        self._product.close()

    def undo(self, number: int, offset: int) -> None:
        """What is cut off is not read any more; the product is told of it with the next commit."""
        super().undo(number, offset)
        with self._lock:
            if (index := self._found.get(number)) is not None:
                index.cut(offset)

    # ---- reading

    def _index(self, number: int) -> _Index | None:
        if number in self._found and self._found[number] is None:
            index, whole = _Index(), bytearray()
            for place, raw in self._product.fetch(number, None, None):
                (offset,) = HEAD.unpack_from(raw)
                index.note(place, offset, len(raw) - HEAD.size)
                del whole[offset:]
                whole += bytes(offset - len(whole)) + raw[HEAD.size :]
            self._found[number], self._whole = index, (number, whole)
        return self._found.get(number)

    def _end(self, number: int) -> int:
        if self._writing and (own := [one.end for one in self._pending if one.number == number]):
            return own[-1]
        index = self._index(number)
        return index.end if index is not None else 0

    def _piece(self, number: int, offset: int, size: int) -> bytes:
        for one in self._pending if self._writing else ():
            if one.number == number and one.offset <= offset < one.end:
                return one.data[offset - one.offset : offset - one.offset + size]
        index = self._index(number)
        if index is None or offset >= index.end:
            return b""
        if self._whole[0] == number:
            return bytes(self._whole[1][offset : min(offset + size, index.end)])
        with self._lock:
            begin, place, end = index.find(offset)
        for at, data in self._read(number, place, end - begin):
            if at <= offset < min(at + len(data), end):
                return data[offset - at : min(offset + size, end) - at]
        return b""

    def _read(self, number: int, place: Place, size: int) -> list[tuple[int, bytes]]:
        """Entries from one on, with so many bytes."""
        window = self._window
        if window is None or (window.number, window.place) != (number, place) or window.size < size:
            found = self._product.fetch(number, place, size)
            window = self._window = _Window(number, place, size, [(HEAD.unpack_from(raw)[0], raw[HEAD.size :]) for _, raw in found])
        return window.entries

    # ---- a commit

    def _start(self) -> None:
        self._pending = []
        self._whole = (0, bytearray())

    def _insert(self, number: int, offset: int, data: bytes) -> None:
        self._pending += _pieces(number, offset, data, self._product.largest - HEAD.size)

    def _delete(self, number: int, offset: int) -> None:
        if offset:
            self._pending.append(_Written(number, offset, b""))
            return
        self._product.delete(number)
        with self._lock:
            self._found.pop(number, None)
            self._window = None

    def _finish(self) -> None:
        pending = self._pending
        if not pending:
            return
        places = self._product.send([(one.number, HEAD.pack(one.offset) + one.data) for one in pending])
        self._pending = []
        with self._lock:
            for one, place in zip(pending, places, strict=True):
                index = self._found.setdefault(one.number, _Index())
                assert index is not None
                index.note(place, one.offset, len(one.data))

    def _give_up(self) -> None:
        self._pending = []


def _pieces(number: int, offset: int, data: bytes, most: int) -> Iterator[_Written]:
    for at in range(0, len(data), most):
        yield _Written(number, offset + at, data[at : at + most])
