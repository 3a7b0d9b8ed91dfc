"""Runs that travel as blocks arrive as those that travel in frames, whatever the brokers on the way know."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mesh.node.actions import Deliver, Send
from mqmesh.mesh.node.node import Node
from mqmesh.mesh.wire.identity import BLOCK
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.errors import PeerError
from support.examples import examples
from support.models.mesh_net import Net, names


def line(old: set[tuple[int, int]], policies: dict[int, Policy] | None = None) -> Net:
    """1 - 2 - 3 - 4, where 2, 3 and 4 want all. old: links whose ends do not know blocks. policies: of the ends of 2 - 3."""
    net = Net(1, 2, 3, 4)
    both = net.capabilities
    for a in (1, 2, 3):
        net.capabilities = both - {BLOCK} if (a, a + 1) in old else both
        net.link(a, a + 1, policies=policies if a == 2 else None)
    for number in (2, 3, 4):
        net.nodes[number].subscribe("#", None, 1, 0.0)
    net.settle()
    net.publish(1, "warm", 1)
    net.settle()
    net.delivered.clear()
    return net


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([1, 3, 4, 9, 50]), st.sampled_from([None, 9]), st.booleans()), min_size=1, max_size=8
    ),
    st.sets(st.sampled_from([(1, 2), (2, 3), (3, 4)])),
)
def test_old_brokers_on_the_way_change_nothing(published: list, old: set[tuple[int, int]]) -> None:
    net = line(old)
    expected = {qos: [] for qos in (False, True)}
    for at, (qos, count, expiry, properties) in enumerate(published):
        block = b"\x26\x00\x01k\x00\x01v" if properties else b""
        payloads = [b"%d-%05d" % (at, n) for n in range(count)]
        net.publish(1, "a/topic", qos, payloads=payloads, properties=block, expiry=expiry)
        expected[bool(qos)] += [(qos, block, payload) for payload in payloads]
    net.settle()
    for number in (2, 3, 4):
        got = [(d.run.qos, d.run.properties, payload) for n, d in net.delivered if n == number for payload in d.run.payloads]
        for custody in (False, True):
            assert [one for one in got if bool(one[0]) == custody] == expected[custody]
    counters = [node.counters for node in net.nodes.values()]
    assert not sum(c.duplicates + c.dropped_stale for c in counters)
    assert net.nodes[1].custody() == (0, 0)


def test_a_broker_that_does_not_know_blocks_gets_none() -> None:
    sizes = {}
    for old in (True, False):
        net = line({(2, 3)} if old else set())
        route = net.nodes[1].route(b"a/topic")
        assert route is not None
        net.nodes[1].publish(route, Run(b"a/topic", 0, False, names(100)), 0.0)
        data = [bytes(action.data) for action in net.nodes[1].take() if isinstance(action, Send)]
        net.nodes[2].receive(1, data[0], 0.0)
        sent = [bytes(action.data) for action in net.nodes[2].take() if isinstance(action, Send)]
        sizes[old] = len(data[0]), sum(map(len, sent))
    assert sizes[False][0] == sizes[False][1] == sizes[True][0]
    assert sizes[True][1] > 2 * sizes[True][0]


def block(qos: int, first: int = 0, count: int = 10) -> tuple[Node, list[bytes]]:
    """A destination that is joined to its origin's tree, and two blocks for it."""
    net = Net(1, 2)
    net.link(1, 2)
    net.nodes[2].subscribe("#", None, 1, 0.0)
    net.settle()
    net.publish(1, "warm", 1)
    net.settle()
    route = net.nodes[1].route(b"t")
    assert route is not None
    for _ in range(2):
        net.nodes[1].publish(route, Run(b"t", qos, False, names(count)), 0.0)
    data = [bytes(action.data) for action in net.nodes[1].take() if isinstance(action, Send)]
    assert len(data) == 2
    return net.nodes[2], data


def delivered(node: Node) -> list[int]:
    return [action.run.count for action in node.take() if isinstance(action, Deliver)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_repeated_block_is_delivered_once(qos: int) -> None:
    node, (one, other) = block(qos)
    node.receive(1, one, 0.0)
    node.receive(1, one + other, 0.0)
    node.receive(1, other, 0.0)
    assert delivered(node) == [10, 10]
    assert node.counters.duplicates == 20
    assert node.traffic(1)["messages_in"] == 40 + 1


@pytest.mark.parametrize("qos", [0, 1])
def test_a_block_cut_at_every_byte_is_the_peers_error(qos: int) -> None:
    node, (one, _) = block(qos)
    for end in range(1, len(one)):
        with pytest.raises(PeerError):
            node.receive(1, one[:end], 0.0)
    assert delivered(node) == []


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), st.integers(0, 2))
def test_changed_bytes_are_taken_or_the_peers_error(data: st.DataObject, qos: int) -> None:
    node, (one, _) = block(qos)
    changed = bytearray(one)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        node.receive(1, bytes(changed), 0.0)
    except PeerError:
        return
    for action in node.take():
        if isinstance(action, Deliver):
            assert len(action.run.payloads) == action.run.count


def test_deliveries_whose_receipt_goes_with_others_leave_nothing_to_do() -> None:
    node, blocks = block(1)
    due = []
    for data in blocks:
        node.receive(1, data, 0.0)
        (delivery,) = [action for action in node.take() if isinstance(action, Deliver)]
        assert delivery.token is not None
        assert not node.stirred
        node.delivered(delivery.token, 0.0)
        due.append((node.stirred, node.next_deadline()))
        assert not node.take()
    assert due == [(True, node.receipt_delay), (False, node.receipt_delay)]
    node.handle_timer(node.receipt_delay)
    assert len([action for action in node.take() if isinstance(action, Send)]) == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_a_policy_renames_the_messages_of_a_block(qos: int) -> None:
    policy = Policy(prefixes=(("here/", "there/"),))
    net = line(set(), {2: policy})
    net.publish(1, "here/a", qos, 20)
    net.settle()
    got = {number: [(d.run.topic, len(d.run.payloads)) for n, d in net.delivered if n == number] for number in (2, 3, 4)}
    assert got == {2: [(b"here/a", 20)], 3: [(b"there/a", 20)], 4: [(b"there/a", 20)]}
