"""Flooding between nodes: who gets what, and how many copies; one rule of docs/mesh-protocol.md in each test."""

from __future__ import annotations

from mqmesh.mesh.node.core import MeshConfig
from support.models.mesh_net import Net, line, ring


def test_flooding_reaches_all_with_sibling_marks() -> None:
    net = Net(1, 2, 3, 4, 5, config=MeshConfig(mode="flood"))
    for a in range(1, 6):
        for b in range(a + 1, 6):
            net.link(a, b)
    net.settle()
    net.publish(1, "a", 0, 10)
    net.settle()
    assert all(net.got(n) == [b"%d" % i for i in range(10)] for n in (2, 3, 4, 5))
    assert sum(node.counters.sent for node in net.nodes.values()) == 40  # each broker once: 1.0 copies


def test_flooding_a_ring_and_far_numbers() -> None:
    net = ring(1, 900, 3, 40_000, 5, config=MeshConfig(mode="flood"))
    net.publish(1, "a", 0, 10)
    net.publish(1, "b", 0, 1, retain=True)
    net.settle()
    assert all(net.got(n) == [*(b"%d" % i for i in range(10)), b"0"] for n in (900, 3, 40_000, 5))
    assert sum(node.counters.duplicates for node in net.nodes.values()) <= 11 * 2


def test_flooded_streams_see_new_neighbours() -> None:
    net = line(1, 2, config=MeshConfig(mode="flood"))
    net.publish(1, "a", 0)
    net.settle()
    net.add(3)
    net.link(2, 3)
    net.settle()
    net.publish(1, "a", 0)
    net.settle()
    assert net.got(3) == [b"0"]


def test_flooded_shared_subscriptions_are_picked() -> None:
    net = ring(1, 2, 3, config=MeshConfig(mode="flood"))
    for number in (2, 3):
        net.nodes[number].subscribe("a", "g", 1, 0.0)
    net.settle()
    for _ in range(4):
        net.publish(1, "a", 0)
    net.settle()
    assert sorted(n for n, d in net.delivered if d.picks for _ in d.run.payloads) == [2, 2, 3, 3]


def test_custody_is_routed_in_a_flooding_mesh() -> None:
    net = ring(1, 2, 3, config=MeshConfig(mode="flood"))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", 1)
    net.settle()
    assert [n for n, _ in net.delivered] == [2]
    assert net.nodes[1].custody() == (0, 0)
