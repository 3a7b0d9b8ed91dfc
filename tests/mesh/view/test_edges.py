"""Edges: what is kept record by record is what all records say at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.view.edges import Edges, Key
from mqmesh.mesh.wire.control import LinkEntry, LinkRecord
from mqmesh.mesh.wire.policy import Policy

POLICY = Policy()
KEYS = [(number, bytes([number, life]) * 8) for number in range(3) for life in range(2)]
entries = st.builds(LinkEntry, st.integers(0, 2), st.integers(1, 4), st.integers(1, 3), st.sampled_from([None, POLICY]))
steps = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.lists(entries, max_size=4)), max_size=30)


def at_once(records: dict[Key, LinkRecord]) -> tuple[set[tuple[Key, Key, int, int]], dict[int, dict[int, Policy]]]:
    """(end, end, incarnation, cost) of each link that exactly two records list, each naming the other; and the policies."""
    ends: dict[int, list[tuple[Key, LinkEntry]]] = {}
    for key, record in records.items():
        for entry in dict.fromkeys(record.links):
            ends.setdefault(entry.incarnation, []).append((key, entry))
    found, policies = set(), {}
    for incarnation, listed in ends.items():
        if len(listed) == 2:
            (one, first), (other, second) = sorted(listed, key=lambda each: each[0])
            if one != other and first.peer == other[0] and second.peer == one[0]:
                found.add((one, other, incarnation, max(first.cost, second.cost)))
                said = {key[0]: entry.policy for key, entry in listed if entry.policy is not None}
                policies.update({incarnation: said} if said else {})
    return found, policies


@given(steps)
def test_record_by_record_and_at_once(changes: list[tuple[Key, list[LinkEntry] | None]]) -> None:
    edges, records, before = Edges(), dict[Key, LinkRecord](), set()
    for sequence, (key, links) in enumerate(changes):
        after = None if links is None else LinkRecord(*key, "b", 1, sequence, tuple(links))
        edges.change(key, records.get(key), after)
        if after is None:
            records.pop(key, None)
        else:
            records[key] = after
        found, policies = at_once(records)
        shown = {(*sorted((end, other)), inc, cost) for end, links_of in edges.of.items() for inc, (other, cost) in links_of.items()}
        assert (shown, edges.policies) == (found, policies)
        assert all(edges.of.values()), "an end without links stays"
        gained, lost = edges.taken()
        assert {(edge.one, edge.other, edge.cost) for edge in gained} == {(one, other, cost) for one, other, _, cost in found - before}
        assert {(edge.one, edge.other, edge.cost) for edge in lost} == {(one, other, cost) for one, other, _, cost in before - found}
        before = found
