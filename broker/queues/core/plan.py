"""Who is to get a message: everybody, the first free one, a combination, or one after the other (rows Q7 to Q10).

A plan is a list of *groups*. One member of each group gets the message:

    all            each subscriber is a group of its own          publish/subscribe
    pool           all members are one group                      load balancing
    0 | 1, 2, 3    "0 or 1, and 2 and 3"                          combined
    0 > 1 > 2      each group gets it when the one before is done  ordered reveal

A queue has a plan, a message may have one of its own, and a `LoadRule` switches a queue between two plans by its depth.

What it does not know: messages, states, who is connected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_GROUPS = 64
RIGHT = 'give "all", "pool", or groups such as "a | b, c" (a or b, and c) or "a > b" (a, then b)'
Group = frozenset[str]  # names of members; empty: every member of the queue
ANYBODY: Group = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """groups: one member of each gets the message; None: each subscriber is a group. ordered: one group after the other."""

    groups: tuple[Group, ...] | None
    ordered: bool = False

    def __str__(self) -> str:
        if self.groups is None:
            return "all"
        if self.groups == (ANYBODY,):
            return "pool"
        return (" > " if self.ordered else ", ").join(" | ".join(sorted(group)) or "pool" for group in self.groups)

    def resolve(self, subscribers: Iterable[str]) -> tuple[Group, ...]:
        """The groups of a message that is put now. subscribers: the names of the queue's subscribers."""
        if self.groups is not None:
            return self.groups
        return tuple(frozenset((name,)) for name in sorted(subscribers))


ALL = Plan(None)
POOL = Plan((ANYBODY,))


def plan_of(text: str) -> Plan:
    """Read a plan. ValueError, one line that says what would be right."""
    words = text.strip()
    if words == "all":
        return ALL
    if words == "pool":
        return POOL
    if "," in words and ">" in words:
        raise ValueError(f"{RIGHT}: not ',' and '>' together")
    ordered = ">" in words
    groups = []
    for part in words.split(">" if ordered else ","):
        names = [name.strip() for name in part.split("|")]
        if not all(names) or len(set(names)) < len(names):
            raise ValueError(RIGHT)
        groups.append(frozenset(names))
    if len(groups) > MOST_GROUPS:
        raise ValueError(f"give at most {MOST_GROUPS} groups")
    if sum(map(len, groups)) > len(frozenset().union(*groups)):
        raise ValueError("a name stands in two groups: a member gets a message once")
    return Plan(tuple(groups), ordered)


@dataclass(slots=True)
class LoadRule:
    """Switch by load, and back (row Q10): above `high` waiting messages `loaded`, below `low` again `normal`."""

    normal: Plan
    loaded: Plan
    high: int
    low: int
    active: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError("give low below high")

    def plan(self, waiting: int) -> Plan:
        """The plan of messages that are put while so many wait."""
        if waiting >= self.high:
            self.active = True
        elif waiting <= self.low:
            self.active = False
        return self.loaded if self.active else self.normal
