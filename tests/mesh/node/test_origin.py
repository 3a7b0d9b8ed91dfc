"""Messages from broker to broker: once, in order with everything else, kept, bounded, returned."""

from __future__ import annotations

import pytest
from mqmesh.mesh.node.actions import Verdict
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.wire.envelope import peer_message_kind
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.errors import PeerError, UsageError
from support.models.mesh_net import Net


def line(**more: object) -> Net:
    """Three brokers in a row, 1 - 2 - 3."""
    net = Net(1, 2, 3, **more)  # type: ignore[arg-type]
    net.link(1, 2)
    net.link(2, 3)
    net.settle()
    return net


def bodies(net: Net, number: int) -> list[bytes]:
    return [action.body for n, action in net.posted if n == number]


@pytest.mark.parametrize("durable", [False, True])
def test_posts_arrive_once_in_order_at_those_that_they_are_for(durable: bool) -> None:
    net = line(durable=durable)
    for i in range(20):
        net.nodes[1].send_to_brokers(1 << 3 | 1 << 2 if i % 2 else 1 << 3, "test/kind", b"%02d" % i, net.now)
        net.save(1)
    net.settle()
    assert bodies(net, 3) == [b"%02d" % i for i in range(20)]
    assert bodies(net, 2) == [b"%02d" % i for i in range(20) if i % 2]
    assert {(a.kind, a.origin) for _, a in net.posted} == {("test/kind", 1)}
    assert net.nodes[1].custody() == (0, 0)


def test_posts_keep_their_place_among_messages() -> None:
    net = line(durable=True)
    net.nodes[3].subscribe("#", None, 1, net.now)
    net.settle()
    for i in range(10):
        net.publish(1, "a", i % 2 + 1, payloads=[b"m%d" % i])
        net.nodes[1].send_to_brokers(1 << 3, "k", b"p%d" % i, net.now)
        net.save(1)
    net.settle()
    assert [body for number, body in net.order if number == 3] == [b"%s%d" % (kind, i) for i in range(10) for kind in (b"m", b"p")]
    assert net.got(3) == [b"m%d" % i for i in range(10)], "no subscription gets a post, whatever its filter"


def test_one_token_for_posts_that_came_as_one_run() -> None:
    net = line(durable=True)
    net.hold = True
    net.publish(1, "x")
    for i in range(5):
        net.nodes[1].send_to_brokers(1 << 2, "k", b"%d" % i, net.now)
    net.save(1)
    net.settle()
    tokens = [action.token for n, action in net.posted if n == 2]
    assert len(tokens) == 5
    assert tokens[-1] is not None
    for token in [token for token in tokens if token is not None]:
        net.commit(2, token)
    net.settle()
    assert net.nodes[1].custody() == (0, 0)


@pytest.mark.parametrize("durable", [False, True])
def test_posts_that_go_together_are_one_run_in_custody(durable: bool) -> None:
    net = line(durable=durable)
    node = net.nodes[1]
    node.send_to_brokers(1 << 3, "k", b"0", net.now, more=[b"1", b"2"])
    assert (node.custody()[0], node.custody_in_memory()[2]) == (3, 1)
    net.save(1)
    net.settle()
    assert bodies(net, 3) == [b"0", b"1", b"2"]
    assert node.custody() == (0, 0)


def test_a_post_for_a_broker_out_of_reach_waits() -> None:
    net = line(durable=True)
    link = next(link for (number, link) in net.ends if number == 3)
    net.cut(link)
    net.settle()
    assert not net.nodes[1].live() >> 3 & 1
    assert net.nodes[1].known() >> 3 & 1
    assert net.nodes[1].send_to_brokers(1 << 3, "k", b"late", net.now) is Verdict.TAKEN
    net.save(1)
    net.settle()
    assert bodies(net, 3) == []
    net.link(2, 3)
    net.settle()
    assert bodies(net, 3) == [b"late"]


def test_a_post_survives_its_senders_restart_and_is_not_sent_twice() -> None:
    net = line(durable=True)
    net.cut(next(link for (number, link) in net.ends if number == 1))
    net.settle()
    net.nodes[1].send_to_brokers(1 << 2 | 1 << 3, "k", b"kept", net.now)
    net.save(1)
    net.add(1, epoch=2000)
    net.link(1, 2)
    net.settle()
    assert (bodies(net, 2), bodies(net, 3)) == ([b"kept"], [b"kept"])
    net.add(1, epoch=3000)
    net.link(1, 2)
    net.settle()
    assert (bodies(net, 2), bodies(net, 3)) == ([b"kept"], [b"kept"])


def test_a_post_is_not_sent_before_it_is_kept() -> None:
    net = line(durable=True)
    net.nodes[1].send_to_brokers(1 << 2, "k", b"first", net.now)  # has the tree announced and joined
    net.save(1)
    net.settle()
    node = net.nodes[1]
    node.send_to_brokers(1 << 2, "k", b"second", net.now)
    frames = [action for action in node.take() if b"$mqmesh/k" in bytes(getattr(action, "data", b""))]
    assert frames == []
    net.save(1)
    net.settle()
    assert bodies(net, 2) == [b"first", b"second"]


def test_a_broker_that_is_given_up_returns_its_posts() -> None:
    net = line(durable=True)
    net.cut(next(link for (number, link) in net.ends if number == 3))
    net.settle()
    net.nodes[1].send_to_brokers(1 << 2 | 1 << 3, "some/kind", b"x", net.now)
    net.nodes[1].forget(3, net.now)
    net.settle()
    ((number, returned),) = net.returned
    assert (number, returned.destination, returned.reason) == (1, 3, "absent")
    assert peer_message_kind(returned.run.topic) == "some/kind"
    assert returned.run.payloads == [b"x"]
    assert bodies(net, 2) == [b"x"]


def test_bounds() -> None:
    net = line(config=MeshConfig(custody_messages=3, destination_part=1.0))
    net.cut(next(link for (number, link) in net.ends if number == 3))
    net.settle()
    node = net.nodes[1]
    assert [node.send_to_brokers(1 << 3, "k", b"x", 0.0) for _ in range(4)] == [Verdict.TAKEN] * 3 + [Verdict.REFUSED]
    assert node.send_to_brokers(1 << 3, "k", b"x", 0.0, must=True) is Verdict.TAKEN
    net.link(2, 3)
    net.settle()
    assert len(bodies(net, 3)) == 4
    assert net.unblocked == [1]


@pytest.mark.parametrize("brokers", [0, 1 << 1, 1 << 9, 1 << 9 | 1 << 2])
def test_nobody_unknown_is_posted_to(brokers: int) -> None:
    with pytest.raises(UsageError):
        line().nodes[1].send_to_brokers(brokers, "k", b"x", 0.0)


def test_a_frame_for_picks_only_without_a_pick_is_a_peers_mistake() -> None:
    net = line()
    net.nodes[2].subscribe("kkkkkkkkk", None, 1, 0.0)
    net.settle()
    node = net.nodes[1]
    node.send_to_brokers(1 << 2, "k", b"x", 0.0)
    net.settle()
    node.send_to_brokers(1 << 2, "k", b"y", 0.0)
    (frame,) = [a for a in node.take() if b"$mqmesh/k" in bytes(getattr(a, "data", b""))]
    link = next(link for (number, link) in net.ends if number == 2)
    with pytest.raises(PeerError, match="nothing is picked"):
        net.nodes[2].receive(link, bytes(frame.data).replace(b"$mqmesh/k", b"kkkkkkkkk"), 0.0)
    with pytest.raises(PeerError, match="does not leave a broker"):
        net.nodes[2].receive(link, bytes(frame.data).replace(b"$mqmesh/k", b"$sys/kkkk"), 0.0)


def test_nobody_behind_a_policy_is_posted_to() -> None:
    net = Net(1, 2, 3, durable=True)
    net.link(1, 2)
    net.link(2, 3, policies={2: Policy(out=("a/#",))})
    net.settle()
    assert net.nodes[1].known() == 1 << 2
    assert net.nodes[1].live() == 1 << 2
    assert net.nodes[3].known() == 0
    with pytest.raises(UsageError):
        net.nodes[1].send_to_brokers(1 << 3, "k", b"x", net.now)
