"""A number belongs to its owner's key: what others said under it before hides nothing, and what is damaged binds nothing."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.mesh.node.actions import Send
from mqmesh.mesh.view.interest import InterestSet
from mqmesh.mesh.wire.control import EPOCH_BITS, InterestUpdate, Life, LinkRecord, encode
from mqmesh.mesh.wire.identity import LIFE_BYTES
from mqmesh.mesh.wire.keys import Keys, Pin, Seal, Signer
from mqmesh.mqtt.errors import PeerError
from support.models.mesh_net import Net, signer_of

STRANGER = Signer(b"s" * 32)
LATE = (1 << EPOCH_BITS) - 5  # an epoch that no clock reaches
UUID_4 = (4).to_bytes(16, "big")


def say(net: Net, frm: int, to: int, kind: str, body: Any) -> None:
    """What a broker puts on its link to another, whatever its node thinks."""
    link = next(link for (number, link), (other, _) in net.ends.items() if (number, other) == (frm, to))
    net._do(frm, Send(link, encode(kind, body), True))
    net.settle()


def squat(net: Net, uuid: bytes = UUID_4) -> None:
    """Broker 3 says that it is broker 4 too, before anybody has seen that one: with the same UUID, in an epoch that is never over."""
    theirs = Keys("mesh", 4, "b4", STRANGER)
    record = LinkRecord(4, uuid, "mallory", LATE, 9, ())
    say(net, 3, 2, "linkstate", [record._replace(seal=theirs.seal("linkstate", *record.said()))])
    wants = InterestSet(LATE)
    wants.version = 9
    seal = theirs.seal("interest", *wants.said((4, uuid)))
    say(net, 3, 2, "interest", InterestUpdate(4, uuid, LATE, None, 9, 0, (), (), seal))
    life = Life(4, uuid, b"m" * LIFE_BYTES, 0, LATE, ((LATE, 9),), 1, (), False, None)
    say(net, 3, 2, "life", [life._replace(seal=theirs.seal("life", *life.said()))])


def mesh(**more: Any) -> Net:
    """Broker 2 is linked to 1 and to 3, which lies; nobody has seen 4."""
    net = Net(1, 3, keyed=True)
    net.add(2, **more)
    for other in (1, 3):
        net.link(2, other)
    net.settle()
    return net


def joins(net: Net, at: int, keys: Keys | None = None) -> None:
    """The owner of number 4 comes."""
    net.add(4, epoch=2000, keys=keys)
    net.link(4, at)
    net.nodes[4].subscribe("to/4", None, 1, net.now)
    net.settle()


def reaches(net: Net, origin: int, number: int) -> bool:
    net.delivered.clear()
    net.publish(origin, f"to/{number}")
    net.settle()
    return [n for n, _ in net.delivered] == [number]


def refused(net: Net) -> list[int]:
    return [number for number, event in net.events if event.name == "key_refused"]


def test_first_come_first_served_where_nobody_says_whose_a_number_is() -> None:
    net = mesh()
    squat(net)
    joins(net, at=2)
    assert 2 in refused(net)
    assert not reaches(net, 2, 4)


@pytest.mark.parametrize("uuid", [UUID_4, b"x" * 16])
def test_a_key_of_the_configuration_takes_the_number_back_over_the_brokers_own_link(uuid: bytes) -> None:
    net = mesh(given={"b4": signer_of(4).public})
    squat(net, uuid)
    joins(net, at=2)
    assert reaches(net, 2, 4)
    assert net.nodes[2]._core.keys.pins[4] == Pin(signer_of(4).public, True)  # type: ignore[union-attr]
    assert (4, UUID_4) in net.nodes[2]._states.records


def test_a_key_of_the_configuration_takes_the_number_back_from_afar() -> None:
    net = Net(1, 3, keyed=True)
    for number in (2, 5):
        net.add(number, given={"b4": signer_of(4).public})
    for other in (1, 3, 5):
        net.link(2, other)
    net.settle()
    squat(net)
    joins(net, at=5)
    assert reaches(net, 2, 4)


def test_a_name_with_number_and_key_in_the_configuration_is_never_taken() -> None:
    own = Keys("mesh", 2, "b2", signer_of(2), {"b4": signer_of(4).public}, {"b2": 2, "b4": 4})
    net = mesh(keys=own)
    squat(net)
    assert refused(net) == [2]
    assert not any(number == 4 for number, _ in net.nodes[2]._states.records)
    assert 4 not in own.pins
    assert not own.belongs(4, "mallory", STRANGER.public)
    joins(net, at=2)
    assert reaches(net, 2, 4)


def test_an_order_of_an_operator_takes_the_number_back() -> None:
    net = mesh()
    squat(net)
    net.nodes[2].order("rekey", 4, net.now, signer_of(4).public)
    net.settle()
    joins(net, at=1)
    assert reaches(net, 2, 4)
    assert reaches(net, 1, 4)


def test_what_is_kept_of_a_packet_that_is_damaged_further_on_is_passed_on() -> None:
    """The sender believes that all of it has been said: it would not come again."""
    net = mesh()
    theirs = Keys("mesh", 4, "b4", signer_of(4))
    good = LinkRecord(4, UUID_4, "b4", 2000, 1, ())
    good = good._replace(seal=theirs.seal("linkstate", *good.said()))
    with pytest.raises(PeerError, match="has not signed it"):
        say(net, 3, 2, "linkstate", [good, good._replace(number=5)])
    net.settle()
    assert net.nodes[2]._states.records[4, UUID_4] == good
    assert net.nodes[1]._states.records[4, UUID_4] == good


def test_a_life_in_a_packet_that_is_damaged_further_on_counts_and_is_passed_on() -> None:
    net = mesh()
    net.capabilities = net.capabilities | {"life"}
    net.link(1, 2), net.link(2, 3)
    net.settle()
    theirs = Keys("mesh", 4, "b4", signer_of(4))
    good = Life(4, UUID_4, b"l" * LIFE_BYTES, 0, 2000, ((2000, 9),), 1, (), False, None)
    good = good._replace(seal=theirs.seal("life", *good.said()))
    with pytest.raises(PeerError, match="has not signed it"):
        say(net, 3, 2, "life", [good, good._replace(life=b"k" * LIFE_BYTES)])
    net.settle()
    for number in (1, 2):
        assert net.nodes[number]._core.lives.life_at(4, UUID_4, 2000) == good


@pytest.mark.parametrize("damage", ["another key", "not signed", "other words"])
def test_a_damaged_statement_binds_nothing(damage: str) -> None:
    net = mesh()
    theirs = Keys("mesh", 4, "b4", signer_of(4))
    record = LinkRecord(4, UUID_4, "b4", 2000, 1, ())
    seal = theirs.seal("linkstate", *record.said())
    said: Seal | None = {"another key": seal._replace(key=STRANGER.public), "not signed": None}.get(damage, seal)
    if damage == "other words":
        record = record._replace(epoch=LATE)
    with pytest.raises(PeerError, match="has not signed it"):
        say(net, 3, 2, "linkstate", [record._replace(seal=said)])
    for node in net.nodes.values():
        assert 4 not in node._core.keys.pins  # type: ignore[union-attr]
        assert (4, UUID_4) not in node._states.records
    joins(net, at=2)
    assert reaches(net, 1, 4)
