"""Reading a journal without a broker: closed segments by the manifest, what is still being written, counters and names.

Needs pyarrow (the extra `mqmesh[journal]`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

from .kinds import Kind
from .layout import COUNTS_FOLDER, IPC, NAMES_FOLDER, OPEN_FOLDER, PARQUET, Manifest, Segment, broker_in, read_manifest
from .place import Place
from .schema import COUNTS, EVENTS, NAMES, arrow_schema, conform, version_of

Wrong = list[tuple[str, str]]  # files that cannot be used, by name, and the reason


class Damaged(Exception):
    """A file of the journal that cannot be used: one line with its name and the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


class Journal:
    """A journal as a reader sees it. root: a folder or URL. brokers: only these; None: all."""

    def __init__(self, root: str | Place, brokers: Iterable[int] | None = None) -> None:
        self.place = root if isinstance(root, Place) else Place(root)
        self.brokers = None if brokers is None else frozenset(brokers)

    def manifest(self) -> Manifest:
        return read_manifest(self.place, self.brokers)

    def segments(self, since: int | None = None, until: int | None = None, wrong: Wrong | None = None) -> list[Segment]:
        """Closed segments that may hold events of a time.

        since, until: microseconds since 1970, the second one not included. wrong: takes manifests that cannot be read.
        """
        manifest = self.manifest()
        if wrong is not None:
            wrong += manifest.rejected
        return [
            one
            for one in manifest.segments
            if (since is None or one.max_time >= since) and (until is None or one.min_time < until) and not one.newer
        ]

    def table(self, segment: Segment, columns: list[str] | None = None, verify: bool = True) -> Any:
        """The events of one segment, with today's columns. verify: compare the hash first. Raises Damaged."""
        try:
            data = self.place.read(segment.path)
        except OSError as error:
            raise Damaged(segment.path, str(error)) from None
        if verify and sha256(data).hexdigest() != segment.sha256:
            raise Damaged(segment.path, "its content is not what the manifest says: the hash differs")
        try:
            found = _parquet(data, columns)
        except Exception as error:  # pyarrow raises several kinds
            raise Damaged(segment.path, _line(error)) from None
        return found if columns else conform(found)

    def whole(self, segment: Segment, wrong: Wrong) -> Any | None:
        """The events of one segment; None: it is damaged, and `wrong` has it."""
        try:
            return self.table(segment)
        except Damaged as error:
            wrong.append((error.name, error.reason))
            return None

    def tables(
        self, since: int | None = None, until: int | None = None, open_too: bool = True, wrong: Wrong | None = None
    ) -> Iterator[Any]:
        """The events of a time, a table for each segment. open_too: also what is still being written.

        wrong: takes the files that are damaged, whose events are left out; None: a damaged segment raises Damaged.
        """
        closed = set()
        for segment in self.segments(since, until, wrong):
            closed.add((segment.broker, segment.epoch, segment.first))
            found = self.table(segment) if wrong is None else self.whole(segment, wrong)
            if found is not None:
                yield between(found, since, until)
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
        wrong: Wrong = []
        closed = self._all(COUNTS_FOLDER, COUNTS, wrong)
        if wrong:
            raise Damaged(*wrong[0])
        return pa.concat_tables([closed, fresh])

    def names(self, wrong: Wrong | None = None) -> dict[int, str]:
        """id -> name, of all kinds. wrong: takes the files that are damaged, whose names are missing."""
        found = self._all(NAMES_FOLDER, NAMES, [] if wrong is None else wrong)
        made = dict(zip(found.column("id").to_pylist(), found.column("name").to_pylist(), strict=True))
        for name in self.place.files(OPEN_FOLDER, "-names.jsonl"):
            made.update((number, text) for _, number, text in read_open_names(self.place, name))
        return made

    def _all(self, folder: str, columns: tuple[tuple[str, str, int | None], ...], wrong: Wrong) -> Any:
        """The rows of all files of a folder. wrong: takes those that are damaged."""
        import pyarrow as pa

        tables = [arrow_schema(columns).empty_table()]
        for name in sorted(self.place.files(folder, PARQUET)):
            if self.brokers is None or broker_in(name) in self.brokers:
                try:
                    tables.append(conform(_parquet(self.place.read(name)), columns))
                except FileNotFoundError:
                    continue  # retention has just removed it
                except Exception as error:  # pyarrow raises several kinds
                    wrong.append((name, _line(error)))
        return pa.concat_tables(tables)

    def check(self, progress: Callable[[int, int], None] | None = None) -> Wrong:
        """What is wrong with segments, names and counters. progress: is told how many segments of how many were read."""
        manifest = self.manifest()
        wrong = list(manifest.rejected)
        self._all(NAMES_FOLDER, NAMES, wrong)
        self._all(COUNTS_FOLDER, COUNTS, wrong)
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
            yield error.reason
            return
        numbers = found.column("event").to_pylist()
        if found.num_rows != segment.events:
            yield f"has {found.num_rows} events, the manifest says {segment.events}"
        if numbers and (min(numbers), max(numbers)) != (segment.first, segment.last):
            yield f"has events {min(numbers)} to {max(numbers)}, the manifest says {segment.first} to {segment.last}"
        unknown = set(found.column("kind").to_pylist()) - {int(kind) for kind in Kind}
        if unknown:
            yield f"has events of unknown kinds: {sorted(unknown)[:5]}"


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
    try:
        data = place.read(name)
    except OSError:
        return arrow_schema().empty_table()  # it has just been closed
    return opened(data)


def opened(data: bytes) -> Any:
    """The events of an open segment's file, as far as they are whole."""
    import pyarrow as pa

    tables = [arrow_schema().empty_table()]
    try:
        with pa.ipc.open_stream(_own(data)) as stream:
            if version_of(stream.schema) > 1:
                return arrow_schema().empty_table()
            for batch in stream:
                batch.validate(full=True)  # nothing else compares lengths and texts of a damaged file with its bytes
                tables.append(conform(pa.Table.from_batches([batch])))
    except (pa.ArrowException, OSError, ValueError):
        pass  # the end of what is whole
    return pa.concat_tables(tables)


def read_open_names(place: Place, name: str) -> list[tuple[str, int, str]]:
    """kind, id and name of what stands in no dimension file yet, as far as it is whole."""
    return [(kind, number, text) for kind, number, text in read_lines(place, name)]


def read_lines(place: Place, name: str) -> list[Any]:
    """The whole lines of a file of JSON."""
    try:
        lines = place.read(name).split(b"\n")
    except OSError:
        return []
    return whole_lines(lines[:-1])


def whole_lines(lines: list[bytes]) -> list[Any]:
    """What lines of JSON say; those that are none are left out."""
    made = []
    for line in lines:
        with suppress(ValueError):
            made.append(json.loads(line))
    return made


def _parquet(data: bytes, columns: list[str] | None = None) -> Any:
    """A Parquet file that is in memory.

    pyarrow's threads may hold what they read a moment longer than we do. If these were bytes of Python, a program that ends would be
    aborted by a thread that gives them back. So it reads a copy in memory of its own, and not by `read_table`, which keeps threads busy.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(_own(data)).read(columns)


def _own(data: bytes) -> Any:
    """A copy in memory of pyarrow."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    sink.write(data)
    return sink.getvalue()


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__


__all__ = ["EVENTS", "Damaged", "Journal", "Wrong", "between", "read_open", "read_open_names"]
