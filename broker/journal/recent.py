"""The journal of a running broker, searched by the broker itself: what has just been noted, open and closed segments.

Searches run in a thread of their own, one at a time. Manifests that were read once are kept, and so is what was read of the open
segment: a search reads only what has been appended since.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .export import Names
from .kinds import NONE
from .layout import IPC, JSON, MANIFEST, Manifest, Segment, broker_in
from .place import Place
from .reading import Journal
from .schema import arrow_schema
from .search import Query, Search, only_account

WAIT = 0.5  # seconds for the writer's thread to write what is noted
LOOK = 0.002
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
        self._data = bytearray()
        self._batches: list[Any] = []
        self._size = 0

    def table(self) -> Any:
        """Its events, as far as they are whole."""
        import pyarrow as pa

        try:
            with self.path.open("rb") as file:
                file.seek(len(self._data))
                self._data += file.read()
        except OSError:
            pass  # it has just been closed: its events are in a closed segment now
        if len(self._data) != self._size:
            self._size = len(self._data)
            self._batches = _whole(bytes(self._data))
        return pa.Table.from_batches(self._batches, arrow_schema()) if self._batches else arrow_schema().empty_table()


def _whole(data: bytes) -> list[Any]:
    import pyarrow as pa

    batches: list[Any] = []
    try:
        with pa.ipc.open_stream(io.BytesIO(data)) as stream:
            batches.extend(stream)
    except (pa.ArrowException, OSError, StopIteration):
        pass  # the end of what is whole
    return batches


class Recent:
    """Answers searches for one broker. folder: of its open segments. wake: has the writer write. pending: events not written."""

    def __init__(self, place: Place, broker: int, folder: Path, wake: Callable[[], None], pending: Callable[[], int]) -> None:
        self._journal = _Manifests(place, broker)
        self._names = Names(self._journal)
        self._folder = folder
        self._wake, self._pending = wake, pending
        self._open: dict[str, OpenFile] = {}

    def find(self, query: Query, account: int | None) -> dict[str, Any]:
        """Events of the messages that a query means, and the names in them. Blocks: for a thread.

        account: only messages of this one; None: all. Raises OSError when the journal cannot be read.
        """
        self._settle()
        found = Search(self._journal, opened=self._opened).find(query)
        events = found.events if account is None else only_account(found.events, account)
        self._names.begin()
        rows = events.slice(0, MOST_EVENTS).to_pylist()
        numbers = {row[name] for row in rows for name in ("topic", "client", "account", "recipient", "reason")} - {NONE}
        names = {str(number): name for number in numbers if (name := self._names(number)) is not None}
        skipped = [f"{path}: {text}" for path, text in found.skipped]
        return {"events": rows, "names": names, "skipped": skipped, "cut": max(0, events.num_rows - MOST_EVENTS)}

    def _settle(self) -> None:
        """What is noted now is written."""
        self._wake()
        ends = time.monotonic() + WAIT
        while self._pending() and time.monotonic() < ends:
            time.sleep(LOOK)

    def _opened(self) -> list[Any]:
        there = {path.name: path for path in self._folder.glob(f"*{IPC}")}
        self._open = {name: self._open.get(name) or OpenFile(path) for name, path in there.items()}
        return [one.table() for one in self._open.values()]
