"""A short run of the fuzzing of links; `fuzz_link.py` runs longer by hand. What it has found stays tried."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings
from mqmesh.broker.server import Broker
from mqmesh.mesh.link.link import Link, State
from mqmesh.mesh.wire.control import DEFLATED
from mqmesh.mesh.wire.identity import CAPABILITIES, Identity
from mqmesh.mqtt.errors import PeerError
from support.models.mesh_net import Net, signer_of

from .fuzz_codec import mutate
from .fuzz_link import CONFIG, KEY, KINDS, WRONG, Pipe, attack, control, dialled, handshake, knock, pieces, round_of, samples, trees


def test_the_samples_hold_every_kind_of_packet() -> None:
    kinds = {found[0] for frame, _ in samples() if (found := control(frame)) is not None}
    assert kinds >= set(KINDS) - {"want", "dropped", "noted", "later"}
    assert any(control(frame) is None for frame, _ in samples())
    assert {kind for kind, _ in trees()} == set(DEFLATED)


@pytest.mark.parametrize("seed", [*range(3), 104])
def test_damaged_links(seed: int) -> None:
    outcomes = round_of(seed)
    assert outcomes["handshake with the key: up"] > 3
    assert outcomes["handshake with no key: refused"] > 3
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("link: ") and outcome.endswith("by the node")) > 2
    assert outcomes["afterwards: goes on"] > 6


def test_the_attacks_of_a_seed_are_the_same() -> None:
    frames = [frame for frame, _ in samples()[:20]]
    assert attack(frames, random.Random(5)) == attack(frames, random.Random(5))
    assert [knock(random.Random(seed)) for seed in range(10)] == [knock(random.Random(seed)) for seed in range(10)]


async def _strangers() -> None:
    broker = Broker(
        BrokerConfig("b1", 1, listen=[], mesh=MeshSettings("mesh", KEY.decode(), silence=3600.0), limits=Limits(sys_interval=0))
    )
    broker.context.turns.clock = lambda: 0.0
    await broker.start()
    mesh = broker.site.mesh
    assert mesh is not None
    core, states = mesh.node._core, mesh.node._states
    assert core.keys is not None

    def known() -> tuple[object, ...]:
        return (
            dict(core.keys.pins),
            set(states.records),
            dict(states.twins),
            repr(core.lives._known),
            mesh.node.digest(),
            mesh.node.identity,
        )  # type: ignore[union-attr]

    before = known()
    chance = random.Random(1)
    for number in range(60):
        key = chance.choice((KEY, KEY, WRONG, b""))
        mine, theirs = signer_of(chance.choice((1, 3, 7))), signer_of(3)
        uuid = chance.choice((UUID(int=3), mesh.identity.uuid))
        who = Identity("mesh", chance.choice(("b1", "b3")), chance.choice((1, 3)), uuid, chance.choice((1000, 2**46)), mine.public)
        who = who._replace(life=bytes([number]) * 16, capabilities=CAPABILITIES)
        pipe, peer = Pipe(broker), Link.dial(who, key, CONFIG, 0.0, signer=chance.choice((mine, theirs)))
        said = [peer.take()]
        peer.receive(pipe.give(mutate(said[0], chance, [(said[0], 5)]) if chance.random() < 0.3 else said[0]), 0.0)
        last = peer.take()
        if last:
            pipe.give(
                chance.choice((b"", last[:-1], last[:-1] + bytes([last[-1] ^ 1]), mutate(last, chance, [(said[0], 5)])[: len(last) - 1]))
            )
        assert peer.state is not State.UP
        pipe.protocol.connection_lost(None)
        assert known() == before
    good, peer = dialled(broker, 3)
    assert peer.state is State.UP, "the neighbour is let in under the number, UUID and key that strangers have named"
    good.protocol.connection_lost(None)
    await broker.stop()


def test_what_a_stranger_says_in_a_handshake_binds_no_number_key_or_life() -> None:
    """Nor what somebody says who has the mesh's key and does not finish the handshake, or damages it."""
    asyncio.run(_strangers())


def test_pieces_are_the_whole() -> None:
    for seed in range(20):
        assert b"".join(pieces(b"abcdefgh", random.Random(seed))) == b"abcdefgh"


def test_undamaged_ends_come_up() -> None:
    net = Net(1, 3)
    link, peer = handshake(net.nodes[1].identity, net.nodes[3].identity)
    assert link.incarnation == peer.incarnation


def test_a_frame_for_nobody_goes_no_further() -> None:
    net = Net(1, 2, 3)
    net.link(1, 2)
    link = net.link(1, 3)
    net.nodes[2].subscribe("t", None, 1, net.now)
    net.settle()
    for _ in range(2):  # the tree goes first, and is answered
        net.publish(3, "t", 1)
        net.stuck = {(3, link)} if net.delivered else set()
        net.settle()
    good = b"".join(net.flying.pop((3, link)))
    before = net.nodes[1].counters.relayed
    assert good.count(b"\1\1\0\3") == 1  # version, flags, origin
    with pytest.raises(PeerError, match="nothing is picked"):
        net.nodes[1].receive(link, good.replace(b"\1\1\0\3", b"\1\x11\0\3"), net.now)
    assert net.nodes[1].counters.relayed == before


@pytest.mark.parametrize("qos", [0, 1])
def test_a_bad_envelope_ends_the_link_that_it_came_over_and_goes_no_further(qos: int) -> None:
    net = Net(1, 2, 3)
    net.link(1, 2)
    link = net.link(1, 3)
    net.nodes[2].subscribe("t", "g", 1, net.now)
    net.settle()
    if qos:  # its tree goes first, and is answered
        net.publish(3, "t", qos)
        net.settle()
    before = net.nodes[1].counters.relayed
    net.publish(3, "t", qos)
    net.stuck = {(3, link)}
    net.settle()
    good = b"".join(net.flying.pop((3, link)))
    pick = b"\0\2\0\3g/t"  # broker 2, three bytes
    assert good.count(pick) == 1
    with pytest.raises(PeerError, match="pick is cut off"):
        net.nodes[1].receive(link, good.replace(pick, b"\0\2\0\xffg/t"), net.now)
    assert net.nodes[1].counters.relayed == before
    net.nodes[1].receive(link, good, net.now)
    assert net.nodes[1].counters.relayed == before + 1
