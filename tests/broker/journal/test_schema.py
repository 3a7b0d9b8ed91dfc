"""Ids, message ids, the manifest and the tables of the journal."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mqmesh.broker.journal import layout
from mqmesh.broker.journal.kinds import MessageId, call_id, name_id
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.reading import Damaged, Journal
from mqmesh.broker.journal.schema import EVENTS, arrow_schema, conform, expand, version_of


def events(**columns: list[object]) -> pa.Table:
    length = len(next(iter(columns.values())))
    defaults = {name: [default] * length for name, _, default in EVENTS}
    return pa.table({**defaults, **columns}, schema=arrow_schema())


def put(place: Place, table: pa.Table, epoch: int = 1, **changes: object) -> layout.Segment:
    """Write a table as one closed segment of broker 7."""
    numbers, times = table.column("event").to_pylist(), table.column("time").to_pylist()
    first, last = min(numbers), max(numbers)
    path = layout.events_path(layout.date_of(times[0]), 7, epoch, first, last)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue().to_pybytes()
    values = [path, 1, 7, epoch, first, last, len(numbers), min(times), max(times), sha256(data).hexdigest(), len(data)]
    segment = layout.Segment(**{**dict(zip(layout.Segment.__dataclass_fields__, values, strict=False)), **changes})
    place.write(path, data)
    place.write(segment.name, segment.dumped())
    return segment


def test_ids_of_names_are_the_same_everywhere() -> None:
    assert name_id("shop/orders") == name_id(b"shop/orders") == -7740425938299326322
    assert name_id("") == 0
    assert call_id("reply", b"1") != call_id("reply1", b"")


def test_a_message_id_is_read_from_its_text() -> None:
    message = MessageId(7, 1763850000000, 1, 42)
    assert MessageId.parse(str(message)) == message


@pytest.mark.parametrize("text", ["", "7.1.1", "7.1.4.4", "a.1.1.1", "7.1.1.-1"])
def test_another_text_is_no_message_id(text: str) -> None:
    with pytest.raises(ValueError, match="is no message id"):
        MessageId.parse(text)


def test_a_run_becomes_one_row_for_each_message() -> None:
    table = expand(events(count=[3, 1], sequence=[10, 5], bytes=[10, 7], origin=[1, -1], event=[1, 2]))
    assert table.column("sequence").to_pylist() == [10, 11, 12, 5]
    assert table.column("bytes").to_pylist() == [4, 3, 3, 7]
    assert table.column("count").to_pylist() == [1, 1, 1, 1]


def test_an_older_table_gets_the_columns_of_today() -> None:
    old = events(event=[1, 2]).drop_columns(["call", "trace"]).append_column("gone", pa.array([1, 2]))
    table = conform(old)
    assert table.schema == arrow_schema()
    assert version_of(table.schema) == 1
    assert table.column("call").to_pylist() == [0, 0]


def test_segments_that_are_there_twice_are_read_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = put(place, events(event=[1, 2], time=[1, 2]))
    put(place, events(event=[3, 4], time=[3, 4]))
    copy = layout.Segment(**{**json.loads(first.dumped()), "path": "events/copy.parquet"})
    place.write("manifest/broker=7/copy.json", copy.dumped())
    manifest = Journal(str(tmp_path)).manifest()
    assert [one.first for one in manifest.segments] == [1, 3]
    assert len(manifest.repeated) == 1


def test_a_compacted_segment_stands_for_those_that_it_replaces(tmp_path: Path) -> None:
    place = Place(tmp_path)
    parts = [put(place, events(event=[number], time=[number])) for number in (1, 2)]
    put(place, events(event=[1, 2], time=[1, 2]), replaces=[part.name for part in parts])
    manifest = Journal(str(tmp_path)).manifest()
    assert [(one.first, one.last) for one in manifest.segments] == [(1, 2)]
    assert len(manifest.replaced) == 2


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    good = put(place, events(kind=[1], event=[1], time=[1]))
    bad = put(place, events(kind=[99], event=[2], time=[2]))
    torn = put(place, events(kind=[1], event=[3], time=[3]))
    put(place, events(kind=[1], event=[4], time=[4]), schema_version=9)
    place.write("manifest/broker=7/bad.json", b"{")
    (tmp_path / torn.path).write_bytes(b"PAR1")
    wrong = dict(Journal(str(tmp_path)).check())
    assert wrong[bad.path] == "has events of unknown kinds: [99]"
    assert "hash differs" in wrong[torn.path]
    assert good.path not in wrong
    assert len(wrong) == 4
    with pytest.raises(Damaged, match="hash differs"):
        Journal(str(tmp_path)).table(torn)


def test_a_manifest_does_not_lead_out_of_the_journal(tmp_path: Path) -> None:
    segment = put(Place(tmp_path), events(event=[1], time=[1]))
    with pytest.raises(ValueError, match="leaves the journal"):
        layout.Segment.loaded(segment.dumped().replace(segment.path.encode(), b"../../etc/passwd"))


def test_a_journal_at_a_url() -> None:
    place = Place("memory://journal")
    segment = put(place, events(kind=[1], event=[1], time=[1]))
    journal = Journal(place)
    assert journal.segments() == [segment]
    assert journal.check() == []
    assert [table.num_rows for table in journal.tables()] == [1]


def test_the_time_decides_which_segments_are_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    put(place, events(event=[1, 2], time=[10, 20]))
    put(place, events(event=[3, 4], time=[30, 40]))
    assert [one.first for one in Journal(place).segments(since=21)] == [3]
    assert [table.column("event").to_pylist() for table in Journal(place).tables(since=15, until=40)] == [[2], [3]]
