"""Segments in an SQLite file: FOLDER/queues.db, in write-ahead mode, each commit with the disk's word for it.

One connection writes and one reads, so that a look at a message does not wait for a commit.

What it does not know: what is in a segment.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .files import RESERVE_BYTES, Reserve
from .rows import RowSegments

PAGE = 8192
CHECKPOINT = 500  # pages of the write-ahead file, before it is folded into the other: where the disk is full it needs no more room
TABLE = "CREATE TABLE IF NOT EXISTS frames (id INTEGER PRIMARY KEY, data BLOB NOT NULL)"  # id: segment << 32 | offset
OFFSET = (1 << 32) - 1


class SqliteSegments(RowSegments):
    """See `Segments`. sync: a commit waits for the disk."""

    def __init__(self, folder: Path, sync: bool = True) -> None:
        super().__init__()
        self._path = folder / "queues.db"
        self._sync = sync
        self._reserve = Reserve(folder / "reserve-sqlite")
        self._write: sqlite3.Connection | None = None
        self._read: sqlite3.Connection | None = None

    def open(self) -> list[int]:
        """Make the file if need be."""
        with _errors():
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.touch(mode=0o600)
            self._write = write = self._connect()
            write.execute(f"PRAGMA page_size = {PAGE}")
            write.execute("PRAGMA journal_mode = WAL")
            write.execute(f"PRAGMA synchronous = {'FULL' if self._sync else 'OFF'}")
            write.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
            write.execute("PRAGMA secure_delete = OFF")  # what is let go of would be written once more
            write.execute(TABLE)
            self._read = self._connect()
            return [number for (number,) in write.execute("SELECT DISTINCT id >> 32 FROM frames ORDER BY 1")]

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)

    def name_of(self, number: int) -> str:
        """The file, and the segment."""
        return f"{self._path}: segment {number}"

    def set_aside(self) -> bool:
        """Make the file `reserve-sqlite`, unless there is room in the file itself, which does not shrink."""
        return not self._sync or self._reserve.make() or self._free() >= RESERVE_BYTES

    def _free(self) -> int:
        assert self._read is not None
        with _errors():
            return PAGE * int(self._read.execute("PRAGMA freelist_count").fetchone()[0])

    def give_up(self) -> None:
        """Delete it."""
        self._reserve.give_up()

    def close(self) -> None:
        """Close the connections."""
        for one in (self._read, self._write):
            if one is not None:
                one.close()
        self._read = self._write = None

    def _connection(self) -> sqlite3.Connection:
        found = self._write if self._writing else self._read
        assert found is not None
        return found

    def _end(self, number: int) -> int:
        with _errors():
            query = "SELECT id, length(data) FROM frames WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
            row = self._connection().execute(query, (number << 32, number << 32 | OFFSET)).fetchone()
        return (row[0] & OFFSET) + row[1] if row is not None else 0

    def _piece(self, number: int, offset: int, size: int) -> bytes:
        at = number << 32 | offset
        with _errors():
            query = "SELECT substr(data, ? - id + 1, ?) FROM frames WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
            row = self._connection().execute(query, (at, size, number << 32, at)).fetchone()
        return row[0] if row is not None else b""

    def _start(self) -> None:
        assert self._write is not None
        with _errors():
            self._write.execute("BEGIN IMMEDIATE")

    def _insert(self, number: int, offset: int, data: bytes) -> None:
        assert self._write is not None
        with _errors():
            self._write.execute("INSERT INTO frames VALUES (?, ?)", (number << 32 | offset, data))

    def _delete(self, number: int, offset: int) -> None:
        assert self._write is not None
        with _errors():
            self._write.execute("DELETE FROM frames WHERE id BETWEEN ? AND ?", (number << 32 | offset, number << 32 | OFFSET))

    def _finish(self) -> None:
        assert self._write is not None
        with _errors():
            self._write.execute("COMMIT")

    def _give_up(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._write is not None and self._write.in_transaction:
                self._write.execute("ROLLBACK")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        raise OSError(errno.ENOSPC if full else errno.EIO, f"SQLite: {error}") from error
