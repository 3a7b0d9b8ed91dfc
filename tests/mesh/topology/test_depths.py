"""The depth of what each failure leaves: computed behind the failure only, it is that of trees computed anew."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.topology import analysis, depths
from mqmesh.mesh.topology.analysis import analyse, graph_of
from mqmesh.mesh.topology.depths import depths_after
from mqmesh.mesh.topology.settings import MeshSettings
from mqmesh.mesh.topology.topology import BrokerEntry, LinkEntry, Topology
from mqmesh.mesh.view.linkstate import Graph, Path, shortest_paths

Edges = dict[tuple[int, int], int]  # (number, number) -> cost


def topology_of(numbers: list[int], edges: Edges) -> Topology:
    brokers = [BrokerEntry(f"b{n}", n, (f"mqtt://127.0.0.1:{n + 1}",)) for n in numbers]
    links = [LinkEntry(f"b{a}", f"b{b}", cost) for (a, b), cost in edges.items()]
    return Topology("t", MeshSettings("m", "k" * 16), brokers, links)


def deepest(graph: Graph) -> int:
    return max((path.hops for root in graph for path in shortest_paths(graph, root).values()), default=0)


def without(graph: Graph, link: tuple[int, int] | None, broker: int | None) -> Graph:
    gone = {link, link[::-1]} if link else set()
    return {n: {o: edge for o, edge in near.items() if o != broker and (n, o) not in gone} for n, near in graph.items() if n != broker}


def parts(graph: Graph) -> list[list[int]]:
    found = {tuple(sorted([root, *shortest_paths(graph, root)])) for root in graph}
    return [list(part) for part in sorted(found, key=lambda part: (-len(part), part))]


def check(numbers: list[int], edges: Edges) -> None:
    """Depths and what is cut off, beside trees computed anew for each failure."""
    topology = topology_of(numbers, edges)
    graph = graph_of(topology)
    links, brokers = depths_after(graph)
    assert links == {pair: deepest(without(graph, pair, None)) for pair in edges}
    assert brokers == {number: deepest(without(graph, None, number)) for number in numbers}
    for failure in analyse(topology).failures:
        ends = [int(name[1:]) for name in failure.ends]
        left = without(graph, (ends[0], ends[1]), None) if failure.kind == "link" else without(graph, None, ends[0])
        assert failure.depth == deepest(left)
        assert [[int(name[1:]) for name in group] for group in failure.cut_off] == parts(left)[1:]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], Edges]:
    numbers = draw(st.lists(st.integers(0, 40), min_size=1, max_size=9, unique=True))
    pairs = [(a, b) for a in numbers for b in numbers if a < b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return numbers, {pair: draw(st.integers(1, 4)) for pair in chosen}


@given(graphs())
def test_depths_behind_a_failure_are_those_of_new_trees(graph: tuple[list[int], Edges]) -> None:
    check(*graph)


def test_larger_graphs() -> None:
    """Those of 20 to 40 brokers have deep trees, many ties, bridges and several parts."""
    for seed in range(4):
        rng = random.Random(seed)
        count = rng.randint(20, 40)
        edges = {}
        for _ in range(round(count * rng.uniform(0.8, 2))):
            a, b = sorted(rng.sample(range(count), 2))
            edges[a, b] = rng.choice((1, 1, 1, 2, 5))
        check(list(range(count)), edges)


def test_trees_are_computed_once_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each failure and origin: that was some million trees for 1,000 brokers."""
    computed = []

    def counted(graph: Graph, root: int) -> dict[int, Path]:
        computed.append(root)
        return shortest_paths(graph, root)

    monkeypatch.setattr(analysis, "shortest_paths", counted)
    monkeypatch.setattr(depths, "shortest_paths", counted)
    rng = random.Random(7)
    edges = {(rng.randrange(max(0, n - 30), n), n): 1 for n in range(1, 60)}
    while len(edges) < 120:
        a, b = sorted(rng.sample(range(60), 2))
        edges.setdefault((a, b), 1)
    assert len(analysis.analyse(topology_of(list(range(60)), edges)).failures) == 180
    assert len(computed) == 2 * 60
