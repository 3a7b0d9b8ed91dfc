"""What is looked at in an SQLite file before it is trusted: its schema, its structure, and its log.

SQLite checks what it reads, and no more. `integrity_check` finds pages and indexes that do not fit together; the checksums of rows find
what a row no longer says. Left are two places that SQLite believes without asking:

- *The schema.* Its text is compared with ours.
- *The log.* SQLite takes a log up to its first frame with a wrong checksum, and forgets what comes after it, as it should after a power
  loss. A frame behind that place which belongs to the same log means that commits were there: either the last one, which was cut
  off while it was written, or acknowledged ones behind a damaged frame.

Source: "WAL-mode File Format", sqlite.org/walformat.html.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from struct import Struct

from .base import damaged

_HEADER = Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_FRAME = Struct(">6I")  # page, pages after a commit or 0, two salts, two checksums
MAGIC = 0x377F0682  # its last bit: checksums in big-endian words
NEAR = 3  # bits by which salts may differ and still be taken for damaged ones of the same log


def check_schema(connection: sqlite3.Connection, name: str, right: set[str]) -> None:
    """Compare the tables' definitions. Raises StoreError (corrupt)."""
    found = {_plain(row[0]) for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    wrong = found ^ {_plain(text) for text in right}
    if wrong:
        raise damaged(name, f"its schema is changed: {min(wrong)[:80]}")


def check_structure(connection: sqlite3.Connection, name: str) -> None:
    """Walk through all pages and compare indexes with tables. Raises StoreError (corrupt)."""
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise damaged(name, found)


def log_of(file: Path) -> Path:
    """The log of an SQLite file."""
    return file.with_name(file.name + "-wal")


def check_log(connection: sqlite3.Connection | None, log: Path, name: str) -> None:
    """Look behind what a connection's first read recovered from a log, before anything is written. Raises StoreError (corrupt).

    connection: None to walk through the whole log, while nobody writes to it.
    """
    if not log.exists() or log.stat().st_size <= _HEADER.size + _FRAME.size:
        return
    recovered = 0
    if connection is not None:
        with suppress(sqlite3.Error):  # a full disk: nothing is taken for granted
            recovered = max(0, connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])
    with open(log, "rb") as file:  # SQLite holds no lock on this one, which closing it would end
        header = file.read(_HEADER.size)
        magic, _, page, _, *salts, first, second = _HEADER.unpack(header)
        big = bool(magic & 1)
        if magic & ~1 != MAGIC or _sum(header[:24], big, (0, 0)) != (first, second):
            raise damaged(name, "the header of its log is changed: the commits in the log are lost")
        step = _FRAME.size + page
        sums: tuple[int, int] | None = (first, second)
        if recovered:
            file.seek(_HEADER.size + (recovered - 1) * step)
            *_, first, second = _FRAME.unpack(file.read(_FRAME.size))
            sums = (first, second)
        file.seek(_HEADER.size + recovered * step)
        rest = []  # of each frame of this log behind what was recovered: pages after a commit or 0, and whether it is what was written
        while len(data := file.read(step)) == step:
            _, commit, *marks, first, second = _FRAME.unpack_from(data)
            distance = sum([(mark ^ salt).bit_count() for mark, salt in zip(marks, salts, strict=True)])
            if distance > NEAR:
                break
            if sums is not None:
                sums = _sum(data[_FRAME.size :], big, _sum(data[:8], big, sums))
                sums = sums if sums == (first, second) and not distance else None
            rest.append((commit, sums is not None))
    broken = [number for number, (_, whole) in enumerate(rest) if not whole]
    if broken and (broken[0] < len(rest) - 1 or rest[-1][0]):
        raise damaged(name, f"its log is changed at frame {recovered + broken[0] + 1}: the commits behind it are lost")


def _sum(data: bytes, big: bool, start: tuple[int, int]) -> tuple[int, int]:
    words = Struct(f"{'>' if big else '<'}{len(data) // 4}I").unpack(data)
    a, b = start
    for i in range(0, len(words), 2):
        a = (a + words[i] + b) & 0xFFFFFFFF
        b = (b + words[i + 1] + a) & 0xFFFFFFFF
    return a, b


def _plain(text: str) -> str:
    return " ".join(text.split())
