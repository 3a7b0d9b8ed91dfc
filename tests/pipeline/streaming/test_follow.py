"""The tables of a journal that is followed are those of a batch run, also after failures between a batch's offset and its commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mqmesh.pipeline.run import Order as RunOrder
from mqmesh.pipeline.run import run
from mqmesh.pipeline.streaming.follow import UNANSWERED, Follower, Order, Update, spans
from mqmesh.pipeline.tables.tables import Tables

from benchmarks.trials.streaming_kill import Growing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
JOBS = ("messages", "latency", "traffic", "usage")


def assert_equal(followed: Path, batch: Path, tables: list[str]) -> None:
    for table in tables:
        ours, theirs = (sorted(map(repr, rows_of_any(out, table))) for out in (followed, batch))
        assert len(ours) == len(theirs), table
        assert ours == theirs, table


def rows_of_any(out: Path, table: str) -> list[Any]:
    """Rows as lists of (column, value), so that the order of columns does not matter."""
    return [sorted(row.items()) for row in Tables(str(out)).arrow(table).to_pylist()]


def test_failures_between_offset_and_commit(spark: SparkSession, little: Path, tmp_path: Path) -> None:
    growing = Growing(little, tmp_path / "journal")
    growing.add(2)
    order = Order(str(growing.folder), str(tmp_path / "followed"), str(tmp_path / "checkpoint"), JOBS, rows=1)
    failing = Follower(order)
    make = failing._make

    def fails(*arguments: Any) -> None:
        make(*arguments)
        if len(failing.updates) == 1:
            raise RuntimeError("the machine is gone")

    failing._make = fails  # type: ignore[method-assign]
    with pytest.raises(Exception, match="the machine is gone"):
        failing.once()
    offsets, commits = (len(list((tmp_path / "checkpoint" / kind).glob("[0-9]*"))) for kind in ("offsets", "commits"))
    assert offsets == commits + 1
    while growing.add(1000):
        pass
    follower = Follower(Order(order.journal, order.out, order.checkpoint, JOBS))
    updates = follower.once()
    assert sum(update.events for update in updates) > 0
    batch = run(RunOrder(str(little), str(tmp_path / "batch"), tuple(job.name for job in follower.jobs)))
    assert not batch.failed, [job.error for job in batch.jobs]
    assert_equal(tmp_path / "followed", tmp_path / "batch", [table for job in follower.jobs for table in job.tables])
    assert [update.batch for update in Follower(follower.order).once() if update.batch >= 0] == []
    again = Follower(replace(follower.order, jobs=("messages",)))
    for day in again.tables.version("messages").dates:  # type: ignore[union-attr]
        again._make(spark, [day], Update(-1))
    assert_equal(tmp_path / "followed", tmp_path / "batch", ["messages"])


@pytest.mark.parametrize(("said", "begun"), [(UNANSWERED, 3), ("no space left", 1)])
def test_a_machine_too_busy_for_sparks_ten_seconds(little: Path, tmp_path: Path, said: str, begun: int) -> None:
    """The query is begun again, twice; what else ends it is not tried again."""
    errors = pytest.importorskip("pyspark.errors", reason="needs mqmesh[spark]")
    follower = Follower(Order(str(little), str(tmp_path / "followed"), str(tmp_path / "checkpoint"), JOBS))
    starts = []

    class Query:
        def awaitTermination(self, seconds: int = 0) -> bool:
            if len(starts) < 3:
                raise errors.StreamingQueryException(f"[STREAM_FAILED] {said}. SQLSTATE: XXKST")
            return True

    def start(once: bool = False) -> Query:
        starts.append(once)
        return Query()

    follower.start = start  # type: ignore[assignment,method-assign]
    if begun == 3:
        follower.run()
    else:
        with pytest.raises(errors.StreamingQueryException, match=said):
            follower.run()
    assert len(starts) == begun


def test_days_without_gaps_go_together() -> None:
    assert spans(["2026-01-02", "2026-01-01", "2026-01-04"]) == [("2026-01-01", "2026-01-03"), ("2026-01-04", "2026-01-05")]
