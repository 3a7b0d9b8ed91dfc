"""Reading a journal without a broker: closed segments by the manifest, what is still being written, counters and names.

Needs pyarrow (the extra `mqmesh[journal]`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

from .kinds import Kind
from .layout import COUNTS_FOLDER, IPC, NAMES_FOLDER, OPEN_FOLDER, PARQUET, Manifest, Segment, broker_in, read_manifest
from .place import Place
from .schema import COUNTS, EVENTS, NAMES, arrow_schema, conform, version_of


class Damaged(Exception):
    """A file of the journal that cannot be used: one line with its name and the reason."""


class Journal:
    """A journal as a reader sees it. root: a folder or URL. brokers: only these; None: all."""

    def __init__(self, root: str | Place, brokers: Iterable[int] | None = None) -> None:
        self.place = root if isinstance(root, Place) else Place(root)
        self.brokers = None if brokers is None else frozenset(brokers)

    def manifest(self) -> Manifest:
        return read_manifest(self.place, self.brokers)

    def segments(self, since: int | None = None, until: int | None = None) -> list[Segment]:
        """Closed segments that may hold events of a time. since, until: microseconds since 1970, the second one not included."""
        found = self.manifest().segments
        return [
            one for one in found if (since is None or one.max_time >= since) and (until is None or one.min_time < until) and not one.newer
        ]

    def table(self, segment: Segment, columns: list[str] | None = None, verify: bool = True) -> Any:
        """The events of one segment, with today's columns. verify: compare the hash first. Raises Damaged."""
        import pyarrow.parquet as pq

        try:
            data = self.place.read(segment.path)
        except OSError as error:
            raise Damaged(f"{segment.path}: {error}") from None
        if verify and sha256(data).hexdigest() != segment.sha256:
            raise Damaged(f"{segment.path}: its content is not what the manifest says: the hash differs")
        try:
            found = pq.read_table(io.BytesIO(data), columns=columns)
        except Exception as error:  # pyarrow raises several kinds
            raise Damaged(f"{segment.path}: {_line(error)}") from None
        return found if columns else conform(found)

    def tables(self, since: int | None = None, until: int | None = None, open_too: bool = True) -> Iterator[Any]:
        """The events of a time, a table for each segment. open_too: also what is still being written. Raises Damaged."""
        closed = set()
        for segment in self.segments(since, until):
            closed.add((segment.broker, segment.epoch, segment.first))
            yield between(self.table(segment), since, until)
        if open_too:
            for name in self.open_segments():
                found = read_open(self.place, name)
                if found.num_rows and self._is_open(found, closed):
                    yield between(found, since, until)

    def _is_open(self, found: Any, closed: set[tuple[int, int, int]]) -> bool:
        """Whether no segment that was read holds the same events; the writer closes one and deletes the open file afterwards."""
        first = (found.column("broker")[0].as_py(), found.column("epoch")[0].as_py(), found.column("event")[0].as_py())
        return first not in closed

    def open_segments(self) -> list[str]:
        """Names of the files that are being written, or were when their broker ended."""
        found = self.place.files(OPEN_FOLDER, IPC)
        return sorted(name for name in found if self.brokers is None or broker_in(name) in self.brokers)

    def dataset(self, since: int | None = None, until: int | None = None) -> Any:
        """A `pyarrow.dataset` of the closed segments of a local journal."""
        import pyarrow.dataset as ds

        paths = [self.place.url(one.path) for one in self.segments(since, until)]
        return ds.dataset(paths, schema=arrow_schema(), format="parquet", partitioning=None)

    def counts(self) -> Any:
        """The always-on counters, as a table of `COUNTS`, with those of the last minutes. Raises Damaged."""
        import pyarrow as pa

        rows = []
        for name in self.place.files(OPEN_FOLDER, "-counts.jsonl"):
            if self.brokers is None or broker_in(name) in self.brokers:
                rows += read_lines(self.place, name)
        schema = arrow_schema(COUNTS)
        columns: Any = zip(*rows, strict=True) if rows else [[] for _ in schema]
        fresh = pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
        return pa.concat_tables([self._all(COUNTS_FOLDER, COUNTS), fresh])

    def names(self) -> dict[int, str]:
        """id -> name, of all kinds. Raises Damaged."""
        found = self._all(NAMES_FOLDER, NAMES)
        made = dict(zip(found.column("id").to_pylist(), found.column("name").to_pylist(), strict=True))
        for name in self.place.files(OPEN_FOLDER, "-names.jsonl"):
            made.update((number, text) for _, number, text in read_open_names(self.place, name))
        return made

    def _all(self, folder: str, columns: tuple[tuple[str, str, int | None], ...]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [arrow_schema(columns).empty_table()]
        for name in sorted(self.place.files(folder, PARQUET)):
            if self.brokers is None or broker_in(name) in self.brokers:
                try:
                    tables.append(conform(pq.read_table(io.BytesIO(self.place.read(name))), columns))
                except FileNotFoundError:
                    continue  # retention has just removed it
                except Exception as error:  # pyarrow raises several kinds
                    raise Damaged(f"{name}: {_line(error)}") from None
        return pa.concat_tables(tables)

    def check(self, progress: Callable[[int, int], None] | None = None) -> list[tuple[str, str]]:
        """What is wrong: name of a file, reason. progress: is told how many segments of how many were read."""
        manifest = self.manifest()
        wrong = list(manifest.rejected)
        for number, segment in enumerate(manifest.segments, 1):
            if segment.newer:
                wrong.append((segment.path, f"was written by a later release (schema version {segment.schema_version})"))
            else:
                wrong += [(segment.path, text) for text in self._wrong(segment)]
            if progress is not None:
                progress(number, len(manifest.segments))
        return wrong

    def _wrong(self, segment: Segment) -> Iterator[str]:
        try:
            found = self.table(segment)
        except Damaged as error:
            yield str(error).partition(": ")[2]
            return
        numbers = found.column("event").to_pylist()
        if found.num_rows != segment.events:
            yield f"has {found.num_rows} events, the manifest says {segment.events}"
        if numbers and (min(numbers), max(numbers)) != (segment.first, segment.last):
            yield f"has events {min(numbers)} to {max(numbers)}, the manifest says {segment.first} to {segment.last}"
        unknown = set(found.column("kind").to_pylist()) - {int(kind) for kind in Kind}
        if unknown:
            yield f"has events of unknown kinds: {sorted(unknown)[:5]}"


class Follower:
    """Gives what is new in a journal since the last look, open segments included."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: dict[tuple[int, int], int] = {}  # (broker, epoch) -> the last event that was given

    def fresh(self) -> Iterator[Any]:
        """Tables of new events, in the order of each broker's. The first call gives nothing, and begins here. Raises Damaged."""
        first, self._begun = not self._begun, True
        for segment in self._journal.segments():
            life = segment.broker, segment.epoch
            if segment.last > self._seen.get(life, 0):
                if not first:
                    yield from self._after(self._journal.table(segment))
                self._seen[life] = segment.last
        for name in self._journal.open_segments():
            found = read_open(self._journal.place, name)
            if found.num_rows:
                life = found.column("broker")[0].as_py(), found.column("epoch")[0].as_py()
                last = found.column("event")[-1].as_py()
                if last > self._seen.get(life, 0):
                    if not first:
                        yield from self._after(found)
                    self._seen[life] = last

    _begun = False

    def _after(self, table: Any) -> Iterator[Any]:
        import pyarrow.compute as pc

        life = table.column("broker")[0].as_py(), table.column("epoch")[0].as_py()
        yield table.filter(pc.greater(table.column("event"), self._seen.get(life, 0)))


def between(table: Any, since: int | None, until: int | None) -> Any:
    """The events of a time."""
    import pyarrow.compute as pc

    if since is not None:
        table = table.filter(pc.greater_equal(table.column("time"), since))
    if until is not None:
        table = table.filter(pc.less(table.column("time"), until))
    return table


def read_open(place: Place, name: str) -> Any:
    """The events of a segment that is being written, as far as they are whole."""
    import pyarrow as pa

    try:
        data = place.read(name)
    except OSError:
        return arrow_schema().empty_table()  # it has just been closed
    batches = []
    try:
        with pa.ipc.open_stream(io.BytesIO(data)) as stream:
            if version_of(stream.schema) > 1:
                return arrow_schema().empty_table()
            for batch in stream:
                batches.append(batch)
    except (pa.ArrowInvalid, OSError, StopIteration, pa.ArrowException):
        pass  # the end of what is whole
    return conform(pa.Table.from_batches(batches)) if batches else arrow_schema().empty_table()


def read_open_names(place: Place, name: str) -> list[tuple[str, int, str]]:
    """kind, id and name of what stands in no dimension file yet, as far as it is whole."""
    return [(kind, number, text) for kind, number, text in read_lines(place, name)]


def read_lines(place: Place, name: str) -> list[Any]:
    """The whole lines of a file of JSON."""
    try:
        lines = place.read(name).split(b"\n")
    except OSError:
        return []
    made = []
    for line in lines[:-1]:
        with suppress(ValueError):
            made.append(json.loads(line))
    return made


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__


__all__ = ["EVENTS", "Damaged", "Journal", "between", "read_open", "read_open_names"]
