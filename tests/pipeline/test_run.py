"""A run as a whole: again, of some dates, over damaged journals, with wrong orders."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mqmesh.broker.journal.layout import read_manifest
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.correlation.messages import once
from mqmesh.pipeline.errors import PipelineError
from mqmesh.pipeline.run import Order, Summary, run
from mqmesh.pipeline.schemas import struct
from mqmesh.pipeline.synthesis.synthesize import Made
from mqmesh.pipeline.tables.tables import Tables

from . import oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, SECOND, THIRD = "2025-01-01", "2025-01-02", "2025-01-03"


def rows(out: Path, table: str) -> list[tuple[object, ...]]:
    found = Tables(out).arrow(table)
    return sorted(tuple(map(str, row.values())) for row in found.select(sorted(set(found.column_names) - {"run"})).to_pylist())


def test_days_one_by_one_give_the_same_tables(
    spark: SparkSession, journal: tuple[Path, Made], tables: tuple[Path, Summary], tmp_path: Path
) -> None:
    """And a day that is run again replaces itself. Messages that end on the next day belong to the day of their publication."""
    for since, until in ((SECOND, THIRD), (FIRST, SECOND), (SECOND, THIRD), (THIRD, "2025-01-04")):
        summary = run(Order(str(journal[0]), str(tmp_path), ("messages", "latency"), since=since, until=until))
        assert not summary.failed
    for table in ("messages", "latency"):
        assert rows(tmp_path, table) == rows(tables[0], table)


def test_damaged_segments_are_set_aside_and_the_rest_is_right(spark: SparkSession, journal: tuple[Path, Made], tmp_path: Path) -> None:
    root, out = Path(shutil.copytree(journal[0], tmp_path / "journal")), tmp_path / "out"
    segments = read_manifest(Place(root)).segments
    damaged = [segments[1], segments[-1]]
    (root / damaged[0].path).write_bytes(b"PAR1")
    (root / damaged[1].path).unlink()
    again = segments[2]
    place = Place(root)
    place.write(again.name.replace(".json", "-twice.json"), place.read(again.name))
    summary = run(Order(str(root), str(out), ("messages",)))
    assert not summary.failed
    assert {(row["path"], row["reason"]) for row in Tables(out).arrow("rejected").to_pylist()} == {
        (damaged[0].path, "corrupt"),
        (damaged[1].path, "missing"),
    }
    for one in damaged:
        (root / one.name).unlink()
    assert oracle.difference(oracle.messages(root), out, "messages") == ([], [])


def test_two_lives_of_a_broker_count_an_end_once(spark: SparkSession) -> None:
    """Killed between an acknowledgement and its commit, a broker sends again, and the client acknowledges again."""
    schema = struct(only=("kind", "broker", "origin", "origin_epoch", "stream", "sequence", "client"))
    twice = [(6, 1, 1, 9, 1, 5, 77), (6, 1, 1, 9, 1, 5, 77)]
    others = [(6, 1, 1, 9, 1, 5, 78), (6, 2, 1, 9, 1, 5, 77), (3, 1, 1, 9, 1, 5, 0), (3, 1, 1, 9, 1, 5, 0)]
    assert once(spark.createDataFrame(twice + others, schema)).count() == 5


def test_a_disk_that_is_full_fails_one_job(spark: SparkSession, little: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the summary, as are the jobs that need it; the others run. The table of the run before stays."""
    out, order = tmp_path / "out", Order(str(little), str(tmp_path / "out"), ("messages", "orphans", "faults"))
    alone = replace(order, jobs=("messages",))
    assert not run(alone).failed
    before, write = rows(out, "messages"), Place.write

    def full(place: Place, path: str, data: bytes) -> None:
        if path.startswith("messages/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(place, path, data)

    monkeypatch.setattr(Place, "write", full)
    summary = run(order)
    assert {job.job: job.error for job in summary.jobs} == {
        "messages": f"{out}: No space left on device",
        "calls": "left out: it needs messages",
        "orphans": "left out: it needs calls",
        "faults": "",
    }
    assert rows(out, "messages") == before
    monkeypatch.setattr(Place, "write", write)
    assert not run(alone).failed
    assert rows(out, "messages") == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"since": "yesterday"}, "--since yesterday: give a date"),
        ({"since": SECOND, "until": FIRST}, "--until 2025-01-01: give a date after"),
        ({"jobs": ("nothing",)}, '"nothing" is no job'),
        ({"journal": "nowhere"}, "has no closed segments of this time"),
        ({"since": "2099-01-01"}, "has no closed segments of this time"),
        ({"journal": "wrong://x"}, "wrong://x"),
    ],
)
def test_wrong_orders_are_one_line(journal: tuple[Path, Made], tmp_path: Path, change: dict[str, object], text: str) -> None:
    values: dict[str, object] = {"journal": str(journal[0]), "out": str(tmp_path), **change}
    with pytest.raises(PipelineError) as error:
        run(Order(**values))  # type: ignore[arg-type]
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_option_is_named(spark: SparkSession, journal: tuple[Path, Made], tmp_path: Path) -> None:
    summary = run(Order(str(journal[0]), str(tmp_path), ("latency",), options={"latency.window": "hour"}))
    assert summary.jobs[0].error == "--set latency.window=hour: give a whole number, such as latency.window=3600"
