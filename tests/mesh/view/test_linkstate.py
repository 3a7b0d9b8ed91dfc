"""Link state: paths are computed when the links in use change, not with each record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.view import linkstate
from mqmesh.mesh.view.linkstate import Graph, LinkStates, Path, shortest_paths
from mqmesh.mesh.wire.control import LinkEntry, LinkRecord
from support.models.mesh_net import ring

OWN = (0, b"\0" * 16)
records = st.builds(
    lambda number, life, epoch, links: (number, bytes([life]) * 16, epoch, links),
    st.integers(0, 4),
    st.integers(0, 1),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=4),
)


def record_of(sequence: int, number: int, uuid: bytes, epoch: int, links: list[tuple[int, int]]) -> LinkRecord:
    """Links between two numbers have one incarnation, so that both ends often list the same one."""
    listed = {peer: LinkEntry(peer, 100 * min(number, peer) + max(number, peer), cost, None) for peer, cost in links if peer != number}
    return LinkRecord(number, uuid, f"b{number}", epoch, sequence, tuple(listed.values()))


@given(st.lists(records, max_size=30))
def test_records_one_by_one_show_what_they_show_at_once(steps: list[tuple[int, bytes, int, list[tuple[int, int]]]]) -> None:
    states = LinkStates(OWN)
    for sequence, step in enumerate(steps, 1):
        states.offer(record_of(sequence, *step))
        states.refresh()
        fresh = LinkStates(OWN)
        fresh.records = dict(states.records)
        fresh.refresh()
        assert list(states.paths.items()) == list(fresh.paths.items())
        assert (states.live, states.holders, states.intruders, states.policies) == (
            fresh.live,
            fresh.holders,
            fresh.intruders,
            fresh.policies,
        )


def test_a_cut_is_one_computation_for_each_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends say in a record each that their link is gone; the first one takes it out of use."""
    computed: list[int] = []

    def counted(graph: Graph, root: int) -> dict[int, Path]:
        computed.append(root)
        return shortest_paths(graph, root)

    net = ring(1, 2, 3, 4, 5, 6)
    for node in net.nodes.values():
        node.members()
    monkeypatch.setattr(linkstate, "shortest_paths", counted)
    net.cut(1)
    net.settle()
    for node in net.nodes.values():
        node.members()
        assert len(node.holders()) == 6
    assert sorted(computed) == [1, 2, 3, 4, 5, 6]
