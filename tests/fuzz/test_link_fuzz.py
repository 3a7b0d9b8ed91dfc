"""A short run of the fuzzing of links; `fuzz_link.py` runs longer by hand. What it has found stays tried."""

from __future__ import annotations

import random

import pytest
from mqmesh.mqtt.errors import PeerError
from support.models.mesh_net import Net

from .fuzz_link import KINDS, attack, control, handshake, knock, pieces, round_of, samples


def test_the_samples_hold_every_kind_of_packet() -> None:
    kinds = {found[0] for frame, _ in samples() if (found := control(frame)) is not None}
    assert kinds >= set(KINDS) - {"want", "dropped", "noted", "later"}
    assert any(control(frame) is None for frame, _ in samples())


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
