"""Messages between nodes whose links and lives end; one rule of docs/mesh-protocol.md in each test."""

from __future__ import annotations

from mqmesh.mesh.node.core import MeshConfig
from support.models.mesh_net import line, ring


def test_a_cut_link_loses_nothing_and_repeats_nothing() -> None:
    net = ring(1, 2, 3, 4)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.stuck = {(1, 1), (1, 4)}
    net.publish(1, "a", payloads=[b"2", b"3"])
    net.settle()
    net.stuck = set()
    net.cut(1)
    net.settle()
    net.publish(1, "a", payloads=[b"4"])
    net.settle()
    assert net.got(3) == [b"1", b"2", b"3", b"4"]
    assert net.nodes[1].custody() == (0, 0)


def test_nothing_passes_behind_a_frame_that_a_full_link_dropped() -> None:
    net = line(1, 2, 3)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.nodes[2].link_full(2, True, 0.0)
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    trees = net.nodes[1].counters.trees
    net.publish(1, "a", 0, payloads=[b"lost"])
    net.publish(1, "a", payloads=[b"3"])
    net.settle()
    assert net.got(3) == [b"1"]
    assert net.nodes[2].counters.cut == 2
    assert net.nodes[2].counters.dropped_full == 1
    assert net.nodes[1].counters.trees == trees
    net.nodes[2].link_full(2, False, 0.0)
    net.settle()
    assert net.got(3) == [b"1", b"2", b"3"]
    assert net.nodes[1].counters.trees == trees + 1


def test_a_full_link_of_the_origin_only_waits() -> None:
    net = line(3, 1, 2)
    for number in (2, 3):
        net.nodes[number].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"0"])
    net.settle()
    net.nodes[1].link_full(2, True, 0.0)
    net.publish(1, "a", payloads=[b"1"])
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    assert net.got(3) == [b"0", b"1", b"2"]
    assert net.got(2) == [b"0"]
    net.nodes[1].link_full(2, False, 0.0)
    net.settle()
    assert net.got(2) == [b"0", b"1", b"2"]
    assert net.nodes[1].counters.trees == 1


def test_an_origin_goes_on_where_its_earlier_life_was() -> None:
    net = line(1, 2, durable=True)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    net.cut(1)
    net.publish(1, "a", payloads=[b"3"])
    net.hold = False
    net.commit(2, net.delivered[-1][1].token)  # type: ignore[arg-type]
    net.add(1, epoch=3000)
    net.link(1, 2)
    net.settle()
    net.publish(1, "a", payloads=[b"4"])
    net.settle()
    assert net.got(2) == [b"1", b"2", b"3", b"4"]


def test_a_destination_remembers_what_it_committed_and_no_more() -> None:
    net = line(1, 2, durable=True)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    assert net.got(2) == [b"1", b"2"]
    net.cut(1)
    net.hold = False
    net.add(2, epoch=2000).subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert net.got(2) == [b"1", b"2", b"2"]  # the second was never committed
    assert not net.returned


def test_what_a_forgetful_destination_was_sent_is_cleared_and_the_rest_kept() -> None:
    net = line(1, 2, config=MeshConfig(credit_messages=1))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"sent"])
    net.settle()
    net.publish(1, "a", payloads=[b"kept"])
    net.settle()
    net.cut(1)
    net.hold = False
    net.add(2, epoch=2000).subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert [(r.reason, r.run.payloads) for _, r in net.returned] == [("cleared", [b"sent"])]
    assert net.got(2) == [b"sent", b"kept"]
    assert net.nodes[1].counters.cleared == 1


def test_a_forgetful_destination_is_known_though_its_epoch_went_back() -> None:
    net = line(1, 2, 3)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"sent"])
    net.settle()
    net.cut(2)
    net.hold = False
    net.add(3, epoch=500).subscribe("a", None, 1, 0.0)
    net.link(2, 3)
    net.settle()
    assert net.nodes[3].identity.epoch == 1001
    assert net.got(3) == [b"sent"]
    assert [r.reason for _, r in net.returned] == ["cleared"]


def test_what_is_open_for_a_replaced_broker_is_returned() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    net.publish(1, "a", payloads=[b"old"])
    net.add(2, uuid=99, epoch=2000).subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert [(r.reason, r.run.payloads) for _, r in net.returned] == [("replaced", [b"old"])]
    net.publish(1, "a", payloads=[b"new"])
    net.settle()
    assert net.got(2) == [b"new"]
