"""What a job gets: the session, the events of its time, the names, and the tables that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..broker.journal.place import Place
from .dates import DAY
from .errors import PipelineError
from .reading.events import events, expanded
from .reading.names import names_frame, names_of, prefixes_frame
from .reading.segments import Selection
from .tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EPOCH = date(1970, 1, 1)


@dataclass(slots=True)
class Written:
    """One table that a job has written. rows: of this run. removed: rows of the same dates that were there before."""

    table: str
    rows: int
    files: int
    bytes: int


@dataclass
class Context:
    """since, until: microseconds since 1970, whole days (UTC), the second one not included; None: no bound.

    options: of jobs, by `job.option`, as text. say: is told what a job is doing. written: by job.
    """

    spark: SparkSession
    journal: Place
    selection: Selection
    tables: Tables
    now: int
    since: int | None = None
    until: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None
    written: list[Written] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    # reading

    def events(self, *columns: str, by: str = "published") -> DataFrame:
        """Events of the run's time. columns: none is all. by: `published` (of a message's day) or `time` (of the event itself)."""
        wanted = tuple(dict.fromkeys((*columns, by))) if columns else ()
        frame = events(self.spark, self.journal, self.selection, *wanted).where(self.within(by))
        return frame.select(*columns) if columns else frame

    def messages_of(self, frame: DataFrame) -> DataFrame:
        """One row for each message (`expanded`)."""
        return expanded(frame, self.selection)

    def within(self, column: str) -> Column:
        """Whether a column of times is in the run's time."""
        from pyspark.sql import functions as F

        inside = F.lit(True)
        if self.since is not None:
            inside = inside & (F.col(column) >= self.since)
        if self.until is not None:
            inside = inside & (F.col(column) < self.until)
        return inside

    @cached_property
    def names(self) -> dict[int, str]:
        """id -> name of topics, clients, accounts, recipients and reasons."""
        found, wrong = names_of(self.journal)
        for path, text in wrong:
            self.say(f"names are missing, tables have numbers: {path}: {text}")
        return found

    def names_frame(self) -> DataFrame:
        return names_frame(self.spark, self.names)

    def prefixes_frame(self, levels: int) -> DataFrame:
        return prefixes_frame(self.spark, self.names, levels)

    def option(self, name: str, default: int) -> int:
        """A number among the options. Raises PipelineError."""
        text = self.options.get(name)
        if text is None:
            return default
        if not text.isdigit():
            raise PipelineError(f"--set {name}={text}: give a whole number, such as {name}={default}")
        return int(text)

    # writing

    @property
    def dates(self) -> list[str] | None:
        """The dates that a run with bounds makes anew; None: all."""
        if self.since is None and self.until is None:
            return None
        first = self.since // DAY if self.since is not None else 0
        if self.until is not None:
            last = self.until // DAY
        else:
            last = (self.selection.latest // DAY) + 1
        if self.since is None:
            first = min([last, *(segment.min_time // DAY - 1 for segment in self.selection.segments)])
        return [(_EPOCH + timedelta(days=day)).isoformat() for day in range(first, last)]

    def write(self, table: str, frame: DataFrame, **notes: Any) -> None:
        """Replace the run's dates of a table, or all of one without dates. A frame with a column `date` has dates."""
        dates = self.dates if "date" in frame.columns else None
        version = self.tables.write(table, frame, dates, **notes)
        self._note(table, version)

    def write_arrow(self, table: str, rows: Any, **notes: Any) -> None:
        """The same from a pyarrow table, for small tables that the driver makes."""
        dates = self.dates if "date" in rows.column_names else None
        self._note(table, self.tables.write_arrow(table, rows, dates, **notes))

    def table(self, name: str) -> DataFrame:
        """An output table that a job before has written, of the run's time."""
        frame = self.tables.frame(self.spark, name)
        dates = self.dates
        if dates is None or "date" not in frame.columns:
            return frame
        return frame.where(frame["date"].between(dates[0], dates[-1])) if dates else frame.limit(0)

    def _note(self, table: str, version: Any) -> None:
        files = [file for file in version.files if f"run={self.tables.run}/" in file.path]
        self.written.append(Written(table, sum(file.rows for file in files), len(files), sum(file.bytes for file in files)))


def day_bound(name: str, text: str | None) -> int | None:
    """A date such as 2026-11-22, in microseconds since 1970 (UTC). Raises PipelineError."""
    if text is None:
        return None
    try:
        moment = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError:
        raise PipelineError(f"--{name} {text}: give a date (UTC), such as 2026-11-22") from None
    return int(moment.timestamp()) * 1_000_000
