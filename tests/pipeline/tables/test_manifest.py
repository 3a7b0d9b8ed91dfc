"""Versions of a table: replaced as a whole or by date, never seen half, never doubled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.errors import PipelineError
from mqmesh.pipeline.tables import manifest
from mqmesh.pipeline.tables.manifest import File, Version, commit, newest
from mqmesh.pipeline.tables.tables import ROWS, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(*pairs: tuple[str, int]) -> pa.Table:
    return pa.table({"date": [date for date, _ in pairs], "value": [value for _, value in pairs]})


def content(root: Path, table: str = "t") -> list[tuple[str, int]]:
    found = Tables(root).arrow(table).select(["date", "value"]).to_pylist()
    return sorted((str(row["date"]), row["value"]) for row in found)


def test_a_second_run_replaces(tmp_path: Path) -> None:
    for _ in range(2):
        Tables(tmp_path).write_arrow("t", rows(("2026-11-01", 1), ("2026-11-02", 2)))
        assert content(tmp_path) == [("2026-11-01", 1), ("2026-11-02", 2)]


def test_a_run_of_some_dates_leaves_the_others(tmp_path: Path) -> None:
    Tables(tmp_path).write_arrow("t", rows(("2026-11-01", 1), ("2026-11-02", 2), ("2026-11-03", 3)))
    Tables(tmp_path).write_arrow("t", rows(("2026-11-02", 20)), dates=["2026-11-02", "2026-11-03"])
    assert content(tmp_path) == [("2026-11-01", 1), ("2026-11-02", 20)]


def test_a_run_without_rows_empties_its_dates(tmp_path: Path) -> None:
    Tables(tmp_path).write_arrow("t", rows(("2026-11-01", 1)))
    Tables(tmp_path).write_arrow("t", rows().cast(pa.schema([("date", pa.string()), ("value", pa.int64())])))
    assert content(tmp_path) == []


def test_files_without_a_manifest_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends before its commit changes nothing."""
    Tables(tmp_path).write_arrow("t", rows(("2026-11-01", 1)))
    monkeypatch.setattr(Tables, "_commit", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Tables(tmp_path).write_arrow("t", rows(("2026-11-01", 99)))
    monkeypatch.undo()
    assert content(tmp_path) == [("2026-11-01", 1)]


def test_who_began_to_read_can_end(tmp_path: Path) -> None:
    """The files of the version before stay; those before them go."""
    tables = [Tables(tmp_path) for _ in range(3)]
    tables[0].write_arrow("t", rows(("2026-11-01", 1)))
    first = tables[0].paths("t")
    tables[1].write_arrow("t", rows(("2026-11-01", 2)))
    assert all(Path(path).exists() for path in first)
    tables[2].write_arrow("t", rows(("2026-11-01", 3)))
    assert not any(Path(path).exists() for path in first)
    assert content(tmp_path) == [("2026-11-01", 3)]


def test_of_two_runs_at_once_both_are_kept(tmp_path: Path) -> None:
    """The second one starts from what the first one wrote."""
    place = Place(tmp_path)
    calls = []

    def change(before: Version) -> Version:
        calls.append(before.number)
        if len(calls) == 1:  # another run is faster
            commit(place, "t", lambda old: replace(old, files=(*old.files, File("a", 1, 1, "2026-11-01"))))
        return replace(before, files=(*before.files, File("b", 1, 1, "2026-11-02")))

    commit(place, "t", change)
    found = newest(place, "t")
    assert found is not None
    assert [file.path for file in found.files] == ["a", "b"]
    assert calls == [0, 1]


def test_a_manifest_that_is_none_is_named(tmp_path: Path) -> None:
    Place(tmp_path).write("t/_manifest/00000001.json", b"{")
    with pytest.raises(PipelineError, match=r"00000001\.json: is no manifest"):
        Tables(tmp_path).paths("t")


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no such table: run the job"):
        Tables(tmp_path).arrow("t")
    assert manifest.versions(Place(tmp_path), "t") == []


def test_row_groups_are_small(spark: SparkSession, tmp_path: Path) -> None:
    made = Tables(tmp_path)
    made.write("t", spark.range(0, 2 * ROWS, 1, 1))
    sizes = [group.num_rows for fragment in made.dataset("t").get_fragments() for group in fragment.row_groups]
    assert sizes == [ROWS, ROWS]


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path, damage: str) -> None:
    tables = Tables(tmp_path)
    tables.write_arrow("t", rows(("2026-11-01", 1), ("2026-11-02", 2)))
    path = Path(tables.paths("t")[0])
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PipelineError, match="a file cannot be read") as told:
        tables.arrow("t")
    assert path.name in str(told.value)
    assert "\n" not in str(told.value)
