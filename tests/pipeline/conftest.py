"""One Spark session in each process for the tests of the pipeline, and journals that several of them read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mqmesh.pipeline.run import Order as RunOrder
from mqmesh.pipeline.run import Summary, run
from mqmesh.pipeline.synthesis.synthesize import Made, Order, synthesize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
RING = ROOT / "topologies" / "ring-of-five.toml"
TRIANGLE = ROOT / "topologies" / "triangle.toml"
if str(ROOT) not in sys.path:  # `benchmarks`, of which some tests take parts, stands outside the wheel
    sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests of a process share; starting one takes seconds."""
    if "CI" not in os.environ:
        pytest.importorskip("pyspark", reason="needs mqmesh[spark]")
    from mqmesh.pipeline.session import spark_session

    where = tmp_path_factory.mktemp("spark")
    settings = {"spark.local.dir": str(where), "spark.sql.warehouse.dir": str(where / "warehouse"), "spark.sql.shuffle.partitions": "2"}
    session = spark_session("local[2]", settings=settings, quick=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """A made journal of two days, and what is true about it."""
    folder = tmp_path_factory.mktemp("journal")
    order = Order(RING, events=30_000, days=2, topics=60, unreached=0.003, skew=40_000)
    return folder, synthesize(order, folder)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """A made journal whose events stand for seven messages each."""
    folder = tmp_path_factory.mktemp("runs")
    return folder, synthesize(Order(RING, events=4_000, days=1, topics=40, run=7, unreached=0.003), folder)


@pytest.fixture(scope="session")
def little(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made journal of three brokers and two days with few segments, for tests that start Spark or run it several times."""
    folder = tmp_path_factory.mktemp("little")
    synthesize(Order(TRIANGLE, events=2_000, days=2, topics=20, unreached=0.003), folder)
    return folder


@pytest.fixture(scope="session")
def tables(spark: SparkSession, journal: tuple[Path, Made], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """The tables of all jobs over `journal`. Only to be read."""
    out = tmp_path_factory.mktemp("tables")
    summary = run(RunOrder(str(journal[0]), str(out)))
    assert not summary.failed, [job.error for job in summary.jobs]
    return out, summary


@pytest.fixture(scope="session")
def run_tables(spark: SparkSession, runs: tuple[Path, Made], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """The tables over `runs` of the jobs that count messages. Only to be read."""
    out = tmp_path_factory.mktemp("run-tables")
    summary = run(RunOrder(str(runs[0]), str(out), ("messages", "latency", "hops", "traffic")))
    assert not summary.failed, [job.error for job in summary.jobs]
    return out, summary
