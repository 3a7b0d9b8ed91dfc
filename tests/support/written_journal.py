"""A small journal that a test writes row by row, as brokers write theirs."""

from __future__ import annotations

import io
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mqmesh.broker.journal.layout import Segment, counts_path, date_of, events_path, names_path
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.schema import COUNTS, EVENTS, NAMES, VERSION, arrow_schema, name_id

MINUTE = 60_000_000  # microseconds
NOVEMBER = 1_793_491_200_000_000  # 2026-11-01, microseconds since 1970
DAY = 24 * 60 * MINUTE


class Written:
    """A journal below a folder. Names may be given as texts."""

    def __init__(self, folder: Path, epoch: int = 1000) -> None:
        self.place, self.epoch = Place(folder), epoch
        self.names: set[tuple[str, str]] = set()
        self._next: dict[int, int] = {}

    def _row(self, columns: Iterable[tuple[str, str, int | None]], given: dict[str, Any]) -> dict[str, Any]:
        row = {name: default for name, _, default in columns} | given
        for kind in ("topic", "client", "account", "recipient", "reason"):
            if isinstance(row.get(kind), str):
                self.names.add((kind, row[kind]))
                row[kind] = name_id(row[kind])
        return row

    def events(self, *rows: dict[str, Any], broker: int = 1) -> Segment:
        """One closed segment of one broker. time: of the first row's date."""
        first = self._next.get(broker, 1)
        made = []
        for number, given in enumerate(rows, first):
            values = {"broker": broker, "epoch": self.epoch, "event": number, "time": NOVEMBER, **given}
            values.setdefault("published", values["time"])
            values.setdefault("bytes", values.get("size", 0) * values.get("count", 1))
            if values.get("origin", -1) >= 0:
                values.setdefault("origin_epoch", self.epoch)
            made.append(self._row(EVENTS, values))
        last = first + len(rows) - 1
        self._next[broker] = last + 1
        data = _parquet(pa.Table.from_pylist(made, arrow_schema()))
        times = [row["time"] for row in made]
        path = events_path(date_of(times[0]), broker, self.epoch, first, last)
        segment = Segment(
            path, VERSION, broker, self.epoch, first, last, len(rows), min(times), max(times), sha256(data).hexdigest(), len(data)
        )
        self.place.write(path, data)
        self.place.write(segment.name, segment.dumped())
        return segment

    def counts(self, *rows: dict[str, Any], broker: int = 1) -> str:
        """One file of counters. Returns its name."""
        made = [self._row(COUNTS, {"broker": broker, "minute": NOVEMBER // MINUTE, **given}) for given in rows]
        minutes = [row["minute"] for row in made]
        name = counts_path(date_of(minutes[0] * MINUTE), broker, self.epoch, min(minutes), max(minutes))
        self.place.write(name, _parquet(pa.Table.from_pylist(made, arrow_schema(COUNTS))))
        return name

    def close(self) -> None:
        """Write the names."""
        rows = [{"kind": kind, "id": name_id(name), "name": name} for kind, name in sorted(self.names)]
        self.place.write(names_path(1, self.epoch, 1), _parquet(pa.Table.from_pylist(rows, arrow_schema(NAMES))))


def _parquet(table: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
