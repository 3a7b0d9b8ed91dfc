"""One open segment: an Arrow IPC stream in a local folder, and what closing it makes of it.

Invariant: what `append` has written is whole. A write that fails is cut off again, so that a reader finds whole batches.
"""

from __future__ import annotations

import io
import logging
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..kinds import VERSION
from ..layout import IPC, Segment, date_of, events_path
from ..place import Place
from ..reading import opened
from ..schema import arrow_schema

log = logging.getLogger("mqmesh.journal")


class OpenSegment:
    """Events that are being collected, in a file and not in memory.

    path: of the file. rows: how many it holds. size: bytes of the file. begun: seconds, of the caller.
    """

    def __init__(self, folder: Path, epoch: int, first: int, begun: float) -> None:
        import pyarrow as pa

        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{epoch}-{first}{IPC}"
        self.begun = begun
        self.rows = 0
        self.size = 0
        self._file = self.path.open("wb", buffering=0)
        self._buffer = io.BytesIO()
        self._stream = pa.ipc.new_stream(self._buffer, arrow_schema())

    def append(self, table: Any) -> None:
        """Write a batch. Raises OSError; then nothing of it is there."""
        self._buffer.seek(0, os.SEEK_END)
        self._stream.write_table(table)
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self.size)
            raise
        self.size += len(data)
        self.rows += table.num_rows

    def close(self) -> None:
        """No more is written."""
        with suppress(OSError):
            self._file.close()

    def table(self) -> Any:
        """What it holds, read again. Raises OSError where the file is there and cannot be read."""
        try:
            found = opened(self.path.read_bytes())
        except FileNotFoundError:
            found = arrow_schema().empty_table()
        if found.num_rows < self.rows:
            log.error("event=journal-damaged file=%s events=%d written=%d", self.path, found.num_rows, self.rows)
        return found

    def remove(self) -> None:
        """What it holds stands elsewhere."""
        self.close()
        with suppress(OSError):
            self.path.unlink()


def warm_up() -> None:
    """Have the libraries import what they import at their first use (pandas too, if it is there), before there is traffic that waits."""
    import pyarrow as pa

    pa.array((1,), pa.int64())
    parquet(arrow_schema().empty_table())


def parquet(table: Any) -> bytes:
    """A table as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=3, use_dictionary=["kind", "broker", "topic", "client", "account"])
    return bytes(sink.getvalue().to_pybytes())


def store_events(place: Place, table: Any, replaces: list[str] | None = None) -> list[Segment]:
    """Write events of one life as closed segments, one for each date: the file, then its manifest. Raises OSError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not table.num_rows:
        return []
    broker, epoch = table.column("broker")[0].as_py(), table.column("epoch")[0].as_py()
    days = pc.floor(pc.divide(table.column("time"), 86_400_000_000))
    made = []
    for day in pc.unique(days).to_pylist():
        part = table.filter(pc.equal(days, pa.scalar(day, days.type)))
        first, last = pc.min_max(part.column("event")).as_py().values()
        low, high = pc.min_max(part.column("time")).as_py().values()
        data = parquet(part)
        path = events_path(date_of(low), broker, epoch, first, last)
        digest = sha256(data).hexdigest()
        segment = Segment(path, VERSION, broker, epoch, first, last, part.num_rows, low, high, digest, len(data), replaces or [])
        place.write(segment.path, data)
        place.write(segment.name, segment.dumped())
        made.append(segment)
    return made


def table_of(found: list[Any], columns: tuple[tuple[str, str, int | None], ...]) -> Any:
    """Rows as a table."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    made = zip(*found, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(made, schema, strict=True)], schema=schema)
