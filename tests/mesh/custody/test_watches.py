"""Watches: who has a message, who is awaited, and when an acknowledgement need not wait any more."""

from __future__ import annotations

import itertools

from mqmesh.mesh.custody.watches import Standing, Watch
from mqmesh.mesh.node.actions import Deliver
from mqmesh.mesh.node.core import MeshConfig
from support.models.mesh_net import Net, names


def line(*numbers: int, config: MeshConfig | None = None) -> Net:
    """Everybody but the first wants a."""
    net = Net(*numbers, config=config)
    for a, b in itertools.pairwise(numbers):
        net.link(a, b)
    for number in numbers[1:]:
        net.nodes[number].subscribe("a", None, 1, 0.0)
    net.settle()
    return net


def watched(net: Net, origin: int, topic: str, count: int = 1, qos: int = 1, **more: object) -> Watch:
    node = net.nodes[origin]
    behind = node.position()
    net.publish(origin, topic, qos, count, **more)
    watch = node.watch(behind, count)
    assert watch is not None
    return watch


def stands(net: Net, watch: Watch, index: int = 0, origin: int = 1) -> Standing:
    return net.nodes[origin].standing(watch, index)


def of(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


def test_confirmed_when_all_have_it() -> None:
    net = line(1, 2, 3)
    net.hold = True
    watch = watched(net, 1, "a", 3)
    net.settle()
    assert stands(net, watch) == Standing(0, of(2, 3), {})
    assert not net.confirmed
    assert (watch.epoch, watch.first, watch.count) == (1000, 1, 3)
    for number, action in net.delivered:
        if number == 2:
            net.commit(2, action.token)
    net.settle()
    assert stands(net, watch, 2) == Standing(of(2), of(3), {})
    assert not net.confirmed
    net.commit(3, next(action.token for number, action in net.delivered if number == 3))
    net.settle()
    assert net.confirmed == [watch]
    assert [stands(net, watch, index) for index in range(3)] == [Standing(of(2, 3), 0, {})] * 3
    assert not net.nodes[1]._origin.custody.watches.legs


def test_nobody_who_is_away_holds_it_back() -> None:
    net = line(1, 2, 3)
    net.hold = True
    first = watched(net, 1, "a")
    net.settle()
    net.commit(2, next(action.token for number, action in net.delivered if number == 2))
    net.settle()
    assert not net.confirmed
    net.cut(2)  # 3 goes
    net.settle()
    assert net.confirmed == [first]
    assert stands(net, first) == Standing(of(2), of(3), {})
    net.hold = False
    second = watched(net, 1, "a")  # 3 is away already
    net.settle()
    assert net.confirmed == [first, second]
    assert stands(net, second) == Standing(of(2), of(3), {})
    net.link(2, 3)
    net.settle()
    for number, action in net.delivered:
        if number == 3 and action.token in net.nodes[3]._relay.tokens:
            net.commit(3, action.token)
    net.settle()
    assert [stands(net, one) for one in (first, second)] == [Standing(of(2, 3), 0, {})] * 2
    assert net.confirmed == [first, second]


def test_who_comes_back_before_the_others_have_it_is_not_awaited_again() -> None:
    net = line(1, 2, 3)
    net.hold = True
    watch = watched(net, 1, "a")
    net.cut(2)
    net.settle()
    net.link(2, 3)
    net.settle()
    net.commit(2, next(action.token for number, action in net.delivered if number == 2))
    net.settle()
    assert net.confirmed == [watch]
    assert stands(net, watch) == Standing(of(2), of(3), {})


def test_without_anybody_in_reach_it_is_confirmed_at_once() -> None:
    net = line(1, 2)
    net.cut(1)
    net.settle()
    watch = watched(net, 1, "a")
    net.settle()
    assert net.confirmed == [watch]
    assert stands(net, watch) == Standing(0, of(2), {})


def test_without_anybody_who_wants_it_there_is_nothing_to_watch() -> None:
    net = line(1, 2)
    node = net.nodes[1]
    before = node.position()
    assert net.publish(1, "a", 0) is not None
    assert net.publish(1, "other") is None
    assert node.watch(before, 1) is None


def test_what_is_not_watched_costs_nothing_and_ends_nothing() -> None:
    net = line(1, 2)
    net.publish(1, "a", 1, 5)
    watch = watched(net, 1, "a", 2)
    net.publish(1, "a", 1, 5)
    net.settle()
    assert net.confirmed == [watch]
    assert (watch.first, watch.count) == (6, 2)


def test_a_receipt_in_the_middle_of_a_run() -> None:
    net = line(1, 2)
    watch = watched(net, 1, "a", 4)
    net.settle()
    d = net.nodes[1]._origin.custody.destinations[2]
    again = watched(net, 1, "a", 4)
    d.settled = (1000, 6)  # as after a relay cut a run in two
    assert [stands(net, again, index).received for index in range(4)] == [of(2), of(2), 0, 0]
    assert stands(net, watch, 3).received == of(2)


def test_what_expires_is_lost() -> None:
    net = line(1, 2)
    net.cut(1)
    net.settle()
    watch = watched(net, 1, "a", expiry=3)
    net.now = 4.0
    net.nodes[1].handle_timer(net.now)
    net.settle()
    assert net.confirmed == [watch]
    assert stands(net, watch) == Standing(0, 0, {2: "expired"})


def test_a_broker_that_was_replaced_loses_it() -> None:
    net = line(1, 2)
    net.cut(1)
    net.settle()
    watch = watched(net, 1, "a", 2)
    net.add(2, uuid=77, epoch=2000)
    net.link(1, 2)
    net.settle()
    assert [stands(net, watch, index) for index in (0, 1)] == [Standing(0, 0, {2: "replaced"})] * 2


def shared(*members: int) -> Net:
    """1 in the middle of 2 and 3; members of g at these."""
    net = Net(1, 2, 3)
    net.link(1, 2)
    net.link(1, 3)
    for number in members:
        net.nodes[number].subscribe("s", "g", 1, 0.0)
    net.settle()
    return net


def refuse(net: Net, number: int, action: Deliver) -> None:
    for share in action.picks:
        net.nodes[number].refuse(action.token, share, net.now)
    net.nodes[number].delivered(action.token, net.now)


def test_a_pick_that_is_refused_is_awaited_at_the_next_broker() -> None:
    net = shared(2, 3)
    net.hold = True
    watch = watched(net, 1, "s", 20)  # two parts, one for each
    net.settle()
    assert sorted(number for number, _ in net.delivered) == [2, 3]
    at_2 = next(action for number, action in net.delivered if number == 2)
    mine = [names(20).index(payload) for payload in at_2.run.payloads]
    refuse(net, 2, at_2)
    net.settle()
    assert not net.confirmed
    assert [stands(net, watch, index) for index in mine] == [Standing(0, of(3), {})] * len(mine)
    for number, action in net.delivered:
        if number == 3:
            net.nodes[3].delivered(action.token, net.now)
    net.settle()
    assert net.confirmed == [watch]
    assert [stands(net, watch, index) for index in range(20)] == [Standing(of(3), 0, {})] * 20


def test_a_pick_that_nobody_takes_is_lost() -> None:
    net = shared(2)
    net.hold = True
    watch = watched(net, 1, "s")
    net.settle()
    refuse(net, 2, net.delivered[0][1])
    net.settle()
    assert net.confirmed == [watch]
    assert stands(net, watch) == Standing(0, 0, {2: "refused"})


def test_a_pick_that_was_never_sent_moves_with_its_watch() -> None:
    net = shared(2, 3)
    first = watched(net, 1, "s")
    net.settle()
    picked = 2 if first.legs[0].got == of(2) else 3
    net.cut(1)
    net.cut(2)
    net.settle()
    watches = [watched(net, 1, "s") for _ in range(2)]
    assert {one.legs[0].open for one in watches} == {of(2), of(3)}
    net.link(1, picked)
    net.settle()
    assert [stands(net, one) for one in watches] == [Standing(of(picked), 0, {})] * 2
    assert net.nodes[1].custody() == (0, 0)
