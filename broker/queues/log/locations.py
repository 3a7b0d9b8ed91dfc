"""Which stores there are, by name.

    log           files of segments, the default
    sqlite        an SQLite file

What it does not know: what is in them.
"""

from __future__ import annotations

from pathlib import Path

from .files import FileSegments
from .port import Segments

LOG, SQLITE = "log", "sqlite"
KINDS = (LOG, SQLITE)


def segments_in(folder: Path, kind: str = LOG, durability: str = "fsync") -> Segments:
    """The store of this name in a folder. durability: "fsync" or "os"."""
    sync = durability == "fsync"
    if kind == SQLITE:
        from .sqlite import SqliteSegments

        return SqliteSegments(folder, sync)
    return FileSegments(folder, sync)
