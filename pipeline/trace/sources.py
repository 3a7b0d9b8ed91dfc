"""Where a trace's messages are looked up: journals of sites, and what others bring as events; the rest is in `story.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...broker.journal.place import Place
from ...broker.journal.reading import Journal, Wrong
from ...broker.journal.search import Query, Search
from ..errors import MissingExtra, PipelineError
from .story import Story, stories


@dataclass(slots=True)
class Gathered:
    """Events of several sources. rows: of the journal's columns. notes: what could not be read, one line each."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    live: set[tuple[int, int, int]] = field(default_factory=set)

    def stories(self) -> list[Story]:
        """One for each message, the newest first. A message with an event that a broker answered is from "live"."""
        made = stories(self.rows, self.names.get)
        fresh = self._live_messages()
        for one in made:
            if one.message in fresh:
                one.source = "live"
        return made

    def _live_messages(self) -> set[str]:
        return {
            f"{row['origin']}.{row['origin_epoch']}.{row['stream']}.{row['sequence']}"
            for row in self.rows
            if (row["broker"], row["epoch"], row["event"]) in self.live
        }

    def add_live(self, rows: Iterable[dict[str, Any]], names: dict[int, str]) -> None:
        """Events that a running broker answered."""
        for row in rows:
            self.rows.append(row)
            self.live.add((row["broker"], row["epoch"], row["event"]))
        self.names.update(names)


def journal_at(root: str) -> Journal:
    """A journal to search. Raises PipelineError when the address cannot be used, or pyarrow is not there."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtra("pyarrow", "journal") from None
    try:
        return Journal(Place(root))
    except ValueError as error:
        raise PipelineError(str(error)) from None


def gather(journals: Iterable[Journal], query: Query, into: Gathered | None = None) -> Gathered:
    """What journals know of the messages that a query means.

    A message has events at several sites: those that one journal finds are looked up in the others too. Raises PipelineError when a journal
    cannot be listed.
    """
    made = into or Gathered()
    searches = []
    for journal in journals:
        names = _names(journal, made)
        searches.append(Search(journal, names))
    found = [_find(search, query, made) for search in searches]
    if query.message is None and len(searches) > 1:
        everywhere = sorted({message for one in found for message in one.messages})
        newest = _newest(found, query.limit)
        for search in searches:
            for message in everywhere:
                if message in newest:
                    made.rows += _find(search, Query(message=message), made).events.to_pylist()
    else:
        for one in found:
            made.rows += one.events.to_pylist()
    return made


def _newest(found: list[Any], limit: int) -> set[Any]:
    """The newest messages of what several journals found."""
    times: dict[Any, int] = {}
    for one in found:
        columns = [one.events.column(name).to_pylist() for name in ("origin", "origin_epoch", "stream", "sequence", "published")]
        times.update({values[:4]: values[4] for values in zip(*columns, strict=True)})
    return set(sorted(times, key=lambda message: times[message], reverse=True)[:limit])


def _find(search: Search, query: Query, made: Gathered) -> Any:
    try:
        found = search.find(query)
    except OSError as error:
        raise PipelineError(f"the journal cannot be listed: {error}") from None
    made.notes += [f"{path}: {text}" for path, text in found.skipped]
    return found


def _names(journal: Journal, made: Gathered) -> dict[int, str]:
    wrong: Wrong = []
    names = journal.names(wrong)
    made.notes += [f"names are missing: {path}: {text}" for path, text in wrong]
    made.names.update(names)
    return names
