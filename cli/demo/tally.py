"""What the demo counts, and by which rules. No clock, thread or client here.

A reading is identified by the site that published it and its sequence there. Each has one `Sent`. Each site notes each arrival. After the
run, `judge` compares them.

A reading is *due* at a site if its publisher got the acknowledgement (PUBACK), and the site was subscribed from before the publish until
the end. Due and never arrived: *lost*. Arrived more than once: *duplicates* (each arrival after the first). Arrived after a later reading
of the same origin: *disorder*.

One site's broker is killed in mid-run and comes back (`Outage`). This excuses exactly two things. They are counted
separately and shown:
- *at the killed site*, what had not arrived when its broker died, beyond the last that had arrived from the same origin
  (order is kept, so a gap below it is a loss), and all that was published until its subscription stood again;
- *from the killed site*, what it had published and what had not reached all other sites when its broker died: held in
  the memory of only that broker, or sent by its client again after the return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sent:
    """One published reading. `at`: monotonic seconds when it was handed to the client; `acknowledged_at`: when its PUBACK came."""

    at: float
    acknowledged: bool = False
    acknowledged_at: float = 0.0


@dataclass(slots=True)
class Arrivals:
    """What one site received from one origin.

    first: sequence -> time of its first arrival.
    again: sequence -> number of further arrivals.
    highest: the highest sequence so far.
    """

    first: dict[int, float] = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)
    disorder: int = 0
    highest: int = -1

    def note(self, sequence: int, now: float) -> None:
        """A reading has arrived at `now` (monotonic seconds)."""
        if sequence in self.first:
            self.again[sequence] = self.again.get(sequence, 0) + 1
            return
        self.first[sequence] = now
        if sequence < self.highest:
            self.disorder += 1
        else:
            self.highest = sequence


@dataclass(frozen=True, slots=True)
class Outage:
    """A broker was killed at `killed` and its site subscribed again, in a settled mesh, at `back` (monotonic seconds)."""

    site: str
    killed: float
    back: float


@dataclass(slots=True)
class SiteResult:
    """One site's line: as a publisher (published, acknowledged) and as a subscriber (the rest)."""

    site: str
    published: int = 0
    acknowledged: int = 0
    due: int = 0
    delivered: int = 0  # of what was due
    lost: int = 0
    duplicates: int = 0
    disorder: int = 0


@dataclass(slots=True)
class Apart:
    """What the killed broker excuses. `own_*`: readings of its own site that were on their way when it died."""

    own: int = 0
    own_nowhere: int = 0  # arrived at no other site
    own_somewhere: int = 0  # at some
    own_everywhere: int = 0
    own_lost: int = 0  # acknowledged, and yet missing at a site
    own_duplicates: int = 0  # arrivals beyond the first, after the client sent them again
    missed: int = 0  # on their way to its site when it died, or published while it was away


Log = Mapping[str, Sequence[Sent]]  # origin -> its readings by sequence
Received = Mapping[str, Mapping[str, Arrivals]]  # site -> origin -> arrivals


def judge(sent: Log, received: Received, outage: Outage | None) -> tuple[list[SiteResult], Apart]:
    """One result for each site, in the order of `sent`, and what is counted apart."""
    apart = Apart()
    excused = _own_in_flight(sent, received, outage, apart)
    results = []
    for site in sent:
        result = SiteResult(site, len(sent[site]), sum(one.acknowledged for one in sent[site]))
        for origin, readings in sent.items():
            arrivals = received[site][origin]
            result.disorder += arrivals.disorder
            skip = excused if outage is not None and origin == outage.site else frozenset()
            result.duplicates += sum(count for sequence, count in arrivals.again.items() if sequence not in skip)
            _count(result, readings, arrivals, skip, outage, apart)
        results.append(result)
    return results, apart


def _count(
    result: SiteResult, readings: Sequence[Sent], arrivals: Arrivals, skip: frozenset[int], outage: Outage | None, apart: Apart
) -> None:
    """Due, delivered and lost at one site of the readings of one origin."""
    killed_here = outage is not None and outage.site == result.site
    before = max((s for s, at in arrivals.first.items() if outage is not None and at <= outage.killed), default=-1)
    for sequence, one in enumerate(readings):
        if sequence in skip or not one.acknowledged:
            continue
        arrived = sequence in arrivals.first
        if killed_here and outage is not None and sequence > before and one.at < outage.back:
            apart.missed += not arrived
            continue
        result.due += 1
        result.delivered += arrived
        result.lost += not arrived


def _own_in_flight(sent: Log, received: Received, outage: Outage | None, apart: Apart) -> frozenset[int]:
    """The sequences of the killed site that were open when its broker died: not acknowledged yet, so that the client sends them
    again, or not at all other sites yet."""
    if outage is None:
        return frozenset()
    others = [received[site][outage.site] for site in sent if site != outage.site]
    found = set()
    for sequence, one in enumerate(sent[outage.site]):
        if one.at >= outage.killed:
            break
        answered = one.acknowledged and one.acknowledged_at <= outage.killed
        if answered and all(arrivals.first.get(sequence, outage.back) <= outage.killed for arrivals in others):
            continue
        found.add(sequence)
        places = sum(sequence in arrivals.first for arrivals in others)
        apart.own_nowhere += places == 0
        apart.own_everywhere += places == len(others)
        apart.own_somewhere += 0 < places < len(others)
        apart.own_lost += one.acknowledged and places < len(others)
        apart.own_duplicates += sum(arrivals.again.get(sequence, 0) for arrivals in received[outage.site].values())
        apart.own_duplicates += sum(arrivals.again.get(sequence, 0) for arrivals in others)
    apart.own = len(found)
    return frozenset(found)


def flowing_again(sent: Log, received: Received, fault: float, pairs: Sequence[tuple[str, str]]) -> float | None:
    """Seconds from `fault` until each of `pairs` (origin, site) had carried a reading that was published after it.

    None when one of them never did.
    """
    latest = 0.0
    for origin, site in pairs:
        first = received[site][origin].first
        times = [first[sequence] for sequence, one in enumerate(sent[origin]) if one.at >= fault and sequence in first]
        if not times:
            return None
        latest = max(latest, min(times) - fault)
    return latest


def delays(sent: Log, received: Received, leave_out: str | None = None) -> list[float]:
    """Seconds from publishing to first arrival at another site, sorted; without what one site sent and received."""
    found = []
    for site, origins in received.items():
        for origin, arrivals in origins.items():
            if origin != site and leave_out not in (origin, site):
                found += [at - sent[origin][sequence].at for sequence, at in arrivals.first.items()]
    return sorted(found)
