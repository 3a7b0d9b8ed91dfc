"""Which stores there are, by name.

    log           files of segments, the default
    sqlite        an SQLite file
    lmdb          an LMDB file
    postgresql:   a schema of a PostgreSQL database, by its URL

What it does not know: what is in them.
"""

from __future__ import annotations

from pathlib import Path

from .files import FileSegments
from .port import Segments

LOG, SQLITE, LMDB = "log", "sqlite", "lmdb"
KINDS = (LOG, SQLITE, LMDB)
POSTGRESQL = ("postgresql://", "postgres://")


def segments_in(folder: Path, kind: str = LOG, durability: str = "fsync") -> Segments:
    """The store of this name, or at this URL; what has no URL is in a folder. durability: "fsync" or "os"."""
    sync = durability == "fsync"
    if kind == SQLITE:
        from .sqlite import SqliteSegments

        return SqliteSegments(folder, sync)
    if kind == LMDB:
        from .lmdb import LmdbSegments

        return LmdbSegments(folder, sync)
    if kind.startswith(POSTGRESQL):
        from .postgresql import PostgresqlSegments

        return PostgresqlSegments(kind, sync)
    return FileSegments(folder, sync)
