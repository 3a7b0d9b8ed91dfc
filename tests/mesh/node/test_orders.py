"""What operators tell the whole mesh: brokers that are forgotten or leave, numbers that get another key, those who were apart."""

from __future__ import annotations

import contextlib
import random

import pytest
from mqmesh.mesh.node import orders
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.wire.control import Order, encode
from mqmesh.mesh.wire.keys import Keys, Signer
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.errors import PeerError, UsageError
from support.examples import examples
from support.models.mesh_net import Net, signer_of

NEW = Signer(b"n" * 32)


def triangle(config: MeshConfig | None = None) -> tuple[Net, dict[tuple[int, int], int]]:
    """Three brokers that sign; 3 wants everything."""
    net = Net(1, 2, 3, config=config, keyed=True)
    links = {pair: net.link(*pair) for pair in ((1, 2), (2, 3), (1, 3))}
    net.nodes[3].subscribe("#", None, 1, net.now)
    net.settle()
    return net, links


def dies(net: Net, number: int, links: dict[tuple[int, int], int]) -> None:
    for pair in [pair for pair in links if number in pair]:
        net.cut(links.pop(pair))
    del net.nodes[number]
    net.settle()


def known(net: Net, number: int) -> list[int]:
    return [member.number for member in net.nodes[number].members()]


def replaced(net: Net) -> int:
    """A machine takes the place of 3, without its data folder; its link."""
    net.add(3, uuid=77, epoch=5000, keys=Keys("mesh", 3, "b3", NEW))
    return net.link(3, 1)


def events(net: Net, name: str) -> list[int]:
    return sorted(number for number, event in net.events if event.name == name)


def test_all_forget_a_broker_and_what_waits_for_it_comes_back() -> None:
    net, links = triangle()
    dies(net, 3, links)
    for number in (1, 2):
        net.publish(number, "t", 1)
    net.settle()
    said = net.nodes[1].order("forget", 3, net.now, dry=True)
    net.settle()
    assert said == "b3 (number 3) is forgotten by all brokers of the mesh, and what waits for it here is given up, messages: 1"
    assert (known(net, 1), known(net, 2), net.returned) == ([1, 2, 3], [1, 2, 3], []), "that was a rehearsal"
    assert net.nodes[1].order("forget", 3, net.now) == said
    net.settle()
    assert (known(net, 1), known(net, 2)) == ([1, 2], [1, 2])
    assert sorted((number, returned.destination, returned.reason) for number, returned in net.returned) == [
        (1, 3, "absent"),
        (2, 3, "absent"),
    ]


@pytest.mark.parametrize("what", ["forget", "rekey"])
def test_a_machine_that_was_replaced_without_its_identity_comes_in_after_an_order(what: str) -> None:
    net, links = triangle()
    dies(net, 3, links)
    link = replaced(net)
    net.settle()
    assert 3 not in net.nodes[2].holders(), "another key has the number"
    net.cut(link)
    net.settle()
    net.nodes[2].order(what, 3, net.now, NEW.public if what == "rekey" else b"")
    net.settle()
    net.link(3, 1)
    net.settle()
    for number in (1, 2):
        assert net.nodes[number].holders()[3].uuid.int == 77
    net.nodes[3].subscribe("#", None, 1, net.now)
    net.settle()
    net.publish(2, "t", 1, payloads=[b"to the new one"])
    net.settle()
    assert [(at, bytes(one.run.payloads[0])) for at, one in net.delivered][-1] == (3, b"to the new one")


def test_the_key_of_a_new_machine_is_kept_as_any_other() -> None:
    net, links = triangle()
    dies(net, 3, links)
    net.nodes[2].order("forget", 3, net.now)
    net.settle()
    link = replaced(net)
    net.settle()
    net.cut(link)
    del net.nodes[3]
    net.settle()
    net.add(3, uuid=78, epoch=6000, keys=Keys("mesh", 3, "b3", Signer(b"x" * 32)))
    assert net.nodes[1].why_not(net.nodes[3].identity) is not None, "what was forgotten is the machine before it"


def test_a_rekeyed_number_is_refused_to_any_other_key() -> None:
    net, links = triangle()
    dies(net, 3, links)
    net.nodes[1].order("rekey", 3, net.now, NEW.public)
    net.settle()
    net.add(3, uuid=78, epoch=6000, keys=Keys("mesh", 3, "b3", Signer(b"x" * 32)))
    for number in (1, 2):
        assert net.nodes[number].why_not(net.nodes[3].identity) is not None


def test_one_that_was_apart_hears_of_it_before_it_can_bring_the_broker_back() -> None:
    net, links = triangle()
    dies(net, 3, links)
    net.cut(links[1, 2])
    net.settle()
    net.nodes[1].order("forget", 3, net.now)
    net.settle()
    assert (known(net, 1), known(net, 2)) == ([1], [1, 2, 3]) or 3 not in known(net, 1)
    net.link(1, 2)
    net.settle()
    assert (known(net, 1), known(net, 2)) == ([1, 2], [1, 2])
    replaced(net)
    net.settle()
    assert net.nodes[2].holders()[3].uuid.int == 77


def test_one_that_is_forgotten_while_it_lives_in_the_other_half_stays_a_member() -> None:
    net, links = triangle()
    for pair in ((1, 2), (1, 3)):
        net.cut(links.pop(pair))
    net.settle()
    net.publish(1, "t", 1, payloads=[b"before"])
    before = net.nodes[3].identity.epoch
    net.nodes[1].order("forget", 3, net.now)
    net.settle()
    assert 3 not in known(net, 1)
    net.link(1, 2)
    net.settle()
    assert net.nodes[3].identity.epoch > before
    assert [sorted(net.nodes[number].holders()) for number in (1, 2, 3)] == [[1, 2, 3]] * 3
    net.publish(1, "t", 1, payloads=[b"after"])
    net.settle()
    assert [bytes(one.run.payloads[0]) for at, one in net.delivered if at == 3] == [b"after"]
    assert len({net.nodes[number].digest() for number in (1, 2, 3)}) == 1


def test_one_that_leaves_is_forgotten_once_it_is_gone_and_may_come_back() -> None:
    net, links = triangle()
    peer = net.nodes[3].identity
    net.nodes[3].order("leave", 3, net.now)
    net.settle()
    assert known(net, 1) == [1, 2, 3], "it is still there"
    dies(net, 3, links)
    assert (known(net, 1), known(net, 2)) == ([1, 2], [1, 2])
    assert net.nodes[1].gone(peer)
    net.add(3, epoch=9000)
    net.link(3, 1)
    net.settle()
    assert (known(net, 1), known(net, 2)) == ([1, 2, 3], [1, 2, 3])
    assert not net.nodes[1].gone(peer)


@pytest.mark.parametrize(
    ("what", "number", "text"),
    [
        ("forget", 3, "b3 (number 3) can be reached: stop it first, or have it leave"),
        ("rekey", 3, "b3 (number 3) can be reached"),
        ("forget", 9, "no broker with number 9 is known here"),
        ("forget", 1, "a broker leaves by itself"),
        ("leave", 3, "a broker leaves by itself"),
    ],
)
def test_orders_that_make_no_sense_are_refused_with_a_reason(what: str, number: int, text: str) -> None:
    net, _ = triangle()
    with pytest.raises(UsageError) as refused:
        net.nodes[1].order(what, number, net.now, b"k" * 32)
    assert text in str(refused.value)


def test_only_the_orders_of_managers_count_where_they_are_named() -> None:
    net, links = triangle(MeshConfig(managers=("b2",)))
    dies(net, 3, links)
    with pytest.raises(UsageError, match=r"b1 is not among mesh\.managers, b2"):
        net.nodes[1].order("forget", 3, net.now)
    net.nodes[1].renew({}, None)
    net.nodes[1].order("forget", 3, net.now)
    net.settle()
    assert known(net, 2) == [1, 2, 3]
    assert events(net, "order_refused") == [2]
    net.nodes[2].order("forget", 3, net.now)
    net.settle()
    assert known(net, 2) == [1, 2]


def test_orders_do_not_pass_a_policy_nor_reach_a_peer_that_does_not_know_them() -> None:
    net = Net(1, 2, 4, keyed=True)
    net.add(3)
    net.link(1, 4)
    net.link(1, 2, policies={1: Policy(out=("a/#",))})
    net.capabilities = frozenset()
    net.link(1, 3)
    net.settle()
    said: list[tuple[int, bytes]] = []
    take = net._do
    net._do = lambda number, action: (said.append((number, bytes(getattr(action, "data", b"")))), take(number, action))[1]  # type: ignore[method-assign]
    net.cut(1)
    del net.nodes[4]
    net.settle()
    net.nodes[1].order("forget", 4, net.now)
    net.settle()
    assert not [data for _, data in said if b"$mesh/orders" in data]


def test_nobody_gives_an_order_in_the_name_of_another() -> None:
    net, links = triangle()
    dies(net, 3, links)
    net.nodes[1].order("forget", 3, net.now)
    (order,) = net.nodes[1]._orders.known.values()
    forged = order._replace(id=b"f" * 16, epoch=order.epoch + 1)
    end = next(iter(net.nodes[2]._core.links.values()))
    with pytest.raises(PeerError, match="has not signed it"):
        net.nodes[2]._orders.received(end, (forged,))


def test_an_order_that_is_played_again_does_nothing() -> None:
    net, links = triangle()
    dies(net, 3, links)
    net.nodes[1].order("rekey", 3, net.now, signer_of(3).public)
    net.settle()
    (old,) = net.nodes[1]._orders.known.values()
    net.now += 1
    net.nodes[1].order("rekey", 3, net.now, NEW.public)
    net.settle()
    for node in net.nodes.values():
        del node._orders.known[old.id]
    end = next(iter(net.nodes[2]._core.links.values()))
    net.nodes[2]._orders.received(end, (old,))
    assert net.nodes[2]._core.keys is not None
    assert net.nodes[2]._core.keys.pins[3].key == NEW.public


def signed(net: Net, by: int, count: int = 1, name: str | None = None, time: int = 0, what: str = "note") -> list[Order]:
    """Orders that the broker with this number signs; each is about another number."""
    now = int(net.now * 1000) + time
    orders = [Order(k.to_bytes(16, "big"), by, name or f"b{by}", now, what, k, bytes(16), 0, b"") for k in range(1, count + 1)]
    return [order._replace(seal=Keys("mesh", by, f"b{by}", signer_of(by)).seal("order", *order[:-1])) for order in orders]


def hears(net: Net, at: int, orders: list[Order]) -> None:
    node = net.nodes[at]
    node.receive(next(iter(node._core.links)), encode("orders", orders), net.now)


def test_more_orders_than_are_kept_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MOST", 3)
    net, _ = triangle()
    hears(net, 1, signed(net, 2, 5))
    for _ in range(3):
        actions = {number: node.take() for number, node in net.nodes.items()}
        for number, said in actions.items():
            for action in said:
                net._do(number, action)
        for end in list(net.flying):
            at, link = net.ends[end]
            net.nodes[at].receive(link, b"".join(net.flying.pop(end)), net.now)
    assert not any(b"$mesh/orders" in getattr(action, "data", b"") for node in net.nodes.values() for action in node.take())
    assert [len(node._orders.known) for node in net.nodes.values()] == [3, 3, 3]
    assert {1} <= set(events(net, "order_refused"))
    with pytest.raises(UsageError, match="3 orders are kept already"):
        net.nodes[1].order("rekey", 3, net.now, NEW.public)


def test_the_brokers_that_were_forgotten_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MOST_GONE", 3)
    net, _ = triangle()
    hears(net, 1, signed(net, 2, 5, what="forget"))
    assert len(net.nodes[1]._orders._gone) <= 3


def test_an_order_from_the_future_is_refused() -> None:
    net, links = triangle()
    dies(net, 3, links)
    hears(net, 2, signed(net, 1, 3, time=2**47, what="rekey")[2:])
    net.settle()
    assert not net.nodes[2]._orders.known
    assert events(net, "order_refused") == [2]
    net.nodes[1].order("rekey", 3, net.now, NEW.public)
    net.settle()
    assert net.nodes[2]._core.keys is not None
    assert net.nodes[2]._core.keys.pins[3].key == NEW.public


def test_the_name_of_a_manager_is_that_of_its_number() -> None:
    net, _ = triangle(MeshConfig(managers=("b2",)))
    hears(net, 3, signed(net, 1, name="b2"))
    assert not net.nodes[3]._orders.known
    hears(net, 3, signed(net, 2))
    assert len(net.nodes[3]._orders.known) == 1


def test_the_key_of_a_manager_proves_its_name() -> None:
    net, _ = triangle(MeshConfig(managers=("b7",)))
    net.nodes[3].renew({"b7": signer_of(7).public}, ("b7",))
    hears(net, 3, signed(net, 1, name="b7"))
    assert not net.nodes[3]._orders.known
    hears(net, 3, signed(net, 7))
    assert len(net.nodes[3]._orders.known) == 1, "whether it is known here or not"


def test_old_orders_are_looked_for_once_a_minute() -> None:
    net, _ = triangle()
    hears(net, 1, signed(net, 2))
    kept = net.nodes[1]._orders.known
    net.nodes[1].handle_timer(net.now)
    first = net.nodes[1]._orders.known
    net.nodes[1].handle_timer(net.now + 1)
    assert net.nodes[1]._orders.known is first
    net.nodes[1].handle_timer(net.now + orders.KEPT + 1)
    assert kept
    assert not net.nodes[1]._orders.known


SEEDS = examples(30)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_any_orders_links_and_deaths_all_that_live_are_members_everywhere(seed: int) -> None:
    """Links come and go, machines die and are replaced with and without their keys, operators forget and rekey here and there."""
    chance = random.Random(seed)
    numbers = [1, 2, 3, 4]
    net = Net(*numbers, keyed=True)
    keys = {number: signer_of(number) for number in numbers}
    disks = {number: number for number in numbers}  # the UUID of each
    links: dict[tuple[int, int], int] = {}
    lives = 10

    def link(pair: tuple[int, int]) -> None:
        if pair not in links and not any(net.nodes[one].why_not(net.nodes[other].identity) for one, other in (pair, pair[::-1])):
            links[pair] = net.link(*pair)

    def order(what: str, number: int) -> None:
        with contextlib.suppress(UsageError):
            net.nodes[chance.choice(list(net.nodes))].order(what, number, net.now, keys[number].public)

    def comes_back(number: int, how: str) -> None:
        if how == "new key":
            keys[number] = Signer(lives.to_bytes(32, "big"))
        if how != "same":
            disks[number] = lives * 10 + number
        net.add(number, uuid=disks[number], epoch=1000 * lives, keys=Keys("mesh", number, f"b{number}", keys[number]))

    pairs = [(one, other) for one in numbers for other in numbers if one < other]
    for _ in range(25):
        net.now += 1
        pair, number = chance.choice(pairs), chance.choice(numbers)
        match chance.randrange(8):
            case 0 | 1 | 2 if all(one in net.nodes for one in pair):
                link(pair)
            case 3 if pair in links:
                net.cut(links.pop(pair))
            case 4 if number in net.nodes and len(net.nodes) > 2:
                dies(net, number, links)
            case 5 if number not in net.nodes:
                lives += 1
                comes_back(number, chance.choice(("same", "same key", "new key")))
            case 6:
                order("forget", number)
            case 7:
                order("rekey", number)
        for dropped in [one for one, id_ in links.items() if any(closed.link == id_ for _, closed in net.closed)]:
            net.cut(links.pop(dropped))
        if chance.random() < 0.6:
            net.settle()
    # all come back; who is refused for its key is let in by an order, given where it is out of reach
    for number in numbers:
        if number not in net.nodes:
            lives += 1
            comes_back(number, "same key")
    for _ in range(6):
        for pair in pairs:
            link(pair)
        net.settle()
        for dropped in [one for one, id_ in links.items() if any(closed.link == id_ for _, closed in net.closed)]:
            net.cut(links.pop(dropped))
        for number in numbers:
            for other in numbers:
                if number != other and number not in net.nodes[other].holders():
                    net.now += 1
                    with contextlib.suppress(UsageError):
                        net.nodes[other].order("rekey", number, net.now, keys[number].public)
        net.settle()
    uuids = {number: net.nodes[number].identity.uuid for number in numbers}
    for number in numbers:
        assert {other: one.uuid for other, one in net.nodes[number].holders().items()} == uuids, f"seed {seed}, broker {number}"
    assert len({net.nodes[number].digest() for number in numbers}) == 1, f"seed {seed}"
