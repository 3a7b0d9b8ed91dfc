"""Traffic: the matrix, links and copies, against what the generator knows and against DuckDB; advice and pictures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import networkx as nx
from mqmesh.pipeline.run import Order as RunOrder
from mqmesh.pipeline.run import Summary, run
from mqmesh.pipeline.synthesis.synthesize import Made, Order, synthesize
from mqmesh.pipeline.tables.tables import Tables
from mqmesh.pipeline.traffic.graph import Flow, Link, mesh_of, optimum, report
from mqmesh.pipeline.traffic.picture import matrix_svg

from .. import oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]


def test_the_matrix(journal: tuple[Path, Made], tables: tuple[Path, Summary]) -> None:
    assert oracle.difference(oracle.traffic(journal[0]), tables[0], "traffic") == ([], [])
    sums: Counter[str] = Counter()
    for row in Tables(tables[0]).arrow("traffic").to_pylist():
        if row["origin"] != row["broker"]:
            sums[f"{row['origin']}-{row['broker']}"] += row["messages"]
    assert sums == journal[1].truth["pairs"]


def test_the_links(runs: tuple[Path, Made], run_tables: tuple[Path, Summary]) -> None:
    assert oracle.difference(oracle.links(runs[0]), run_tables[0], "links") == ([], [])
    sums: Counter[str] = Counter()
    for row in Tables(run_tables[0]).arrow("links").to_pylist():
        sums[f"{row['sender']}-{row['receiver']}"] += row["copies"]
        assert row["bytes_a_second"] == row["bytes"] / 3600
    assert sums == runs[1].truth["links"]


def test_copies_add_up(tables: tuple[Path, Summary]) -> None:
    copies, links = Tables(tables[0]).arrow("copies").to_pylist(), Tables(tables[0]).arrow("links").to_pylist()
    messages = Tables(tables[0]).arrow("messages").to_pylist()
    unreached = sum(one["forwards"] for one in messages if not one["arrivals"])
    assert sum(one["copies"] for one in copies) + unreached == sum(one["copies"] for one in links)
    assert all(one["optimum"] is not None for one in copies)
    assert sum(one["copies"] for one in copies) > sum(one["optimum"] for one in copies), "links failed, so trees were longer"


def test_without_faults_copies_are_the_trees_optimum(spark: SparkSession, tmp_path: Path) -> None:
    synthesize(Order(ROOT / "topologies" / "grid-3x3.toml", events=5_000, topics=40, faults=0, unreached=0.0), tmp_path / "journal")
    summary = run(RunOrder(str(tmp_path / "journal"), str(tmp_path / "out"), ("traffic",)))
    assert not summary.failed, [job.error for job in summary.jobs]
    rows = Tables(tmp_path / "out").arrow("copies").to_pylist()
    assert sum(row["messages"] for row in rows) > 100
    assert all(row["copies"] == row["optimum"] for row in rows)


def test_the_report_and_the_pictures(tables: tuple[Path, Summary]) -> None:
    folder = tables[0] / "reports"
    found = json.loads((folder / "traffic.json").read_text())
    assert len(found["links"]) == 5
    assert nx.read_graphml(folder / "traffic.graphml").number_of_edges() == 5
    for name in ("traffic.svg", "traffic-matrix.svg"):
        assert ElementTree.parse(folder / name).getroot().tag.endswith("svg")


def line(count: int) -> nx.Graph:
    return mesh_of([Link(n, n + 1, 1) for n in range(1, count)], [])


def test_the_optimum_shares_edges() -> None:
    assert optimum(line(4), 1, frozenset({2, 3, 4})) == 3
    assert optimum(line(4), 2, frozenset({1, 4})) == 3
    assert optimum(line(4), 1, frozenset({9})) is None


def test_of_equal_paths_the_parent_with_the_lowest_number_wins() -> None:
    square = mesh_of([Link(1, 2, 1), Link(2, 4, 1), Link(1, 3, 1), Link(3, 4, 1)], [])
    assert optimum(square, 1, frozenset({2, 4})) == 2
    assert optimum(square, 1, frozenset({3, 4})) == 3


def test_advice() -> None:
    """A line of four, where all traffic is between its ends, and an idle link beside it."""
    used = [Link(1, 2, 0, 10, 100), Link(2, 3, 0, 10, 100), Link(3, 4, 0, 10, 100)]
    mesh = mesh_of([*(Link(n, n + 1, 1) for n in range(1, 4)), Link(4, 5, 1)], used)
    advice = report(mesh, [Flow(1, 4, 10, 100)])["advice"]
    assert advice[0] == "the link 4 - 5 carries nothing"
    assert "10 messages pass broker 2, without which the mesh is in parts" in advice
    assert "a link 1 - 4 would save 20 copies" in advice


def test_an_empty_matrix_is_a_picture() -> None:
    assert ElementTree.fromstring(matrix_svg([])).tag.endswith("svg")
