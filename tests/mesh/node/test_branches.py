"""Trees that are told branch by branch: what a neighbour tells wrongly is not believed, and brokers of an earlier release get the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mqmesh.mesh.wire.control import Branch, Open, decode_packed, encode_packed
from mqmesh.mesh.wire.identity import BRANCH, CAPABILITIES
from mqmesh.mesh.wire.packed import Packer, Unpacker
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from support.models.mesh_net import Net

LINKS = ((1, 2), (2, 3), (3, 4), (3, 5), (2, 6), (1, 7))


def mesh(older: tuple[int, ...] = ()) -> tuple[Net, dict[tuple[int, int], int]]:
    """A tree of seven brokers that want all, and its links. older: brokers of an earlier release."""
    net = Net(keyed=True)
    for number in range(1, 8):
        net.able = CAPABILITIES - {BRANCH} if number in older else CAPABILITIES
        net.add(number)
        net.nodes[number].subscribe("#", None, 1, net.now)
    links = {pair: net.link(*pair) for pair in LINKS}
    net.settle()
    return net, links


class Line:
    """All control packets of one direction of a link, from its beginning."""

    def __init__(self, net: Net, end: tuple[int, int]) -> None:
        self.said: list[tuple[str, Open | Branch]] = []
        self._unpacker = Unpacker()
        framer = Framer()
        receive = net.nodes[end[0]].receive

        def heard(link: int, data: bytes, now: float) -> None:
            if link == end[1]:
                for _, body in framer.feed(data):
                    size = body[0] << 8 | body[1]
                    kind = bytes(body[2 : 2 + size]).decode().removeprefix("$mesh/")
                    if kind in ("packed", "branch"):
                        self.said.append((kind, decode_packed(kind, body[3 + size :], self._unpacker)))
            receive(link, data, now)

        net.nodes[end[0]].receive = heard  # type: ignore[method-assign]


def test_a_link_carries_what_lies_beyond_it() -> None:
    net, links = mesh()
    lines = {pair: Line(net, (pair[1], link)) for pair, link in links.items()}
    net.publish(1, "t", 1, 3)
    net.settle()
    assert all(len(net.got(number)) == 3 for number in range(2, 8))
    found = {pair: [(kind, [node[0] for node in said.nodes]) for kind, said in line.said] for pair, line in lines.items()}
    assert found == {
        (1, 2): [("branch", [2, 3, 4, 5, 6])],
        (2, 3): [("branch", [3, 4, 5])],
        (3, 4): [("branch", [4])],
        (3, 5): [("branch", [5])],
        (2, 6): [("branch", [6])],
        (1, 7): [("branch", [7])],
    }


@pytest.mark.parametrize("older", [(5,), (3,), (2,), (1,), (4, 7)])
def test_brokers_of_an_earlier_release_get_the_whole_and_so_do_those_on_the_way(older: tuple[int, ...]) -> None:
    net, links = mesh(older)
    lines = {pair: Line(net, (pair[1], link)) for pair, link in links.items()}
    for turn in (1, 2):
        for number in range(1, 8):
            net.publish(number, "t", 1, payloads=[b"%d from %d" % (turn, number)])
        net.settle()
    for number in range(1, 8):
        assert sorted(net.got(number)) == sorted(b"%d from %d" % (turn, n) for turn in (1, 2) for n in range(1, 8) if n != number)
    whole = {1: {"packed"}, 2: {"packed"}, 3: {"packed"}, 4: {"packed"}, 5: {"packed"}, 6: {"branch"}, 7: {"branch"}}
    if older in ((5,), (3,), (2,), (4, 7)):  # the tree of 1, link by link
        first = {pair[1]: {kind for kind, said in line.said if said.origin == 1} for pair, line in lines.items()}
        expected = {**whole, 6: {"packed"}, 7: {"packed"} if older == (4, 7) else {"branch"}}
        assert first == {number: expected[number] for number in first}


def honest(branch: Branch) -> Branch:
    return branch


def wrong_child(branch: Branch) -> Branch:
    return branch._replace(nodes=(*branch.nodes[:-1], (9, *branch.nodes[-1][1:])))


def moved(branch: Branch) -> Branch:
    return branch._replace(nodes=(*branch.nodes[:2], (5, 4, branch.nodes[2][2])))


def shorter(branch: Branch) -> Branch:
    return branch._replace(nodes=branch.nodes[:-1])


def higher(branch: Branch) -> Branch:
    return branch._replace(tree=branch.tree + 1)


def other_path(branch: Branch) -> Branch:
    first, *more = branch.path
    return branch._replace(path=(first._replace(beside=bytes(33)), *more))


@pytest.mark.parametrize("lie", [honest, wrong_child, moved, shorter, higher, other_path])
def test_a_neighbour_that_tells_a_wrong_branch_loses_its_link_and_is_not_believed(lie: Callable[[Branch], Branch]) -> None:
    net, links = mesh()
    link = links[2, 3]
    net.stuck = {(2, link)}
    net.publish(1, "t", 1)
    net.settle()
    ((_, body),) = Framer().feed(b"".join(net.flying.pop((2, link))))  # what 2 passes on: a tree of 1 with the seal of 1
    assert body[2:14] == b"$mesh/branch"
    told = decode_packed("branch", body[15:], Unpacker())
    assert [node[0] for node in told.nodes] == [3, 4, 5]
    assert told.seal is not None
    said = encode_packed("branch", lie(told), Packer())
    node = net.nodes[3]
    if lie is honest:
        node.receive(link, said, net.now)
        assert 1 in node._relay.records
        return
    with pytest.raises(PeerError, match="which has not signed it"):
        node.receive(link, said, net.now)
    assert node.counters.forged == 1
    assert 1 not in node._relay.records
