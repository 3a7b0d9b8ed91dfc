"""Usage: against what is known of a made journal, against DuckDB, and by roles, services and parties in a small one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from mqmesh.base.wildcards import fits
from mqmesh.broker.journal.schema import Kind, name_id
from mqmesh.mqtt.topics import matches
from mqmesh.pipeline.run import Order, run
from mqmesh.pipeline.tables.tables import Tables
from mqmesh.pipeline.usage.usage import filter_regex, pattern_regex
from support.written_journal import MINUTE, NOVEMBER, Written

from .. import oracle

if TYPE_CHECKING:
    from mqmesh.pipeline.synthesis.synthesize import Made
    from pyspark.sql import SparkSession

TARIFFS = """
currency = "EUR"
[[service]]
name = "telemetry"
topics = ["plant/#"]
[[service]]
name = "reports"
recipients = ["desk-*"]
[[party]]
account = "desks"
recipients = ["desk-*"]
[[party]]
account = "carrier"
sites = [2]
[[tariff]]
name = "standard"
"""


def usage(out: Path) -> list[dict[str, Any]]:
    return Tables(out).arrow("usage").to_pylist()


def test_it_is_what_is_known_of_the_journal(tables: tuple[Path, Any], journal: tuple[Path, Made]) -> None:
    truth = journal[1].truth
    names = {name_id(name): name for name in ("plant", "shop", "fleet", "lab", "office")}
    known: Counter[tuple[str, int]] = Counter()
    for key, size in truth["accounts"].items():
        account, day = key.rsplit("-", 1)
        known[names[int(account)], int(day)] += size
    found: Counter[tuple[str, int]] = Counter()
    for row in usage(tables[0]):
        if row["role"] == "originator":
            found[row["account"], int(duckdb.sql(f"select date '{row['date']}' - date '1970-01-01'").fetchall()[0][0])] += row["bytes"]
    assert found == known


def test_duckdb_finds_the_same(tables: tuple[Path, Any], journal: tuple[Path, Made]) -> None:
    assert oracle.difference(oracle.usage(journal[0]), tables[0], "usage") == ([], [])
    assert len(usage(tables[0])) > 10


def small(folder: Path) -> Written:
    """Two publishers, two recipients, a relay (2), two days."""
    made = Written(folder)
    minute = NOVEMBER // MINUTE
    made.counts(
        {"kind": Kind.PUBLISHED, "topic": "plant", "account": "acme", "messages": 5, "bytes": 50},
        {"kind": Kind.PUBLISHED, "topic": "shop", "account": "acme", "messages": 2, "bytes": 9},
        {"kind": Kind.PUBLISHED, "topic": "plant", "messages": 1, "bytes": 1, "minute": minute + 1440},
        {"kind": Kind.FORWARDED, "messages": 99},
    )
    made.counts(
        {"kind": Kind.DELIVERED, "topic": "plant", "account": "bee", "recipient": "reader", "messages": 5, "bytes": 50},
        {"kind": Kind.DELIVERED, "topic": "shop", "account": "bee", "recipient": "desk-1", "messages": 2, "bytes": 9},
        {"kind": Kind.REFUSED, "topic": "shop", "account": "bee", "messages": 7, "bytes": 70},
        broker=3,
    )
    common = {"origin": 1, "stream": 1, "size": 10, "topic": "plant/3", "qos": 1}
    made.events(
        {"kind": Kind.PUBLISHED, "sequence": 1, "count": 5, "account": "acme", **common}, {"kind": Kind.FORWARDED, "sequence": 1, **common}
    )
    made.events({"kind": Kind.FORWARDED, "sequence": 1, "count": 5, "to_broker": 3, **common}, broker=2)
    made.events({"kind": Kind.DELIVERED, "sequence": 1, "count": 5, "client": "reader", "account": "bee", **common}, broker=3)
    made.close()
    return made


def test_roles_services_and_parties(spark: SparkSession, tmp_path: Path) -> None:
    small(tmp_path / "journal")
    (tmp_path / "tariffs.toml").write_text(TARIFFS)
    order = Order(
        str(tmp_path / "journal"), str(tmp_path / "out"), ("usage", "charged"), options={"usage.tariffs": str(tmp_path / "tariffs.toml")}
    )
    assert not run(order).failed
    found = {(row["date"], row["account"], row["service"], row["role"]): (row["messages"], row["bytes"]) for row in usage(tmp_path / "out")}
    assert found == {
        ("2026-11-01", "acme", "telemetry", "originator"): (5, 50),
        ("2026-11-01", "acme", "shop", "originator"): (2, 9),
        ("2026-11-02", "", "telemetry", "originator"): (1, 1),
        ("2026-11-01", "bee", "telemetry", "recipient"): (5, 50),
        ("2026-11-01", "desks", "reports", "recipient"): (2, 9),
        ("2026-11-01", "carrier", "telemetry", "intermediary"): (5, 50),
    }
    charged = {
        (row["account"], row["role"]): (row["sequence"], row["count"], row["topic"])
        for row in Tables(tmp_path / "out").arrow("charged").to_pylist()
    }
    assert charged == {
        ("acme", "originator"): (1, 5, "plant/3"),
        ("bee", "recipient"): (1, 5, "plant/3"),
        ("carrier", "intermediary"): (1, 5, "plant/3"),
    }


def test_a_run_with_dates_replaces_these_only(spark: SparkSession, tmp_path: Path) -> None:
    small(tmp_path / "journal")
    order = Order(str(tmp_path / "journal"), str(tmp_path / "out"), ("usage",))
    run(order)
    whole = sorted(map(str, usage(tmp_path / "out")))
    run(Order(str(tmp_path / "journal"), str(tmp_path / "out"), ("usage",), since="2026-11-01", until="2026-11-02"))
    assert sorted(map(str, usage(tmp_path / "out"))) == whole


def test_damaged_counters_are_set_aside_and_said(spark: SparkSession, tmp_path: Path) -> None:
    made = small(tmp_path / "journal")
    made.place.write("counts/date=2026-11-01/broker=4/1-2-3.parquet", b"PAR1 is not enough")
    said: list[str] = []
    summary = run(Order(str(tmp_path / "journal"), str(tmp_path / "out"), ("usage",)), say=said.append)
    assert not summary.failed
    assert summary.jobs[0].counts["count_files_set_aside"] == 1
    assert any("counters are missing: counts/date=2026-11-01/broker=4/1-2-3.parquet: " in text for text in said)
    assert sum(row["messages"] for row in usage(tmp_path / "out")) == 15


@pytest.mark.parametrize("text", ["nowhere.toml", "tariffs.toml"])
def test_wrong_tariffs_end_the_job_with_one_line(spark: SparkSession, tmp_path: Path, text: str) -> None:
    small(tmp_path / "journal")
    (tmp_path / "tariffs.toml").write_text("currency = 1")
    summary = run(Order(str(tmp_path / "journal"), str(tmp_path / "out"), ("usage",), options={"usage.tariffs": str(tmp_path / text)}))
    assert summary.failed
    assert summary.jobs[0].error.startswith(f"{tmp_path / text}: ")


LEVELS = ["a", "b", "a.b", "", "$s", "+x", "é|("]
TOPICS = [one for one in ["/".join((x, y)) for x in LEVELS for y in LEVELS] + LEVELS if one]
FILTERS = ["#", "+", "+/+", "a/#", "+/b", "a.b/+", "/+", "$s/#", "$s/+", "é|(/#", "a", "a/b", "+/#", "/#"]
PATTERNS = ["*", "a*", "?", "*/b", "a.b", "?.?*", "é|(*", "$s", ""]


def test_expressions_match_as_filters_and_patterns_do(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    frame = spark.createDataFrame([(topic,) for topic in TOPICS], "topic string")
    columns = [F.col("topic").rlike(f"\\A{filter_regex(one)}\\z").alias(f"f{place}") for place, one in enumerate(FILTERS)]
    columns += [F.col("topic").rlike(f"\\A{pattern_regex(one)}\\z").alias(f"p{place}") for place, one in enumerate(PATTERNS)]
    for row in frame.select("topic", *columns).collect():
        for place, one in enumerate(FILTERS):
            assert row[f"f{place}"] == matches(one, row["topic"]), (one, row["topic"])
        for place, one in enumerate(PATTERNS):
            assert row[f"p{place}"] == fits(one, row["topic"]), (one, row["topic"])
