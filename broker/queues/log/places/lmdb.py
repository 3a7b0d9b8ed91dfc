"""Segments in LMDB: FOLDER/queues.lmdb, one memory-mapped B+ tree. Its writer does not wait for readers.

What it does not know: what is in a segment.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import lmdb

from .....store.folder import out_of_space
from .files import RESERVE_BYTES, Reserve
from .rows import RowSegments

MAP_SIZE = 256 << 30  # address space reserved for the file, not disk
_KEY = Struct(">IQ")  # segment, offset

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[memoryview[int]]


class LmdbSegments(RowSegments):
    """See `Segments`. sync: a commit waits for the disk. map_size: bytes that the file may grow to."""

    def __init__(self, folder: Path, sync: bool = True, map_size: int = MAP_SIZE) -> None:
        super().__init__()
        self._path = folder / "queues.lmdb"
        self._sync = sync
        self._reserve = Reserve(folder / "reserve-lmdb")
        self._map_size = map_size
        self._environment: lmdb.Environment | None = None
        self._write: Transaction | None = None

    def open(self) -> list[int]:
        """Make the file if need be."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._errors():
            self._environment = lmdb.open(str(self._path), self._map_size, subdir=False, mode=0o600, sync=self._sync)
        found: list[int] = []
        with self._transaction() as one:
            cursor = one.cursor()
            while cursor.set_range(_KEY.pack(found[-1] + 1 if found else 0, 0)):
                found.append(_KEY.unpack(cursor.key())[0])
        return found

    def name_of(self, number: int) -> str:
        """The file, and the segment."""
        return f"{self._path}: segment {number}"

    def set_aside(self) -> bool:
        """Make the file `reserve-lmdb`, unless there is room in the file itself, which does not shrink."""
        return not self._sync or self._reserve.make() or self._free() >= RESERVE_BYTES

    def _free(self) -> int:
        assert self._environment is not None
        found = self._environment.stat()
        used = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return int((self._environment.info()["last_pgno"] - used) * found["psize"])

    def give_up(self) -> None:
        """Delete it."""
        self._reserve.give_up()

    def close(self) -> None:
        """Close the file."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """The one that writes, for who writes; one to read otherwise."""
        with self._errors():
            if self._writing and self._write is not None:
                yield self._write
                return
            assert self._environment is not None
            with self._environment.begin(buffers=True) as one:
                yield one

    def _end(self, number: int) -> int:
        with self._transaction() as one:
            key, data = _floor(one, number, 2**64 - 1)
            return key + len(data) if key >= 0 else 0

    def _piece(self, number: int, offset: int, size: int) -> bytes:
        with self._transaction() as one:
            key, data = _floor(one, number, offset)
            return bytes(data[offset - key : offset - key + size]) if key >= 0 else b""

    def _start(self) -> None:
        assert self._environment is not None
        with self._errors():
            self._write = self._environment.begin(write=True, buffers=True)

    def _insert(self, number: int, offset: int, data: bytes) -> None:
        assert self._write is not None
        with self._errors():
            self._write.put(_KEY.pack(number, offset), data)

    def _delete(self, number: int, offset: int) -> None:
        assert self._write is not None
        with self._errors():
            cursor = self._write.cursor()
            cursor.set_range(_KEY.pack(number, offset))
            while len(cursor.key()) and _KEY.unpack(cursor.key())[0] == number:
                cursor.delete()

    def _finish(self) -> None:
        assert self._write is not None
        with self._errors():
            self._write.commit()
        self._write = None

    def _give_up(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            with contextlib.suppress(lmdb.Error):
                write.abort()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            full = isinstance(error, lmdb.MapFullError) or out_of_space(self._path.parent)  # LMDB calls that an error of the disk
            raise OSError(errno.ENOSPC if full else errno.EIO, f"LMDB: {error}") from error


def _floor(one: Transaction, number: int, offset: int) -> tuple[int, bytes | memoryview[int]]:
    """The row that an offset is in: where it begins, and its bytes; -1: there is none."""
    cursor = one.cursor()
    wanted = _KEY.pack(number, offset)
    found = cursor.set_range(wanted)
    if not found or bytes(cursor.key()) != wanted:
        found = cursor.prev() if found else cursor.last()
    if not found:
        return -1, b""
    segment, begin = _KEY.unpack(cursor.key())
    return (begin, cursor.value()) if segment == number else (-1, b"")
