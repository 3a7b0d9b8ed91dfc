"""What a broker knows of the others outlives it: as values of a store, and as messages that wait for brokers out of reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.custody.journal import decode_values
from mqmesh.mesh.custody.windows import CustodyWindow
from mqmesh.mesh.node.actions import Verdict
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.view.interest import Interests, InterestSet
from mqmesh.mesh.view.remembered import LINGER, Remembered, recall
from mqmesh.mesh.wire.control import InterestUpdate
from simulation.portions import portions_of
from support.models.mesh_net import Net
from support.steps import ended

OWNERS = [(3, b"u" * 16), (3, b"v" * 16), (300, b"w" * 16)]
entries = st.tuples(st.sampled_from(["a/#", "a/1", "#", "b"]), st.sampled_from([None, "g"]))
change = st.tuples(st.sampled_from(OWNERS), st.dictionaries(entries, st.none() | st.integers(1, 3), min_size=1, max_size=4))
gone = st.tuples(st.sampled_from(OWNERS), st.none())
steps = st.lists(st.one_of(change, gone, st.just("take")), max_size=20)


def store(disk: dict[bytes, bytes], remembered: Remembered) -> None:
    for key, value in remembered.take():
        if value is None:
            disk.pop(key, None)
        else:
            disk[key] = value


@given(steps, st.sampled_from([100, 5, 2]), st.booleans())
def test_what_is_recalled_is_what_was_known_at_the_last_commit(what: list, bound: int, reborn: bool) -> None:
    interests = Interests()
    remembered = interests.memory = Remembered(bound)
    disk: dict[bytes, bytes] = {}
    own = {owner: InterestSet(7) for owner in OWNERS}
    for step in [*what, "take"]:
        if step == "take":
            store(disk, remembered)
            found = recall(disk)
            known = {owner: (s.epoch, s.version, s.digest, s.entries) for owner, s in interests.sets.items()}
            recalled = {owner: (s.epoch, s.version, s.digest, s.entries) for owner, s in found.sets.items()}
            assert recalled == {owner: one for owner, one in known.items() if owner not in remembered.left_out}
            assert found.left_out == remembered.left_out
            assert sum(len(s.entries) for s in found.sets.values()) <= bound
            assert not found.useless
            if reborn:
                remembered = interests.memory = Remembered(bound)
                remembered.restored(found)
        elif step[1] is None:
            owner = step[0]
            interests.activate(*owner)
            interests.activate(owner[0], None)
            own[owner] = InterestSet(own[owner].epoch + 1)
        else:
            owner, changes = step
            for entry, weight in changes.items():
                own[owner].put(entry, weight)
            own[owner].version += 1
            base = own[owner].version - 1 if owner in interests.sets else None
            adds = tuple((*e, w) for e, w in (own[owner].entries if base is None else changes).items() if w is not None)
            removes = () if base is None else tuple(e for e, w in changes.items() if w is None)
            update = InterestUpdate(*owner, own[owner].epoch, base, own[owner].version, own[owner].digest, adds, removes)
            assert ended(interests.applying(update)) == "new"


@given(st.integers(1, 4), st.integers(0, 12))
def test_in_portions_a_set_is_recalled_whole_or_not_at_all(size: int, commits: int) -> None:
    remembered, known = Remembered(100), InterestSet(7)
    for number in range(10):
        known.put((f"f/{number}", None), 1)
    remembered.interest(OWNERS[0], known, known.entries)
    disk: dict[bytes, bytes] = {}
    with portions_of(size):
        for _ in range(commits):
            store(disk, remembered)
            found = recall(disk)
            if remembered.partly:
                assert (found.sets, found.left_out) == ({}, {OWNERS[0]})
                assert len(found.useless) == len(disk) - 1 <= 10
                assert remembered.changed
                assert remembered.due == 0.0
            else:
                assert found.sets[OWNERS[0]].entries == known.entries
                assert commits >= -(-10 // size)
                return
    assert commits < -(-10 // size)


def test_what_does_not_fit_its_header_is_not_believed_and_goes() -> None:
    remembered = Remembered(100)
    known = InterestSet(7)
    for filter_ in ("a", "b"):
        known.put((filter_, None), 1)
    remembered.interest(OWNERS[0], known, known.entries)
    disk: dict[bytes, bytes] = {}
    store(disk, remembered)
    del disk[next(key for key in disk if key[:1] == b"f")]
    found = recall(disk)
    assert (found.sets, found.left_out) == ({}, {OWNERS[0]})
    again = Remembered(100)
    again.restored(found)
    store(disk, again)
    assert [key[:1] for key in disk] == [b"i"]


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x01"])
@pytest.mark.parametrize("kind", [b"m", b"i", b"f"])
def test_a_foreign_value_is_refused_in_one_line(kind: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match="mesh's state") as raised:
        decode_values({kind + b"\0\1" + b"u" * 32: value})
    assert "\n" not in str(raised.value)


# ---- nodes


def pair(config: MeshConfig | None = None) -> Net:
    """1 and 2 linked, 2 wants a, and 1 has written that down."""
    net = Net(1, 2, durable=True, config=config)
    net.link(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.nodes[2].subscribe("s", "g", 1, 0.0)
    net.settle()
    net.now += LINGER
    for number in (1, 2):
        net.nodes[number].handle_timer(net.now)
    net.settle()
    return net


def reborn(net: Net) -> None:
    """1 is killed and starts again, without a link."""
    net.cut(net.links)
    net.add(1, epoch=2000)
    net.settle()


def test_behind_a_restart_messages_for_known_brokers_wait() -> None:
    net = pair()
    reborn(net)
    node = net.nodes[1]
    assert node.informed
    assert [(m.number, m.name, m.live, m.filters) for m in node.members()] == [(1, "b1", True, 0), (2, "b2", False, 2)]
    assert net.publish(1, "a", 1, 3) is Verdict.TAKEN
    assert net.publish(1, "s", 2, 1, payloads=[b"shared"]) is Verdict.TAKEN
    assert node.custody()[0] == 4
    assert net.publish(1, "other") is None
    net.link(1, 2)
    net.settle()
    assert net.got(2) == [b"0", b"1", b"2", b"shared"]
    assert node.custody()[0] == 0


def test_two_restarts_in_a_row_do_not_forget() -> None:
    net = pair()
    reborn(net)
    net.add(1, epoch=3000)
    net.settle()
    net.publish(1, "a", 1)
    net.link(1, 2)
    net.settle()
    assert net.got(2) == [b"0"]


def test_changes_alone_are_written_after_a_while_and_go_with_others() -> None:
    net = pair()
    node = net.nodes[1]
    net.nodes[2].subscribe("b", None, 1, net.now)
    net.settle()
    assert node.records() is None
    due = node.next_deadline()
    assert due is not None
    assert net.now < due <= net.now + LINGER
    net.publish(1, "a")  # a record of custody takes them along
    reborn(net)
    assert node.interested("b")
    assert net.nodes[1].interested("b") == 4


def test_what_is_due_does_not_wait_for_receipts() -> None:
    net = pair()
    node = net.nodes[1]
    journal = node._core.journal
    assert journal is not None
    net.nodes[2].subscribe("b", None, 1, net.now)
    net.settle()
    due = node.next_deadline()
    assert due is not None
    journal.window((2, b"u" * 16), CustodyWindow())  # a receipt waits for it, and may wait a little longer
    assert node.may_linger()
    node.handle_timer(due)
    assert not node.may_linger()
    assert node.records() is not None
    assert node.next_deadline() != due


def test_a_broker_that_was_replaced_meanwhile_gets_nothing() -> None:
    net = pair()
    reborn(net)
    net.publish(1, "a")
    del net.disks[2]
    net.add(2, uuid=77, epoch=3000)
    net.link(1, 2)
    net.settle()
    assert net.got(2) == []
    assert [(number, action.destination, action.reason) for number, action in net.returned] == [(1, 2, "replaced")]
    assert net.nodes[1].interested("a") == 0


def test_interest_that_went_meanwhile_is_corrected_by_the_first_link() -> None:
    net = pair()
    reborn(net)
    net.nodes[2].unsubscribe("a", None, net.now)
    net.nodes[2].subscribe("b", None, 1, net.now)
    net.link(1, 2)
    net.settle()
    assert (net.nodes[1].interested("a"), net.nodes[1].interested("b")) == (0, 4)


def test_who_stays_away_is_forgotten_after_the_restart_too() -> None:
    net = pair(MeshConfig(forget_after=5.0))
    reborn(net)
    net.publish(1, "a")
    net.now += 5.0
    net.nodes[1].handle_timer(net.now)
    net.settle()
    assert [action.reason for _, action in net.returned] == ["absent"]
    net.add(1, epoch=3000)
    assert not net.nodes[1].informed
    assert net.nodes[1].interested("a") == 0


def test_without_room_the_next_life_knows_that_it_does_not_know() -> None:
    net = pair(MeshConfig(remembered=1))
    reborn(net)
    assert not net.nodes[1].informed
    assert net.publish(1, "a") is None
    net.link(1, 2)
    net.settle()
    assert net.nodes[1].informed
    assert [event.fields for number, event in net.events if event.name == "informed" and number == 1][-1] == {"brokers": 1}


def test_the_first_life_is_informed_by_its_first_link() -> None:
    net = Net(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    node = net.nodes[1]
    link = net.link(1, 2)
    net.stuck = {(1, link), (2, link)}
    while not node.informed:  # packet by packet
        net.settle()
        for end, target in (((1, link), 2), ((2, link), 1)):
            packets = net.flying.pop(end, [])
            assert packets or net.flying or node.informed, "nothing moves any more"
            for packet in packets:
                net.nodes[target].receive(link, packet, 0.0)
                assert not node.informed or node.interested("a") == 4, "informed, and publishes would reach nobody"
    assert node.interested("a") == 4
