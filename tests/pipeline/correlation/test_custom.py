"""Values that brokers have selected from payloads, as a table, and messages found by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mqmesh.broker.journal.search import Query
from mqmesh.pipeline.run import Order, run
from mqmesh.pipeline.tables.tables import Tables
from mqmesh.pipeline.trace.tables import find
from support.written_journal import NOVEMBER, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_ids_of_ones_own(spark: SparkSession, tmp_path: Path) -> None:
    """[M1, M5] Each message has its values, whatever an event stands for, and is found by them."""
    journal = Written(tmp_path / "journal")
    message = {"origin": 1, "stream": 1, "topic": "orders/new", "client": "till", "published": NOVEMBER}
    journal.events(
        {"kind": 1, "sequence": 1, "count": 2, "detail": json.dumps({"order": 4711, "article": "bolt"}), **message},
        {"kind": 1, "sequence": 3, "detail": json.dumps({"order": "4712", "paid": True}), **message},
        {"kind": 1, "sequence": 4, **message},
        {"kind": 9, "sequence": 4, "detail": json.dumps({"order": "of another kind"}), **message},
    )
    journal.close()
    summary = run(Order(str(tmp_path / "journal"), str(tmp_path / "out"), ("messages", "custom", "health")))
    assert not summary.failed, [job.error for job in summary.jobs]
    (health,) = [row for row in Tables(str(tmp_path / "out")).arrow("health").to_pylist() if row["job"] == "custom"]
    assert (health["expected"], health["found"], health["must"]) == (6, 6, True)
    rows = Tables(str(tmp_path / "out")).arrow("custom").to_pylist()
    found = {(row["sequence"], row["name"], row["value"]) for row in rows}
    both = {(number, *pair) for number in (1, 2) for pair in (("article", "bolt"), ("order", "4711"))}
    assert (len(rows), found) == (6, both | {(3, "order", "4712"), (3, "paid", "true")})
    for value, expected in (("order=4711", [2, 1]), ("order=4712", [3]), ("order=9", []), ("article=4711", [])):
        stories = find(str(tmp_path / "out"), Query.of({"value": value}))
        assert [int(story.message.rpartition(".")[2]) for story in stories] == expected
