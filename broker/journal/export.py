"""Exports a journal as spans: reads what is new, sends it, and keeps how far it came.

The position is kept in a file after each segment that the collector has taken. After a crash the segment comes again; its spans have the
same identifiers, so that a tracing tool shows them once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .following import Follower, Position, position_of, position_text
from .otlp import MOST, Collector
from .reading import Journal
from .spans import Spans, resource_spans


class Names:
    """Names of ids; read again when one is not known."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: dict[int, str] = {}
        self._asked: set[int] = set()

    def __call__(self, number: int) -> str | None:
        found = self._known.get(number)
        if found is None and number not in self._asked:
            self._known = self._journal.names()
            self._asked.add(number)
            found = self._known.get(number)
        return found

    def begin(self) -> None:
        """New names may have come."""
        self._asked.clear()


class Export:
    """One export. state: file that keeps the position; None: it begins at the journal's beginning each time."""

    def __init__(
        self, journal: Journal, collector: Collector, version: str, state: Path | None = None, site: Callable[[int], str] = str
    ) -> None:
        """Raises ValueError for a state file that is none."""
        self._state = state
        self._names = Names(journal)
        self._site, self._version = site, version
        self.collector = collector
        self.follower = Follower(journal, _position(state))
        self.spans = Spans(self._names, site)

    def once(self, progress: Callable[[int], None] | None = None) -> int:
        """Send what is new: how many spans. progress: is told how many so far. Raises ExportError.

        Segments that are damaged are left out: `follower.wrong`.
        """
        count = 0
        self._names.begin()
        for table, after in self.follower.read():
            found = self.spans.of(table)
            for start in range(0, len(found), MOST):
                part = found[start : start + MOST]
                self.collector.send(resource_spans(part, self._site, self._version), len(part))
                count += len(part)
                if progress is not None:
                    progress(count)
            self._keep(after)
        return count

    def _keep(self, position: Position) -> None:
        if self._state is not None:
            partial = self._state.with_name(self._state.name + ".partial")
            partial.write_text(json.dumps(position_text(position)))
            partial.replace(self._state)


def _position(state: Path | None) -> Position:
    if state is None or not state.exists():
        return {}
    try:
        values: Any = json.loads(state.read_text())
        return position_of(values)
    except (ValueError, AttributeError, OSError) as error:
        raise ValueError(f"{state}: keeps no position of an export: {error}: remove it to begin anew") from None


__all__ = ["Export", "Names"]
