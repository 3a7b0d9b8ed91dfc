"""Events become a journal: segments, dimension files, counters, manifests, as a broker writes them."""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...broker.journal.layout import Segment, counts_path, date_of, events_path, names_path
from ...broker.journal.place import Place
from ...broker.journal.schema import COUNTS, EVENTS, NAMES, VERSION, Kind, arrow_schema, name_id
from .events import Columns, Messages
from .scene import DAY, Scene

MINUTE = 60_000_000  # microseconds
_WORKERS = 2
_ZEROS = ("session",)
_NO_DICTIONARY = ("time", "mono", "event", "sequence", "published", "hop", "call")
_COUNTED = ("minute", "broker", "kind", "topic", "account", "recipient")


class Writer:
    """Writes chunks of events. written: events until now. Files are written by threads; `close` waits for them."""

    def __init__(self, place: Place, scene: Scene) -> None:
        self.place, self.scene = place, scene
        self.written = 0
        self.bytes = 0
        self.segments: list[Segment] = []
        self._next = dict.fromkeys(scene.brokers, 1)
        self._pool = ThreadPoolExecutor(_WORKERS)
        self._waiting: list[Future[None]] = []
        self._counts = arrow_schema(COUNTS).empty_table()
        self._dictionary = [name for name, kind, _ in EVENTS if name not in _NO_DICTIONARY]

    def write(self, columns: Columns, messages: Messages | None = None) -> None:
        """One chunk: a segment for each broker and date. messages: for their traces and parents."""
        self._count(columns)
        order = np.lexsort((columns["true"], columns["broker"]))
        brokers = columns["broker"][order]
        texts = _texts(messages, self.scene.epoch) if messages is not None else (None, None)
        edges = np.searchsorted(brokers, [*self.scene.brokers, max(self.scene.brokers) + 1])
        while len(self._waiting) > 2 * len(self.scene.brokers):
            self._waiting.pop(0).result()
        for broker, begin, end in zip(self.scene.brokers, edges, edges[1:], strict=False):
            places = order[begin:end]
            days = columns["time"][places] // DAY
            for day in np.unique(days):
                chosen = places[days == day]
                first = self._next[broker]
                self._next[broker] += len(chosen)
                self._waiting.append(self._pool.submit(self._segment, columns, chosen, texts, broker, first))
        self.written += len(order)

    def _segment(self, columns: Columns, chosen: np.ndarray, texts: tuple[Any, Any], broker: int, first: int) -> None:
        table = self._table(columns, chosen, texts, broker, first)
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd", compression_level=1, use_dictionary=self._dictionary, write_statistics=True)
        data, times = sink.getvalue(), columns["time"][chosen]
        last, epoch = first + len(chosen) - 1, self.scene.epoch
        path = events_path(date_of(int(times[0])), broker, epoch, first, last)
        segment = Segment(
            path, VERSION, broker, epoch, first, last, len(chosen), int(times.min()), int(times.max()), sha256(data).hexdigest(), len(data)
        )
        self.place.write(path, data)
        self.place.write(segment.name, segment.dumped())
        self.segments.append(segment)
        self.bytes += len(data)

    def _table(self, columns: Columns, chosen: np.ndarray, texts: tuple[Any, Any], broker: int, first: int) -> Any:
        count, schema = len(chosen), arrow_schema()
        own = {
            "epoch": np.full(count, self.scene.epoch),
            "event": np.arange(first, first + count),
            "mono": columns["true"][chosen] - self.scene.order.start + 3_600_000_000,
            "origin_epoch": np.where(columns["origin"][chosen] >= 0, self.scene.epoch, 0),
        }
        arrays = []
        index = columns["message"][chosen]
        for field in schema:
            if field.name in ("trace", "parent"):
                text = texts[("trace", "parent").index(field.name)]
                arrays.append(pa.nulls(count, pa.string()) if text is None else text.take(pa.array(index, mask=index < 0)))
            elif field.name == "detail":
                detail = columns.get("detail")
                arrays.append(pa.nulls(count, pa.string()) if detail is None else pa.array(detail[chosen], pa.string()))
            elif field.name in _ZEROS:
                arrays.append(pa.array(np.zeros(count, np.int64)))
            else:
                values = own[field.name] if field.name in own else columns[field.name][chosen]
                arrays.append(pa.array(values.astype(field.type.to_pandas_dtype(), copy=False)))
        return pa.table(arrays, schema=schema)

    def _count(self, columns: Columns) -> None:
        numbers = {name: columns[name] for name in ("broker", "kind", "topic", "account", "recipient", "bytes")}
        table = pa.table({"minute": columns["time"] // MINUTE, **numbers, "messages": columns["count"].astype(np.int64)})
        made = _sums(table.cast(_schema_as(table.column_names)))
        self._counts = _sums(pa.concat_tables([self._counts, made.select(self._counts.column_names).cast(self._counts.schema)]))
        self._counts = self._counts.select([name for name, _, _ in COUNTS]).cast(arrow_schema(COUNTS))

    def close(self) -> None:
        """Wait for all files; then write names and counters."""
        for one in self._waiting:
            one.result()
        self._pool.shutdown()
        texts = self.scene.texts()
        names = pa.table(
            [[kind for kind, _ in texts], [name_id(name) for _, name in texts], [name for _, name in texts]], schema=arrow_schema(NAMES)
        )
        first = self.scene.brokers[0]
        self.place.write(names_path(first, self.scene.epoch, 1), _parquet(names))
        days, brokers = self._counts.column("minute").to_numpy() // 1440, self._counts.column("broker").to_numpy()
        for day in np.unique(days):
            for broker in np.unique(brokers[days == day]):
                part = self._counts.filter(pa.array((days == day) & (brokers == broker)))
                minutes = part.column("minute").to_numpy()
                path = counts_path(date_of(int(day) * DAY), int(broker), self.scene.epoch, int(minutes.min()), int(minutes.max()))
                self.place.write(path, _parquet(part))


def _parquet(table: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _schema_as(names: list[str]) -> Any:
    known = arrow_schema(COUNTS)
    return pa.schema([known.field(name) for name in names])


def _sums(table: Any) -> Any:
    made = table.group_by(list(_COUNTED)).aggregate([("messages", "sum"), ("bytes", "sum")])
    return made.rename_columns([name.removesuffix("_sum") for name in made.column_names])


def _texts(messages: Messages, epoch: int) -> tuple[Any, Any]:
    """trace and parent of each message, as text."""
    traces: list[str | None] = [None] * len(messages)
    parents: list[str | None] = [None] * len(messages)
    for place in np.flatnonzero(messages.trace):
        traces[place] = f"{int(messages.trace[place]):032x}"
    for place in np.flatnonzero(messages.parent >= 0):
        of = messages.parent[place]
        parents[place] = f"{messages.origin[of]}.{epoch}.{messages.stream[of]}.{messages.sequence[of]}"
    return pa.array(traces, pa.string()), pa.array(parents, pa.string())


def plain_events(rows: list[dict[str, Any]]) -> Columns:
    """Columns of events that belong to no message, from rows with what is not the default. `true` and `time` are needed."""
    names = [name for name, _, _ in EVENTS if name not in ("epoch", "event", "mono", "origin_epoch", "trace", "parent", "detail", *_ZEROS)]
    defaults = {name: default for name, _, default in EVENTS}
    made = {name: np.array([row.get(name, defaults[name]) for row in rows], dtype=np.int64) for name in names}
    made["true"] = np.array([row["true"] for row in rows], dtype=np.int64)
    made["published"] = made["time"].copy()
    made["message"] = np.full(len(rows), -1)
    made["detail"] = np.array([row.get("detail") for row in rows], dtype=object)
    return made


__all__ = ["Kind", "Writer", "plain_events"]
