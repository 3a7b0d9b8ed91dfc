"""Retained messages through whole nodes: the mark travels with the message, comparisons find what was missed, disks bring it back."""

from __future__ import annotations

import pytest
from mqmesh.mesh.node.actions import Deliver, MeshRoute, Retained
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.node.node import Node
from mqmesh.mesh.retained.wire import Say, decode
from mqmesh.mqtt.batch.run import Run
from support.models.mesh_net import Net


def kept(node: Node) -> dict[bytes, bytes]:
    return {bytes(run.topic): run.payloads[0] for run in node.retained()}


def digests(net: Net) -> set[object]:
    return {node.status()["retained"]["digest"] for node in net.nodes.values()}  # type: ignore[index]


def line(*, durable: bool = False, mode: str = "routed", **settings: float) -> tuple[Net, int, int]:
    """1 - 2 - 3."""
    net = Net(1, 2, 3, config=MeshConfig(mode=mode, **settings), durable=durable)  # type: ignore[arg-type]
    links = net.link(1, 2), net.link(2, 3)
    net.settle()
    return net, *links


def retain(net: Net, origin: int, topic: str, *payloads: bytes, qos: int = 1, **more: object) -> None:
    net.publish(origin, topic, qos, payloads=list(payloads), retain=True, **more)
    net.settle()


def told(net: Net, number: int) -> list[bytes]:
    """What the subscribers of a broker hear, in order, both ways."""
    return net.got(number) + [action.run.payloads[0] for n, action in net.retained if n == number and action.announce]


@pytest.mark.parametrize("mode", ["routed", "flood"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_node_keeps_it_interested_or_not(qos: int, mode: str) -> None:
    net, *_ = line(mode=mode)
    retain(net, 1, "t", b"x", qos=qos)
    assert [kept(node) for node in net.nodes.values()] == [{b"t": b"x"}] * 3
    assert len(digests(net)) == 1
    assert [told(net, n) for n in (2, 3)] == [[b"x"], [b"x"]]
    retain(net, 3, "t", b"", qos=qos)
    assert [kept(node) for node in net.nodes.values()] == [{}] * 3
    assert told(net, 1) == [b""]
    assert not net.retained, "nothing was left for a comparison to find"


@pytest.mark.parametrize("mode", ["routed", "flood"])
@pytest.mark.parametrize("qos", [0, 1])
def test_of_a_run_the_last_one_is_kept_and_carries_the_mark(qos: int, mode: str) -> None:
    net, *_ = line(mode=mode)
    retain(net, 1, "t", b"1", b"2", b"3", qos=qos)
    for n in (2, 3):
        runs = [action for number, action in net.delivered if number == n]
        assert [(run.run.payloads, run.stored, bool(run.key)) for run in runs] == [([b"1", b"2"], False, False), ([b"3"], True, True)]
        assert kept(net.nodes[n]) == {b"t": b"3"}


def test_a_topic_that_is_shared_elsewhere() -> None:
    net, *_ = line()
    net.nodes[3].subscribe("t", "g", 1, net.now)
    net.settle()
    retain(net, 1, "t", *[b"%d" % n for n in range(10, 60)], qos=1)
    assert [kept(node) for node in net.nodes.values()] == [{b"t": b"59"}] * 3
    assert told(net, 2) == told(net, 3) == [b"%d" % n for n in range(10, 60)]


def test_the_properties_and_the_life_of_the_message_stay() -> None:
    net, link, _ = line()
    properties = b"\x01\x01\x09\x00\x02id\x08\x00\x01r"
    net.cut(link)
    net.settle()
    retain(net, 1, "t", b"x", properties=properties, expiry=100)
    net.now += 40
    net.link(1, 2)
    net.settle()
    for node in net.nodes.values():
        (run,) = node.retained()
        assert (run.properties, run.expiry, run.qos, run.retain) == (properties, 100, 1, True)
        assert net.now - run.received == pytest.approx(40, abs=0.1)


def test_what_was_missed_is_found_when_the_link_is_back_and_only_that() -> None:
    net, _, link = line()
    for n in range(50):
        retain(net, 1, f"t/{n}", b"x", qos=0)
    net.cut(link)
    net.settle()
    retain(net, 1, "t/1", b"y", qos=0)
    retain(net, 2, "t/2", b"", qos=1)
    retain(net, 3, "t/3", b"z", qos=1)
    net.delivered.clear()
    net.link(2, 3)
    net.settle()
    assert len(digests(net)) == 1
    expected = {f"t/{n}".encode(): b"x" for n in range(50)} | {b"t/1": b"y", b"t/3": b"z"}
    del expected[b"t/2"]
    assert [kept(node) for node in net.nodes.values()] == [expected] * 3
    assert sorted(told(net, 3)) == [b"", b"y"]
    moved = [(node.counters.retained_sent, node.counters.retained_received) for node in net.nodes.values()]
    assert moved == [(0, 1), (3, 1), (1, 2)], "2 passes on to 1 what 3 brought"


def test_custody_brings_what_a_comparison_has_found_before() -> None:
    """3 wants it and is cut off; 2 tells it of the record, 1 has the message for it."""
    net = Net(1, 2, 3, durable=True)
    one = net.link(1, 2)
    two = net.link(2, 3)
    net.nodes[3].subscribe("t", None, 1, net.now)
    net.settle()
    net.cut(two)
    net.settle()
    retain(net, 1, "t", b"x")
    net.cut(one)
    net.settle()
    net.link(2, 3)
    net.settle()
    ((number, action),) = net.retained
    assert (number, action.announce, action.coming, action.run.payloads) == (3, False, True, [b"x"])
    assert kept(net.nodes[3]) == {b"t": b"x"}
    assert told(net, 3) == []
    net.link(1, 2)
    net.settle()
    assert told(net, 3) == [b"x"]
    (deliver,) = [deliver for n, deliver in net.delivered if n == 3]
    assert (deliver.key, deliver.stored) == (action.key, False)


def test_who_has_it_for_a_shared_subscription_only_is_told_by_a_comparison() -> None:
    """3 is away and picked; in the end 2 serves the group, and nothing comes to 3 but by a comparison."""
    net, one, two = line(durable=True)
    net.nodes[3].subscribe("#", "g", 1, net.now)
    net.settle()
    net.cut(two)
    net.settle()
    retain(net, 1, "t", b"x")
    net.cut(one)
    net.settle()
    net.link(2, 3)
    net.settle()
    ((number, action),) = net.retained
    assert (number, action.announce, action.coming) == (3, True, False)


def test_an_older_message_is_followed_by_the_deletion() -> None:
    net = Net(1, 2, 3, durable=True)
    one, two = net.link(1, 2), net.link(2, 3)
    net.nodes[3].subscribe("t", None, 1, net.now)
    net.settle()
    net.cut(two)
    net.settle()
    retain(net, 1, "t", b"old")
    net.cut(one)
    net.settle()
    retain(net, 2, "t", b"", qos=0)
    net.link(2, 3)
    net.settle()
    assert told(net, 3) == []
    net.link(1, 2)
    net.settle()
    assert told(net, 3) == [b"old", b""]
    assert kept(net.nodes[3]) == {}


def test_an_older_message_is_followed_by_the_deletion_though_everybody_has_forgotten_that() -> None:
    net, *_ = line(credit_messages=1, retained_compare=5.0)
    net.nodes[3].subscribe("#", None, 1, net.now)
    net.settle()
    net.hold = True  # 3 commits nothing, so that what follows waits at 1
    net.publish(1, "u", payloads=[b"first"])
    net.settle()
    retain(net, 1, "t", b"old")
    retain(net, 2, "t", b"", qos=0)
    for _ in range(12):
        net.now += 5.0
        for node in net.nodes.values():
            node.handle_timer(net.now)
        net.settle()
    assert [node.status()["retained"]["buried"] for node in net.nodes.values()] == [0, 0, 0]  # type: ignore[index]
    net.hold = False
    for number, action in list(net.delivered):
        if action.token is not None:
            net.commit(number, action.token)
    net.settle()
    heard = [payload for number, payload in net.heard if number == 3]
    assert heard[heard.index(b"old") :] == [b"old", b""]
    assert kept(net.nodes[3]) == {}


def test_a_lost_message_of_qos_0_is_found_by_the_next_comparison() -> None:
    net, _, link = line(retained_compare=5.0)
    net.stuck |= {(2, link), (3, link)}
    retain(net, 1, "t", b"x", qos=0)
    net.flying = {end: [data for data in found if b"$mesh/" in data[:10]] for end, found in net.flying.items()}  # lost
    net.stuck.clear()
    net.settle()
    assert kept(net.nodes[3]) == {}
    for _ in range(3):
        net.now += 2.5
        for node in net.nodes.values():
            node.handle_timer(net.now)
        net.settle()
    assert kept(net.nodes[3]) == {b"t": b"x"}
    assert told(net, 3) == [b"x"]


def test_a_disk_brings_it_back_with_what_was_heard_and_who_the_members_are() -> None:
    net, link, other = line(durable=True)
    retain(net, 1, "t", b"x")
    retain(net, 2, "u", b"y")
    for end in (link, other):
        net.cut(end)
    net.settle()
    node = net.add(2, epoch=2000)
    assert kept(node) == {b"t": b"x", b"u": b"y"}
    assert node._retained.sync.members == {1, 2, 3}
    retain(net, 2, "t", b"")
    node.handle_timer(net.now + 100)
    assert node.status()["retained"]["buried"] == 1, "it waits for 1 and 3"  # type: ignore[index]
    net.link(1, 2)
    net.link(2, 3)
    net.settle()
    assert [kept(node) for node in net.nodes.values()] == [{b"u": b"y"}] * 3


def test_a_member_that_is_given_up_is_not_waited_for() -> None:
    net, _, link = line()
    net.cut(link)
    net.settle()
    net.nodes[1].forget(3, net.now)
    assert net.nodes[1]._retained.sync.members == {1, 2}


def test_a_crash_ahead_of_the_commit_takes_nothing_with_it_that_was_kept() -> None:
    """1 replaces a message and dies before that is on its disk: what it said must not count as heard, or the old one goes too."""
    net = Net(1, 2, 3, durable=True)
    net.link(1, 2)
    link = net.link(1, 3)
    net.settle()
    retain(net, 3, "t", b"old")
    net.cut(link)
    net.settle()
    disk = net.disks[1]
    before = dict(disk.rows), dict(disk.values), dict(disk.entries)
    retain(net, 1, "t", b"new", qos=0)
    assert kept(net.nodes[2]) == {b"t": b"new"}
    for end in [end[1] for end in net.ends]:
        net.cut(end)
    net.settle()
    disk.rows, disk.values, disk.entries = before
    net.add(1, epoch=2000)
    net.link(1, 3)
    net.settle()
    net.link(1, 2)
    for _ in range(3):
        net.settle()
        net.now += 31
        for node in net.nodes.values():
            node.handle_timer(net.now)
    net.settle()
    assert [kept(node) for node in net.nodes.values()] == [{b"t": b"new"}] * 3


def test_what_was_retained_without_a_mesh_comes_along_and_does_not_beat_what_is_newer() -> None:
    net = Net(1, 2, durable=True)
    net.now = 1000.0
    net.nodes[2].adopt_retained(Run(b"t", 1, True, [b"of 2"], received=100.0), net.now)
    net.nodes[1].adopt_retained(Run(b"t", 1, True, [b"of 1"], received=200.0), net.now)
    net.nodes[1].adopt_retained(Run(b"u", 0, True, [b"only 1"], received=300.0), net.now)
    net.link(1, 2)
    net.settle()
    assert [kept(node) for node in net.nodes.values()] == [{b"t": b"of 1", b"u": b"only 1"}] * 2


def test_a_mark_that_cannot_be_read_costs_nobody_a_link() -> None:
    net, *_ = line()
    origin = net.nodes[1]._origin
    origin.keep = lambda run, custody: b"no mark"
    retain(net, 1, "t", b"x")
    assert told(net, 3) == [b"x"]
    assert kept(net.nodes[3]) == {}
    assert {event.name for n, event in net.events if n == 3} >= {"bad_mark"}
    assert not net.closed


def test_without_room_at_the_origin_it_is_a_message_like_any() -> None:
    net, *_ = line()
    node = net.nodes[1]
    route = node.route(b"t", True)
    assert isinstance(route, MeshRoute)
    node.publish(route, Run(b"t", 0, True, [b"x"]), net.now, keep=False)
    net.settle()
    ((_, first), (_, second)) = net.delivered
    assert isinstance(first, Deliver)
    assert (first.run.retain, first.stored, second.stored) == (True, False, False)
    assert [kept(n) for n in net.nodes.values()] == [{}] * 3


def test_it_is_kept_though_nobody_else_is_there() -> None:
    net = Net(1)
    retain(net, 1, "t", b"x", qos=2)
    assert kept(net.nodes[1]) == {b"t": b"x"}
    net.add(2)
    net.link(1, 2)
    net.settle()
    assert kept(net.nodes[2]) == {b"t": b"x"}
    assert [(n, action.announce) for n, action in net.retained] == [(2, True)]
    assert isinstance(net.retained[0][1], Retained)


def test_a_record_and_its_custody_leave_behind_their_commit() -> None:
    """Else the origin forgets in a crash what others have been told comes from it."""
    net, *_ = line(durable=True)
    net.nodes[3].subscribe("t", None, 1, net.now)
    net.settle()
    net.publish(1, "t", 1)
    net.settle()  # the tree is announced and joined
    net.delivered.clear()
    node = net.nodes[1]
    route = node.route(b"t", True)
    assert route is not None
    node.publish(route, Run(b"t", 1, True, [b"x"]), net.now)
    assert [action for action in node.take() if type(action).__name__ == "Send"] == []
    net.save(1)
    net.settle()
    assert kept(net.nodes[3]) == {b"t": b"x"}
    assert told(net, 3) == [b"x"]


def says(data: bytes) -> Say | None:
    """What a packet of a comparison says."""
    name = b"$mesh/retained\0"
    return decode(data[data.index(name) + len(name) :]).say if name in data else None


def test_a_message_behind_a_comparison_in_the_same_bytes_stays_behind_it() -> None:
    """Found by a seed: the shell showed what the comparison brought, though its deletion had come."""
    net = Net(1, 2)
    retain(net, 1, "t", b"x")
    link = net.link(1, 2)
    for _ in range(50):
        for number, node in net.nodes.items():
            for action in node.take():
                net._do(number, action)
        if any(says(data) is Say.DATA for data in net.flying.get((1, link), [])):
            break
        for end in list(net.flying):
            number, at = net.ends[end]
            net.nodes[number].receive(at, b"".join(net.flying.pop(end)), net.now)
    else:
        pytest.fail("the record was never sent")
    retain(net, 1, "t", b"", qos=0)
    assert [kept(node) for node in net.nodes.values()] == [{}, {}]
    assert net.views[2, b"t"] == b"", "the deletion came last"
