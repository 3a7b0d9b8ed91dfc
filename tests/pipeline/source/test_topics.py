"""The format "mqmesh" with a broker that is a process: a durable session is read once, and rows are published once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mqmesh.pipeline.source.datasource import register
from support import streams
from support.services import free_port
from support.sites_with_data import Site

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Site]:
    register(spark)
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.kill()


def drain(spark: SparkSession, site: Site, folder: Path, **options: Any) -> None:
    """Read what the session has, into a table of Parquet."""
    streams.drain(spark, folder, broker=site.url, topic="in/#", client="spark-in", **options)


def payloads(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.payload) for row in frame.select("payload").collect())


def test_a_session_is_read_once_over_restarts_of_the_broker(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    site.subscribe("spark-in", "in/#")
    sent = [b"%04d" % number for number in range(300)]
    site.publish("in/a", sent[:200])
    peeked = spark.read.format("mqmesh").options(broker=site.url, topic="in/#", client="spark-in").load()
    assert payloads(peeked) == sent[:200]
    drain(spark, site, tmp_path, maxRows=70, partitions=3)
    site.kill()
    site.begin()
    site.publish("in/b", sent[200:])
    drain(spark, site, tmp_path)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert payloads(found) == sent
    assert {row.topic for row in found.select("topic").distinct().collect()} == {"in/a", "in/b"}
    drain(spark, site, tmp_path)  # what Spark had committed last is acknowledged now
    assert spark.read.parquet(str(tmp_path / "out")).count() == 300
    assert {topic for topic, _ in site.left("spark-in")} <= {"mqmesh-fence/spark-in/now"}


def test_a_batch_that_is_written_twice_is_published_once(spark: SparkSession, site: Site) -> None:
    site.subscribe("reader", "out/#")
    rows = [("out/x", f"row {number}", {"n": str(number)}) for number in range(50)] + [("out/x", "alike", {})] * 3
    frame = spark.createDataFrame(rows, "topic string, payload string, properties map<string,string>").coalesce(1)
    for _ in range(2):
        frame.write.format("mqmesh").mode("append").options(broker=site.url, query="twice", batch="1").save()
    assert sorted(site.waiting("reader", 53)) == sorted(payload.encode() for _, payload, _ in rows)


def test_a_stream_whose_checkpoint_is_behind_publishes_once(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """The last commit is taken away: as after `kill -9` between a batch's rows and its commit, the batch is run again."""
    site.subscribe("stream-reader", "stream")
    folder = tmp_path / "files"

    def run() -> None:
        query = (
            spark.readStream.schema("payload string")
            .json(str(folder))
            .writeStream.format("mqmesh")
            .options(broker=site.url, topic="stream", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    spark.range(40).selectExpr("concat('row ', id) as payload").coalesce(1).write.json(str(folder))
    run()
    commit = tmp_path / "checkpoint" / "commits" / "0"
    for file in (commit, commit.with_name(".0.crc")):
        file.unlink(missing_ok=True)
    run()
    assert sorted(site.waiting("stream-reader", 40)) == sorted(b"row %d" % number for number in range(40))


def test_wrong_options_and_columns_are_one_line(spark: SparkSession, site: Site) -> None:
    from pyspark.errors import PySparkException

    def reads(**options: str) -> None:
        spark.read.format("mqmesh").options(**options).load().count()

    def writes(frame: DataFrame, **options: str) -> None:
        frame.write.format("mqmesh").mode("append").options(broker=site.url, **options).save()

    number = spark.createDataFrame([(1,)], "payload int")
    text = spark.createDataFrame([("x",)], "payload string")
    cases = [
        (lambda: reads(), "say what to read"),
        (lambda: reads(topic="a/#/b", broker=site.url, client="c"), "option topic"),
        (lambda: reads(topic="a", client="c"), "option broker is missing"),
        (lambda: reads(topic="a", broker="ftp://x", client="c"), "option broker"),
        (lambda: writes(number, topic="t", batch="1"), "the column payload is int"),
        (lambda: writes(text, batch="1"), "there is no column topic"),
        (lambda: writes(text, topic="t"), "a batch needs names for its rows"),
    ]
    for case, says in cases:
        with pytest.raises(PySparkException, match=says):
            case()


def test_a_broker_that_is_not_there(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    broker = f"mqtt://127.0.0.1:{free_port()}"
    with pytest.raises(PySparkException, match="cannot connect"):
        spark.read.format("mqmesh").options(broker=broker, topic="t", client=uuid.uuid4().hex).load().count()
