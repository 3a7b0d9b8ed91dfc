"""Which broker serves a shared subscription: the origin picks, and picks again when the picked one refuses or is gone.

Smooth weighted round robin: each candidate gains its weight (its members), the richest is picked and pays the sum. It has no
chance in it, so that a simulation repeats; origins begin at different candidates, so that they do not all pick the same one.

Invariants
- members at the origin come first; then reachable brokers; others only for custody, where the message can wait;
- a message is picked again for one group only, at a broker that has not refused it.

It does not know frames, trees or sequences; `dispatch.py` places what is picked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...mqtt.batch.batch import Batch
from ...mqtt.topics import matches
from ..custody.custody import Custody, Destination, Entry
from ..view.interest import Group, Match
from ..view.linkstate import LinkStates
from ..view.zones import Zones
from ..wire.control import Position, Refusal
from ..wire.envelope import Picks, Share
from .actions import Returned
from .core import Core

PART = 16  # messages of one run that go to one member's broker in a row
FORGET = 10_000  # groups whose state is kept


class Picker:
    """The state of the round robin for each group."""

    def __init__(self, seed: int) -> None:
        """seed: the own number."""
        self._seed = seed
        self._credit: dict[Share, dict[int, int]] = {}

    def pick(self, share: Share, candidates: list[tuple[int, int]]) -> int:
        """One of the (broker, weight), at least one, sorted by broker."""
        if len(candidates) == 1:
            return candidates[0][0]
        credit = self._credit.get(share)
        if credit is None:
            if len(self._credit) >= FORGET:
                self._credit.clear()
            credit = self._credit[share] = {candidates[self._seed % len(candidates)][0]: 1}
        best, total, most = candidates[0][0], 0, None
        for number, weight in candidates:
            weight = max(weight, 1)
            total += weight
            have = credit[number] = credit.get(number, 0) + weight
            if most is None or have > most:
                best, most = number, have
        credit[best] -= total
        return best

    def parts(self, run: Batch, groups: list[Group]) -> list[tuple[Batch, Picks]]:
        """A run as contiguous parts with one pick for each group; one part when no group has a choice."""
        if all(len(group.members) == 1 for group in groups):
            return [(run, tuple((group.share, group.members[0][0]) for group in groups))]
        parts: list[tuple[Batch, Picks]] = []
        for start in range(0, run.count, PART):
            picks = tuple((group.share, self.pick(group.share, list(group.members))) for group in groups)
            parts.append((run.part(start, min(start + PART, run.count)) if run.count > PART else run, picks))
        return parts


def candidates(group: Group, reachable: int) -> Group:
    """The group with only its reachable brokers, or as it is if none is reachable."""
    near = tuple(member for member in group.members if reachable >> member[0] & 1)
    return Group(group.share, near or group.members)


class Again(NamedTuple):
    """Messages of an entry, from `offset` on, that another broker shall serve. refusers: brokers that found no member for them.
    instead: the one that shall not."""

    entry: Entry
    offset: int
    run: Batch
    share: Share
    broker: int
    refusers: int
    repeated: bool
    instead: int


class Shares:
    """An origin's shared subscriptions."""

    def __init__(
        self,
        core: Core,
        states: LinkStates,
        zones: Zones,
        custody: Custody,
        own_groups: set[Share],
        place: Callable[[Again], None],
    ) -> None:
        """own_groups: those with members here, kept by the owner. place: takes what is picked again."""
        self._core = core
        self._states = states
        self._zones = zones
        self._custody = custody
        self._own_groups = own_groups
        self._place = place
        self._picker = Picker(core.number)

    def parts(self, match: Match, run: Batch, local_groups: frozenset[Share] | None) -> list[tuple[Batch, Picks]]:
        """Parts of a run with a broker for each shared subscription that has no member here; for QoS 0 only reachable ones."""
        served = self._own_groups if local_groups is None else local_groups
        live = self._states.live
        groups = [candidates(group, live) for group in match.groups if group.share not in served]
        if not run.qos:
            groups = [group for group in groups if live >> group.members[0][0] & 1]
        return self._picker.parts(run, groups)

    def refusals(self, d: Destination, refusals: tuple[Refusal, ...], settled: Position) -> None:
        """A destination found no members. settled: what had been receipted before; refusals up to there were acted on then."""
        for refusal in refusals:
            if (refusal.epoch, refusal.last) > settled:
                first = max(refusal.first, settled[1] + 1) if settled[0] == refusal.epoch else refusal.first
                self._refused(d, refusal, first)

    def _refused(self, d: Destination, refusal: Refusal, first: int) -> None:
        for entry in self._custody.open_for(d):
            low, high = max(first, entry.first), min(refusal.last, entry.last[1])
            if entry.epoch == refusal.epoch and low <= high and (refusal.share, d.number) in entry.picks:
                run = entry.run.part(low - entry.first, high - entry.first + 1)
                self._core.counters.refused += run.count
                self.pick_other(entry, low - entry.first, run, refusal.share, d.number, repeated=False)

    def pick_again(self, d: Destination, gone: bool = False) -> None:
        """A broker is out of reach: picks that it was never sent go to another; with `share = "available"` all, marked as repeated.

        gone: it does not come back, so that waiting for another one that is away too is better.
        """
        for entry in self._custody.open_for(d):
            self.again(d, entry, gone)

    def again(self, d: Destination, entry: Entry, gone: bool = False) -> None:
        """See `pick_again`, for one entry."""
        sent = (entry.epoch, entry.first) <= d.sent
        mine = [share for share, number in entry.picks if number == d.number]
        if not mine or (sent and self._core.config.share != "available"):
            return
        settled = d.settled[1] - entry.first + 1 if d.settled[0] == entry.epoch else 0
        offset = max(settled, 0)
        run = entry.run.part(offset, entry.count) if offset else entry.run
        for share in mine:
            if self._others(share, run.topic, entry.refusers | d.bit, away=gone):
                self.pick_other(entry, offset, run, share, d.number, repeated=sent)
                entry.picks = tuple(pick for pick in entry.picks if pick != (share, d.number))
                if self._core.journal is not None and (entry.order or entry.page is not None):
                    self._core.journal.change(entry)
        if not entry.ordinary & d.bit and not any(number == d.number for _, number in entry.picks):
            self._custody.close(d, entry)

    def served_by(self, share: Share, brokers: int) -> bool:
        """Whether some of these brokers, or this one, have members of a shared subscription, as far as that can be said without a topic."""
        if share in self._own_groups or self._zones.of:
            return True
        return any(brokers >> number & 1 for number, _ in self._zones.members(share, b""))

    def elsewhere(self, d: Destination, entry: Entry) -> bool:
        """A policy forbids the path to a broker: picks that it was never sent go to another one that may have the topic.

        Whether all that the entry had for this broker has gone there.
        """
        if (entry.epoch, entry.first) <= d.sent or not any(number == d.number for _, number in entry.picks):
            return False
        for share in [share for share, number in entry.picks if number == d.number]:
            if self._others(share, entry.run.topic, entry.refusers | d.bit, away=False):
                entry.picks = tuple(pick for pick in entry.picks if pick != (share, d.number))
                self.pick_other(entry, 0, entry.run, share, d.number, repeated=False)
        return not entry.ordinary & d.bit and not any(number == d.number for _, number in entry.picks)

    def _others(self, share: Share, topic: bytes, refusers: int, away: bool = True) -> list[tuple[int, int]]:
        """Brokers with members of a shared subscription who may have the topic but for some, this one included: the reachable ones.

        away: if there is none of these, those that a message can wait for.
        """
        members = [m for m in self._zones.members(share, topic) if not refusers >> m[0] & 1]
        near = [m for m in members if self._states.live >> m[0] & 1]
        if share in self._own_groups and not refusers >> self._core.number & 1 and matches(share[1], topic.decode()):
            near.append((self._core.number, 1))
        return sorted(near or (members if away else ()))

    def pick_other(self, entry: Entry, offset: int, run: Batch, share: Share, not_at: int, *, repeated: bool) -> None:
        """Have these messages of an entry, from `offset` on, served by a broker that has not refused them; else they are returned."""
        core = self._core
        refusers = entry.refusers | 1 << not_at
        members = self._others(share, run.topic, refusers)
        if not members:
            core.counters.returned += run.count
            core.actions.append(Returned(run, not_at, "refused"))
            self._custody.watches.lost(entry, not_at, "refused", offset, run.count)
            return
        core.counters.repicked += run.count
        broker = core.number if (core.number, 1) in members else self._picker.pick(share, members)
        self._place(Again(entry, offset, run, share, broker, refusers, repeated, not_at))
