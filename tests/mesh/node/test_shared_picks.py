"""Shared subscriptions over several nodes; one rule of docs/mesh-protocol.md in each test."""

from __future__ import annotations

from mqmesh.mesh.custody.journal import decode_values
from mqmesh.mesh.node.actions import Deliver
from mqmesh.mesh.node.core import MeshConfig
from support.models.mesh_net import Net, line, names


def test_a_shared_subscription_is_served_by_one_broker_in_turn() -> None:
    net = line(1, 2, 3)
    for number, weight in ((2, 1), (3, 3)):
        net.nodes[number].subscribe("a", "g", weight, 0.0)
    net.settle()
    for _ in range(16):
        net.publish(1, "a")
    net.settle()
    served = [n for n, d in net.delivered if d.picks == (("g", "a"),) for _ in d.run.payloads]
    assert (served.count(2), served.count(3)) == (4, 12)


def test_a_long_run_is_shared_in_parts_and_ordinary_subscribers_keep_its_order() -> None:
    net = line(1, 2, 3)
    for number in (2, 3):
        net.nodes[number].subscribe("a", "g", 1, 0.0)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    for qos in (0, 1):
        net.delivered.clear()
        net.publish(1, "a", qos, 100)
        net.settle()
        assert net.got(3) == names(100)
        picked = {n: sum(d.run.count for m, d in net.delivered if m == n and d.picks) for n in (2, 3)}
        assert sum(picked.values()) == 100
        assert all(40 <= count <= 60 for count in picked.values())
        assert all(d.run.count <= 16 for _, d in net.delivered)


def test_local_members_come_first() -> None:
    net = line(1, 2)
    net.nodes[1].subscribe("a", "g", 1, 0.0)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.publish(1, "a")
    net.settle()
    assert not net.delivered
    route = net.nodes[1].route(b"a")
    assert route is not None


def refuse_all(net: Net, number: int) -> None:
    """Node refuses what it holds, then commits."""
    mine = [d for n, d in net.delivered if n == number and d.token is not None]
    net.delivered = [(n, d) for n, d in net.delivered if n != number]
    for deliver in mine:
        assert deliver.token is not None
        for share in deliver.picks:
            net.nodes[number].refuse(deliver.token, share, 0.0)
        net.commit(number, deliver.token)


def test_a_refused_pick_goes_to_another_broker_and_only_to_its_group() -> None:
    net = line(1, 2, 3, durable=True)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a", 1, 3)
    net.settle()
    net.nodes[2].unsubscribe("a", "g", 0.0)
    net.nodes[3].subscribe("a", "g", 1, 0.0)
    net.settle()
    refuse_all(net, 2)
    net.settle()
    theirs: list[Deliver] = [d for n, d in net.delivered if n == 3]
    assert [(d.picks, d.ordinary, d.run.count) for d in theirs] == [((), True, 3), ((("g", "a"),), False, 3)]
    for deliver in theirs:
        net.commit(3, deliver.token)  # type: ignore[arg-type]
    net.settle()
    assert net.nodes[1].custody() == (0, 0)
    [window] = decode_values(net.disks[2].values).windows.values()
    assert not window.refusals  # it was noted


def test_a_refusal_survives_a_cut_and_is_acted_on_once() -> None:
    net = line(1, 2, durable=True)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a")
    net.settle()
    net.nodes[2].unsubscribe("a", "g", 0.0)
    net.nodes[1].subscribe("a", "g", 1, 0.0)
    refuse_all(net, 2)
    net.cut(1)
    net.add(2, epoch=2000)
    net.link(1, 2)
    net.settle()
    assert [(n, d.picks) for n, d in net.delivered] == [(1, (("g", "a"),))]
    refuse_all(net, 1)
    net.settle()
    assert [r.reason for _, r in net.returned] == ["refused"]
    assert net.nodes[1].counters.repicked == 1


def test_picks_of_a_broker_out_of_reach_move_if_it_never_got_them() -> None:
    net = line(2, 1, 3)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.nodes[1].link_full(1, True, 0.0)
    net.publish(1, "a")
    net.settle()
    net.nodes[3].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    assert [(n, d.picks, d.repeated) for n, d in net.delivered] == [(3, (("g", "a"),), False)]
    assert net.nodes[1].custody() == (0, 0)


def test_picks_wait_for_members_out_of_reach_when_their_own_broker_is_replaced() -> None:
    net = line(3, 2, 1)
    for number in (2, 3):
        net.nodes[number].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.cut(1)
    net.cut(2)
    net.settle()
    net.publish(1, "a", 1, 100)  # in parts, so that both are picked
    net.add(2, uuid=99, epoch=2000)
    net.link(1, 2)
    net.settle()
    assert not net.returned
    net.link(2, 3)
    net.settle()
    assert sum(d.run.count for n, d in net.delivered if n == 3) == 100
    assert net.nodes[1].custody() == (0, 0)


def test_a_refused_pick_waits_for_members_out_of_reach() -> None:
    net = line(2, 1, 3)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.nodes[3].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.cut(2)  # of 1 and 3
    net.hold = True
    net.publish(1, "a")
    net.settle()
    net.nodes[2].unsubscribe("a", "g", 0.0)
    refuse_all(net, 2)
    net.settle()
    assert not net.returned
    net.link(1, 3)
    net.settle()
    assert [(n, d.picks) for n, d in net.delivered] == [(3, (("g", "a"),))]


def test_with_share_available_what_was_sent_moves_too_and_says_so() -> None:
    for mode, expected in (("once", []), ("available", [(3, True)])):
        net = line(2, 1, 3, config=MeshConfig(share=mode))  # type: ignore[arg-type]
        net.nodes[2].subscribe("a", "g", 1, 0.0)
        net.settle()
        net.hold = True
        net.publish(1, "a")
        net.settle()
        net.delivered.clear()
        net.nodes[3].subscribe("a", "g", 1, 0.0)
        net.settle()
        net.cut(1)
        net.settle()
        assert [(n, d.repeated) for n, d in net.delivered] == expected
