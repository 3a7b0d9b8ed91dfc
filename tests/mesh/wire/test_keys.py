"""Keys: who may speak for which broker, and what a broker of the mesh that lies in another's name achieves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from mqmesh.mesh.node.actions import Send
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.view.interest import InterestSet, entry_digest
from mqmesh.mesh.wire.control import EPOCH_BITS, InterestUpdate, LinkRecord, encode
from mqmesh.mesh.wire.keys import Keys, Pin, Seal, Signer, verified
from mqmesh.mqtt.errors import PeerError
from support.models.mesh_net import Net, signer_of

STRANGER = Signer(b"s" * 32)


def keys(given: dict[str, bytes] | None = None) -> Keys:
    return Keys("mesh", 1, "b1", signer_of(1), given)


def line(*numbers: int, durable: bool = False, config: MeshConfig | None = None) -> tuple[Net, list[int]]:
    net = Net(*numbers, durable=durable, keyed=True, config=config)
    links = [net.link(a, b) for a, b in itertools.pairwise(numbers)]
    for number in numbers:
        net.nodes[number].subscribe(f"to/{number}", None, 1, net.now)
    net.settle()
    return net, links


def reaches(net: Net, origin: int, number: int) -> bool:
    net.delivered.clear()
    net.publish(origin, f"to/{number}")
    net.settle()
    return [n for n, _ in net.delivered] == [number]


def events(net: Net, name: str) -> list[int]:
    return [number for number, event in net.events if event.name == name]


def say(net: Net, frm: int, to: int, kind: str, body: Any) -> None:
    """What a broker puts on its link to another, whatever its node thinks."""
    link = next(link for (number, link), (other, _) in net.ends.items() if (number, other) == (frm, to))
    net._do(frm, Send(link, encode(kind, body), True))
    net.settle()


# ---- keys


def test_a_statement_is_what_its_signer_said_and_nothing_else() -> None:
    mine = keys()
    seal = mine.seal("open", 1, b"uuid", [2, 3])
    assert mine.genuine("open", seal, 1, b"uuid", [2, 3])
    assert not mine.genuine("open", seal, 1, b"uuid", [2, 4])
    assert not mine.genuine("interest", seal, 1, b"uuid", [2, 3])
    assert not mine.genuine("open", seal._replace(lasting=False), 1, b"uuid", [2, 3])
    assert not mine.genuine("open", seal._replace(key=STRANGER.public), 1, b"uuid", [2, 3])
    assert not mine.genuine("open", None, 1, b"uuid", [2, 3])
    assert not Keys("other", 1, "b1", signer_of(1)).genuine("open", seal, 1, b"uuid", [2, 3]), "of another mesh"
    assert not verified(b"\xff" * 32, b"x", bytes(64)), "no point of the curve"


def test_which_key_may_have_a_number() -> None:
    mine = keys()
    old, new = Seal(b"o" * 32, True, b""), Seal(b"n" * 32, True, b"")
    assert mine.why_not(2, "b2", old.key, False) is None
    assert mine.learn(2, old) == Pin(old.key, True)
    assert mine.learn(2, old) is None
    assert mine.why_not(2, "b2", old.key, True) is None
    for reachable in (True, False):
        why = mine.why_not(2, "b2", new.key, reachable)
        assert why is not None
        assert old.key.hex() in why
        assert new.key.hex() in why
        assert "mesh.keys" in why
    assert mine.forget(2)
    assert mine.why_not(2, "b2", new.key, False) is None


def test_the_own_number_is_the_own_keys() -> None:
    assert keys().why_not(1, "b1", signer_of(1).public, True) is None
    assert keys().why_not(1, "b1", STRANGER.public, False) is not None


def test_a_key_that_does_not_last_binds_while_its_broker_is_there() -> None:
    mine = keys()
    mine.learn(2, Seal(b"o" * 32, False, b""))
    assert mine.why_not(2, "b2", b"n" * 32, True) is not None
    assert mine.why_not(2, "b2", b"n" * 32, False) is None


def test_what_the_configuration_says_counts_alone() -> None:
    mine = keys({"b2": b"g" * 32})
    mine.learn(2, Seal(b"o" * 32, True, b""))
    assert mine.why_not(2, "b2", b"g" * 32, True) is None, "a key that was changed"
    assert mine.why_not(2, "b2", b"o" * 32, True) is not None
    assert mine.why_not(3, "b3", b"g" * 32, True) is not None, "another's key"


def test_an_interest_with_the_right_digest_is_not_the_right_one() -> None:
    """The digest is an exclusive or: whoever may choose entries makes two sets of one digest. The sum, which is signed, does not err."""
    one, other = InterestSet(1), InterestSet(1)
    one.put(("a", None), 1)
    other.put(("b", None), 1)
    other.digest = one.digest
    assert entry_digest("a", None, 1) == one.digest
    assert one.said((1, b"u")) != other.said((1, b"u"))
    one.put(("c", None), 1)
    one.put(("a", None), None)
    one.put(("b", None), 1)
    one.put(("c", None), None)
    assert one.sum == other.sum, "whatever the way to a set"


# ---- lies


def record_of(net: Net, number: int, at: int) -> LinkRecord:
    return net.nodes[at]._states.records[number, net.nodes[number].identity.uuid.bytes]


@pytest.mark.parametrize("seal", ["none", "old", "its own"])
def test_nobody_speaks_for_another_in_link_state(seal: str) -> None:
    net, _ = line(1, 2, 3)
    forged = record_of(net, 1, 3)._replace(epoch=2**40, links=())
    if seal == "none":
        forged = forged._replace(seal=None)
    elif seal == "its own":
        forged = forged._replace(seal=Keys("mesh", 3, "b3", signer_of(3)).seal("linkstate", *forged.said()))
        say(net, 3, 2, "linkstate", [forged])
        assert events(net, "key_refused") == [2]
        assert net.nodes[2].counters.refused_keys == 1
        say(net, 3, 2, "linkstate", [forged])
        assert events(net, "key_refused") == [2], "said once"
    if seal != "its own":
        with pytest.raises(PeerError, match="has not signed it"):
            say(net, 3, 2, "linkstate", [forged])
        assert net.nodes[2].counters.forged == 1
    assert reaches(net, 2, 1)
    assert net.nodes[1].identity.epoch == 1000


def test_nobody_takes_the_number_of_another_with_a_uuid_of_its_own() -> None:
    net, _ = line(1, 2, 3)
    forged = LinkRecord(1, b"m" * 16, "mallory", 1, 1, record_of(net, 1, 3).links)
    forged = forged._replace(seal=Keys("mesh", 1, "mallory", STRANGER).seal("linkstate", *forged.said()))
    say(net, 3, 2, "linkstate", [forged])
    assert events(net, "key_refused") == [2]
    assert net.nodes[2].holders()[1].name == "b1"
    assert reaches(net, 2, 1)


def test_no_summary_uses_up_an_epoch() -> None:
    net, _ = line(1, 2, 3)
    most = (1 << EPOCH_BITS) - 1
    uuid = net.nodes[2].identity.uuid.bytes
    say(net, 3, 2, "summary", [(2, uuid, most, 9, 0, 0, 0)])
    own = record_of(net, 2, 3)._replace(epoch=most)
    with pytest.raises(PeerError):
        say(net, 3, 2, "linkstate", [own])
    assert net.nodes[2].identity.epoch == 1000


@pytest.mark.parametrize("base", [None, 1])
def test_nobody_says_what_another_wants(base: int | None) -> None:
    net, _ = line(1, 2, 3)
    known = net.nodes[3].interests.sets[1, net.nodes[1].identity.uuid.bytes]
    (entry,) = known.entries
    uuid = net.nodes[1].identity.uuid.bytes
    removes = () if base is None else (entry,)
    forged = InterestUpdate(1, uuid, known.epoch, base, known.version + 1, 0, (), removes, known.seal)
    with pytest.raises(PeerError, match="has not signed this interest"):
        say(net, 3, 2, "interest", forged)
    assert net.nodes[2].counters.forged == 1
    assert reaches(net, 2, 1)
    theirs = Keys("mesh", 3, "b3", signer_of(3)).seal("interest", *InterestSet(known.epoch).said((1, uuid)))
    say(net, 3, 2, "interest", forged._replace(seal=theirs))
    assert events(net, "key_refused") == [2]
    assert reaches(net, 2, 1)


def test_nobody_opens_a_tree_for_another() -> None:
    net, links = line(1, 2, 3)
    net.link(3, 1)
    net.settle()
    assert reaches(net, 1, 2)
    uuid = net.nodes[1].identity.uuid.bytes
    incarnation = 1_000_000 + links[1]
    said = (1, uuid, 1000, 2**60, [(3, 1, 1_000_000 + net.links), (2, 3, incarnation)])
    with pytest.raises(PeerError, match="has not signed it"):
        say(net, 3, 2, "open", (*said, None))
    say(net, 3, 2, "open", (*said, Keys("mesh", 3, "b3", signer_of(3)).seal("open", *said)))
    assert events(net, "key_refused") == [2]
    assert reaches(net, 1, 2)


# ---- numbers that change hands


def without(net: Net, link: int, number: int) -> None:
    net.cut(link)
    del net.nodes[number]
    net.settle()


def test_a_number_is_kept_for_its_key_while_its_broker_is_away() -> None:
    net, (link, _) = line(3, 1, 2, config=MeshConfig(keys_held=100.0))
    without(net, link, 3)
    net.add(3, uuid=77, epoch=2000, keys=Keys("mesh", 3, "b3", STRANGER))
    link = net.link(3, 1)
    net.settle()
    assert 1 in events(net, "key_refused")
    assert sorted(net.nodes[2].holders()) == [1, 2]
    assert net.nodes[1].why_not(net.nodes[3].identity) is not None, "the door of a real broker refuses it at once"
    without(net, link, 3)
    net.now += 200.0
    for node in net.nodes.values():
        node.handle_timer(net.now)
    net.settle()
    assert sorted(events(net, "key_released")) == [1, 2]
    net.add(3, uuid=77, epoch=2000, keys=Keys("mesh", 3, "b3", STRANGER))
    net.link(3, 1)
    net.settle()
    assert sorted(net.nodes[2].holders()) == [1, 2, 3]


def test_a_wiped_folder_with_its_key_comes_back_and_a_new_key_when_the_configuration_says_so() -> None:
    net, (link, other) = line(3, 1, 2)
    without(net, link, 3)
    net.add(3, uuid=77, epoch=2000)
    link = net.link(3, 1)
    net.nodes[3].subscribe("to/3", None, 1, net.now)
    net.settle()
    assert reaches(net, 2, 3)
    without(net, link, 3)
    for number in (1, 2):
        net.cut(other)
        net.add(number, epoch=3000, given={"b3": STRANGER.public})
    net.link(1, 2)
    net.add(3, uuid=78, epoch=4000, keys=Keys("mesh", 3, "b3", STRANGER))
    net.link(3, 1)
    net.nodes[3].subscribe("to/3", None, 1, net.now)
    net.settle()
    assert reaches(net, 2, 3)
    assert not events(net, "key_refused")


def test_what_was_learned_survives_a_restart_and_can_be_passed_on() -> None:
    net, (link, _) = line(3, 1, 2, durable=True)
    without(net, link, 3)
    net.now += 10
    net.settle()
    for number in (1, 2):
        for end in [end[1] for end in net.ends if end[0] == number]:
            net.cut(end)
    net.add(1, epoch=2000)
    net.add(4)
    net.link(1, 4)
    net.settle()
    assert net.nodes[1]._core.keys.pins[3].key == signer_of(3).public  # type: ignore[union-attr]
    assert (3, net.nodes[1].interests.active[3]) in net.nodes[4].interests.sets, "what an absent broker wants is passed on, signed by it"
    net.disks.pop(3)
    net.add(3, uuid=77, epoch=2000, keys=Keys("mesh", 3, "b3", STRANGER))
    net.link(3, 1)
    net.settle()
    assert sorted(net.nodes[1].holders()) == [1, 4]
