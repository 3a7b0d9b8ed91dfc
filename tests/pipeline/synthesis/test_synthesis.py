"""Made journals: whole, the same again, of the size that was asked for, and with paths that the topology has."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.broker.journal.layout import read_manifest
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.schema import Kind
from mqmesh.mesh.topology.topology import load
from mqmesh.pipeline.errors import PipelineError
from mqmesh.pipeline.synthesis.routes import used_edges
from mqmesh.pipeline.synthesis.synthesize import Made, Order, synthesize

ROOT = Path(__file__).parents[3]
TOPOLOGIES = sorted((ROOT / "topologies").glob("*.toml"))


def test_the_journal_is_whole(journal: tuple[Path, Made]) -> None:
    assert Journal(str(journal[0])).check() == []


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda path: path.stem)
def test_each_step_is_a_link_of_the_topology(topology: Path, tmp_path: Path) -> None:
    made = synthesize(Order(topology, events=1_000, topics=30, faults=2), tmp_path)
    numbers = {broker.name: broker.number for broker in load(topology).brokers}
    links = {frozenset(numbers[name] for name in link.ends) for link in load(topology).links}
    used = {frozenset(map(int, pair.split("-"))) for pair in made.truth["links"]}
    assert used <= links
    assert 800 < made.events < 1_300


def test_causes_come_before_effects(journal: tuple[Path, Made]) -> None:
    """By the true time: a message is published before it is received, and delivered before it is acknowledged."""
    seen: dict[tuple[int, ...], int] = {}
    delivered: dict[tuple[int, ...], int] = {}
    rows = [row for table in Journal(str(journal[0])).tables() for row in table.to_pylist() if row["origin"] >= 0]
    for row in rows:
        key = (row["origin"], row["stream"], row["sequence"])
        if row["kind"] == Kind.PUBLISHED:
            seen[key] = row["mono"]
        elif row["kind"] == Kind.DELIVERED:
            delivered[*key, row["broker"], row["client"]] = row["mono"]
    for row in rows:
        key = (row["origin"], row["stream"], row["sequence"])
        assert row["mono"] >= seen[key]
        if row["kind"] == Kind.ACKNOWLEDGED:
            assert row["mono"] > delivered[*key, row["broker"], row["client"]]


def test_the_same_order_gives_the_same_journal(tmp_path: Path) -> None:
    hashes = []
    for name in ("one", "two"):
        synthesize(Order(TOPOLOGIES[0], events=2_000, topics=30), tmp_path / name)
        hashes.append([segment.sha256 for segment in read_manifest(Place(tmp_path / name)).segments])
    assert hashes[0] == hashes[1]


def test_a_folder_with_a_journal_is_refused(journal: tuple[Path, Made]) -> None:
    with pytest.raises(PipelineError, match="holds a journal already: give an empty folder"):
        synthesize(Order(TOPOLOGIES[0]), journal[0])


def test_a_topology_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("nothing = 1\n")
    with pytest.raises(PipelineError, match=r"t\.toml"):
        synthesize(Order(tmp_path / "t.toml"), tmp_path / "journal")


def test_edges_towards_destinations() -> None:
    parents = {2: 1, 3: 1, 4: 2, 5: 4}
    assert used_edges(parents, {5}, 1) == [(1, 2), (2, 4), (4, 5)]
    assert used_edges(parents, {3, 4}, 1) == [(1, 2), (1, 3), (2, 4)]
    assert used_edges(parents, set(), 1) == []
