"""Nodes with policies on their links: one rule of docs/policy.md in each test."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.mesh.node.actions import MeshRoute, Verdict
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.view.interest import Match
from mqmesh.mesh.wire.policy import CLOSED, Policy, PolicyFilter
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.batch.run import Run
from support.models.mesh_net import Net, names

OUT = Policy(out=("a/#",))
RENAMED = Policy(prefixes=(("a/", "far/a/"),))


def line(policies: dict[int, Policy], *, config: MeshConfig | None = None, durable: bool = False) -> Net:
    """1 - 2 = 3 - 4, with policies at the ends of the link in the middle."""
    net = Net(1, 2, 3, 4, config=config, durable=durable)
    net.link(1, 2)
    net.link(2, 3, policies=policies)
    net.link(3, 4)
    net.settle()
    return net


def want(net: Net, filter_: str, *numbers: int, group: str | None = None) -> None:
    for number in numbers:
        net.nodes[number].subscribe(filter_, group, 1, net.now)
    net.settle()


def topics(net: Net, number: int) -> list[tuple[str, bytes]]:
    """(topic, payload) of all that a node has delivered."""
    return [(t.decode(), payload) for n, action in net.delivered if n == number for t, payload in action.run.messages()]


def total(net: Net, counter: str) -> int:
    return sum(getattr(node.counters, counter) for node in net.nodes.values())


def span(*of: str, qos: int = 1) -> PartsBatch:
    return PartsBatch([len(t).to_bytes(2, "big") + t.encode() for t in of], names(len(of)), qos, 0.0)


# ---- what passes


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("policies", [{2: OUT}, {3: Policy(into=("a/#",))}, {2: OUT, 3: Policy(into=("+/1",), into_except=("b/#",))}])
def test_only_what_both_ends_allow_passes(qos: int, policies: dict[int, Policy]) -> None:
    net = line(policies)
    want(net, "#", 2, 3, 4)
    for topic in ("a/1", "b/1"):
        net.publish(1, topic, qos, payloads=[topic.encode()])
        net.settle()
    assert topics(net, 2) == [("a/1", b"a/1"), ("b/1", b"b/1")]
    assert topics(net, 3) == topics(net, 4) == [("a/1", b"a/1")]
    assert net.nodes[1].custody() == (0, 0)
    assert total(net, "dropped_policy") == total(net, "returned") == 0  # the origin knew


def test_the_other_direction_has_rules_of_its_own() -> None:
    net = line({2: OUT})
    want(net, "#", 1, 4)
    net.publish(4, "b/1")
    net.settle()
    assert topics(net, 1) == [("b/1", b"0")]


def test_what_can_go_nowhere_is_as_if_nobody_wanted_it() -> None:
    net = line({2: OUT})
    want(net, "#", 3, 4)
    assert net.nodes[1].route(b"b/1") is None
    assert net.nodes[1].route(b"a/1") is not None
    assert net.nodes[3].route(b"b/1") is not None  # to 4
    assert net.nodes[1].interested("a/1") == 0b11000
    assert net.nodes[1].interested("b/1") == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_names_are_translated_on_the_way_and_back(qos: int) -> None:
    net = line({2: RENAMED})
    want(net, "far/a/#", 3, 4)
    want(net, "a/#", 1, 2)
    net.publish(1, "a/1", qos, 3, properties=b"\x08\0\1r")
    net.settle()
    for number, name in ((2, "a/1"), (3, "far/a/1"), (4, "far/a/1")):
        assert topics(net, number) == [(name, b"0"), (name, b"1"), (name, b"2")]
    assert {action.run.properties for _, action in net.delivered} == {b"\x08\0\1r"}
    net.delivered.clear()
    net.publish(4, "far/a/2", qos)
    net.settle()
    assert topics(net, 1) == topics(net, 2) == [("a/2", b"0")]
    assert topics(net, 3) == [("far/a/2", b"0")]


def test_both_ends_may_translate() -> None:
    net = line({2: RENAMED, 3: Policy(into=("in/#",), prefixes=(("in/", "far/"),))})
    want(net, "#", 4)
    net.publish(1, "a/1")
    net.publish(1, "b/1")
    net.settle()
    assert topics(net, 4) == [("in/a/1", b"0")]


def test_a_name_that_another_topic_is_translated_to_does_not_pass() -> None:
    net = line({2: RENAMED})
    want(net, "#", 1, 4)
    net.publish(1, "far/a/1")
    net.publish(4, "a/1")
    net.settle()
    assert topics(net, 1) == topics(net, 4) == []


def test_a_way_out_and_in_again() -> None:
    net = Net(1, 2, 3)
    net.link(1, 2, policies={1: RENAMED})
    net.link(2, 3, policies={3: RENAMED})
    net.settle()
    want(net, "a/#", 3)
    net.publish(1, "a/1")
    net.settle()
    assert topics(net, 3) == [("a/1", b"0")]


def test_a_closed_link_carries_nothing() -> None:
    net = line({3: CLOSED})
    want(net, "#", 1, 4)
    assert net.publish(1, "a") is None
    assert net.publish(4, "a") is None
    assert len({node.digest() for node in net.nodes.values()}) == 1


def test_other_brokers_of_a_mesh_with_policies_are_where_they_were() -> None:
    net = line({2: OUT})
    want(net, "b/#", 2)
    route = net.nodes[1].route(b"b/1")
    assert isinstance(route, MeshRoute)
    assert route.mask == 0b100
    assert net.nodes[1].publish_parts(0b100, span("b/1", "b/2"), 0.0) is Verdict.TAKEN
    net.settle()
    assert topics(net, 2) == [("b/1", b"0"), ("b/2", b"1")]
    want(net, "a/#", 4)
    route = net.nodes[1].route(b"a/1")
    assert isinstance(route, MeshRoute)
    assert route.mask is None


def test_retained_messages_keep_to_policies() -> None:
    net = line({2: Policy(out=("a/#",), prefixes=(("a/", "far/a/"),))})
    for topic in ("a/1", "b/1"):
        net.publish(1, topic, 1, retain=True)
    net.settle()
    assert topics(net, 2) == [("a/1", b"0"), ("b/1", b"0")]
    assert topics(net, 3) == topics(net, 4) == [("far/a/1", b"0")]
    assert net.nodes[1].custody() == (0, 0)
    assert net.returned == []


def test_a_link_says_what_it_is() -> None:
    net = line({2: OUT})
    first, second = net.nodes[2].links()
    assert (first.policy, second.policy) == (False, True)
    assert [net.nodes[n].guarded(2) for n in (2, 3)] == [True, True]
    assert not net.nodes[1].guarded(1)
    gate = net.nodes[2].gate(2)
    assert isinstance(gate, PolicyFilter)
    assert gate.outwards(b"b") is None
    assert net.nodes[3].gate(2) is None


# ---- changes


def test_a_new_link_with_another_policy_makes_new_routes() -> None:
    net = line({2: OUT})
    want(net, "#", 4)
    assert net.nodes[1].route(b"b/1") is None
    net.link(2, 3, policies={2: Policy(out=("b/#",))})
    net.settle()
    assert net.publish(1, "b/1") is Verdict.TAKEN
    assert net.publish(1, "a/1") is None
    net.settle()
    assert topics(net, 4) == [("b/1", b"0")]


def test_what_a_new_path_forbids_is_returned_and_the_rest_goes_on() -> None:
    net = line({2: OUT})
    want(net, "#", 4)
    net.cut(2)
    net.settle()
    for topic in ("a/1", "a/2", "a/1"):
        assert net.publish(1, topic, payloads=[topic.encode()]) is Verdict.TAKEN  # it waits where 4 was last
    assert net.publish(1, "b/1") is None
    net.link(2, 3, policies={2: Policy(out=("a/2",))})
    net.settle()
    assert topics(net, 4) == [("a/2", b"a/2")]
    assert [(n, r.destination, r.reason, r.run.topic) for n, r in net.returned] == [(1, 4, "forbidden", b"a/1")] * 2
    assert net.nodes[1].custody() == (0, 0)


def test_what_waits_gets_the_name_of_the_path_that_it_takes() -> None:
    net = line({2: RENAMED})
    want(net, "#", 4)
    net.cut(2)
    net.settle()
    net.publish(1, "a/1")
    net.link(2, 3, policies={2: Policy(prefixes=(("a/", "new/"),))})
    net.settle()
    assert topics(net, 4) == [("new/1", b"0")]


@pytest.mark.parametrize("durable", [False, True])
def test_a_span_that_meets_a_policy_is_split(durable: bool) -> None:
    net = line({}, durable=durable)
    want(net, "#", 2, 4)
    net.cut(2)
    net.settle()
    assert net.nodes[1].publish_parts(0b10100, span("a/1", "b/1", "a/2", "b/2"), 0.0) is Verdict.TAKEN
    net.settle()
    net.publish(1, "a/3", payloads=[b"last"])
    held = net.nodes[1].custody()
    net.link(2, 3, policies={2: Policy(out=("a/#",), prefixes=(("a/", "far/"),))})
    net.settle()
    assert held[0] == 5
    assert topics(net, 2) == [("a/1", b"0"), ("b/1", b"1"), ("a/2", b"2"), ("b/2", b"3"), ("a/3", b"last")]
    assert topics(net, 4) == [("far/1", b"0"), ("far/2", b"2"), ("far/3", b"last")]
    assert [r.run.topic for _, r in net.returned] == [b"b/1", b"b/2"]
    assert net.nodes[1].custody() == (0, 0)
    if durable:
        assert not net.disks[1].entries


def test_who_watches_a_span_learns_of_each_message_when_it_is_split() -> None:
    net = line({})
    want(net, "#", 2, 4)
    net.cut(2)
    net.settle()
    node = net.nodes[1]
    before = node.position()
    node.publish_parts(0b10100, span("a/1", "b/1", "a/2"), 0.0)
    watch = node.watch(before, 3)
    assert watch is not None
    net.settle()
    assert [node.standing(watch, i).awaited for i in range(3)] == [1 << 4] * 3
    net.link(2, 3, policies={2: OUT})
    net.settle()
    found = [node.standing(watch, i) for i in range(3)]
    assert [one.received for one in found] == [0b10100, 0b100, 0b10100]
    assert [one.lost for one in found] == [{}, {4: "forbidden"}, {}]
    assert not any(one.awaited for one in found)
    assert watch.done


def test_a_split_span_keeps_its_place_through_a_restart() -> None:
    net = line({}, durable=True)
    want(net, "#", 4)
    net.cut(2)
    net.settle()
    net.nodes[1].publish_parts(0b10000, span("a/1", "b/1", "a/2"), 0.0)
    net.publish(1, "a/3", payloads=[b"last"])
    net.settle()
    net.stuck = {(4, 3)}  # it does not answer
    net.link(2, 3, policies={2: OUT})
    net.settle()
    assert [run.topic for run, _ in net.disks[1].entries.values()] == [b"a/3", b"a/1", b"b/1", b"a/2"]
    net.add(1, epoch=5000)
    net.stuck.clear()
    net.ends = {end: other for end, other in net.ends.items() if 1 not in (end[0], other[0])}
    net.nodes[2].link_down(1, net.now)
    net.link(1, 2)
    net.settle()
    assert topics(net, 4) == [("a/1", b"0"), ("a/2", b"2"), ("a/3", b"last")]
    assert net.nodes[1].custody() == (0, 0)


def test_a_span_that_passes_as_a_whole_is_renamed_as_a_whole() -> None:
    net = line({})
    want(net, "#", 4)
    net.cut(2)
    net.settle()
    net.nodes[2].publish_parts(0b10000, span("a/1", "b/1", "a/2"), 0.0)
    net.link(2, 3, policies={2: RENAMED})
    net.settle()
    assert topics(net, 4) == [("far/a/1", b"0"), ("b/1", b"1"), ("far/a/2", b"2")]
    assert net.nodes[2].custody() == (0, 0)


# ---- shared subscriptions


def test_shared_subscriptions_pick_members_that_may_have_it() -> None:
    net = line({2: OUT})
    want(net, "#", 2, 4, group="g")
    for topic in ("a/1", "b/1"):
        net.publish(1, topic, 1, 64)
    net.settle()
    at = {n: [t for t, _ in topics(net, n)] for n in (2, 4)}
    assert at[2].count("b/1") == 64
    assert "b/1" not in at[4]
    assert at[4].count("a/1") == 32


def test_what_a_member_refuses_goes_to_none_that_may_not_have_it() -> None:
    net = line({2: OUT})
    want(net, "#", 2, 4, group="g")
    net.hold = True
    net.publish(1, "b/1")
    net.settle()
    ((number, action),) = net.delivered
    assert number == 2
    assert action.token is not None
    net.nodes[2].refuse(action.token, ("g", "#"), net.now)
    net.commit(2, action.token)
    net.settle()
    assert [(r.destination, r.reason) for _, r in net.returned] == [(2, "refused")]
    assert net.nodes[1].custody() == (0, 0)


def test_a_group_beyond_a_mapping_is_found_by_the_name_there() -> None:
    net = line({2: RENAMED})
    want(net, "far/#", 4, group="g")
    net.publish(1, "a/1", 1, 3)
    net.settle()
    assert topics(net, 4) == [("far/a/1", p) for p in names(3)]
    assert net.delivered[0][1].picks == (("g", "far/#"),)


def test_a_pick_that_a_policy_forbids_meanwhile_goes_to_another_member() -> None:
    net = line({2: OUT})
    want(net, "#", 4, group="g")
    net.cut(2)
    net.settle()
    net.publish(1, "a/1")
    net.link(2, 3, policies={2: Policy(out=("c",))})
    net.nodes[2].subscribe("#", "g", 1, net.now)
    net.settle()
    assert (topics(net, 2), topics(net, 4)) == ([("a/1", b"0")], [])
    assert net.nodes[1].custody() == (0, 0)
    assert net.nodes[1].counters.repicked == 1


def test_a_pick_whose_filter_does_not_match_the_new_name_is_refused() -> None:
    net = line({2: RENAMED})
    want(net, "far/#", 4, group="g")
    net.cut(2)
    net.settle()
    net.publish(1, "a/1")
    net.link(2, 3, policies={2: Policy(prefixes=(("a/", "new/"),))})
    net.settle()
    assert not [d for n, d in net.delivered if d.picks]
    assert [(r.reason) for _, r in net.returned] == ["refused"]
    assert net.nodes[1].custody() == (0, 0)


# ---- origins that do not keep to it


def lie(net: Net, origin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An origin that believes that nothing has a policy."""
    zones: Any = net.nodes[origin]._zones
    zones._take({})
    monkeypatch.setattr(zones, "refresh", lambda paths, policies: False)
    net.nodes[origin].interests.all_stale()
    net.nodes[origin]._tree.due = net.nodes[origin]._core.stirred = True


@pytest.mark.parametrize("policies", [{2: OUT}, {3: Policy(into=("a/#",))}])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_border_holds_against_an_origin_that_lies(monkeypatch: pytest.MonkeyPatch, policies: dict[int, Policy], qos: int) -> None:
    net = line(policies)
    want(net, "#", 2, 3, 4)
    lie(net, 1, monkeypatch)
    for topic in ("a/1", "b/1", "a/2"):
        net.publish(1, topic, qos, payloads=[topic.encode()])
        net.settle()
    assert topics(net, 2) == [("a/1", b"a/1"), ("b/1", b"b/1"), ("a/2", b"a/2")]
    # behind a forbidden custody message nothing follows, so that no receipt covers it
    assert topics(net, 4) == [("a/1", b"a/1"), *([("a/2", b"a/2")] if not qos else [])]
    assert total(net, "dropped_policy") == 1
    assert net.nodes[1].custody()[0] == (2 if qos else 0)
    want(net, "#", 1)
    net.publish(4, "c", qos)
    net.settle()
    assert topics(net, 1) == [("c", b"0")]


def test_spans_of_an_origin_that_lies_are_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net = line({2: OUT})
    want(net, "#", 2, 4)
    lie(net, 1, monkeypatch)
    net.settle()
    net.nodes[1].publish_parts(0b10100, span("a/1", "b/1", "a/2", qos=0), 0.0)
    net.settle()
    assert [t for t, _ in topics(net, 2)] == ["a/1", "b/1", "a/2"]
    assert [t for t, _ in topics(net, 4)] == ["a/1", "a/2"]


def test_nothing_is_flooded_over_a_link_with_a_policy() -> None:
    net = line({3: OUT}, config=MeshConfig(mode="flood"))
    want(net, "#", 2, 3, 4)
    net.publish(1, "a/1", 0)
    net.publish(4, "a/2", 0)
    net.settle()
    assert topics(net, 2) == [("a/1", b"0")]
    assert topics(net, 3) == [("a/2", b"0")]
    assert net.nodes[3].counters.dropped_policy == 1


def test_match_without_policies_is_that_of_interest() -> None:
    net = line({})
    want(net, "a", 4)
    node: Any = net.nodes[1]
    assert node._zones.match("a") is node.interests.match("a")
    assert node._zones.match("a") == Match(0b10000, ())


def test_raw_runs_survive() -> None:
    """Frames that came in one piece are renamed as a run, not one by one."""
    net = line({2: RENAMED})
    want(net, "#", 4)
    net.publish(1, "a/1", 1, 100)
    net.settle()
    runs = [action.run for n, action in net.delivered if n == 4]
    assert [run.count for run in runs] == [100]
    assert isinstance(runs[0], Run)


# ---- what else brokers tell each other


def test_retained_messages_are_not_compared_over_a_policy() -> None:
    net = Net(1, 2, 3, 4, 5, config=MeshConfig(retained_compare=0.5))
    net.link(1, 2)
    net.link(3, 4)
    net.settle()
    for topic in ("a/1", "b/1"):
        net.publish(1, topic, 1, payloads=[topic.encode()], retain=True)  # 3 and 4 are not there yet
    net.settle()
    net.link(2, 3, policies={3: OUT})
    net.link(5, 4)
    net.settle()
    net.publish(4, "a/2", 1, payloads=[b"theirs"], retain=True)
    net.publish(4, "b/2", 1, payloads=[b"secret"], retain=True)
    net.settle()
    for _ in range(5):
        net.now += 1.0
        for node in net.nodes.values():
            node.handle_timer(net.now)
        net.settle()
    kept = {number: {bytes(run.topic): run.payloads[0] for run in node.retained()} for number, node in net.nodes.items()}
    assert kept[1] == kept[2] == {b"a/1": b"a/1", b"b/1": b"b/1", b"a/2": b"theirs"}
    assert kept[3] == kept[4] == kept[5] == {b"a/2": b"theirs", b"b/2": b"secret"}


def test_a_partner_cannot_ask_for_retained_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end without a policy of its own compares all the same: it is not answered."""
    net = Net(1, 2, config=MeshConfig(retained_compare=0.5))
    net.publish(2, "b/1", 1, payloads=[b"secret"], retain=True)
    net.settle()
    net.link(1, 2, policies={2: OUT})
    net.settle()
    end = next(iter(net.nodes[1]._core.links.values()))
    net.nodes[1]._retained.linked(end)
    for _ in range(5):
        net.now += 1.0
        for node in net.nodes.values():
            node.handle_timer(net.now)
        net.settle()
    assert net.nodes[1].status()["retained"]["comparing"] == [2]  # type: ignore[index]
    assert net.nodes[1].retained() == []
    assert net.nodes[2].counters.retained_sent == 0


def test_deletions_do_not_wait_for_brokers_behind_a_policy() -> None:
    net = line({2: OUT})
    assert net.nodes[1]._retained.sync.members == {1, 2}
    assert net.nodes[4]._retained.sync.members == {3, 4}


def test_posts_do_not_cross_a_policy() -> None:
    net = line({})
    net.cut(2)
    net.settle()
    net.nodes[1].send_to_brokers(0b10100, "kind", b"body", 0.0)
    net.link(2, 3, policies={2: Policy(prefixes=(("", "far/"),))})
    net.settle()
    assert [(r.destination, r.reason) for _, r in net.returned] == [(4, "forbidden")]
    assert net.nodes[1].custody() == (0, 0)
    assert net.nodes[1].known() == 0b100
