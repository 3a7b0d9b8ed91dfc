"""Messages between nodes on links that hold, and what bounds them; one rule of docs/mesh-protocol.md in each test."""

from __future__ import annotations

import pytest
from mqmesh.mesh.node.actions import Verdict
from mqmesh.mesh.node.core import MeshConfig
from support.models.mesh_net import line, ring


def test_every_quality_arrives_as_it_was() -> None:
    net = line(1, 2, 3)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    properties = b"\x08\x00\x01r\x09\x00\x02id"
    for qos in (0, 1, 2):
        net.publish(1, "a", qos, 3, properties=properties, expiry=60)
    net.settle()
    assert len(net.delivered) == 3
    for qos, (number, deliver) in enumerate(net.delivered):
        assert (number, deliver.origin, deliver.picks, deliver.ordinary) == (3, 1, (), True)
        run = deliver.run
        assert (run.topic, run.qos, run.retain, run.payloads, run.expiry) == (b"a", qos, False, [b"0", b"1", b"2"], 60)
        assert run.properties == b"\x09\x00\x02id\x08\x00\x01r"
        assert (deliver.token is None) == (qos == 0)
    assert net.nodes[1].custody() == (0, 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_no_frame_can_hold_is_refused_before_it_is_in_custody(qos: int) -> None:
    """Whether or not it could be sent now: in custody it would fail each time that its turn came."""
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    for cut in (False, True):
        if cut:
            net.cut(1)
            net.settle()
        with pytest.raises(ValueError, match="at most 65535"):
            net.publish(1, "a", qos, properties=b"\x09\xff\xff" + bytes(65_535))
        assert net.nodes[1].custody() == (0, 0)
    net.link(1, 2)
    net.settle()
    net.publish(1, "a", qos)
    net.settle()
    assert net.got(2) == [b"0"]


def test_a_shared_filter_too_long_for_a_pick_refuses_only_what_needs_it() -> None:
    net = line(1, 2)
    topic = "x" * 65_530
    net.nodes[2].subscribe(topic, "g", 1, 0.0)
    net.settle()
    with pytest.raises(ValueError, match="at most 65535"):
        net.publish(1, topic)
    assert net.nodes[1].custody() == (0, 0)


def test_one_copy_a_broker_along_the_tree() -> None:
    net = ring(1, 2, 3, 4, 5)
    for number in (2, 3, 4, 5):
        net.nodes[number].subscribe("a", None, 1, 0.0)
    net.settle()
    for qos in (0, 1):
        net.publish(1, "a", qos)
        net.settle()
    assert sum(node.counters.sent for node in net.nodes.values()) == 8
    assert all(net.got(n) == [b"0", b"0"] for n in (2, 3, 4, 5))


def test_retained_messages_go_to_all_members() -> None:
    net = line(1, 2, 3)
    assert net.publish(1, "a", 1) is None
    assert net.publish(1, "a", 1, retain=True) is Verdict.TAKEN
    net.settle()
    assert [(n, d.run.retain) for n, d in net.delivered] == [(2, True), (3, True)]


def test_qos_0_needs_a_path() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    assert net.publish(1, "a", 0, 5) is Verdict.TAKEN
    assert net.nodes[1].counters.dropped_no_path == 5
    assert net.nodes[1].custody() == (0, 0)


def test_custody_is_bounded_and_opens_again() -> None:
    net = line(1, 2, config=MeshConfig(custody_messages=10, destination_part=1.0))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    assert net.publish(1, "a", 1, 8) is Verdict.TAKEN
    assert net.publish(1, "a", 1, 8) is Verdict.FULL
    assert net.publish(1, "a", 0, 8) is Verdict.TAKEN
    net.settle()
    assert not net.unblocked
    for number, deliver in net.delivered:
        if deliver.token is not None:
            net.nodes[number].delivered(deliver.token, 0.0)
    net.settle()
    assert net.unblocked == [1]
    assert net.publish(1, "a", 1, 8) is Verdict.TAKEN


def test_one_absent_site_does_not_fill_all_custody() -> None:
    net = line(2, 1, 3, config=MeshConfig(custody_messages=100, destination_part=0.5))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.nodes[3].subscribe("b", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    assert net.publish(1, "a", 1, 50) is Verdict.TAKEN
    assert net.publish(1, "a", 1, 1) is Verdict.REFUSED
    assert net.publish(1, "b", 1, 20) is Verdict.TAKEN
    net.settle()
    assert len(net.got(3)) == 20


def test_credit_holds_back_what_is_not_receipted() -> None:
    net = line(1, 2, config=MeshConfig(credit_messages=4))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    for i in range(5):
        net.publish(1, "a", payloads=[b"%d%d" % (i, j) for j in range(3)])
    net.settle()
    assert len(net.got(2)) == 6
    net.hold = False
    for number, deliver in list(net.delivered):
        assert deliver.token is not None
        net.nodes[number].delivered(deliver.token, 0.0)
    net.settle()
    assert net.got(2) == [b"%d%d" % (i, j) for i in range(5) for j in range(3)]


def test_expired_messages_are_returned_unless_under_way() -> None:
    net = line(1, 2, 3)
    for number in (2, 3):
        net.nodes[number].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(2)
    net.settle()
    net.publish(1, "a", 1, 2, expiry=10)
    expires = net.now + 10
    net.settle()
    assert net.nodes[1].next_deadline() == expires
    net.now = expires
    net.nodes[1].handle_timer(net.now)
    net.settle()
    assert [(r.reason, r.destination, r.run.count) for _, r in net.returned] == [("expired", 3, 2)]
    assert net.nodes[1].custody() == (0, 0)
    assert net.got(2) == [b"0", b"1"]
