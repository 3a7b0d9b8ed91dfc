"""The journal of a running broker, searched by the broker itself: what has just been noted, open and closed segments.

Searches run in a thread of their own, one at a time. Manifests that were read once are kept, and so is what was read of the open
segment: a search reads only what has been appended since.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .export import Names
from .kinds import NONE
from .layout import IPC, JSON, MANIFEST, Manifest, Segment, broker_in
from .place import Place
from .reading import Journal
from .schema import arrow_schema
from .search import Part, Query, Search, only_account

WAIT = 0.5  # seconds for the writer's thread to write what is noted
TOGETHER = 32  # batches of an open segment
MOST_EVENTS = 20_000  # in one answer


class _Manifests(Journal):
    """A journal whose manifests are read once."""

    def __init__(self, place: Place, broker: int) -> None:
        super().__init__(place, (broker,))
        self._known: dict[str, Segment] = {}

    def manifest(self) -> Manifest:
        made = Manifest()
        there = {name for name in self.place.files(MANIFEST, JSON) if self.brokers is None or broker_in(name) in self.brokers}
        for name in self._known.keys() - there:
            del self._known[name]
        for name in there - self._known.keys():
            try:
                self._known[name] = Segment.loaded(self.place.read(name))
            except (ValueError, OSError) as error:
                made.rejected.append((name, str(error)))
        replaced = {name for segment in self._known.values() for name in segment.replaces}
        made.segments = sorted(
            (one for name, one in self._known.items() if name not in replaced or name in one.replaces),
            key=lambda one: (one.epoch, one.first),
        )
        return made


class OpenFile:
    """One segment that is being written: its batches, read as they are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0  # of what has been read, in bytes; it begins with the schema
        self._parts: list[Part] = []  # of TOGETHER batches each
        self._last: list[Any] = []  # batches that are in none of them yet

    def parts(self) -> list[Part]:
        """Its events, as far as they are whole. A search leaves out all parts but those that may hold a message."""
        import pyarrow as pa

        try:
            with self.path.open("rb") as file:
                file.seek(self._end)
                self._read(pa.py_buffer(file.read()))
        except OSError:
            pass  # it has just been closed: its events are in a closed segment now
        if not self._last:
            return [*self._parts]
        return [*self._parts, Part(pa.Table.from_batches(self._last).combine_chunks())]

    def _read(self, data: Any) -> None:
        """Take the messages that are whole; what follows them is read again later."""
        import pyarrow as pa

        source, begun = pa.BufferReader(data), self._end
        while source.tell() < data.size:
            try:
                message = pa.ipc.read_message(source)
            except (pa.ArrowException, OSError, EOFError):
                return  # the end of what is whole
            self._end = begun + source.tell()
            if message.type == "record batch":
                self._last.append(pa.ipc.read_record_batch(message, arrow_schema()))
            if len(self._last) == TOGETHER:
                self._parts.append(Part.bounded(pa.Table.from_batches(self._last).combine_chunks()))
                self._last = []


class Recent:
    """Answers searches for one broker. folder: of its open segments. settle: waits, so many seconds at most, until all noted is written."""

    def __init__(self, place: Place, broker: int, folder: Path, settle: Callable[[float], object]) -> None:
        self._journal = _Manifests(place, broker)
        self._names = Names(self._journal)
        self._folder = folder
        self._settle = settle
        self._open: dict[str, OpenFile] = {}

    def find(self, query: Query, account: int | None) -> dict[str, Any]:
        """Events of the messages that a query means, and the names in them. Blocks: for a thread.

        account: only messages of this one; None: all. Raises OSError when the journal cannot be read.
        """
        self._settle(WAIT)
        found = Search(self._journal, opened=self._opened).find(query)
        events = found.events if account is None else only_account(found.events, account)
        self._names.begin()
        rows = events.slice(0, MOST_EVENTS).to_pylist()
        numbers = {row[name] for row in rows for name in ("topic", "client", "account", "recipient", "reason")} - {NONE}
        names = {str(number): name for number in numbers if (name := self._names(number)) is not None}
        skipped = [f"{path}: {text}" for path, text in found.skipped]
        return {"events": rows, "names": names, "skipped": skipped, "cut": max(0, events.num_rows - MOST_EVENTS)}

    def _opened(self) -> list[list[Part]]:
        there = {path.name: path for path in self._folder.glob(f"*{IPC}")}
        self._open = {name: self._open.get(name) or OpenFile(path) for name, path in there.items()}
        return [one.parts() for one in self._open.values()]
