"""Versions of an output table: which files it consists of.

    TABLE/_manifest/00000012.json       the files of version 12; the highest number is the table
    TABLE/data/run=RUN/date=.../...     files that a run has written

A run writes its files first and then a new version that names them. Until then nobody reads them; afterwards nobody reads those that they
replace. So a reader never sees half a run, a run that is killed changes nothing, and a second run of the same days replaces and never
doubles. Files stay as long as one of the last `KEPT` versions names them, for readers that began before.

It knows files and numbers, not Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...broker.journal.place import Place
from ..errors import PipelineError

FOLDER = "_manifest"
KEPT = 2
_TRIES = 20


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file. path: below the table's folder. date: its partition; "" in a table without dates."""

    path: str
    rows: int
    bytes: int
    date: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table. schema: Spark's, as JSON. made: microseconds since 1970. run: which run made it. notes: of jobs."""

    table: str
    number: int = 0
    schema_version: int = 0
    schema: dict[str, Any] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    made: int = 0
    run: str = ""
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def dates(self) -> list[str]:
        return sorted({file.date for file in self.files if file.date})

    @property
    def name(self) -> str:
        return f"{self.table}/{FOLDER}/{self.number:08}.json"

    def dumped(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def loaded(cls, data: bytes) -> Version:
        """Raises ValueError."""
        values = json.loads(data)
        values["files"] = tuple(File(**one) for one in values["files"])
        return cls(**values)


def versions(place: Place, table: str) -> list[str]:
    """Names of the manifests of a table, the newest first."""
    return sorted(place.files(f"{table}/{FOLDER}", ".json"), reverse=True)


def newest(place: Place, table: str) -> Version | None:
    """The table as it is now; None: nothing has been written. Raises PipelineError for a manifest that cannot be read."""
    for name in versions(place, table):
        try:
            return Version.loaded(place.read(name))
        except FileNotFoundError:
            continue  # a newer one took its place
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise PipelineError(f"{place.url(name)}: is no manifest of a table: {error}") from None
    return None


def commit(place: Place, table: str, change: Callable[[Version], Version]) -> Version:
    """Make a new version from the newest one. Of two runs at the same time the second one starts from what the first one wrote.

    change: is called again with the newer version where another run was faster. Raises PipelineError, OSError.
    """
    for _ in range(_TRIES):
        before = newest(place, table) or Version(table)
        values = {**_fields(change(before)), "table": table, "number": before.number + 1}
        made = Version(**values)
        if _create(place, made.name, made.dumped()):
            _tidy(place, table)
            return made
    raise PipelineError(f"{place.url(table)}: other runs write this table all the time: let one run end before the next")


def replaced(before: Version, files: Iterable[File], dates: Iterable[str] | None) -> tuple[File, ...]:
    """The files of a table after a run. dates: those that the run made anew; None: all of the table."""
    if dates is None:
        return tuple(files)
    gone = set(dates)
    return (*(file for file in before.files if file.date not in gone), *files)


def _fields(version: Version) -> dict[str, Any]:
    return {name: getattr(version, name) for name in Version.__dataclass_fields__}


def _create(place: Place, name: str, data: bytes) -> bool:
    """Write a file unless it is there already."""
    if place.remote:
        if place.exists(name):
            return False
        place.write(name, data)
        return True
    path = Path(place.url(name))
    partial = f"{name}.{uuid4().hex[:8]}"
    place.write(partial, data)
    try:
        os.link(place.url(partial), path)
    except FileExistsError:
        return False
    finally:
        place.remove(partial)
    return True


def _tidy(place: Place, table: str) -> None:
    """Delete the versions before the last ones, and the files that only those name."""
    names = versions(place, table)
    kept = {file.path for name in names[:KEPT] for file in _files(place, name)}
    for name in names[KEPT:]:
        for file in _files(place, name):
            if file.path not in kept:
                place.remove(f"{table}/{file.path}")
        place.remove(name)


def _files(place: Place, name: str) -> tuple[File, ...]:
    try:
        return Version.loaded(place.read(name)).files
    except (OSError, ValueError, KeyError, TypeError):
        return ()
