"""Link state: paths are computed when the links in use change, not with each record."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.view import linkstate
from mqmesh.mesh.view.linkstate import Graph, LinkStates, Path, shortest_paths
from mqmesh.mesh.view.lives import Lives
from mqmesh.mesh.wire.control import ALL, Life, LinkEntry, LinkRecord
from mqmesh.mesh.wire.identity import Identity
from support.models.mesh_net import ring

OWN = (0, b"\0" * 16)
records = st.builds(
    lambda number, life, epoch, links: (number, bytes([life]) * 16, epoch, links),
    st.integers(0, 4),
    st.integers(0, 1),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=4),
)


def record_of(sequence: int, number: int, uuid: bytes, epoch: int, links: list[tuple[int, int]]) -> LinkRecord:
    """Links between two numbers have one incarnation, so that both ends often list the same one."""
    listed = {peer: LinkEntry(peer, 100 * min(number, peer) + max(number, peer), cost, None) for peer, cost in links if peer != number}
    return LinkRecord(number, uuid, f"b{number}", epoch, sequence, tuple(listed.values()))


@given(st.lists(records, max_size=30))
def test_records_one_by_one_show_what_they_show_at_once(steps: list[tuple[int, bytes, int, list[tuple[int, int]]]]) -> None:
    states = LinkStates(OWN)
    for sequence, step in enumerate(steps, 1):
        states.offer(record_of(sequence, *step))
        states.refresh()
        fresh = LinkStates(OWN)
        for record in states.records.values():
            fresh.offer(record)
        fresh.refresh()
        assert list(states.paths.items()) == list(fresh.paths.items())
        assert (states.live, states.holders, states.intruders, states.policies) == (
            fresh.live,
            fresh.holders,
            fresh.intruders,
            fresh.policies,
        )


MEMBERS = 9
pairs = st.tuples(st.integers(0, MEMBERS - 1), st.integers(0, MEMBERS - 1)).filter(lambda pair: pair[0] < pair[1])
flips = st.lists(st.tuples(pairs, st.sampled_from(["both", "one", "other", "cost", "new"])), min_size=1, max_size=4)


@given(st.lists(pairs, max_size=16), st.lists(flips, max_size=12))
def test_links_that_come_and_go_show_what_all_records_show(
    begin: list[tuple[int, int]], turns: list[list[tuple[tuple[int, int], str]]]
) -> None:
    """One UUID for each number, so that nothing is looked at as a whole. What is said to have changed is all that has."""
    states, links, sequence = LinkStates(OWN), dict[int, dict[int, LinkEntry]](), 0
    told: dict[int, tuple[bytes, int]] = {}

    def flip(pair: tuple[int, int], how: str) -> None:
        """End or begin a link, as one or both ends see it; or replace it by one of another cost or incarnation."""
        one, other = pair
        for here, there in (pair, (other, one)):
            listed = links.setdefault(here, {})
            if how in ("both", "one" if here == one else "other"):
                if listed.pop(there, None) is None:
                    listed[there] = LinkEntry(there, 100 * one + other, 1, None)
            elif there in listed:
                entry = listed[there]
                new = entry._replace(cost=entry.cost + 1) if how == "cost" else entry._replace(incarnation=entry.incarnation + 10_000)
                listed[there] = new

    for turn in [[(pair, "both") for pair in begin], *turns]:
        for pair, how in turn:
            flip(pair, how)
        for number in {number for pair, _ in turn for number in pair}:
            sequence += 1
            states.offer(LinkRecord(number, bytes([number]) * 16, f"b{number}", 1, sequence, tuple(links[number].values())))
        news = states.changes()
        fresh = LinkStates(OWN)
        for record in states.records.values():
            fresh.offer(record)
        fresh.judge_anew()
        fresh.refresh()
        assert (states.holders, states.live) == (fresh.holders, fresh.live)
        assert list(states.paths.items()) == list(fresh.paths.items())
        now = {number: (record.uuid, record.epoch) for number, record in fresh.holders.items()}
        assert set(news or ()) == {number for number in now if told.get(number) != now[number]}
        assert news is not None or told == now
        told = now


def test_who_only_had_the_lost_link_in_common_is_out_of_reach() -> None:
    """Two links go at once: beyond the first lies who is lost, and beyond the second, too, though its near end is lost already."""
    states = LinkStates(OWN)

    def say(sequence: int, *listed: tuple[int, ...]) -> None:
        for number, peers in enumerate(listed):
            entries = tuple(LinkEntry(peer, 10 * min(number, peer) + max(number, peer), 1, None) for peer in peers)
            states.offer(LinkRecord(number, bytes([number]) * 16, f"b{number}", 1, sequence, entries))

    say(1, (1,), (0, 2), (1, 3), (2,))
    assert states.changes() == {0, 1, 2, 3}
    say(2, (), (2,), (1,), ())
    assert states.changes() == set()
    assert set(states.holders) == {0}
    say(3, (1,), (0, 2), (1, 3), (2,))
    assert states.changes() == {1, 2, 3}


def test_a_cut_is_one_computation_for_each_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends say in a record each that their link is gone; the first one takes it out of use."""
    computed: list[int] = []

    def counted(graph: Graph, root: int) -> dict[int, Path]:
        computed.append(root)
        return shortest_paths(graph, root)

    net = ring(1, 2, 3, 4, 5, 6)
    for node in net.nodes.values():
        node.members()
    monkeypatch.setattr(linkstate, "shortest_paths", counted)
    net.cut(1)
    net.settle()
    for node in net.nodes.values():
        node.members()
        assert len(node.holders()) == 6
    assert sorted(computed) == [1, 2, 3, 4, 5, 6]


def test_a_mesh_that_starts_computes_no_path_before_somebody_has_something_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def counted(graph: Graph, root: int) -> dict[int, Path]:
        computed.append(root)
        return shortest_paths(graph, root)

    monkeypatch.setattr(linkstate, "shortest_paths", counted)
    net = ring(1, 2, 3, 4, 5, 6)
    for number, node in net.nodes.items():
        node.subscribe("a", None, 1, 0.0)
        assert len(node.holders()) == 6
        assert node.reachable(number % 6 + 1)
    net.settle()
    assert computed == []
    net.publish(3, "a")
    net.settle()
    assert computed == [3]
    assert len(net.delivered) == 5


def test_what_a_record_changes_is_said_once() -> None:
    states = LinkStates(OWN)
    states.offer(LinkRecord(*OWN, "b0", 1, 1, (LinkEntry(1, 7, 1),)))
    assert set(states.changes() or ()) == {0}
    states.offer(LinkRecord(1, b"1" * 16, "b1", 1, 1, ()))
    assert states.changes() is None, "nobody can reach it"
    states.offer(LinkRecord(1, b"1" * 16, "b1", 1, 2, (LinkEntry(0, 7, 1),)))
    states.refresh()
    assert states.changes() == {1}, "whoever asked before"
    states.offer(LinkRecord(1, b"1" * 16, "b1", 1, 3, (LinkEntry(0, 7, 1), LinkEntry(2, 8, 1))))
    assert states.changes() is None, "a link that one end lists"
    states.offer(LinkRecord(2, b"2" * 16, "b2", 1, 1, (LinkEntry(1, 8, 1),)))
    assert states.changes() == {2}
    states.offer(LinkRecord(2, b"2" * 16, "b2", 5, 1, (LinkEntry(1, 8, 1),)))
    assert states.changes() == {2}, "another life"
    states.offer(LinkRecord(1, b"1" * 16, "b1", 1, 4, (LinkEntry(0, 7, 1),)))
    assert states.changes() == set(), "of those that are left nothing is new"
    assert set(states.holders) == {0, 1}


def two_lives() -> tuple[LinkStates, Lives, bytes]:
    """What broker 0 knows of two lives of broker 2, one of them a twin; its own link leads to the twin."""
    lives = Lives(Identity("m", "b0", 0, UUID(bytes=OWN[1]), 1))
    uuid = b"u" * 16
    for epoch in (100, 200):
        lives.offer(Life(2, uuid, bytes([epoch]) * 16, 0, epoch, ((epoch, ALL),), 1, (), False, None))
    states = LinkStates(OWN, lives)
    states.offer(LinkRecord(*OWN, "b0", 1, 1, (LinkEntry(2, 8, 1, None),)))
    states.offer(LinkRecord(2, uuid, "b2", 100, 1, (LinkEntry(1, 7, 1, None),)))
    states.offer(LinkRecord(2, uuid, "b2", 200, 1, (LinkEntry(0, 8, 1, None),)))
    return states, lives, uuid


def test_a_twin_takes_the_place_of_a_life_that_was_forgotten() -> None:
    states, _, uuid = two_lives()
    states.drop((2, uuid), 100)
    states.refresh()
    assert list(states.paths) == [2]
    assert states.records[2, uuid].epoch == 200
    assert not states.twins


def test_lives_go_with_their_uuid() -> None:
    states, _, uuid = two_lives()
    states.drop((2, uuid), 200)
    states.refresh()
    assert (states.twins, list(states.records)) == ({}, [OWN])


def test_lives_go_with_the_oldest_uuid_of_a_number() -> None:
    states, _, uuid = two_lives()
    states.offer(LinkRecord(*OWN, "b0", 1, 2, ()))
    states.refresh()
    for k in range(linkstate.LIVES_KEPT):
        states.offer(LinkRecord(2, bytes([k]) * 16, "b2", 300 + k, 1, ()))
    states.refresh()
    assert (2, uuid) not in states.records
    assert not states.twins
