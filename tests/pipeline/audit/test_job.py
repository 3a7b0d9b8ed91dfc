"""The audit trail of a made journal has each action once, also after a second run and when a segment comes late."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.audit.job import KINDS, record
from mqmesh.pipeline.audit.trail import Trail
from mqmesh.pipeline.run import Order, run

if TYPE_CHECKING:
    from mqmesh.pipeline.synthesis.synthesize import Made
    from pyspark.sql import SparkSession


def known(journal: Path) -> set[tuple[int, int]]:
    kinds = ", ".join(str(int(kind)) for kind in KINDS)
    sql = f"select broker, event from read_parquet('{journal}/events/**/*.parquet', hive_partitioning = false) where kind in ({kinds})"
    return set(duckdb.sql(sql).fetchall())


def found(out: Path) -> list[tuple[int, int]]:
    return [(one["broker"], one["event"]) for one in map(json.loads, Trail(Place(out)).lines())]


def test_each_action_is_there_once(tables: tuple[Path, Any], journal: tuple[Path, Made]) -> None:
    Trail(Place(tables[0])).verify()
    actions = found(tables[0])
    assert len(actions) == len(set(actions)) > 10
    assert set(actions) == known(journal[0])


def test_late_segments_are_added_and_nothing_twice(spark: SparkSession, journal: tuple[Path, Made], tmp_path: Path) -> None:
    copy, out = tmp_path / "journal", tmp_path / "out"
    shutil.copytree(journal[0], copy)
    manifests = sorted((copy / "manifest").rglob("*.json"))
    late = manifests[::2]
    for path in late:
        path.rename(path.with_suffix(".away"))
    order = Order(str(copy), str(out), ("audit",))
    assert not run(order).failed
    noted = Trail(Place(out)).verify()
    assert 0 < noted.number < len(known(copy))
    for path in late:
        path.with_suffix(".away").rename(path)
    for _ in range(2):
        assert not run(order).failed
    Trail(Place(out)).verify(noted)
    assert sorted(found(out)) == sorted(known(copy))


def test_a_record_says_what_is_known() -> None:
    row = {
        "kind": 23,
        "time": 1_793_491_200_000_001,
        "broker": 7,
        "epoch": 5,
        "event": 9,
        "count": 1,
        "detail": '{"cut": "a"}',
        "origin": -1,
        "origin_epoch": 0,
        "stream": 0,
        "sequence": 0,
        "to_broker": -1,
        "value": 0,
        "account": 4,
        "client": 0,
        "recipient": 0,
        "topic": 8,
        "reason": 0,
    }
    assert record(row, {4: "ops"}) == {
        "time": "2026-11-01T00:00:00.000001Z",
        "what": "managed",
        "broker": 7,
        "epoch": 5,
        "event": 9,
        "account": "ops",
        "topic": "#8",
        "detail": {"cut": "a"},
    }
    refused = row | {"kind": 2, "origin": 1, "origin_epoch": 3, "stream": 1, "sequence": 4, "count": 6, "detail": "no json"}
    assert {"message": "1.3.1.4", "count": 6, "detail": "no json"}.items() <= record(refused, {}).items()
