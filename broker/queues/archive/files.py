"""The files of an archive: Parquet, one for each segment of a queue, so that writing one again replaces it.

    FOLDER/queue=orders/date=2026-11-23/porto-log-000000000017-20001-1795428000000.parquet

date: when the first of its messages was put. The name: site, store, segment, first position, and that time. A file gets its name when it is
whole and on the disk; before, it is called `.NAME.part`, and a later try writes over it.

It needs pyarrow (the extra `mqmesh[journal]`). What it does not know: brokers, the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ....base.extras import install
from ....base.process.files import sync_folder

VERSION = "1"
SUFFIX = ".parquet"
ROWS, BYTES = 10_000, 8 << 20  # of one row group

Row = dict[str, Any]


def missing() -> str | None:
    """Why there can be no archive here; None: there can be one."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        return f"an archive of queues needs more packages: {install('journal')} ({error})"
    return None


def schema() -> Any:
    """The columns. Times in UTC."""
    import pyarrow as pa

    text, time = pa.string(), pa.timestamp("ms", "UTC")
    step = pa.struct([("who", text), ("role", text), ("state", text), ("at", time)])
    pair = pa.struct([("name", text), ("value", text)])
    properties = [("text", pa.bool_()), ("content_type", text), ("response_topic", text), ("correlation", pa.binary())]
    columns = [
        *(("queue", text), ("site", text), ("position", pa.int64()), ("publisher", text), ("put", time)),
        *(("state", text), ("states", pa.list_(step)), ("handle", text), ("message_group", text), ("priority", pa.int8())),
        *(("due", time), ("expires", time), ("topic", text)),
        *(("properties", pa.struct([*properties, ("user", pa.list_(pair))])), ("payload", pa.binary())),
    ]
    return pa.schema(columns, metadata={"mqmesh-queue-archive": VERSION})


def path_of(folder: Path, queue: str, name: str, put: int) -> Path:
    """Where a file goes. put: when the first of its messages was put, in milliseconds since 1970."""
    date = datetime.fromtimestamp(put / 1000, UTC).date().isoformat()
    return folder / f"queue={queue}" / f"date={date}" / (name + SUFFIX)


def write(path: Path, rows: Iterable[Row]) -> int:
    """Write a file, whole or not at all: how many rows it has. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = _folders(path.parent)
    part = path.with_name(f".{path.name}.part")
    columns, count = schema(), 0
    try:
        with part.open("wb") as file:
            with pq.ParquetWriter(file, columns, compression="zstd") as writer:
                for group in _groups(rows):
                    writer.write_table(pa.Table.from_pylist(group, columns))
                    count += len(group)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    for one in (path.parent, *made):
        sync_folder(one)
    return count


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row["payload"] or b"")
        if len(group) == ROWS or size >= BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _folders(folder: Path) -> list[Path]:
    """Make folders: those that have a new name in them."""
    wanted, made = folder, []
    while not folder.exists():
        folder = folder.parent
        made.append(folder)
    wanted.mkdir(parents=True, exist_ok=True)
    return made


# ---- reading


class Archived(NamedTuple):
    """A file. first, last: positions. since, until: when messages were put, as text."""

    queue: str
    path: Path
    messages: int
    first: int
    last: int
    since: str
    until: str
    size: int


def files(folder: Path, queue: str | None = None) -> list[Archived]:
    """The files of an archive, or of one queue in it, in order of positions. Raises OSError, ValueError for one that is no such file."""
    import pyarrow.parquet as pq

    found = []
    for path in folder.glob(f"queue={queue or '*'}/date=*/*{SUFFIX}"):
        if path.name.startswith("."):
            continue
        columns = pq.read_table(path, columns=["position", "put"], partitioning=None)
        positions, puts = columns["position"].to_pylist(), columns["put"].to_pylist()
        since, until = min(puts).isoformat(timespec="milliseconds"), max(puts).isoformat(timespec="milliseconds")
        name = path.parent.parent.name.removeprefix("queue=")
        found.append(Archived(name, path, len(positions), min(positions), max(positions), since, until, path.stat().st_size))
    return sorted(found, key=lambda one: (one.queue, one.first, str(one.path)))


def read(folder: Path, queue: str, begin: int = 0, since: datetime | None = None, most: int | None = None) -> list[Row]:
    """Messages of a queue in order of positions, from one on, put at a time or later. Raises OSError, ValueError."""
    import pyarrow.dataset as ds

    paths = [str(one.path) for one in files(folder, queue) if one.last >= begin]
    if not paths:
        return []
    wanted = ds.field("position") >= begin
    if since is not None:
        wanted &= ds.field("put") >= since
    table = ds.dataset(paths, schema=schema(), format="parquet").to_table(filter=wanted)
    table = table.sort_by([("site", "ascending"), ("position", "ascending")])
    rows: list[Row] = (table if most is None else table.slice(0, most)).to_pylist()
    return rows
