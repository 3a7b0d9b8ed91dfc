"""The first JOINs of a tree wait a moment for each other, so that the first message to all is one frame on each link."""

from __future__ import annotations

import pytest
from mqmesh.mesh.custody.joins import Joins
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.wire.control import NO_POSITION, Receipt
from mqmesh.mesh.wire.identity import BRANCH, CAPABILITIES
from support.models.mesh_net import Net

CHAIN = ((1, 2), (2, 3), (3, 4))


def mesh(older: tuple[int, ...] = (), config: MeshConfig | None = None) -> tuple[Net, dict[tuple[int, int], int]]:
    """Four brokers in a row that want all, and their links. older: brokers of an earlier release."""
    net = Net(config=config)
    for number in range(1, 5):
        net.able = CAPABILITIES - {BRANCH} if number in older else CAPABILITIES
        net.add(number)
        net.nodes[number].subscribe("#", None, 1, net.now)
    links = {pair: net.link(*pair) for pair in CHAIN}
    net.settle()
    return net, links


def receipt(number: int) -> Receipt:
    return Receipt(1, 6, number, 5, 4, NO_POSITION, NO_POSITION, 100, 1000, ())


def frames(net: Net, links: dict[tuple[int, int], int]) -> list[int]:
    """How many data frames each link has carried away from broker 1."""
    return [net.nodes[one]._core.links[links[one, other]].sent for one, other in CHAIN]


def test_a_first_message_to_all_is_one_frame_on_each_link() -> None:
    net, links = mesh(config=MeshConfig(join_pause=1.0, join_wait=1.0))
    net.publish(1, "t", 1)
    net.settle()
    assert net.now < 0.5, "all have come"
    assert [len(net.got(number)) for number in (2, 3, 4)] == [1, 1, 1]
    assert frames(net, links) == [1, 1, 1]


def test_the_first_message_does_not_wait_for_a_broker_that_stands_still() -> None:
    net, links = mesh()
    net.stuck = {(4, links[3, 4])}
    net.publish(1, "t", 1)
    net.settle()
    assert [len(net.got(number)) for number in (2, 3, 4)] == [1, 1, 0]
    assert net.now < 0.1
    net.stuck.clear()
    net.settle()
    assert len(net.got(4)) == 1


def test_who_was_sent_something_before_is_not_kept_waiting_in_the_next_tree() -> None:
    net, links = mesh(config=MeshConfig(join_pause=1.0, join_wait=1.0))
    net.publish(1, "t", 1)
    net.settle()
    net.cut(links[3, 4])
    links[3, 4] = net.link(3, 4)
    net.settle()
    net.stuck = {(4, links[3, 4])}
    net.publish(1, "t", 1)
    before = net.now
    net.settle()
    assert net.now < before + 0.5
    assert [len(net.got(number)) for number in (2, 3, 4)] == [2, 2, 1]


def test_a_broker_that_is_given_up_while_its_join_waits_is_not_heard_any_more() -> None:
    net, links = mesh(config=MeshConfig(join_pause=1.0, join_wait=1.0))
    net.stuck = {(4, links[3, 4])}
    net.publish(1, "t", 1)
    net.settle()
    origin = net.nodes[1]
    assert origin._dispatch.joins_due is not None
    origin._dispatch.absent(2)
    net.now = origin._dispatch.joins_due
    origin.handle_timer(net.now)
    net.settle()
    assert 2 not in origin._dispatch.custody.destinations
    assert [len(net.got(number)) for number in (2, 3, 4)] == [0, 1, 0]


def test_joins_wait_for_each_other() -> None:
    joins = Joins(0.005, 0.1, 0b1110)
    assert joins.due is None
    assert not joins.came(receipt(1), 10.0)
    assert joins.due == 10.005
    assert not joins.came(receipt(2), 10.004)
    assert joins.due == pytest.approx(10.009)
    assert joins.came(receipt(3), 10.005)
    assert [one.destination for one in joins.take()] == [1, 2, 3]
    assert joins.due is None
    assert not joins.take()


def test_joins_that_drip_in_do_not_keep_the_first_waiting() -> None:
    joins = Joins(0.005, 0.1, (1 << 64) - 1)
    now = 10.0
    for number in range(40):
        joins.came(receipt(number), now)
        now += 0.004
    assert joins.due == pytest.approx(10.1)


def test_joins_of_those_that_cannot_be_reached_any_more_are_forgotten() -> None:
    joins = Joins(0.005, 0.1, 0b1110)
    joins.came(receipt(1), 10.0)
    joins.only(0b1100)
    assert joins.due is None
    assert not joins.came(receipt(2), 11.0)
    joins.only(0b100)
    assert [one.destination for one in joins.take()] == [2]


@pytest.mark.parametrize("older", [(), (4,), (1, 2, 3, 4)])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_to_all_has_no_visited_bits_where_all_know_what_that_means(older: tuple[int, ...], qos: int) -> None:
    net, _ = mesh(older, MeshConfig(join_pause=1.0, join_wait=1.0))
    widths: set[int] = set()
    relay = net.nodes[3]._relay
    decide = relay._decide

    def decided(end: object, constants: bytes) -> object:
        widths.add(len(constants) - 20)
        return decide(end, constants)  # type: ignore[arg-type]

    relay._decide = decided  # type: ignore[method-assign,assignment]
    for _ in range(3):
        net.publish(1, "t", qos, 2)
        net.settle()
    assert [len(net.got(number)) for number in (2, 3, 4)] == [6, 6, 6]
    assert widths == ({1} if older else {0})


def test_a_message_to_some_has_visited_bits() -> None:
    net, _ = mesh()
    net.nodes[3].unsubscribe("#", None, net.now)
    net.settle()
    net.publish(1, "t", 1, 2)
    net.settle()
    assert [len(net.got(number)) for number in (2, 3, 4)] == [2, 0, 2]
