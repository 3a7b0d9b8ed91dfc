"""The nodes' own code against the model of the rules: the same copies on any graph, each message once at each broker."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mesh.topology.analysis import analyse, flood, graph_of
from mqmesh.mesh.topology.rehearsal import Rehearsal, rehearse
from mqmesh.mesh.topology.settings import MeshSettings
from mqmesh.mesh.topology.topology import BrokerEntry, LinkEntry, Topology, load
from support.examples import examples

FOLDER = Path(__file__).parents[3] / "topologies"


def topology_of(count: int, edges: dict[tuple[int, int], int]) -> Topology:
    brokers = [BrokerEntry(f"b{n}", n, (f"mqtt://127.0.0.1:{n + 1}",)) for n in range(count)]
    links = [LinkEntry(f"b{a}", f"b{b}", cost) for (a, b), cost in sorted(edges.items())]
    return Topology("t", MeshSettings("m", "k" * 16), brokers, links)


def pairs(count: int) -> st.SearchStrategy[dict[tuple[int, int], int]]:
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda ends: ends[0] < ends[1])
    return st.dictionaries(pair, st.integers(1, 4)) if count > 1 else st.just({})


TOPOLOGIES = st.integers(1, 7).flatmap(lambda count: st.builds(topology_of, st.just(count), pairs(count)))


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda file: file.stem)
def test_the_examples_are_carried_as_the_model_says(file: Path) -> None:
    topology = load(file)
    assert rehearse(topology) == {one.name: (one.marked, one.routed) for one in analyse(topology).origins}


@settings(max_examples=examples(60), deadline=None)
@given(TOPOLOGIES)
def test_any_graph_is_carried_as_the_model_says(topology: Topology) -> None:
    graph = graph_of(topology)
    plain = nx.Graph(topology.graph())
    flooding, routing = Rehearsal(topology, "flood"), Rehearsal(topology, "routed")
    for broker in topology.brokers:
        reached = sorted(nx.node_connected_component(plain, broker.name) - {broker.name})
        flooded = flooding.publish(broker.number, 0)
        assert flooded.frames == flood(graph, broker.number, True)[0]
        assert sorted(flooded.delivered) == reached
        first, second, third = (routing.publish(broker.number, qos) for qos in (1, 2, 0))
        assert sorted(first.delivered) == sorted(second.delivered) == sorted(third.delivered) == reached
        assert second.frames == third.frames == len(reached)


def test_flooding_finds_the_ways_of_one_length_in_the_order_of_sending() -> None:
    topology = topology_of(4, {(0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 3): 1})
    counted = Rehearsal(topology, "flood").publish(0, 0)
    assert (counted.frames, counted.delivered) == (4, ["b1", "b2", "b3"])
