"""Nodes among themselves: one rule of docs/mesh-protocol.md in each test."""

from __future__ import annotations

import itertools

import pytest
from mesh_net import Net, names
from mqmesh.mesh.actions import Deliver, FiltersChanged, Verdict
from mqmesh.mesh.config import MeshConfig
from mqmesh.mesh.control import encode
from mqmesh.mesh.interest import InterestSet
from mqmesh.mesh.records import decode_values


def ring(*numbers: int, config: MeshConfig | None = None) -> Net:
    net = Net(*numbers, config=config)
    for a, b in zip(numbers, numbers[1:] + numbers[:1], strict=True):
        net.link(a, b)
    net.settle()
    return net


def line(*numbers: int, config: MeshConfig | None = None, durable: bool = False) -> Net:
    net = Net(*numbers, config=config, durable=durable)
    for a, b in itertools.pairwise(numbers):
        net.link(a, b)
    net.settle()
    return net


# ---- knowing each other


def test_all_know_all() -> None:
    net = ring(1, 2, 3, 4, 5)
    for node in net.nodes.values():
        assert sorted(node.holders()) == [1, 2, 3, 4, 5]
    assert len({node.digest() for node in net.nodes.values()}) == 1
    members = {m.number: m for m in net.nodes[1].members()}
    assert [members[n].hops for n in (1, 2, 3, 4, 5)] == [0, 1, 2, 2, 1]


def test_links_are_used_once_both_ends_have_said_what_they_know() -> None:
    net = Net(1, 2)
    net.link(1, 2)
    assert not net.nodes[1].links()[0].used
    net.settle()
    assert net.nodes[1].links()[0].used
    assert net.nodes[2].links()[0].name == "b1"


def test_a_new_link_to_a_peer_ends_the_old_one() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert {(n, c.link) for n, c in net.closed} <= {(1, 1), (2, 1)}
    assert [i.link for i in net.nodes[1].links()] == [2]
    net.publish(1, "a")
    net.settle()
    assert net.got(2) == [b"0"]


def test_of_two_links_made_at_once_the_same_one_stays_at_both_ends() -> None:
    net = Net(1, 2)
    first, second = net.nodes[1], net.nodes[2]
    first.link_up(1, second.identity, 50, 1, 0.0)
    first.link_up(2, second.identity, 60, 1, 0.0)
    second.link_up(2, first.identity, 60, 1, 0.0)
    second.link_up(1, first.identity, 50, 1, 0.0)
    assert [i.link for i in first.links()] == [i.link for i in second.links()] == [2]


def test_another_mesh_is_refused() -> None:
    net = Net(1, 2)
    stranger = net.nodes[2].identity._replace(mesh="other")
    net.nodes[1].link_up(1, stranger, 5, 1, 0.0)
    net.settle()
    ((number, close),) = net.closed
    assert number == 1
    assert "'other'" in close.text
    assert "'mesh'" in close.text


def test_a_peer_with_the_own_number_is_refused_by_name() -> None:
    net = Net(1)
    twin = net.nodes[1].identity._replace(name="twin", uuid=net.nodes[1].identity.uuid.__class__(int=99))
    net.nodes[1].link_up(1, twin, 5, 1, 0.0)
    net.settle()
    (_, close), *_ = net.closed
    assert "'twin'" in close.text
    assert "'b1'" in close.text
    assert "number_conflict" in [event.name for _, event in net.events]


def test_a_second_broker_with_a_live_number_is_refused_and_the_first_stays() -> None:
    net = line(1, 2, 3)
    net.nodes[4] = net.nodes.pop(3)  # keep the first 3 aside, under a name of the test's own
    for end in [e for e in net.ends if e[0] == 3]:
        net.ends[4, end[1]] = net.ends.pop(end)
    net.ends = {e: ((4, t[1]) if t[0] == 3 else t) for e, t in net.ends.items()}
    net.add(3, uuid=99, epoch=2000)
    net.link(1, 3)
    net.settle()
    texts = [close.text for n, close in net.closed if n == 1]
    assert texts
    assert "b3" in texts[0]
    assert net.nodes[1].holders()[3].epoch == 1000
    assert sorted(net.nodes[3].holders()) == [3]


def test_a_number_that_two_parts_used_goes_to_the_earlier_one_when_they_join() -> None:
    net = Net(1, 2)
    net.add(3, epoch=1000)
    net.link(1, 3)
    net.settle()
    old = net.nodes.pop(3)
    net.nodes[30] = old
    net.ends = {((30, e[1]) if e[0] == 3 else e): ((30, t[1]) if t[0] == 3 else t) for e, t in net.ends.items()}
    net.add(3, uuid=99, epoch=2000)
    net.link(2, 3)
    net.settle()
    net.link(1, 2)
    net.settle()
    assert net.nodes[1].holders()[3] == old.identity
    assert net.nodes[2].holders()[3] == old.identity
    assert 2 in [n for n, _ in net.closed]
    assert sorted(net.nodes[3].holders()) == [3]
    assert any(event.name == "number_conflict" and "'b3'" in str(event.fields["text"]) for _, event in net.events)


def test_a_broker_goes_above_an_earlier_holder_of_its_number_before_it_publishes() -> None:
    net = line(1, 2, 3)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(3, "a", payloads=[b"old"])
    net.settle()
    net.cut(2)
    del net.nodes[3]
    net.settle()
    net.add(3, uuid=99, epoch=10)  # a new machine whose clock is behind
    net.link(2, 3)
    net.settle()
    assert net.nodes[3].identity.epoch == 1001
    net.publish(3, "a", payloads=[b"new"])
    net.settle()
    assert net.got(2) == [b"old", b"new"]


def test_a_number_that_changed_hands_meanwhile_is_no_conflict() -> None:
    net = Net(1, 2, 3, 4)
    apart = net.link(1, 2)
    net.link(2, 4)
    old = net.link(4, 3)
    net.settle()
    net.cut(apart)
    net.settle()
    net.cut(old)
    net.settle()
    net.add(3, uuid=99, epoch=2000)
    net.link(2, 3)
    net.settle()
    net.link(1, 2)
    net.settle()
    assert "number_conflict" not in [event.name for _, event in net.events]
    assert net.nodes[1].holders()[3].epoch == 2000
    assert net.nodes[1].digest() == net.nodes[4].digest()


# ---- interest


def test_interest_of_a_broker_out_of_reach_is_passed_on() -> None:
    net = line(1, 2)
    stranger = InterestSet(5)
    stranger.put(("a", None), 1)
    update = stranger.whole((9, b"9" * 16))
    net.nodes[2].receive(1, encode("interest", update), 0.0)
    net.settle()
    net.add(5)
    net.link(2, 5)
    net.settle()
    assert (9, b"9" * 16) in net.nodes[5]._interests.sets


def test_interest_spreads_as_deltas_and_routes_follow() -> None:
    net = line(1, 2, 3)
    assert net.nodes[1].route(b"a/1") is None
    net.nodes[3].subscribe("a/#", None, 1, 0.0)
    net.nodes[3].take()
    before = net.nodes[1].counters.control_received
    net.nodes[3].subscribe("a/+", None, 1, 0.0)
    net.nodes[3].unsubscribe("a/+", None, 0.0)
    net.nodes[3].subscribe("b", None, 1, 0.0)
    net.settle()
    assert net.nodes[1].route(b"a/1") is not None
    assert net.nodes[1].route(b"b") is not None
    assert net.nodes[1].counters.control_received <= before + 2


def test_filters_changed_names_the_filters() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("a/#", None, 1, 0.0)
    sent = [a for a in net.nodes[2].take() if not isinstance(a, FiltersChanged)]
    net.nodes[1].receive(1, b"".join(bytes(a.data) for a in sent), 0.0)  # type: ignore[union-attr]
    assert FiltersChanged(("a/#",)) in net.nodes[1].take()


def test_system_topics_never_leave() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("#", None, 1, 0.0)
    net.nodes[2].subscribe("$SYS/#", None, 1, 0.0)
    net.settle()
    assert net.nodes[1].route(b"$SYS/x") is None
    assert net.nodes[1].members()[1].filters == 1


def test_interest_outlasts_a_broken_link_and_a_restart() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    assert net.publish(1, "a", payloads=[b"kept"]) is Verdict.TAKEN
    net.add(2, epoch=2000).subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert net.got(2) == [b"kept"]


def test_a_forgotten_broker_gives_back_and_may_return() -> None:
    net = line(1, 2, config=MeshConfig(forget_after=5.0))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    net.publish(1, "a", payloads=[b"gone"])
    assert net.nodes[1].next_deadline() == net.now + 5.0
    net.now += 5.0
    net.nodes[1].handle_timer(net.now)
    net.settle()
    ((_, returned),) = net.returned
    assert (returned.reason, returned.destination, returned.run.payloads) == ("absent", 2, [b"gone"])
    assert net.nodes[1].route(b"a") is None
    net.link(1, 2)
    net.settle()
    net.publish(1, "a", payloads=[b"back"])
    net.settle()
    assert net.got(2) == [b"back"]


# ---- messages


def test_every_quality_arrives_as_it_was() -> None:
    net = line(1, 2, 3)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    properties = b"\x08\x00\x01r\x09\x00\x02id"
    for qos in (0, 1, 2):
        net.publish(1, "a", qos, 3, properties=properties, expiry=60)
    net.settle()
    assert len(net.delivered) == 3
    for qos, (number, deliver) in enumerate(net.delivered):
        assert (number, deliver.origin, deliver.picks, deliver.ordinary) == (3, 1, (), True)
        run = deliver.run
        assert (run.topic, run.qos, run.retain, run.payloads, run.expiry) == (b"a", qos, False, [b"0", b"1", b"2"], 60)
        assert run.properties == b"\x09\x00\x02id\x08\x00\x01r"
        assert (deliver.token is None) == (qos == 0)
    assert net.nodes[1].custody() == (0, 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_no_frame_can_hold_is_refused_before_it_is_in_custody(qos: int) -> None:
    """Whether or not it could be sent now: in custody it would fail each time that its turn came."""
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    for cut in (False, True):
        if cut:
            net.cut(1)
            net.settle()
        with pytest.raises(ValueError, match="at most 65535"):
            net.publish(1, "a", qos, properties=b"\x09\xff\xff" + bytes(65_535))
        assert net.nodes[1].custody() == (0, 0)
    net.link(1, 2)
    net.settle()
    net.publish(1, "a", qos)
    net.settle()
    assert net.got(2) == [b"0"]


def test_a_shared_filter_too_long_for_a_pick_refuses_only_what_needs_it() -> None:
    net = line(1, 2)
    topic = "x" * 65_530
    net.nodes[2].subscribe(topic, "g", 1, 0.0)
    net.settle()
    with pytest.raises(ValueError, match="at most 65535"):
        net.publish(1, topic)
    assert net.nodes[1].custody() == (0, 0)


def test_one_copy_a_broker_along_the_tree() -> None:
    net = ring(1, 2, 3, 4, 5)
    for number in (2, 3, 4, 5):
        net.nodes[number].subscribe("a", None, 1, 0.0)
    net.settle()
    for qos in (0, 1):
        net.publish(1, "a", qos)
        net.settle()
    assert sum(node.counters.sent for node in net.nodes.values()) == 8
    assert all(net.got(n) == [b"0", b"0"] for n in (2, 3, 4, 5))


def test_retained_messages_go_to_all_members() -> None:
    net = line(1, 2, 3)
    assert net.publish(1, "a", 1) is None
    assert net.publish(1, "a", 1, retain=True) is Verdict.TAKEN
    net.settle()
    assert [(n, d.run.retain) for n, d in net.delivered] == [(2, True), (3, True)]


def test_qos_0_needs_a_path() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    assert net.publish(1, "a", 0, 5) is Verdict.TAKEN
    assert net.nodes[1].counters.dropped_no_path == 5
    assert net.nodes[1].custody() == (0, 0)


def test_custody_is_bounded_and_opens_again() -> None:
    net = line(1, 2, config=MeshConfig(custody_messages=10, destination_part=1.0))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    assert net.publish(1, "a", 1, 8) is Verdict.TAKEN
    assert net.publish(1, "a", 1, 8) is Verdict.FULL
    assert net.publish(1, "a", 0, 8) is Verdict.TAKEN
    net.settle()
    assert not net.unblocked
    for number, deliver in net.delivered:
        if deliver.token is not None:
            net.nodes[number].delivered(deliver.token, 0.0)
    net.settle()
    assert net.unblocked == [1]
    assert net.publish(1, "a", 1, 8) is Verdict.TAKEN


def test_one_absent_site_does_not_fill_all_custody() -> None:
    net = line(2, 1, 3, config=MeshConfig(custody_messages=100, destination_part=0.5))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.nodes[3].subscribe("b", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    assert net.publish(1, "a", 1, 50) is Verdict.TAKEN
    assert net.publish(1, "a", 1, 1) is Verdict.FULL
    assert net.publish(1, "b", 1, 20) is Verdict.TAKEN
    net.settle()
    assert len(net.got(3)) == 20


def test_credit_holds_back_what_is_not_receipted() -> None:
    net = line(1, 2, config=MeshConfig(credit_messages=4))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    for i in range(5):
        net.publish(1, "a", payloads=[b"%d%d" % (i, j) for j in range(3)])
    net.settle()
    assert len(net.got(2)) == 6
    net.hold = False
    for number, deliver in list(net.delivered):
        assert deliver.token is not None
        net.nodes[number].delivered(deliver.token, 0.0)
    net.settle()
    assert net.got(2) == [b"%d%d" % (i, j) for i in range(5) for j in range(3)]


def test_expired_messages_are_returned_unless_under_way() -> None:
    net = line(1, 2, 3)
    for number in (2, 3):
        net.nodes[number].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(2)
    net.settle()
    net.publish(1, "a", 1, 2, expiry=10)
    expires = net.now + 10
    net.settle()
    assert net.nodes[1].next_deadline() == expires
    net.now = expires
    net.nodes[1].handle_timer(net.now)
    net.settle()
    assert [(r.reason, r.destination, r.run.count) for _, r in net.returned] == [("expired", 3, 2)]
    assert net.nodes[1].custody() == (0, 0)
    assert net.got(2) == [b"0", b"1"]


# ---- faults


def test_a_cut_link_loses_nothing_and_repeats_nothing() -> None:
    net = ring(1, 2, 3, 4)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.stuck = {(1, 1), (1, 4)}
    net.publish(1, "a", payloads=[b"2", b"3"])
    net.settle()
    net.stuck = set()
    net.cut(1)
    net.settle()
    net.publish(1, "a", payloads=[b"4"])
    net.settle()
    assert net.got(3) == [b"1", b"2", b"3", b"4"]
    assert net.nodes[1].custody() == (0, 0)


def test_nothing_passes_behind_a_frame_that_a_full_link_dropped() -> None:
    net = line(1, 2, 3)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.nodes[2].link_full(2, True, 0.0)
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    trees = net.nodes[1].counters.trees
    net.publish(1, "a", 0, payloads=[b"lost"])
    net.publish(1, "a", payloads=[b"3"])
    net.settle()
    assert net.got(3) == [b"1"]
    assert net.nodes[2].counters.cut == 2
    assert net.nodes[2].counters.dropped_full == 1
    assert net.nodes[1].counters.trees == trees
    net.nodes[2].link_full(2, False, 0.0)
    net.settle()
    assert net.got(3) == [b"1", b"2", b"3"]
    assert net.nodes[1].counters.trees == trees + 1


def test_a_full_link_of_the_origin_only_waits() -> None:
    net = line(3, 1, 2)
    for number in (2, 3):
        net.nodes[number].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"0"])
    net.settle()
    net.nodes[1].link_full(2, True, 0.0)
    net.publish(1, "a", payloads=[b"1"])
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    assert net.got(3) == [b"0", b"1", b"2"]
    assert net.got(2) == [b"0"]
    net.nodes[1].link_full(2, False, 0.0)
    net.settle()
    assert net.got(2) == [b"0", b"1", b"2"]
    assert net.nodes[1].counters.trees == 1


def test_an_origin_goes_on_where_its_earlier_life_was() -> None:
    net = line(1, 2, durable=True)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    net.cut(1)
    net.publish(1, "a", payloads=[b"3"])
    net.hold = False
    net.commit(2, net.delivered[-1][1].token)  # type: ignore[arg-type]
    net.add(1, epoch=3000)
    net.link(1, 2)
    net.settle()
    net.publish(1, "a", payloads=[b"4"])
    net.settle()
    assert net.got(2) == [b"1", b"2", b"3", b"4"]


def test_a_destination_remembers_what_it_committed_and_no_more() -> None:
    net = line(1, 2, durable=True)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", payloads=[b"1"])
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"2"])
    net.settle()
    assert net.got(2) == [b"1", b"2"]
    net.cut(1)
    net.hold = False
    net.add(2, epoch=2000).subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert net.got(2) == [b"1", b"2", b"2"]  # the second was never committed
    assert not net.returned


def test_what_a_forgetful_destination_was_sent_is_cleared_and_the_rest_kept() -> None:
    net = line(1, 2, config=MeshConfig(credit_messages=1))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"sent"])
    net.settle()
    net.publish(1, "a", payloads=[b"kept"])
    net.settle()
    net.cut(1)
    net.hold = False
    net.add(2, epoch=2000).subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert [(r.reason, r.run.payloads) for _, r in net.returned] == [("cleared", [b"sent"])]
    assert net.got(2) == [b"sent", b"kept"]
    assert net.nodes[1].counters.cleared == 1


def test_a_forgetful_destination_is_known_though_its_epoch_went_back() -> None:
    net = line(1, 2, 3)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a", payloads=[b"sent"])
    net.settle()
    net.cut(2)
    net.hold = False
    net.add(3, epoch=500).subscribe("a", None, 1, 0.0)
    net.link(2, 3)
    net.settle()
    assert net.nodes[3].identity.epoch == 1001
    assert net.got(3) == [b"sent"]
    assert [r.reason for _, r in net.returned] == ["cleared"]


def test_what_is_open_for_a_replaced_broker_is_returned() -> None:
    net = line(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    net.publish(1, "a", payloads=[b"old"])
    net.add(2, uuid=99, epoch=2000).subscribe("a", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    assert [(r.reason, r.run.payloads) for _, r in net.returned] == [("replaced", [b"old"])]
    net.publish(1, "a", payloads=[b"new"])
    net.settle()
    assert net.got(2) == [b"new"]


# ---- shared subscriptions


def test_a_shared_subscription_is_served_by_one_broker_in_turn() -> None:
    net = line(1, 2, 3)
    for number, weight in ((2, 1), (3, 3)):
        net.nodes[number].subscribe("a", "g", weight, 0.0)
    net.settle()
    for _ in range(16):
        net.publish(1, "a")
    net.settle()
    served = [n for n, d in net.delivered if d.picks == (("g", "a"),) for _ in d.run.payloads]
    assert (served.count(2), served.count(3)) == (4, 12)


def test_a_long_run_is_shared_in_parts_and_ordinary_subscribers_keep_its_order() -> None:
    net = line(1, 2, 3)
    for number in (2, 3):
        net.nodes[number].subscribe("a", "g", 1, 0.0)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    for qos in (0, 1):
        net.delivered.clear()
        net.publish(1, "a", qos, 100)
        net.settle()
        assert net.got(3) == names(100)
        picked = {n: sum(d.run.count for m, d in net.delivered if m == n and d.picks) for n in (2, 3)}
        assert sum(picked.values()) == 100
        assert all(40 <= count <= 60 for count in picked.values())
        assert all(d.run.count <= 16 for _, d in net.delivered)


def test_local_members_come_first() -> None:
    net = line(1, 2)
    net.nodes[1].subscribe("a", "g", 1, 0.0)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.publish(1, "a")
    net.settle()
    assert not net.delivered
    route = net.nodes[1].route(b"a")
    assert route is not None


def refuse_all(net: Net, number: int) -> None:
    """Node refuses what it holds, then commits."""
    mine = [d for n, d in net.delivered if n == number and d.token is not None]
    net.delivered = [(n, d) for n, d in net.delivered if n != number]
    for deliver in mine:
        assert deliver.token is not None
        for share in deliver.picks:
            net.nodes[number].refuse(deliver.token, share, 0.0)
        net.commit(number, deliver.token)


def test_a_refused_pick_goes_to_another_broker_and_only_to_its_group() -> None:
    net = line(1, 2, 3, durable=True)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a", 1, 3)
    net.settle()
    net.nodes[2].unsubscribe("a", "g", 0.0)
    net.nodes[3].subscribe("a", "g", 1, 0.0)
    net.settle()
    refuse_all(net, 2)
    net.settle()
    theirs: list[Deliver] = [d for n, d in net.delivered if n == 3]
    assert [(d.picks, d.ordinary, d.run.count) for d in theirs] == [((), True, 3), ((("g", "a"),), False, 3)]
    for deliver in theirs:
        net.commit(3, deliver.token)  # type: ignore[arg-type]
    net.settle()
    assert net.nodes[1].custody() == (0, 0)
    [window] = decode_values(net.disks[2].values).windows.values()
    assert not window.refusals  # it was noted


def test_a_refusal_survives_a_cut_and_is_acted_on_once() -> None:
    net = line(1, 2, durable=True)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a")
    net.settle()
    net.nodes[2].unsubscribe("a", "g", 0.0)
    net.nodes[1].subscribe("a", "g", 1, 0.0)
    refuse_all(net, 2)
    net.cut(1)
    net.add(2, epoch=2000)
    net.link(1, 2)
    net.settle()
    assert [(n, d.picks) for n, d in net.delivered] == [(1, (("g", "a"),))]
    refuse_all(net, 1)
    net.settle()
    assert [r.reason for _, r in net.returned] == ["refused"]
    assert net.nodes[1].counters.repicked == 1


def test_picks_of_a_broker_out_of_reach_move_if_it_never_got_them() -> None:
    net = line(2, 1, 3)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.nodes[1].link_full(1, True, 0.0)
    net.publish(1, "a")
    net.settle()
    net.nodes[3].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    assert [(n, d.picks, d.repeated) for n, d in net.delivered] == [(3, (("g", "a"),), False)]
    assert net.nodes[1].custody() == (0, 0)


def test_picks_wait_for_members_out_of_reach_when_their_own_broker_is_replaced() -> None:
    net = line(3, 2, 1)
    for number in (2, 3):
        net.nodes[number].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.cut(1)
    net.cut(2)
    net.settle()
    net.publish(1, "a", 1, 100)  # in parts, so that both are picked
    net.add(2, uuid=99, epoch=2000)
    net.link(1, 2)
    net.settle()
    assert not net.returned
    net.link(2, 3)
    net.settle()
    assert sum(d.run.count for n, d in net.delivered if n == 3) == 100
    assert net.nodes[1].custody() == (0, 0)


def test_a_refused_pick_waits_for_members_out_of_reach() -> None:
    net = line(2, 1, 3)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.nodes[3].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.cut(2)  # of 1 and 3
    net.hold = True
    net.publish(1, "a")
    net.settle()
    net.nodes[2].unsubscribe("a", "g", 0.0)
    refuse_all(net, 2)
    net.settle()
    assert not net.returned
    net.link(1, 3)
    net.settle()
    assert [(n, d.picks) for n, d in net.delivered] == [(3, (("g", "a"),))]


def test_with_share_available_what_was_sent_moves_too_and_says_so() -> None:
    for mode, expected in (("once", []), ("available", [(3, True)])):
        net = line(2, 1, 3, config=MeshConfig(share=mode))  # type: ignore[arg-type]
        net.nodes[2].subscribe("a", "g", 1, 0.0)
        net.settle()
        net.hold = True
        net.publish(1, "a")
        net.settle()
        net.delivered.clear()
        net.nodes[3].subscribe("a", "g", 1, 0.0)
        net.settle()
        net.cut(1)
        net.settle()
        assert [(n, d.repeated) for n, d in net.delivered] == expected


# ---- flood


def test_flooding_reaches_all_with_sibling_marks() -> None:
    net = Net(1, 2, 3, 4, 5, config=MeshConfig(mode="flood"))
    for a in range(1, 6):
        for b in range(a + 1, 6):
            net.link(a, b)
    net.settle()
    net.publish(1, "a", 0, 10)
    net.settle()
    assert all(net.got(n) == [b"%d" % i for i in range(10)] for n in (2, 3, 4, 5))
    assert sum(node.counters.sent for node in net.nodes.values()) == 40  # each broker once: 1.0 copies


def test_flooding_a_ring_and_far_numbers() -> None:
    net = ring(1, 900, 3, 40_000, 5, config=MeshConfig(mode="flood"))
    net.publish(1, "a", 0, 10)
    net.publish(1, "b", 0, 1, retain=True)
    net.settle()
    assert all(net.got(n) == [*(b"%d" % i for i in range(10)), b"0"] for n in (900, 3, 40_000, 5))
    assert sum(node.counters.duplicates for node in net.nodes.values()) <= 11 * 2


def test_flooded_streams_see_new_neighbours() -> None:
    net = line(1, 2, config=MeshConfig(mode="flood"))
    net.publish(1, "a", 0)
    net.settle()
    net.add(3)
    net.link(2, 3)
    net.settle()
    net.publish(1, "a", 0)
    net.settle()
    assert net.got(3) == [b"0"]


def test_flooded_shared_subscriptions_are_picked() -> None:
    net = ring(1, 2, 3, config=MeshConfig(mode="flood"))
    for number in (2, 3):
        net.nodes[number].subscribe("a", "g", 1, 0.0)
    net.settle()
    for _ in range(4):
        net.publish(1, "a", 0)
    net.settle()
    assert sorted(n for n, d in net.delivered if d.picks for _ in d.run.payloads) == [2, 2, 3, 3]


def test_custody_is_routed_in_a_flooding_mesh() -> None:
    net = ring(1, 2, 3, config=MeshConfig(mode="flood"))
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", 1)
    net.settle()
    assert [n for n, _ in net.delivered] == [2]
    assert net.nodes[1].custody() == (0, 0)
