"""What a node tells people of itself: members, the way to each, what waits for it and why, and the links of the mesh."""

from __future__ import annotations

import json

from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.view.linkstate import LinkStates
from mqmesh.mesh.wire.control import LinkEntry, LinkRecord
from support.models.mesh_net import Net, line, ring


def shown(net: Net, number: int) -> dict[int, dict[str, object]]:
    members = net.nodes[number].status()["members"]
    return {one["number"]: one for one in members}  # type: ignore[attr-defined]


def test_the_first_step_to_each_broker() -> None:
    net = ring(0, 1, 2, 3, 4)
    members = shown(net, 0)
    assert [members[number]["next"] for number in range(5)] == [None, 1, 1, 4, 4]
    assert [members[number]["hops"] for number in range(5)] == [0, 1, 2, 2, 1]
    json.dumps(net.nodes[0].status())


def test_since_when_a_broker_can_be_reached_or_not() -> None:
    net = Net(1, 2)
    net.now = 10.0
    link = net.link(1, 2)
    net.settle()
    assert (shown(net, 1)[2]["live"], shown(net, 1)[2]["since"], shown(net, 1)[1]["since"]) == (True, 10.0, None)
    net.now = 25.0
    net.cut(link)
    net.settle()
    assert (shown(net, 1)[2]["live"], shown(net, 1)[2]["since"]) == (False, 25.0)


def test_the_links_of_the_mesh() -> None:
    net = Net(1, 2, 3, 4)
    net.link(1, 2)
    net.link(2, 3, cost=7)
    last = net.link(3, 4)
    net.settle()
    whole = [[1, 2, 1, True], [2, 3, 7, True], [3, 4, 1, True]]
    assert all(node.status()["graph"] == whole for node in net.nodes.values())
    net.cut(last)
    net.settle()
    assert net.nodes[1].status()["graph"] == [*whole[:2], [3, 4, 1, False]], "4 has said that it is there, and cannot say more"
    assert net.nodes[4].status()["graph"] == [[*link[:3], False] for link in whole], "what was heard last, out of reach"
    net.link(1, 4)
    net.settle()
    assert all(node.status()["graph"] == [whole[0], [1, 4, 1, True], whole[1]] for node in net.nodes.values()), "both ends have dropped it"


def test_a_dead_brokers_links_are_not_used() -> None:
    net = line(1, 2, 3)
    for number, link in ((2, 2),):
        net.nodes[number].link_down(link, net.now)  # what 3 would say is never heard
    del net.ends[2, 2], net.ends[3, 2]
    net.settle()
    assert net.nodes[1].status()["graph"] == [[1, 2, 1, True], [2, 3, 1, False]]
    net.link(2, 3)
    net.settle()
    assert net.nodes[1].status()["graph"] == [[1, 2, 1, True], [2, 3, 1, True]]


def test_why_messages_wait() -> None:
    net = ring(1, 2, config=MeshConfig(credit_messages=2, receipt_delay=0.0))
    net.nodes[2].subscribe("a", None, 1, net.now)
    net.settle()
    net.publish(1, "a")
    net.settle()
    assert (shown(net, 1)[2]["open"], shown(net, 1)[2]["open_bytes"], shown(net, 1)[2]["waits"]) == (0, 0, "")
    net.hold = True  # 2 confirms nothing more
    net.publish(1, "a")
    net.settle()
    assert (shown(net, 1)[2]["open"], shown(net, 1)[2]["waits"]) == (1, "receipt")
    assert shown(net, 1)[2]["open_bytes"] == net.nodes[1].custody()[1] > 0
    for _ in range(3):
        net.publish(1, "a")
    net.settle()
    assert (shown(net, 1)[2]["open"], shown(net, 1)[2]["waits"]) == (4, "credit")
    for link in {link for _, link in net.ends}:
        net.cut(link)
    net.settle()
    assert (shown(net, 1)[2]["open"], shown(net, 1)[2]["waits"]) == (4, "reach")
    custody = net.nodes[1].status()["custody"]
    assert (custody["messages"], custody["messages_limit"]) == (4, 200_000)  # type: ignore[index]


def record(number: int, epoch: int, *peers: int, life: int = 0) -> LinkRecord:
    """Links to these, whose incarnations are those of the pairs. life: makes another UUID."""
    entries = tuple(LinkEntry(peer, min(number, peer) * 100 + max(number, peer), 1, None) for peer in peers)
    return LinkRecord(number, bytes([number, life]) * 8, f"b{number}", epoch, 1, entries)


def test_a_link_that_one_end_alone_lists_is_not_used() -> None:
    states = LinkStates((1, bytes([1, 0]) * 8))
    for one in (record(1, 5, 2, 3), record(2, 5, 1, 3), record(3, 5, 1)):  # 3 does not know its link to 2 yet
        assert states.offer(one)
    states.refresh()
    assert states.listed() == [(1, 2, 1, True), (1, 3, 1, True), (2, 3, 1, False)]


def test_of_two_lives_of_a_number_the_one_in_reach_counts() -> None:
    states = LinkStates((1, bytes([1, 0]) * 8))
    for one in (record(1, 5, 2), record(2, 9, 7, life=1), record(2, 5, 1)):
        assert states.offer(one)
    states.refresh()
    assert states.listed() == [(1, 2, 1, True)], "the other was elsewhere"
    assert states.offer(record(1, 6))
    states.refresh()
    assert states.listed() == [(2, 7, 1, False)], "nobody is in reach: the latest life"
