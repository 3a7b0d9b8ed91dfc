"""Two brokers that dial each other: whatever handshake ends first, one connection stays, and it is the same at both ends."""

from __future__ import annotations

import itertools
import random
from uuid import UUID

import pytest
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings, PeerSettings
from mqmesh.broker.mesh.link import LinkProtocol
from mqmesh.broker.mesh.shell import MeshShell
from mqmesh.broker.server import Broker
from mqmesh.mesh.link.channel import Channel
from mqmesh.mesh.link.link import Link
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mqtt import codec, packets
from mqmesh.mqtt.framing import Framer
from support.models.broker_wire import FakeTransport, run

KEY = "a key of sixteen bytes"
SIDES = {1: "mqtt://first", 2: "mqtt://second"}


class Socket:
    """One connection between two brokers. Nothing moves by itself: `carry` takes to one end what the other has written."""

    def __init__(self, shells: dict[int, MeshShell], dialler: int) -> None:
        self.shells = shells
        self.dialler, self.acceptor = dialler, 3 - dialler
        self.ends: dict[int, LinkProtocol] = {}
        self.transports = {number: FakeTransport() for number in shells}
        shell = shells[dialler]
        peer = shell.settings.peers[0]
        config = shell.link_config(peer, peer.address, Channel())
        machine = Link.dial(
            shell.identity, shell.key, config, shell.now(), shell.node.holders(), signer=shell.signer, why_not=shell.node.why_not
        )
        self._begin(dialler, shell.make_link(machine, 1, peer.address))

    def _begin(self, number: int, link: LinkProtocol) -> None:
        self.ends[number] = link
        link.connection_made(self.transports[number])

    def carry(self, to: int) -> bool:
        """Whether there was something."""
        source = self.transports[3 - to]
        data = b"".join(source.written)
        source.written.clear()
        if to not in self.ends and data:
            shell = self.shells[to]
            [(first, body), *rest] = Framer().feed(data)
            assert not rest
            connect = codec.decode(first, body, 5)
            assert isinstance(connect, packets.Connect)
            config = shell.link_config(None, "peer", Channel())
            machine = Link.accept(
                shell.identity, shell.key, config, connect, b"", shell.now(), shell.node.holders(), None, shell.signer, shell.node.why_not
            )
            self._begin(to, shell.make_link(machine, 1, "peer"))
            return True
        link = self.ends.get(to)
        if link is not None and not self.transports[to].closed:
            if data:
                link.data_received(data)
            if source.closed and not self.transports[to].closed:
                link.connection_lost(None)
                self.transports[to].closed = True
                return True
        for shell in self.shells.values():
            shell.drain()
        return bool(data)


async def both() -> dict[int, MeshShell]:
    shells = {}
    for number in SIDES:
        broker = Broker(BrokerConfig(f"b{number}", number, listen=[], mesh=MeshSettings("sites", KEY), limits=Limits(sys_interval=0)))
        await broker.start()
        shell = broker.site.mesh
        assert shell is not None
        shell.settings.peers = [PeerSettings(SIDES[3 - number])]  # which nobody dials: this file makes the connections
        shells[number] = shell
    return shells


def settle(sockets: list[Socket], order: list[tuple[Socket, int]]) -> None:
    """Carry in this order, and then until nothing moves."""
    for socket, to in order:
        socket.carry(to)
    moved = True
    while moved:
        moved = False
        for socket, to in itertools.product(sockets, SIDES):
            moved = socket.carry(to) or moved


def standing(shells: dict[int, MeshShell], sockets: list[Socket]) -> list[Socket]:
    """The connections that are up at both ends; each end knows no other."""
    found = [one for one in sockets if all(shells[number].by_number.get(3 - number) is one.ends.get(number) for number in SIDES)]
    for number, shell in shells.items():
        assert len(shell.links) == len(shell.by_number) == len(found)
        assert [end.peer.number for end in shell.node._core.links.values()] == [3 - number] * len(found)
    return found


ORDERS = sorted(set(itertools.permutations([0, 0, 0, 1, 1, 1])))


@pytest.mark.parametrize("order", ORDERS, ids=["".join(map(str, order)) for order in ORDERS])
def test_the_connection_of_the_lower_number_stays_in_every_order(order: tuple[int, ...]) -> None:
    """A handshake has four steps, the last of which is carried when all else is done."""

    async def story() -> None:
        shells = await both()
        sockets = [Socket(shells, 1), Socket(shells, 2)]
        steps = {one: itertools.cycle((sockets[one].acceptor, sockets[one].dialler)) for one in (0, 1)}
        settle(sockets, [(sockets[one], next(steps[one])) for one in order])
        assert standing(shells, sockets) == sockets[:1]

    run(story())


def test_one_that_has_raised_its_epoch_between_both_handshakes_is_the_same_life() -> None:
    """Both ends must decide alike, though only one of them has seen two epochs."""

    async def story() -> None:
        for seed in range(20):
            chance = random.Random(seed)
            shells = await both()
            sockets = [Socket(shells, 1)]
            raised = shells[chance.choice((1, 2))]
            settle(sockets, [])
            raised.node._core.enter(raised.now())
            raised.node._members._raise_epoch(raised.identity.epoch)
            raised.drain()
            assert raised.identity.epoch == raised.node.identity.epoch
            sockets.append(Socket(shells, 2))
            settle(sockets, [(sockets[1], chance.choice((1, 2))) for _ in range(8)])
            assert standing(shells, sockets) == sockets[:1]

    run(story())


def test_a_later_connection_from_the_same_side_stays() -> None:
    async def story() -> None:
        shells = await both()
        sockets = [Socket(shells, 2)]
        settle(sockets, [])
        sockets.append(Socket(shells, 2))
        settle(sockets, [])
        assert standing(shells, sockets) == sockets[1:]

    run(story())


def test_lives_and_epochs() -> None:
    one = Identity("sites", "b", 1, UUID(int=1), 1000, life=b"l" * 16)
    assert one.same_life(one._replace(epoch=2000))
    assert not one.same_life(one._replace(life=b"m" * 16))
    assert not one.same_life(one._replace(uuid=UUID(int=2)))
    assert one.same_life(one._replace(life=b"")), "of the previous release: its epoch stands for it"
    assert not one.same_life(one._replace(life=b"", epoch=2000))
