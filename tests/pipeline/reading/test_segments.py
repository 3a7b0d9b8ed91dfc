"""What a run sets aside, with its reason, while the rest is read."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mqmesh.broker.journal.layout import Segment, read_manifest
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.reading.segments import TOLERANCE, Selection, select
from mqmesh.pipeline.synthesis.synthesize import Made

NOW = 1_795_000_000_000_000


@pytest.fixture
def copied(journal: tuple[Path, Made], tmp_path: Path) -> Path:
    """A journal to damage."""
    return Path(shutil.copytree(journal[0], tmp_path / "journal"))


def first(root: Path) -> Segment:
    return read_manifest(Place(root)).segments[0]


def chosen(root: Path, **more: Any) -> Selection:
    return select(Place(root), NOW, **more)


def reasons(selection: Selection) -> list[tuple[str, int]]:
    return [(one.reason, one.events) for one in selection.rejected]


def rewrite(root: Path, change: Callable[[pa.Table], pa.Table], **manifest: Any) -> Segment:
    """Change a segment's events, with a manifest that says so."""
    segment, place = first(root), Place(root)
    table = change(pq.read_table(io.BytesIO(place.read(segment.path))))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    data = sink.getvalue()
    values = {"sha256": sha256(data).hexdigest(), "bytes": len(data), "events": table.num_rows, **manifest}
    place.write(segment.path, data)
    place.write(segment.name, replace(segment, **values).dumped())
    return segment


def test_a_whole_journal(journal: tuple[Path, Made]) -> None:
    selection = chosen(journal[0])
    assert (selection.rejected, selection.repeated, selection.runs, selection.suspect) == ([], [], False, False)
    assert selection.events == journal[1].events
    assert selection.brokers == [1, 2, 3, 4, 5]
    assert selection.lives == 1


def test_runs_are_known_from_the_footer(runs: tuple[Path, Made]) -> None:
    assert chosen(runs[0]).runs


@pytest.mark.parametrize("place", [100, 2_000, -20])
def test_a_changed_byte(copied: Path, place: int) -> None:
    segment = first(copied)
    path = copied / segment.path
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert reasons(chosen(copied)) == [("corrupt", segment.events)]


def test_a_cut_segment_is_noticed_without_hashes(copied: Path) -> None:
    segment = first(copied)
    path = copied / segment.path
    path.write_bytes(path.read_bytes()[:-100])
    assert reasons(chosen(copied, verify=False)) == [("corrupt", segment.events)]


def test_a_segment_that_is_gone(copied: Path) -> None:
    segment = first(copied)
    (copied / segment.path).unlink()
    assert reasons(chosen(copied)) == [("missing", segment.events)]


def test_a_manifest_that_is_none(copied: Path) -> None:
    (copied / first(copied).name).write_text("{")
    assert reasons(chosen(copied)) == [("manifest", -1)]


def test_a_missing_column(copied: Path) -> None:
    segment = rewrite(copied, lambda table: table.drop_columns(["topic"]))
    selection = chosen(copied)
    assert reasons(selection) == [("columns", segment.events)]
    assert selection.rejected[0].detail == "has no column topic"


def test_a_column_of_another_type(copied: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("topic")
        return table.set_column(place, "topic", table.column("topic").cast(pa.string()))

    rewrite(copied, change)
    assert chosen(copied).rejected[0].detail == "the column topic is string, not int64"


def test_a_newer_schema(copied: Path) -> None:
    segment = rewrite(copied, lambda table: table, schema_version=99)
    assert reasons(chosen(copied)) == [("newer", segment.events)]


def test_an_older_schema_may_lack_columns(copied: Path) -> None:
    rewrite(copied, lambda table: table.drop_columns(["session", "detail"]), schema_version=0)
    selection = chosen(copied)
    assert selection.rejected == []
    assert selection.older


def test_events_from_the_future(copied: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        times = table.column("time").to_pylist()
        times[3:5] = [NOW + TOLERANCE + 1, NOW + 10**15]
        return table.set_column(1, table.schema.field(1), pa.array(times, pa.int64()))

    whole = chosen(copied).events
    rewrite(copied, change)
    selection = chosen(copied)
    assert reasons(selection) == [("future", 2)]
    assert selection.suspect
    assert selection.events == whole - 2


def test_a_segment_from_the_future(copied: Path) -> None:
    segment = first(copied)
    Place(copied).write(segment.name, replace(segment, min_time=NOW + 10**12, max_time=NOW + 10**13).dumped())
    assert reasons(chosen(copied)) == [("future", segment.events)]


def test_events_of_unknown_kinds(copied: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        kinds = table.column("kind").to_pylist()
        kinds[7] = 99
        return table.set_column(0, table.schema.field(0), pa.array(kinds, pa.int16()))

    rewrite(copied, change)
    assert reasons(chosen(copied)) == [("kind", 1)]


def again(root: Path, segment: Segment, **more: Any) -> Segment:
    """The same events in another segment."""
    place = Place(root)
    other = replace(segment, path=segment.path.replace(".parquet", "-again.parquet"), **more)
    place.write(other.path, place.read(segment.path))
    place.write(segment.name.replace(".json", "-again.json"), other.dumped())
    return other


def test_a_segment_that_is_there_twice(copied: Path) -> None:
    whole = chosen(copied).events
    again(copied, first(copied))
    selection = chosen(copied)
    assert (selection.events, len(selection.repeated), selection.rejected) == (whole, 1, [])


def test_of_a_damaged_segment_the_copy_is_read(copied: Path) -> None:
    whole, segment = chosen(copied).events, first(copied)
    again(copied, segment)
    (copied / segment.path).write_bytes(b"nothing")
    selection = chosen(copied)
    assert selection.events == whole
    assert reasons(selection) == [("corrupt", segment.events)]


def test_a_segment_within_a_larger_one(copied: Path) -> None:
    """Compaction was interrupted before it removed what it had merged."""
    segment = first(copied)
    table = pq.read_table(copied / segment.path)
    part, sink = table.slice(0, 10), io.BytesIO()
    pq.write_table(part, sink)
    path = segment.path.replace(".parquet", "-part.parquet")
    times = part.column("time").to_pylist()
    small = Segment(
        path, 1, segment.broker, segment.epoch, 1, 10, 10, min(times), max(times), sha256(sink.getvalue()).hexdigest(), sink.tell()
    )
    Place(copied).write(path, sink.getvalue())
    Place(copied).write(small.name, small.dumped())
    selection = chosen(copied)
    assert [one.path for one in selection.repeated] == [path]


def test_segments_before_the_time_are_not_looked_at(journal: tuple[Path, Made]) -> None:
    truth = json.loads((journal[0] / "truth.json").read_text())
    assert truth["messages"] == journal[1].messages
    everything = chosen(journal[0])
    border = max(segment.max_time for segment in everything.segments)
    assert len(chosen(journal[0], since=border).segments) < len(everything.segments)
