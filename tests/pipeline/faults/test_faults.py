"""Faults: exactly those that the generator made, and availability from them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.journal.schema import name_id
from mqmesh.pipeline.faults.availability import Interval, availability, merged, months, site_intervals
from mqmesh.pipeline.run import Summary
from mqmesh.pipeline.synthesis.synthesize import Made
from mqmesh.pipeline.tables.tables import Tables

SKEW = 40_000  # of broker 5, in the made journal
DAY = 86_400_000_000


def near(found: int, true: int) -> bool:
    return abs(found - true) <= SKEW + 1_000


def test_faults_of_links(tables: tuple[Path, Summary], journal: tuple[Path, Made]) -> None:
    rows = [row for row in Tables(tables[0]).arrow("faults").to_pylist() if row["what"] == "link"]
    truth = journal[1].truth["link_faults"]
    assert len(rows) == len(truth) > 0
    for row, (a, b, began, ended) in zip(sorted(rows, key=lambda one: one["began"]), truth, strict=True):
        assert (row["a"], row["b"]) == (a, b)
        assert near(row["began"], began)
        assert near(row["noticed"], began)
        assert near(row["ended"], ended)


def test_faults_of_recipients(tables: tuple[Path, Summary], journal: tuple[Path, Made]) -> None:
    rows = [row for row in Tables(tables[0]).arrow("faults").to_pylist() if row["what"] == "recipient"]
    truth = journal[1].truth["recipient_faults"]
    assert len(rows) == len(truth) > 0
    for row, (name, broker, began, noticed, defunct, ended) in zip(sorted(rows, key=lambda one: one["began"]), truth, strict=True):
        assert (row["recipient"], row["a"]) == (name_id(name), broker)
        skew = SKEW if broker == 5 else 0
        assert (row["began"], row["noticed"], row["ended"]) == (began, noticed + skew, ended + skew)
        assert row["defunct"] == (defunct + skew if defunct else None)


def test_availability(tables: tuple[Path, Summary], journal: tuple[Path, Made]) -> None:
    rows = Tables(tables[0]).arrow("availability").to_pylist()
    down: dict[tuple[int, int], int] = {}
    for a, b, began, ended in journal[1].truth["link_faults"]:
        down[a, b] = down.get((a, b), 0) + ended - began
    links = {(row["a"], row["b"]): row for row in rows if row["what"] == "link"}
    assert len(links) == 5
    for ends, row in links.items():
        assert row["down"] == pytest.approx(down.get(ends, 0), abs=10 * SKEW)
        assert row["share"] == 1 - row["down"] / row["observed"]
    assert {row["a"] for row in rows if row["what"] == "site"} == {1, 2, 3, 4, 5}


def test_months() -> None:
    first, last = 1_735_689_600_000_000 - 1, 1_735_689_600_000_000 + 40 * DAY
    assert [(name, end - begin) for name, begin, end in months(first, last)] == [
        ("2024-12", 1),
        ("2025-01", 31 * DAY),
        ("2025-02", 9 * DAY),
    ]


def test_a_fault_over_two_months_counts_in_each() -> None:
    january = 1_735_689_600_000_000
    rows = availability([("link", 1, 2, 0)], [Interval("link", 1, 2, 0, january - 10, january + 30)], january - 100, january + 100)
    assert [(row["month"], row["down"], row["share"]) for row in rows] == [("2024-12", 10, 0.9), ("2025-01", 30, 0.7)]


def test_a_fault_that_lasts_counts_until_the_end() -> None:
    (row,) = availability([("link", 1, 2, 0)], [Interval("link", 1, 2, 0, 50, None)], 0, 100)
    assert row["down"] == 50


def test_a_site_is_down_while_all_of_its_links_are() -> None:
    faults = [Interval("link", 1, 2, 0, 10, 50), Interval("link", 1, 3, 0, 30, None), Interval("link", 2, 3, 0, 0, 100)]
    assert site_intervals(1, [(1, 2), (1, 3), (2, 3)], faults, 100) == [Interval("site", 1, -1, 0, 30, 50)]
    assert site_intervals(9, [(1, 2)], faults, 100) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_merged_spans_cover_the_same(spans: list[tuple[int, int]]) -> None:
    made = merged(spans)
    assert {n for a, b in made for n in range(a, b)} == {n for a, b in spans for n in range(a, b)}
    assert all(one[1] < other[0] for one, other in itertools.pairwise(made))
