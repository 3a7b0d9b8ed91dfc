"""What an earlier life of the broker left in its open folder, put in its place when the next one starts.

A life that begins leaves a file `EPOCH.life`, which it removes when it ends as it should. One that is found says that events may be
missing: those that were not yet written when the life ended, at most what waited for one batch.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..layout import IPC, Segment, counts_path, date_of, names_path, read_manifest
from ..place import Place
from ..reading import read_lines, read_open
from ..schema import COUNTS, NAMES
from .segment import parquet, store_events, table_of

LIFE = ".life"
RECOVERED = 1_000_000  # number of the dimension file that recovery writes: after those of the life itself


class Recovered(NamedTuple):
    """A life that ended without saying so. last: its last event that is kept, 0 without any. events: how many were recovered now."""

    epoch: int
    last: int
    events: int


def mark_life(folder: Path, epoch: int) -> None:
    """A life begins. Raises OSError."""
    (folder / f"{epoch}{LIFE}").write_bytes(b"")


def close_life(folder: Path, epoch: int) -> None:
    """It ends, and all of it is in its place."""
    with suppress(OSError):
        (folder / f"{epoch}{LIFE}").unlink()


def recover(place: Place, folder: Path, broker: int) -> list[Recovered]:
    """Put in its place what is left, and say of which lives something may be missing. Raises OSError."""
    here = Place(folder)
    epochs = sorted({_epoch(name) for name in os.listdir(folder)} - {None})  # type: ignore[type-var]
    if not epochs:
        return []
    known = {(one.epoch, one.first) for one in read_manifest(place, [broker]).segments}
    made = []
    for epoch in epochs:
        assert epoch is not None
        events = 0
        _put_lines(place, here, broker, epoch)
        for name in sorted(here.files("", IPC)):
            if _epoch(name) == epoch:
                found = read_open(here, name)
                if found.num_rows and (epoch, found.column("event")[0].as_py()) not in known:
                    store_events(place, found)
                    events += found.num_rows
                here.remove(name)
        if (folder / f"{epoch}{LIFE}").exists():
            made.append(Recovered(epoch, _last(read_manifest(place, [broker]).segments, epoch), events))
            close_life(folder, epoch)
    return made


def _last(segments: list[Segment], epoch: int) -> int:
    return max((one.last for one in segments if one.epoch == epoch), default=0)


def _epoch(name: str) -> int | None:
    text = name.partition("-")[0].removesuffix(LIFE)
    return int(text) if text.isdigit() else None


def _put_lines(place: Place, here: Place, broker: int, epoch: int) -> None:
    """Names and counters that stand in no file of their own yet."""
    names = [(kind, number, text) for kind, number, text in read_lines(here, f"{epoch}-names.jsonl")]
    if names:
        place.write(names_path(broker, epoch, RECOVERED), parquet(table_of(names, NAMES)))
        here.remove(f"{epoch}-names.jsonl")
    by_date: dict[str, list[tuple[int, ...]]] = {}
    for row in read_lines(here, f"{epoch}-counts.jsonl"):
        by_date.setdefault(date_of(row[0] * 60_000_000), []).append(tuple(row))
    for date, rows in by_date.items():
        path = counts_path(date, broker, epoch, min(row[0] for row in rows), max(row[0] for row in rows))
        place.write(path, parquet(table_of(rows, COUNTS)))
    here.remove(f"{epoch}-counts.jsonl")
