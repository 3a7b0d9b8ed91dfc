"""Two lives of one broker at once: the later one yields, nothing that either acknowledged is hidden (docs/copies.md)."""

from __future__ import annotations

from uuid import UUID

import msgpack
import pytest
from mqmesh.mesh.custody.journal import stored_node
from mqmesh.mesh.custody.windows import CustodyWindow
from mqmesh.mesh.node.actions import Send
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.node.node import Node
from mqmesh.mesh.view.interest import InterestSet
from mqmesh.mesh.view.lives import EPOCHS_SAID, LIVES_KEPT, RIVALS_SAID, Former
from mqmesh.mesh.wire.control import ALL, Life, LinkEntry, LinkRecord, encode
from mqmesh.mesh.wire.identity import CAPABILITIES, Identity
from mqmesh.mesh.wire.keys import Keys, Signer
from simulation.disk import Disk
from support.models.mesh_net import Net, signer_of


def life(net: Net, at: int, number: int, epoch: int, name: bytes, claim: int = 0) -> Node:
    """A life of the broker with this number, under a key of the test's own."""
    identity = Identity("mesh", f"b{number}", number, UUID(int=number), epoch, b"", name * 16, CAPABILITIES)
    net.nodes[at] = Node(identity, claim=claim)
    return net.nodes[at]


def chain() -> Net:
    """1 - 2 - 3, each in a life of its own."""
    net = Net()
    net.capabilities = CAPABILITIES
    for number in (1, 2, 3):
        life(net, number, number, 1000 + number, bytes((number,)))
    net.link(1, 2)
    net.link(2, 3)
    net.settle()
    return net


def names(net: Net, at: int) -> list[str]:
    return [event.name for node, event in net.events if node == at]


def test_a_copy_at_another_neighbour_yields_and_the_original_stays() -> None:
    net = chain()
    life(net, 30, 3, 9000, b"c")
    net.link(1, 30)
    net.settle()
    assert net.nodes[30].fenced
    assert "fenced" in names(net, 30)
    assert "twin_met" in names(net, 3)
    assert not net.nodes[30].links()
    for number in (1, 2, 3):
        assert sorted(net.nodes[number].holders()) == [1, 2, 3]
        assert net.nodes[number].holders()[3].epoch == net.nodes[3].identity.epoch


def test_a_copy_at_the_same_neighbour_does_not_end_the_link_of_the_original() -> None:
    net = chain()
    life(net, 30, 3, 9000, b"c")
    net.link(2, 30)
    net.settle()
    assert net.nodes[30].fenced
    assert [link.used for link in net.nodes[3].links()] == [True]


def test_a_copy_that_is_linked_to_its_original_yields() -> None:
    net = chain()
    life(net, 30, 3, 9000, b"c")
    net.link(3, 30)
    net.settle()
    assert (net.nodes[3].fenced, net.nodes[30].fenced) == (False, True)


def test_a_life_that_was_heard_of_while_a_link_was_down_is_told_with_its_record() -> None:
    net = chain()
    net.stuck |= {(number, 2) for number in (2, 3)}  # the link to 3 carries nothing, and nobody has noticed
    life(net, 30, 3, 9000, b"c")
    link = net.link(2, 30)
    net.settle()
    net.cut(2)
    net.cut(link)
    net.link(2, 3)
    net.settle()
    net.link(2, 30)
    net.settle()
    assert (net.nodes[3].fenced, net.nodes[30].fenced) == (False, True)


def test_what_a_life_wants_is_not_passed_on_before_the_life() -> None:
    """Its record is no longer of use to anybody, and its interest, with a higher epoch, would hide that of the holder for ever."""
    net = chain()
    net.cut(2)
    copy = life(net, 30, 3, 9000, b"c")
    link = net.link(2, 30)
    copy.subscribe("of/the/copy", None, 1, 0.0)
    net.settle()
    net.cut(link)
    net.link(2, 3)
    net.settle()
    assert net.nodes[3].identity.epoch > 9000
    net.nodes[3].subscribe("of/the/original", None, 1, net.now)
    net.settle()
    for number in (1, 2):
        assert net.nodes[number].interested("of/the/original") == 1 << 3
        assert net.nodes[number].interested("of/the/copy") == 0


def wanted_by_another_life(net: Net, frm: int, to: int, keys: Keys | None = None) -> None:
    """A broker has kept, over its restart, what a life of broker 3 wanted whose name nobody knows any more, and says it to another."""
    wants = InterestSet(9000)
    wants.version = 1
    wants.put(("of/the/copy", None), 1)
    if keys is not None:
        wants.seal = keys.seal("interest", *wants.said((3, UUID(int=3).bytes)))
    link = next(link for (number, link), (other, _) in net.ends.items() if (number, other) == (frm, to))
    net._do(frm, Send(link, encode("interest", wants.whole((3, UUID(int=3).bytes))), True))
    net.settle()


def knows_what_3_wants(net: Net, *numbers: int) -> None:
    net.nodes[3].subscribe("of/the/original", None, 1, net.now)
    net.settle()
    for number in numbers:
        assert net.nodes[number].interested("of/the/original") == 1 << 3
        assert net.nodes[number].interested("of/the/copy") == 0


def test_the_holder_goes_above_what_a_life_wanted_that_nobody_knows_any_more() -> None:
    """Seed 1711: with its higher epoch it hid what the holder wants, for as long as the holder lived."""
    net = chain()
    wanted_by_another_life(net, 1, 2)
    assert net.nodes[3].identity.epoch > 9000
    knows_what_3_wants(net, 1, 2)


def test_the_holder_goes_above_what_it_has_signed_and_nothing_else() -> None:
    net = Net(1, 2, 3, keyed=True)
    for other in (1, 3):
        net.link(2, other)
    net.settle()
    wanted_by_another_life(net, 2, 3)
    wanted_by_another_life(net, 2, 3, Keys("mesh", 3, "b3", Signer(b"s" * 32)))
    assert net.nodes[3].identity.epoch == 1000
    wanted_by_another_life(net, 1, 2, Keys("mesh", 3, "b3", signer_of(3)))
    assert net.nodes[3].identity.epoch > 9000
    knows_what_3_wants(net, 1, 2)


def test_what_a_life_wanted_counts_no_more_once_it_is_known_whose_it_is() -> None:
    """It is taken before its life is known, and its epoch is the higher one."""
    net = Net()
    net.capabilities = CAPABILITIES
    for number in (1, 2):
        life(net, number, number, 1000 + number, bytes((number,)))
    link = net.link(1, 2)
    net.settle()
    uuid = UUID(int=3).bytes
    own = net.nodes[2]._states.records[2, UUID(int=2).bytes]
    with_3 = own._replace(sequence=own.sequence + 9, links=(*own.links, LinkEntry(3, 77, 1)))
    holds = Life(3, uuid, b"a" * 16, 0, 1003, ((1003, ALL),), 1, (), False, None)
    for kind, body in (("life", [holds]), ("linkstate", [LinkRecord(3, uuid, "b3", 1003, 1, (LinkEntry(2, 77, 1),)), with_3])):
        net._do(2, Send(link, encode(kind, body), True))
    wanted_by_another_life(net, 2, 1)
    assert net.nodes[1].interested("of/the/copy") == 1 << 3
    other = holds._replace(life=b"c" * 16, born=9000, epochs=((9000, ALL),), rivals=(holds.life,))
    net._do(2, Send(link, encode("life", [other]), True))
    net.settle()
    wants = InterestSet(1003)
    wants.put(("of/the/original", None), 1)
    net._do(2, Send(link, encode("interest", wants.whole((3, uuid))), True))
    net.settle()
    assert net.nodes[1].interested("of/the/original") == 1 << 3
    assert net.nodes[1].interested("of/the/copy") == 0


def test_who_comes_while_a_life_cannot_be_reached_hears_of_it_once_it_can() -> None:
    """Its record stands aside for that of the earlier life, and is not in the answer to a summary (seed 1101)."""
    net = Net()
    net.capabilities = CAPABILITIES
    for number in (1, 2, 4):
        life(net, number, number, 1000 + number, bytes((number,)))
    link = net.link(1, 2)
    net.settle()
    uuid = UUID(int=3).bytes
    for name, epoch, links in ((b"a", 1003, ()), (b"c", 9000, (LinkEntry(2, 77, 1),))):
        said = Life(3, uuid, name * 16, 0, epoch, ((epoch, ALL),), 1, (), False, None)
        for kind, body in (("life", [said]), ("linkstate", [LinkRecord(3, uuid, "b3", epoch, 1, links)])):
            net._do(2, Send(link, encode(kind, body), True))
    net.settle()
    assert [record.epoch for record in net.nodes[1]._states.twins.values()] == [9000]
    net.link(1, 4)
    net.settle()
    assert not net.nodes[4]._states.twins
    own = net.nodes[2]._states.records[2, UUID(int=2).bytes]
    record = own._replace(sequence=own.sequence + 9, links=(*own.links, LinkEntry(3, 77, 1)))
    net._do(2, Send(link, encode("linkstate", [record]), True))
    net.settle()
    for number in (1, 4):
        assert net.nodes[number].holders()[3].epoch == 9000


def test_no_neighbour_is_told_twice_of_a_life() -> None:
    net = chain()
    before = net.nodes[2]._core.counters.control_sent
    net.nodes[2]._members.fence.tell_all(list(net.nodes[2]._states.records.values()), but=0)
    assert net.nodes[2]._core.counters.control_sent == before


def test_the_holder_goes_above_a_life_that_has_yielded_before_they_met() -> None:
    """What others know of that life, its subscriptions for instance, would count as newer."""
    net = chain()
    uuid = UUID(int=3).bytes
    says(net, 3, [Life(3, uuid, b"c" * 16, 0, 9000, ((9000, ALL), (1003, 5)), 4, (net.nodes[3].identity.life,), True, None)])
    net.settle()
    assert net.nodes[3].identity.epoch > 9000
    assert not net.nodes[3].fenced
    assert net.nodes[1].holders()[3].epoch == net.nodes[3].identity.epoch


def test_the_original_yields_to_a_copy_that_is_claimed() -> None:
    net = chain()
    life(net, 30, 3, 9000, b"c", claim=1)
    net.link(1, 30)
    net.settle()
    assert (net.nodes[3].fenced, net.nodes[30].fenced) == (True, False)
    assert net.nodes[2].holders()[3].epoch == net.nodes[30].identity.epoch


def test_a_restored_copy_without_a_living_twin_serves() -> None:
    net = chain()
    net.cut(2)
    del net.nodes[3]
    life(net, 30, 3, 9000, b"c")
    net.link(1, 30)
    net.settle()
    assert not net.nodes[30].fenced
    assert net.nodes[2].holders()[3].epoch == 9000


def test_two_that_served_apart_hide_nothing_of_each_other() -> None:
    net = chain()
    net.nodes[1].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(3, "a", payloads=[b"before"])
    net.settle()
    net.cut(2)
    copy = life(net, 30, 3, 9000, b"c")
    net.link(1, 30)
    net.settle()
    route = copy.route(b"a")
    assert route is not None
    net.publish(30, "a", payloads=[b"of the copy"])
    net.settle()
    net.publish(3, "a", payloads=[b"of the original"])
    net.link(2, 3)
    net.settle()
    assert copy.fenced
    assert sorted(net.got(1)) == [b"before", b"of the copy", b"of the original"]


def stored_life(net: Net, at: int, number: int, uuid: int, epoch: int, name: bytes, former: Former | None = None, claim: int = 0) -> Node:
    """A life with the disk of its place."""
    identity = Identity("mesh", f"b{number}", number, UUID(int=uuid), epoch, b"", name * 16, CAPABILITIES)
    node = net.nodes[at] = Node(identity, net.config, claim=claim, former=former)
    net.disks.setdefault(at, Disk()).restore(node, net.now)
    net.save(at)
    return node


def test_a_page_that_both_have_in_part_goes_out_in_that_part_only() -> None:
    """One page of the copy holds what the original has too, and what the copy took later."""
    net = Net(config=MeshConfig(keep_messages=1, page_messages=8), durable=True)
    net.capabilities = CAPABILITIES
    for number in (1, 3):
        stored_life(net, number, number, number, 1000 + number, bytes((number,)))
    net.nodes[1].subscribe("a", None, 1, 0.0)
    link = net.link(1, 3)
    net.settle()
    net.cut(link)
    net.publish(3, "a", payloads=[b"of both"])
    net.settle()
    net.disks[30] = net.disks[3].copy()
    stored_life(net, 30, 3, 3, 9000, b"c")
    for count in range(7):
        net.publish(30, "a", payloads=[b"of the copy %d" % count])
        net.settle()
    assert [(page.epoch, page.last[0]) for page in net.nodes[30]._origin.custody.pages.values()] == [(1003, 9000)]
    stored_life(net, 30, 50, 50, 9500, b"d", Former(3, UUID(int=3).bytes, ((1003, 1),)))
    assert not net.nodes[30].informed  # of what the original wants: publishers wait
    for other in (3, 30):
        net.link(1, other)
    net.settle()
    assert net.nodes[30].informed
    assert sorted(net.got(1)) == [b"of both", *(b"of the copy %d" % count for count in range(7))]
    assert net.nodes[30].custody() == (0, 0)


def held_for_one() -> Net:
    """3 has a message in custody for 1, which is out of its reach."""
    net = Net(durable=True)
    net.capabilities = CAPABILITIES
    for number in (1, 3):
        stored_life(net, number, number, number, 1000 + number, bytes((number,)))
    net.nodes[1].subscribe("a", None, 1, 0.0)
    link = net.link(1, 3)
    net.settle()
    net.cut(link)
    net.publish(3, "a", payloads=[b"of both"])
    net.settle()
    return net


def test_what_the_original_delivered_before_it_was_restarted_is_not_sent_again_by_its_copy() -> None:
    net = held_for_one()
    net.disks[30] = net.disks[3].copy()
    link = net.link(1, 3)
    net.settle()
    assert net.got(1) == [b"of both"]
    net.cut(link)
    for epoch, name in ((2003, b"r"), (3003, b"s")):  # what is known of the first epoch outlives the second start
        stored_life(net, 3, 3, 3, epoch, name)
    stored_life(net, 30, 3, 3, 9000, b"c")
    net.link(3, 30)
    net.settle()
    (common,) = [event.fields["common"] for node, event in net.events if node == 30 and event.name == "fenced"]
    assert common == ((1003, 1),)
    stored_life(net, 30, 50, 50, 9500, b"d", Former(3, UUID(int=3).bytes, common))
    net.link(1, 30)
    net.settle()
    assert net.got(1) == [b"of both"], "it came twice"
    assert net.nodes[30].custody() == (0, 0)


@pytest.mark.parametrize("claim", [0, 1])
def test_a_copy_sends_late_what_another_copy_of_the_destination_has(claim: int) -> None:
    """Seed 20000231: the documented limit of order. No copy of the destination gets the message twice. claim: 0, the original is away."""
    net = held_for_one()
    for number in (1, 3):
        net.disks[10 * number] = net.disks[number].copy()
    stored_life(net, 10, 1, 1, 5000, b"d").subscribe("a", None, 1, net.now)
    link = net.link(10, 3)
    net.settle()
    net.cut(link)
    stored_life(net, 3, 3, 3, 2003, b"r")
    net.publish(3, "a", payloads=[b"of the original"])
    link = net.link(1, 3)
    net.settle()
    assert (net.got(10), net.got(1)) == ([b"of both"], [b"of the original"])
    net.cut(link)
    stored_life(net, 30, 3, 3, 9000, b"c", claim=claim)
    for other in (3, 1) if claim else (1,):
        net.link(other, 30)
        net.settle()
    assert net.nodes[3].fenced == bool(claim)
    assert (net.got(10), net.got(1)) == ([b"of both"], [b"of the original", b"of both"])
    assert net.nodes[30].custody() == (0, 0)


def test_an_epoch_that_ended_in_a_life_was_there_whole() -> None:
    """A broker that goes above a life it hears of has all of the epoch before; what expired of it, nobody sends again."""
    net = Net(durable=True)
    stored_life(net, 3, 3, 3, 1003, b"o")
    net.nodes[3]._members._raise_epoch(2003)
    net.save(3)
    second = net.nodes[3].identity.epoch
    again = stored_life(net, 3, 3, 3, second + 1, b"p")
    assert again._core.lives.own.epochs == ((second + 1, ALL), (second, 0), (1003, ALL))


def test_a_record_of_an_earlier_release_says_only_which_epochs_there_were() -> None:
    assert stored_node(msgpack.packb([1, b"u", 5, 4, [5, 4]])) == (b"u", 5, 4, ((5, None), (4, None)))


def test_a_window_goes_on_where_the_life_was_that_sends() -> None:
    window = CustodyWindow((10, 7))
    for epoch, last in ((20, 3), (20, 5)):
        pending = window.take(epoch, last, last)
        window.hand_over(pending)
        window.commit(pending)
    window.resume((30, 10))  # another life, whose past does not hold epoch 20
    assert (window.seen, window.committed, window.past) == ((10, 7), (10, 7), {20: 5})
    window.resume((40, 20, 10))
    assert window.seen == (20, 5)


def test_a_delivery_of_another_life_does_not_move_what_is_committed() -> None:
    window = CustodyWindow((10, 7))
    pending = window.take(20, 1, 5)
    window.resume((30, 10))
    window.hand_over(pending)
    window.commit(pending)
    assert (window.committed, window.handed, window.past) == ((10, 7), (10, 7), {20: 5})


def test_the_original_goes_on_after_it_has_met_a_copy() -> None:
    """It has a higher epoch then, and its tree a higher number: one that was not announced carries nothing."""
    net = chain()
    net.nodes[1].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(3, "a", payloads=[b"before"])
    net.settle()
    life(net, 30, 3, 9000, b"c")
    net.link(3, 30)  # no link state changes for anybody else
    net.settle()
    assert net.nodes[30].fenced
    net.publish(3, "a", payloads=[b"behind"])
    net.settle()
    assert net.got(1) == [b"before", b"behind"]
    assert net.nodes[3].custody() == (0, 0)


def says(net: Net, at: int, lives: list[Life]) -> None:
    net.nodes[at].receive(next(iter(net.nodes[at]._core.links)), encode("life", lives), net.now)


def test_nobody_says_what_a_life_of_another_number_is() -> None:
    net = chain()
    own = net.nodes[1]._core.lives.own
    says(net, 2, [own._replace(number=3, claim=9, serial=99, yielded=True)])
    kept = net.nodes[2]._core.lives
    assert kept.life_at(1, own.uuid, own.born) == own
    net.settle()
    assert not net.nodes[1].fenced


def test_what_no_broker_says_of_a_life_is_not_kept() -> None:
    net = chain()
    said = Life(3, UUID(int=3).bytes, b"x" * 16, 0, 5000, ((5000, ALL),), 1, (), False, None)
    wrong = [
        said._replace(epochs=()),
        said._replace(epochs=tuple([(5000 + k, 1) for k in range(EPOCHS_SAID + 1)])),
        said._replace(rivals=tuple([bytes([k]) * 16 for k in range(RIVALS_SAID + 1)])),
    ]
    says(net, 2, wrong)
    assert net.nodes[2]._core.lives.life_at(3, said.uuid, 5000) is None
    says(net, 2, [said])
    assert net.nodes[2]._core.lives.life_at(3, said.uuid, 5000) == said


def test_a_number_has_as_many_uuids_as_its_link_state() -> None:
    net = chain()
    lives = [Life(3, UUID(int=100 + k).bytes, b"x" * 16, 0, 5000 + k, ((5000 + k, ALL),), 1, (), False, None) for k in range(50)]
    says(net, 2, lives)
    found = [life for life in lives if net.nodes[2]._core.lives.life_at(3, life.uuid, life.born)]
    assert found == lives[-LIVES_KEPT:]


def test_a_comparison_that_begins_while_an_earlier_life_seems_to_live_is_answered_later() -> None:
    """Found by a seed: 1 restarts, and 2 has not noticed. Over 4 the new life hears what 2 says, and tells 3. To 3 both lives can be
    reached then, and it does not use its link, while 1 does and begins to compare. What it asked was dropped, and it waited for ever."""
    net = Net()
    net.capabilities = CAPABILITIES
    for number in (1, 2, 3, 4):
        life(net, number, number, 1000 + number, bytes((number,)))
    old, other = net.link(1, 2), net.link(1, 4)
    net.link(2, 4)
    net.settle()
    for end in [end for end in net.ends if end[1] == old]:  # 2 has not noticed that it is over
        del net.ends[end]
    net.cut(other)
    life(net, 1, 1, 9000, b"n")
    net.link(1, 4)
    net.settle()
    for number in (1, 3):
        net.publish(number, f"of/{number}", 0, payloads=[b"x"], retain=True)
    net.link(1, 3)
    net.settle()
    assert sorted(net.nodes[3].holders()) == [3], "the new life is left out as long as the earlier one seems to live"
    net.nodes[2].link_down(old, net.now)
    net.settle()
    assert sorted(net.nodes[3].holders()) == [1, 2, 3, 4]
    for node in net.nodes.values():
        assert {bytes(run.topic) for run in node.retained()} == {b"of/1", b"of/3"}
