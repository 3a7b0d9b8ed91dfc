"""Shortest-path trees and what relays make of them, against networkx."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.view.linkstate import LinkStates, shortest_paths
from mqmesh.mesh.view.trees import Record, branches, check_open
from mqmesh.mesh.wire.control import LinkEntry, LinkRecord, Open
from mqmesh.mqtt.errors import PeerError


@st.composite
def graphs(draw: st.DrawFn) -> networkx.Graph:
    size = draw(st.integers(1, 9))
    graph = networkx.Graph()
    graph.add_nodes_from(range(size))
    for a in range(size):
        for b in range(a + 1, size):
            if draw(st.integers(0, 2)) == 0:
                graph.add_edge(a, b, cost=draw(st.integers(1, 4)))
    return graph


def as_table(graph: networkx.Graph) -> dict[int, dict[int, tuple[int, int]]]:
    return {a: {b: (graph.edges[a, b]["cost"], a * 100 + b) for b in graph[a]} for a in graph}


@given(graphs())
def test_paths_are_shortest_and_ties_go_to_the_lowest_parent(graph: networkx.Graph) -> None:
    paths = shortest_paths(as_table(graph), 0)
    best = networkx.single_source_dijkstra_path_length(graph, 0, weight="cost")
    assert {n: p.cost for n, p in paths.items()} == {n: c for n, c in best.items() if n}
    seen = {0}
    for number, path in paths.items():
        assert path.parent in seen
        seen.add(number)
        assert best[path.parent] + graph.edges[path.parent, number]["cost"] == path.cost
        equal = [n for n in graph[number] if n in best and best[n] + graph.edges[n, number]["cost"] == path.cost]
        assert path.parent == min(equal)


@given(graphs())
def test_branches_part_the_brokers_behind(graph: networkx.Graph) -> None:
    paths = shortest_paths(as_table(graph), 0)
    nodes = [(n, p.parent) for n, p in paths.items()]
    tree = networkx.DiGraph((p, n) for n, p in nodes)
    tree.add_node(0)
    for here in tree:
        found = branches(nodes, 0, here)
        assert set(found) == set(tree.successors(here))
        for child, mask in found.items():
            assert mask == sum(1 << n for n in {child} | networkx.descendants(tree, child))


def open_of(*nodes: tuple[int, int, int]) -> Open:
    return Open(1, b"u" * 16, 5, 6, nodes)


@pytest.mark.parametrize(
    "nodes",
    [
        (),  # not in it
        ((3, 1, 9),),  # not in it
        ((2, 3, 9), (3, 1, 9)),  # a child before its parent
        ((2, 1, 9), (2, 1, 9)),  # twice
        ((1, 1, 9), (2, 1, 9)),  # the origin
    ],
)
def test_an_open_that_is_no_tree_is_the_peers_error(nodes: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(PeerError):
        check_open(open_of(*nodes), 2)


def test_an_open_says_where_a_broker_hangs() -> None:
    assert check_open(open_of((3, 1, 7), (2, 3, 9)), 2) == (3, 9)


def test_a_record_loses_links() -> None:
    record = Record(1, b"", 6, upstream=10)
    assert not record.lose(11)
    assert record.lose(10)
    assert record.upstream is None


def record(number: int, *links: tuple[int, int], epoch: int = 1, sequence: int = 1, uuid: bytes | None = None) -> LinkRecord:
    entries = tuple(LinkEntry(peer, incarnation, 1) for peer, incarnation in links)
    return LinkRecord(number, uuid or bytes((number,)) * 16, f"b{number}", epoch, sequence, entries)


def states(*records: LinkRecord) -> LinkStates:
    made = LinkStates((1, b"\1" * 16))
    for one in records:
        assert made.offer(one)
    made.refresh()
    return made


def test_a_link_needs_both_ends_and_one_incarnation() -> None:
    assert states(record(1, (2, 7)), record(2)).live == 0b10
    assert states(record(1, (2, 7)), record(2, (1, 8))).live == 0b10
    assert states(record(1, (2, 7)), record(2, (1, 7))).live == 0b110


def test_only_newer_records_count() -> None:
    made = states(record(1, (2, 7)), record(2, (1, 7), epoch=3, sequence=5))
    assert not made.offer(record(2, epoch=3, sequence=5))
    assert not made.offer(record(2, epoch=2, sequence=9))
    assert made.offer(record(2, epoch=4, sequence=1))


def test_the_earlier_of_two_live_brokers_holds_a_number() -> None:
    one, two = record(3, (2, 8), epoch=10, uuid=b"x" * 16), record(3, (2, 9), epoch=20, uuid=b"y" * 16)
    made = states(record(1, (2, 7)), record(2, (1, 7), (3, 8), (3, 9)), one, two)
    assert made.holders[3] == one
    assert made.intruders == [(one, two)]
    assert made.is_live(3, b"y" * 16) == one
    assert made.is_live(3, b"x" * 16) is None
    assert made.paths[3].incarnation == 8


def test_a_broker_that_is_gone_leaves_its_number() -> None:
    gone, fresh = record(3, (2, 8), epoch=10, uuid=b"x" * 16), record(3, (2, 9), epoch=5, uuid=b"y" * 16)
    made = states(record(1, (2, 7)), record(2, (1, 7), (3, 9)), gone, fresh)
    assert made.holders[3] == fresh
    assert not made.intruders
