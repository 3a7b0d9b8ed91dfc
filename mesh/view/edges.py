"""Edges: the links that both their ends list, kept up to date record by record.

A mesh that starts says four records a broker, and each broker hears them all: what one record changes must cost what it changes, not the
size of the mesh.

Invariants
- an edge is here if exactly two ends list its incarnation, each naming the other's number;
- `gained` and `lost` hold, by incarnation, what has changed since they were emptied (`taken`); not what came and went in between.

It does not know who can be reached, nor lives.
"""

from __future__ import annotations

from typing import NamedTuple

from ..wire.control import LinkRecord
from ..wire.policy import Policy

Key = tuple[int, bytes]  # number, UUID; of a twin: number, UUID and life


class Edge(NamedTuple):
    """A link in use. cost: the higher of what its ends say."""

    one: Key
    other: Key
    cost: int


class _End(NamedTuple):
    """What one end says of a link."""

    key: Key
    peer: int
    cost: int
    policy: Policy | None


class Edges:
    """All edges. of: key -> incarnation -> (the other end, cost). policies: incarnation -> the policies of its ends, by number."""

    def __init__(self) -> None:
        self.of: dict[Key, dict[int, tuple[Key, int]]] = {}
        self.policies: dict[int, dict[int, Policy]] = {}
        self.gained: dict[int, Edge] = {}
        self.lost: dict[int, Edge] = {}
        self._ends: dict[int, list[_End]] = {}
        self._used: dict[int, Edge] = {}

    def change(self, key: Key, before: LinkRecord | None, after: LinkRecord | None) -> None:
        """A record takes the place of another one."""
        old = dict.fromkeys(before.links if before is not None else ())
        new = dict.fromkeys(after.links if after is not None else ())
        touched = set()
        for entry in old:
            if entry not in new:
                ends = self._ends[entry.incarnation]
                ends.remove(_End(key, entry.peer, entry.cost, entry.policy))
                touched.add(entry.incarnation)
        for entry in new:
            if entry not in old:
                self._ends.setdefault(entry.incarnation, []).append(_End(key, entry.peer, entry.cost, entry.policy))
                touched.add(entry.incarnation)
        for incarnation in touched:
            self._judge(incarnation)

    def taken(self) -> tuple[list[Edge], list[Edge]]:
        """What has come, and what has gone, since the last time."""
        found = list(self.gained.values()), list(self.lost.values())
        self.gained, self.lost = {}, {}
        return found

    def _judge(self, incarnation: int) -> None:
        ends = self._ends[incarnation]
        if not ends:
            del self._ends[incarnation]
        now = None
        policies: dict[int, Policy] = {}
        if len(ends) == 2:
            one, other = ends
            if one.peer == other.key[0] and other.peer == one.key[0] and one.key != other.key:
                low, high = sorted((one.key, other.key))
                now = Edge(low, high, max(one.cost, other.cost, 1))
                policies = {end.key[0]: end.policy for end in ends if end.policy is not None}
        before = self._used.get(incarnation)
        if policies:
            self.policies[incarnation] = policies
        else:
            self.policies.pop(incarnation, None)
        if now == before:
            return
        if before is not None:
            if self.gained.pop(incarnation, None) is None:
                self.lost[incarnation] = before
            del self._used[incarnation]
            for key in (before.one, before.other):
                del self.of[key][incarnation]
                if not self.of[key]:
                    del self.of[key]
        if now is not None:
            self._used[incarnation] = now
            self.gained[incarnation] = now
            self.of.setdefault(now.one, {})[incarnation] = now.other, now.cost
            self.of.setdefault(now.other, {})[incarnation] = now.one, now.cost
