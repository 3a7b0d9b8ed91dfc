"""Journals for tests: closed segments from rows, and the whole way of a message as the brokers' events."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mqmesh.broker.journal import layout
from mqmesh.broker.journal.kinds import Kind, MessageId, name_id
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.schema import EVENTS, NAMES, arrow_schema

SECOND = 1_000_000
START = 1_790_000_000 * SECOND  # 2026-09-21
Row = dict[str, Any]


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Rows as a table of events; columns that a row leaves out have their defaults."""
    defaults = {name: default for name, _, default in EVENTS}
    return pa.Table.from_pylist([{**defaults, **row} for row in rows], schema=arrow_schema())


class JournalMaker:
    """Writes segments to a folder. Events get their numbers and lives here: one life for each broker until `restart`."""

    def __init__(self, root: Any) -> None:
        self.place = Place(root)
        self.root = self.place.root
        self._numbers: dict[int, itertools.count[int]] = {}
        self._epochs: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._files = itertools.count(1)

    def name(self, text: str) -> int:
        """The id of a name, which is written with the next segment."""
        self._names[name_id(text)] = text
        return name_id(text)

    def restart(self, broker: int) -> None:
        """The broker's next life begins."""
        self._epochs[broker] = self._epochs.get(broker, 1) + 1
        self._numbers[broker] = itertools.count(1)

    def number(self, rows: Iterable[Row]) -> list[Row]:
        """Rows with their events' numbers and lives."""
        made = []
        for row in rows:
            broker = row["broker"]
            numbers = self._numbers.setdefault(broker, itertools.count(1))
            made.append({**row, "epoch": self._epochs.setdefault(broker, 1), "event": next(numbers)})
        return made

    def write(self, rows: Iterable[Row], **changes: Any) -> list[layout.Segment]:
        """Close a segment for each broker of these rows."""
        by_broker: dict[int, list[Row]] = {}
        for row in self.number(rows):
            by_broker.setdefault(row["broker"], []).append(row)
        segments = [self.close(table_of(found), **changes) for found in by_broker.values()]
        if self._names:
            names = [{"kind": "topic", "id": number, "name": text} for number, text in self._names.items()]
            for broker in by_broker:
                self._put(layout.names_path(broker, 1, next(self._files)), pa.Table.from_pylist(names, schema=arrow_schema(NAMES)))
            self._names = {}
        return segments

    def close(self, table: pa.Table, **changes: Any) -> layout.Segment:
        """Write one table as a closed segment. changes: of its manifest."""
        numbers, times = table.column("event").to_pylist(), table.column("time").to_pylist()
        broker, epoch, first, last = table.column("broker")[0].as_py(), table.column("epoch")[0].as_py(), min(numbers), max(numbers)
        path = layout.events_path(layout.date_of(times[0]), broker, epoch, first, last)
        data = self._put(path, table)
        values = [path, 1, broker, epoch, first, last, len(numbers), min(times), max(times), sha256(data).hexdigest(), len(data)]
        segment = layout.Segment(**{**dict(zip(layout.Segment.__dataclass_fields__, values, strict=False)), **changes})
        self.place.write(segment.name, segment.dumped())
        return segment

    def _put(self, path: str, table: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        data: bytes = sink.getvalue().to_pybytes()
        self.place.write(path, data)
        return data

    def way(self, sequence: int, origin: int = 1, via: int = 2, to: int = 3, at: int = START, **changes: Any) -> list[Row]:
        """The events of one QoS 1 message: published at one broker, relayed by a second, delivered and acknowledged at a third."""
        message = {
            "origin": origin,
            "origin_epoch": 1,
            "stream": 1,
            "sequence": sequence,
            "published": at,
            "size": 10,
            "bytes": 10,
            "qos": 1,
            "topic": self.name("shop/orders"),
            "account": self.name("anna"),
            "protocol_in": 1,
            "version_in": 5,
            **changes,
        }
        publisher, reader = self.name("publisher"), self.name("reader")
        steps: list[Row] = [
            {"kind": Kind.PUBLISHED, "broker": origin, "client": publisher, "value": 1},
            {"kind": Kind.FORWARDED, "broker": origin, "to_broker": via},
            {"kind": Kind.FORWARDED, "broker": via, "to_broker": to},
            {"kind": Kind.RECEIVED, "broker": to, "from_broker": via, "value": 1},
            {"kind": Kind.DELIVERED, "broker": to, "client": reader, "version_out": 5, "protocol_out": 1},
            {"kind": Kind.ACKNOWLEDGED, "broker": to, "client": reader},
        ]
        return [
            {**message, **step, "kind": int(step["kind"]), "time": at + 1000 * index, "mono": 1000 * index}
            for index, step in enumerate(steps)
        ]


def message(sequence: int, origin: int = 1) -> MessageId:
    """The identifier of a message of `JournalMaker.way`."""
    return MessageId(origin, 1, 1, sequence)
