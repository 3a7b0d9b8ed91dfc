"""Latency: the same histograms as DuckDB and the generator, and percentiles that follow from them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.pipeline.latency.histogram import buckets, percentile, percentiles, value_of
from mqmesh.pipeline.run import Summary
from mqmesh.pipeline.synthesis.synthesize import Made
from mqmesh.pipeline.tables.tables import Tables

from .. import oracle

KEY = ("level", "window", "prefix", "origin", "broker")


@pytest.fixture(params=["single", "runs"])
def both(request: pytest.FixtureRequest) -> tuple[Path, Made, Path]:
    names = ("journal", "tables") if request.param == "single" else ("runs", "run_tables")
    (journal, made), (out, _) = (request.getfixturevalue(name) for name in names)
    return journal, made, out


def test_histograms_are_those_of_duckdb(both: tuple[Path, Made, Path]) -> None:
    journal, _, out = both
    found = [
        (*(row[name] for name in KEY), cell["bucket"], cell["messages"])
        for row in Tables(out).arrow("latency").to_pylist()
        for cell in row["histogram"]
    ]
    assert sorted(found) == sorted(oracle.histogram(journal).fetchall())


def test_histograms_are_those_of_the_generator(both: tuple[Path, Made, Path]) -> None:
    _, made, out = both
    found: dict[str, Counter[str]] = {}
    for row in Tables(out).arrow("latency").to_pylist():
        if row["level"] == "delivery":
            counter = found.setdefault(f"{row['origin']}-{row['broker']}", Counter())
            for cell in row["histogram"]:
                counter[str(cell["bucket"])] += cell["messages"]
    assert {pair: dict(counts) for pair, counts in found.items()} == made.truth["latency"]


def test_percentiles_follow_from_histograms(tables: tuple[Path, Summary]) -> None:
    for table in ("latency", "hop_latency"):
        rows = Tables(tables[0]).arrow(table).to_pylist()
        assert rows
        for row in rows:
            histogram = [(cell["bucket"], cell["messages"]) for cell in row["histogram"]]
            assert {name: row[name] for name in ("p50", "p90", "p99", "max")} == percentiles(histogram)
            assert row["messages"] == sum(count for _, count in histogram)
            assert row["negative"] == dict(histogram).get(-1, 0)


def test_clocks_that_differ_are_counted(tables: tuple[Path, Summary]) -> None:
    """The clock of broker 5 is ahead, so what it publishes arrives before it was published."""
    rows = Tables(tables[0]).arrow("latency").to_pylist()
    assert sum(row["negative"] for row in rows if row["origin"] == 5 != row["broker"]) > 0
    assert sum(row["negative"] for row in rows if row["origin"] != 5) == 0


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=200), st.integers(1, 100))
def test_a_percentile_is_right_within_the_width_of_a_bucket(latencies: list[int], share: int) -> None:
    counts = Counter(buckets(np.array(latencies)).tolist())
    exact = sorted(latencies)[max(0, -(-share * len(latencies) // 100) - 1)]
    assert percentile(sorted(counts.items()), share / 100) == pytest.approx(exact, rel=0.035, abs=1)


def test_a_bucket_holds_its_own_value() -> None:
    numbers = np.arange(12, 370)
    values = np.array([value_of(int(number)) for number in numbers])
    assert buckets(values[40:]).tolist() == numbers[40:].tolist()
    assert value_of(-1) == 0
    with pytest.raises(ValueError, match="empty histogram"):
        percentile([], 0.5)
