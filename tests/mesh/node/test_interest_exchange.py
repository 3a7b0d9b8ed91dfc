"""Interest of many filters goes a portion at a time: order, what waits for it, and what goes wrong in between."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from mqmesh.mesh.node import interest_exchange, signalling
from mqmesh.mesh.node.actions import CloseLink, Send
from mqmesh.mesh.node.core import LinkEnd
from mqmesh.mesh.node.interest_exchange import Heard, Steps
from mqmesh.mesh.node.node import Node
from mqmesh.mesh.view.interest import InterestSet
from mqmesh.mesh.wire.control import encode
from simulation.portions import portions_of
from support.models.mesh_net import Net

MANY = 23


@pytest.fixture(autouse=True)
def _portions() -> Iterator[None]:
    with portions_of(2):
        yield


def subscribed(net: Net, number: int, count: int = MANY, start: int = 0) -> None:
    for each in range(start, start + count):
        net.nodes[number].subscribe(f"f/{each}", None, 1, net.now)


def wants(node: Node, number: int, each: int) -> bool:
    route = node.route(f"f/{each}".encode())
    return route is not None and bool(route.mask >> number & 1)


def all_wanted(net: Net, at: int, number: int, count: int = MANY) -> bool:
    return all(wants(net.nodes[at], number, each) for each in range(count))


def handed(net: Net) -> None:
    """What was sent arrives; no timer fires."""
    for number in net.nodes:
        for action in net.nodes[number].take():
            net._do(number, action)
    for end in list(net.flying):
        data = b"".join(net.flying.pop(end))
        target = net.ends.get(end)
        if target is not None:
            net.nodes[target[0]].receive(target[1], data, net.now)


def fire(net: Net, number: int) -> bool:
    """A timer that is due at once fires; False: there is none."""
    deadline = net.nodes[number].next_deadline()
    if deadline is None or deadline > net.now:
        return False
    net.nodes[number].handle_timer(net.now)
    return True


def strangers() -> list[bytes]:
    """Packets of ten brokers that have many filters each."""
    packets = []
    for number in range(10, 20):
        known = InterestSet(5)
        for each in range(MANY):
            known.put((f"{number}/{each}", None), 1)
        packets.append(encode("interest", known.whole((number, bytes((number,)) * 16))))
    return packets


def step(net: Net) -> None:
    """What was sent arrives, and a timer of each fires."""
    handed(net)
    for number in net.nodes:
        fire(net, number)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_what_is_there_when_a_link_comes_up_reaches_all(keyed: bool, durable: bool) -> None:
    net = Net(1, 2, 3, keyed=keyed, durable=durable)
    subscribed(net, 1)
    net.settle()
    net.link(2, 3)
    net.settle()
    net.link(1, 2)
    net.settle()
    assert all_wanted(net, 2, 1)
    assert all_wanted(net, 3, 1), "it is passed on as it came"
    assert net.nodes[1].digest() == net.nodes[3].digest()
    assert not net.closed


def test_no_call_looks_at_more_than_a_portion() -> None:
    net = Net(1, 2)
    subscribed(net, 1)
    seen: list[int] = []
    put = InterestSet.put

    def counted(self: InterestSet, entry: tuple[str, str | None], weight: int | None) -> None:
        seen[-1] += 1
        put(self, entry, weight)

    with mock.patch.object(InterestSet, "put", counted):
        net.link(1, 2)
        steps = 0
        while not all_wanted(net, 2, 1):
            for number in (1, 2):
                seen.append(0)
                fire(net, number)
                seen.append(0)
                handed(net)
            steps += 1
            assert steps < 1000
    assert max(seen) <= 4, "a portion at each of the two"
    assert sum(seen) >= 2 * MANY


def test_many_changes_that_come_at_once_are_taken_one_after_the_other() -> None:
    net = Net(1, 2)
    net.link(1, 2)
    net.settle()
    subscribed(net, 1)
    while fire(net, 1):
        for action in net.nodes[1].take():
            net._do(1, action)
    puts: list[int] = []
    small = mock.patch.object(signalling, "LARGE", 2**14)
    with small, mock.patch.object(InterestSet, "put", side_effect=InterestSet.put, autospec=True) as put:
        handed(net)  # all deltas in one read
        puts.append(put.call_count)
        while fire(net, 2):
            net.nodes[2].take()
            puts.append(put.call_count - sum(puts))
    assert sum(puts) == MANY
    assert max(puts) <= 2
    assert all_wanted(net, 2, 1)


def test_a_link_is_used_once_all_that_came_before_is_taken() -> None:
    net = Net(1, 2)
    subscribed(net, 1)
    net.settle()
    net.link(1, 2)
    steps = 0
    while not net.nodes[2].informed:
        step(net)
        steps += 1
        assert steps < 300
    assert steps > MANY // 2
    assert all_wanted(net, 2, 1), "clients are served once it is known what others want"
    net.settle()
    assert [event.name for number, event in net.events if number == 2].count("informed") == 1


def test_what_changes_while_it_is_said_follows() -> None:
    net = Net(1, 2)
    subscribed(net, 1)
    net.settle()
    net.link(1, 2)
    handed(net)  # each knows what the other has
    for each in range(6):
        net.nodes[1].unsubscribe(f"f/{each}", None, net.now)
        subscribed(net, 1, 1, MANY + each)
        fire(net, 1)
        handed(net)
    with mock.patch.object(net, "_do", wraps=net._do) as done:
        net.settle()
    sent = [call.args[1].data for call in done.call_args_list if isinstance(call.args[1], Send)]
    assert sent
    assert not any(b"$mesh/want" in data for data in sent), "nothing has to be said again"
    assert all(wants(net.nodes[2], 1, each) == (each >= 6) for each in range(MANY + 6))
    assert net.nodes[1].digest() == net.nodes[2].digest()


def test_what_changes_while_it_is_taken_is_taken_after_it() -> None:
    net = Net(1, 2, 3)
    net.link(2, 3)
    subscribed(net, 1)
    net.settle()
    net.link(1, 2)
    for each in range(40):
        handed(net)
        fire(net, 1)
        if each % 4 == 0 and each < 24:
            net.nodes[1].unsubscribe(f"f/{each}", None, net.now)
        fire(net, 2)
    net.settle()
    assert all(wants(net.nodes[3], 1, each) == (each % 4 != 0) for each in range(MANY))
    assert net.nodes[1].digest() == net.nodes[2].digest() == net.nodes[3].digest()


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_link_that_ends_in_the_middle_leaves_nothing_behind(steps: int) -> None:
    net = Net(1, 2)
    subscribed(net, 1)
    net.settle()
    link = net.link(1, 2)
    for _ in range(steps):
        step(net)
    net.cut(link)
    net.settle()
    assert not net.nodes[2].live()
    net.link(1, 2)
    net.settle()
    assert all_wanted(net, 2, 1)
    exchange = net.nodes[2]._members.exchange
    assert not exchange.busy
    assert [exchange._heard, exchange._after_heard, exchange._after_said, net.nodes[1]._members.exchange._saying] == [{}] * 4


def test_whoever_lies_at_length_is_left_and_others_are_believed() -> None:
    net = Net(1, 2, 3)
    net.link(2, 3)
    net.link(1, 2)
    net.settle()
    liar = InterestSet(5000)
    for each in range(MANY):
        liar.put((f"lie/{each}", None), 1)
    (link,) = [link for number, link in net.ends if number == 3]
    update = liar.whole((1, net.nodes[1].identity.uuid.bytes))
    net._do(3, Send(link, encode("interest", update._replace(digest=liar.digest ^ 1)), True))
    subscribed(net, 1)
    net.settle()
    assert [(number, action.link) for number, action in net.closed if isinstance(action, CloseLink)] == [(2, link)]
    assert "digest" in net.closed[0][1].text
    assert all_wanted(net, 2, 1)


def test_of_many_large_packets_in_one_read_only_the_first_is_begun() -> None:
    net = Net(1, 2)
    net.link(1, 2)
    net.settle()
    sets = strangers()
    begun: list[int] = []
    taken = net.nodes[2]._members.exchange._take

    def take(end: LinkEnd, said: Heard) -> Steps:
        begun.append(len(said))
        yield from taken(end, said)

    net.now += 1.0
    with mock.patch.object(net.nodes[2]._members.exchange, "_take", take):
        net.nodes[2].receive(1, b"".join(sets), net.now)
        assert len(begun) == 1
        net.settle()
    assert len(begun) == len(sets)


def test_a_neighbour_cannot_have_more_wait_than_a_bound() -> None:
    net = Net(1, 2)
    net.link(1, 2)
    net.settle()
    sets = strangers()
    exchange = net.nodes[2]._members.exchange
    with mock.patch.object(interest_exchange, "WAITING", 3 * len(sets[0])):
        net.nodes[2].receive(1, b"".join(sets), net.now)
    assert 0 < exchange.waiting <= 3 * len(sets[0])
    net.settle()
    assert exchange.waiting == 0
    assert len(net.nodes[2].interests.sets) == 1 + len(sets)


def test_a_new_life_says_its_own_while_that_of_the_earlier_one_is_being_said() -> None:
    net = Net(1, 2)
    subscribed(net, 1)
    net.settle()
    net.link(1, 2)
    for _ in range(4):
        handed(net)
        fire(net, 1)
    net.nodes[1]._members._raise_epoch(90_000)
    net.settle()
    assert net.nodes[2].interest_of(1)[0] == net.nodes[1].identity.epoch > 90_000
    assert all_wanted(net, 2, 1)


def test_a_broker_that_restarts_remembers_all_or_waits() -> None:
    net = Net(1, 2, durable=True)
    subscribed(net, 1)
    net.settle()
    net.link(1, 2)
    net.settle()
    assert not net.nodes[2].remembering
    net.add(2, epoch=2000)
    assert net.nodes[2].informed
    assert all_wanted(net, 2, 1)
