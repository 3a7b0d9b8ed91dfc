"""Zones: the parts of an origin's tree between which links have policies, and which name a topic has in each.

Trees, custody and windows know brokers and sequences, not topics. So that a policy makes no hole that nobody answers for, the origin
decides before it sends: link state says the policy of each end of each link, and both are the same for the whole life of a link, so
whoever announces a tree knows every policy in it. Take the links with a policy out of the tree: what is left are its *zones*.
To a zone leads one path, and what the policies along it make of a topic is the topic's name there, or nothing. Interest is
asked zone by zone, with the zone's name of the topic.

A broker out of reach is in the zone where it was last: messages for it wait, and are judged anew in the tree in which it is back.

Invariants
- without policies in the tree nothing of this is asked: a match is that of `Interests`;
- a zone's answers rest on the policies of its path alone, which never change; a zone is kept as long as some broker is in it.

It does not know links, frames or custody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.cache import LONGEST
from ..wire.envelope import Share
from ..wire.policy import Policy, PolicyFilter
from .interest import NOBODY, Group, Interests, Match

if TYPE_CHECKING:
    from .linkstate import Path

CACHED = 50_000  # topics whose answer is kept

Policies = dict[int, dict[int, Policy]]  # incarnation -> the policies of its ends, by number
_Border = tuple["Zone | None", Policy | None, Policy | None]


class Zone:
    """Brokers behind the same policies. mask: which. before: the zone that the path comes through, None: the origin's own."""

    __slots__ = ("_entering", "_leaving", "_names", "before", "mask")

    def __init__(self, before: Zone | None, leaving: PolicyFilter | None, entering: PolicyFilter | None) -> None:
        self.before = before
        self._leaving = leaving
        self._entering = entering
        self._names: dict[bytes, bytes | None] = {}
        self.mask = 0

    def name(self, topic: bytes) -> bytes | None:
        """What a topic of the origin is called here; None: it must not come here."""
        try:
            return self._names[topic]
        except KeyError:
            pass
        name = topic if self.before is None else self.before.name(topic)
        if name is not None and self._leaving is not None:
            name = self._leaving.outwards(name)
        if name is not None and self._entering is not None:
            name = self._entering.inwards(name)
        if len(topic) <= LONGEST:
            if len(self._names) >= CACHED:
                self._names.clear()
            self._names[topic] = name
        return name


class Zones:
    """The zones of one origin. of: the zone of each broker that is not in the origin's own."""

    def __init__(self, number: int, interests: Interests) -> None:
        """number: of the origin."""
        self._number = number
        self._interests = interests
        self.of: dict[int, Zone] = {}
        self._behind = 0  # the brokers in `of`
        self._zones: dict[_Border, Zone] = {}
        self._gates: dict[Policy, PolicyFilter] = {}
        self._matches: dict[str, Match] = {}
        self._generation = -1

    # ---- what follows from link state

    def refresh(self, paths: dict[int, Path], policies: Policies) -> bool:
        """Bring the zones in line with shortest paths (parents first); whether a broker is in another zone now."""
        if not policies and not self.of:
            return False
        zones: dict[int, Zone | None] = {self._number: None}
        for number, path in paths.items():
            zone = zones[path.parent]
            ends = policies.get(path.incarnation)
            zones[number] = zone if ends is None else self._zone(zone, ends.get(path.parent), ends.get(number))
        del zones[self._number]
        of = {number: zone for number, zone in zones.items() if zone is not None}
        of.update({number: zone for number, zone in self.of.items() if number not in paths})
        if of == self.of:
            return False
        self._take(of)
        return True

    def forget(self, number: int) -> None:
        """A broker is given up."""
        if number in self.of:
            self._take({other: zone for other, zone in self.of.items() if other != number})

    def _zone(self, before: Zone | None, leaving: Policy | None, entering: Policy | None) -> Zone:
        border = (before, leaving, entering)
        zone = self._zones.get(border)
        if zone is None:
            zone = self._zones[border] = Zone(before, self._gate(leaving), self._gate(entering))
        return zone

    def _gate(self, policy: Policy | None) -> PolicyFilter | None:
        if policy is None:
            return None
        gate = self._gates.get(policy)
        if gate is None:
            gate = self._gates[policy] = PolicyFilter(policy)
        return gate

    def _take(self, of: dict[int, Zone]) -> None:
        self.of = of
        self._behind = 0
        for zone in self._zones.values():
            zone.mask = 0
        used: set[Zone] = set()
        for number, zone in of.items():
            zone.mask |= 1 << number
            self._behind |= 1 << number
            step: Zone | None = zone
            while step is not None and step not in used:
                used.add(step)
                step = step.before
        self._zones = {border: zone for border, zone in self._zones.items() if zone in used}
        needed = {policy for border in self._zones for policy in border[1:]}
        self._gates = {policy: gate for policy, gate in self._gates.items() if policy in needed}
        self._matches.clear()

    # ---- who wants what

    def match(self, topic: str) -> Match:
        """Who wants a topic and may have it."""
        interests = self._interests
        if not self.of:
            return interests.match(topic)
        if self._generation != interests.generation:
            self._generation = interests.generation
            self._matches.clear()
        found = self._matches.get(topic)
        if found is None:
            found = self._ask(topic)
            if len(topic) <= LONGEST:
                if len(self._matches) >= CACHED:
                    self._matches.clear()
                self._matches[topic] = found
        return found

    def _ask(self, topic: str) -> Match:
        raw = topic.encode()
        mask = guarded = 0
        groups: dict[Share, list[tuple[int, int]]] = {}
        near = (~self._behind, topic)
        far = [(zone.mask, name.decode()) for zone in self._zones.values() if zone.mask and (name := zone.name(raw)) is not None]
        for brokers, called in (near, *far):
            found = self._interests.match(called)
            mask |= found.mask & brokers
            if brokers > 0:
                guarded |= found.mask & brokers
            for group in found.groups:
                members = [member for member in group.members if brokers >> member[0] & 1]
                if members:
                    groups.setdefault(group.share, []).extend(members)
        if not mask and not groups:
            return NOBODY
        return Match(mask, tuple(Group(share, tuple(sorted(members))) for share, members in sorted(groups.items())), bool(guarded))

    def everybody(self, topic: bytes, live: int) -> int:
        """The brokers of a set that a topic may come to."""
        found = live & ~self._behind
        for zone in self._zones.values():
            if zone.mask & live and zone.name(topic) is not None:
                found |= zone.mask & live
        return found

    def members(self, share: Share, topic: bytes) -> list[tuple[int, int]]:
        """Who has members of a shared subscription, (broker, weight) by number, and may have the topic as one that it matches."""
        if not self.of:
            return list(self._interests.members(share))
        for group in self.match(topic.decode()).groups:
            if group.share == share:
                return list(group.members)
        return []
