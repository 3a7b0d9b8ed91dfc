"""Segments as rows of a database: what was appended at once is a row, and a commit is a transaction.

    key     number of the segment, offset where the row begins

A kind of database says how rows are read, written and deleted (`sqlite.py` and its neighbours). Segments are dropped, and what is given up
is deleted, in a transaction before the one of the next commit: if that finds no room, the room that is let go of is there the next time.

What it does not know: databases, what is in a segment.
"""

from __future__ import annotations

from threading import get_ident


class RowSegments:
    """See `Segments`. A kind of database has the methods that raise NotImplementedError; each raises OSError."""

    def __init__(self) -> None:
        self._gone: dict[int, int] = {}  # segment -> the offset from which on it is to be deleted
        self._writer = 0  # the thread whose transaction is open

    @property
    def _writing(self) -> bool:
        """Whether this thread has a transaction."""
        return self._writer == get_ident()

    def size(self, number: int) -> int:
        """Where its last row ends."""
        return self._end(number)

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of its rows."""
        found: list[bytes] = []
        while size > 0 and (piece := self._piece(number, offset, size)):
            found.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return found[0] if len(found) == 1 else b"".join(found)

    def begin(self, number: int) -> None:
        """No rows: what has its number goes with the next row."""
        self._gone[number] = 0

    def append(self, number: int, offset: int, data: list[bytes]) -> int:
        """A row."""
        if not data:
            return offset
        if not self._writing:
            self._let_go()
            self._start()
            self._writer = get_ident()
        whole = b"".join(data) if len(data) != 1 else data[0]
        self._insert(number, offset, whole)
        return offset + len(whole)

    def commit(self) -> None:
        """The end of the transaction."""
        if self._writing:
            self._finish()
            self._writer = 0

    def _let_go(self) -> None:
        """Delete what is gone, before anything is written that may need the room."""
        if self._gone:
            gone = dict(self._gone)  # a segment may be dropped meanwhile
            self._start()
            for one in gone.items():
                self._delete(*one)
            self._finish()
            for number, offset in gone.items():
                if self._gone[number] == offset:
                    del self._gone[number]

    def undo(self, number: int, offset: int) -> None:
        """Whether the transaction counts may be unknown: its rows are deleted with the next one."""
        self._writer = 0
        self._gone[number] = min(offset, self._gone.get(number, offset))
        self._give_up()

    def drop(self, number: int) -> None:
        """With the next commit."""
        self._gone[number] = 0

    def set_aside(self) -> bool:
        """A server has room of its own."""
        return True

    def give_up(self) -> None:
        """There is none."""

    # ---- what a kind of database does

    def _end(self, number: int) -> int:
        raise NotImplementedError

    def _piece(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of the row that an offset is in; fewer at its end."""
        raise NotImplementedError

    def _start(self) -> None:
        raise NotImplementedError

    def _insert(self, number: int, offset: int, data: bytes) -> None:
        raise NotImplementedError

    def _delete(self, number: int, offset: int) -> None:
        """The rows of a segment from an offset on."""
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _give_up(self) -> None:
        """Whatever was begun does not count; it does not raise."""
        raise NotImplementedError
