"""The format "mqmesh" over a journal, in batch and as a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mqmesh.broker.journal.reading import Journal
from mqmesh.pipeline.source.datasource import register
from support.journals import SECOND, START, JournalMaker
from support.streams import drain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def maker(tmp_path: Path, spark: SparkSession) -> JournalMaker:
    register(spark)
    return JournalMaker(tmp_path / "journal")


def messages(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def test_batch_with_names_and_filters(spark: SparkSession, maker: JournalMaker) -> None:
    for number in range(1, 5):
        maker.write(maker.way(number, at=START + number * SECOND))
    frame = spark.read.format("mqmesh").options(journal=maker.root, names="true").load()
    assert frame.count() == 24
    assert {row.topic_name for row in frame.select("topic_name").distinct().collect()} == {"shop/orders"}
    assert messages(frame.where("broker = 3 and kind = 5 and sequence > 2")) == [3, 4]
    assert messages(frame.where(f"time < {START + 2 * SECOND} and broker in (1, 2)")) == [1, 1, 1]


def test_a_stream_reads_each_event_once(spark: SparkSession, maker: JournalMaker, tmp_path: Path) -> None:
    maker.write(maker.way(1))
    maker.write(maker.way(2, at=START + SECOND))
    assert drain(spark, tmp_path, journal=maker.root, maxRows=4) == [3, 3, 3, 3]  # two segments at a time would be more
    assert drain(spark, tmp_path, journal=maker.root) == []
    maker.restart(1)
    maker.write(maker.way(3, at=START + 2 * SECOND))
    assert drain(spark, tmp_path, journal=maker.root) == [6]
    found = spark.read.parquet(str(tmp_path / "out"))
    assert messages(found) == [1] * 6 + [2] * 6 + [3] * 6


def test_what_is_damaged_is_left_out(spark: SparkSession, maker: JournalMaker) -> None:
    maker.write(maker.way(1))
    segment = Journal(maker.root).segments()[0]
    path = Path(maker.root) / segment.path
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    assert spark.read.format("mqmesh").options(journal=maker.root).load().count() == 6 - segment.events
