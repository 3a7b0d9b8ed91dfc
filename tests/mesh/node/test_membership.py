"""Nodes among themselves: who is there, and who wants what; one rule of docs/mesh-protocol.md in each test."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.mesh.node import signalling
from mqmesh.mesh.node.actions import FiltersChanged, Verdict
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.view.interest import InterestSet
from mqmesh.mesh.wire import control
from mqmesh.mesh.wire.control import encode
from support.models.mesh_net import Net, line, ring


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
    assert (9, b"9" * 16) in net.nodes[5].interests.sets


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


def test_links_that_come_up_in_one_moment_are_said_in_two_records() -> None:
    net = Net(1, 2, 3, 4, 5, 6)
    for other in range(2, 7):
        net.link(1, other)
    net.settle()
    record = net.nodes[6]._states.holders[1]
    assert (record.sequence, len(record.links)) == (3, 5)  # the first one of its life, that of the first link, that of the others
    net.cut(1)
    assert net.nodes[1]._states.records[1, record.uuid].sequence == 4  # at once


def test_what_neighbours_pass_on_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ring(1, 2, 3)
    read: list[str] = []

    def decode(kind: str, payload: bytes) -> Any:
        read.append(kind)
        return control.decode(kind, payload)

    monkeypatch.setattr(signalling, "decode", decode)
    net.nodes[1].subscribe("a", None, 1, net.now)
    net.settle()
    assert read == ["interest"] * 2  # each of the others has it from both its neighbours


def test_what_counts_only_until_its_owner_speaks_may_differ() -> None:
    """Two brokers have heard different things from whoever did not hold a place. There is no version of these to be compared."""
    net = Net(1, 2, 3)
    between, link = net.link(1, 2), net.link(2, 3)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    net.cut(link)
    net.cut(between)
    for number in (1, 2):
        ((key, known),) = [one for one in net.nodes[number].interests.sets.items() if one[0][0] == 3]
        net.nodes[number].interests.outdate(key)
        known.put((f"of/{number}", None), 1)
    net.link(1, 2)
    net.settle()
    assert "interest_mismatch" not in [event.name for _, event in net.events]
