"""The message table against what the generator knows, and against DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mqmesh.broker.journal.schema import EVENTS, Kind
from mqmesh.pipeline.correlation.messages import messages
from mqmesh.pipeline.run import Summary
from mqmesh.pipeline.schemas import struct
from mqmesh.pipeline.synthesis.synthesize import Made
from mqmesh.pipeline.tables.tables import Tables

from .. import oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["single", "runs"])
def both(request: pytest.FixtureRequest) -> tuple[Path, Made, Path]:
    """journal, truth and tables; of events that stand for one message, and for seven."""
    names = ("journal", "tables") if request.param == "single" else ("runs", "run_tables")
    (journal, made), (out, _) = (request.getfixturevalue(name) for name in names)
    return journal, made, out


def test_all_messages_and_those_that_are_incomplete(both: tuple[Path, Made, Path]) -> None:
    _, made, out = both
    status = Tables(out).arrow("messages").column("status").to_pylist()
    assert len(status) == made.truth["messages"]
    assert sum(one != 1 for one in status) == made.truth["incomplete"] > 0


def test_sums_are_the_journals(both: tuple[Path, Made, Path]) -> None:
    _, made, out = both
    table, kinds = Tables(out).arrow("messages"), made.truth["events"]
    for column, kind in (
        ("publications", Kind.PUBLISHED),
        ("forwards", Kind.FORWARDED),
        ("deliveries", Kind.DELIVERED),
        ("acknowledgements", Kind.ACKNOWLEDGED),
        ("drops", Kind.DROPPED),
        ("expiries", Kind.EXPIRED),
        ("returns", Kind.RETURNED),
        ("failovers", Kind.FAILED_OVER),
        ("releases", Kind.CUSTODY_RELEASED),
    ):
        assert sum(table.column(column).to_pylist()) == kinds.get(kind.name.lower(), 0), column


def test_row_for_row_as_duckdb(both: tuple[Path, Made, Path]) -> None:
    journal, _, out = both
    assert oracle.difference(oracle.messages(journal), out, "messages") == ([], [])


def test_refused(tables: tuple[Path, Summary], journal: tuple[Path, Made]) -> None:
    assert Tables(tables[0]).arrow("refused").num_rows == journal[1].truth["events"]["refused"] > 0


def test_what_an_origin_gave_up_is_no_end_at_a_client(spark: SparkSession) -> None:
    """Dropped for another broker: that broker counts as settled, and no session has an end by it."""
    schema = struct()
    rows = []
    for kind, broker, to, value in ((1, 1, -1, 2), (4, 2, 2, 1), (6, 2, 2, 0), (7, 1, 3, 0)):
        values: dict[str, object] = {name: default for name, _, default in EVENTS}
        values |= {"kind": kind, "broker": broker, "to_broker": to, "value": value, "origin": 1, "origin_epoch": 9, "stream": 1}
        rows.append(tuple({**values, "sequence": 5, "qos": 1, "time": 10, "published": 5, "client": 7}.values()))
    (found,) = messages(spark.createDataFrame(rows, schema), [1, 2, 3]).collect()
    assert (found["arrivals"], found["given_up"], found["ends"], found["drops"], found["status"]) == (1, 1, 1, 1, 1)
