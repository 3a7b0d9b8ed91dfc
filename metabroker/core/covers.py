"""What a remote without Subscription Identifiers is subscribed to: filters of which no two match one topic.

Such a remote, of MQTT 3.1.1, may send a message once for each filter that matches it, and does not say for which. So filters that overlap
become one *cover*, a filter that matches all that they match, and each session gets one copy. A filter that overlaps nothing is its own
cover. A cover is asked for before what it replaces is given up, so that nothing is missed; what comes in between comes twice.

A filter inside a cover that is there is subscribed and given up at once: the remote sends what is retained for it, and for it only.

Where the policy does not allow a cover, or the remote refuses it, filters are asked for as they are, and a message comes for each of them.

Changes of filters that overlap are made one after another, others at the same time. It does not know sessions, connections or the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from ...mqtt.topics import covers
from .overlap_index import OverlapIndex

REFUSED = 0x80  # from here on an answer is a refusal


class Ask(NamedTuple):
    """Subscribe; the answer goes to `Covers.answered` under the token."""

    token: int
    filter: str
    qos: int


class Drop(NamedTuple):
    """Unsubscribe."""

    filter: str


class Settled(NamedTuple):
    """The answer to what was wanted under this token: the QoS granted, or a refusal."""

    token: int
    reason: int


Step = Ask | Drop | Settled


class Wanted(NamedTuple):
    """A filter that is wanted. token: of the answer; 0: it is wanted no more."""

    token: int
    filter: str
    qos: int


@dataclass(slots=True)
class Cover:
    """A filter that the remote has. members: those that it stands for, with the QoS of each. qos: asked for. granted: by the remote."""

    filter: str
    members: dict[str, int]
    granted: int

    @property
    def qos(self) -> int:
        """The highest that a member wants."""
        return max(self.members.values())


@dataclass(slots=True)
class _Change:
    """A change under way. touches: filters; what overlaps them is not changed meanwhile. asked: token -> filter. then: takes answers."""

    touches: list[str]
    then: Callable[[dict[str, int]], list[Step]]
    asked: dict[int, str] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)


class Covers:
    """See the module. new_token: gives a number that nothing else has. allowed: whether the policy allows a filter.

    Methods return what is to be done, in order.
    """

    def __init__(self, new_token: Callable[[], int], allowed: Callable[[str], bool]) -> None:
        self._new_token, self._allowed = new_token, allowed
        self._covers: dict[str, Cover] = {}
        self._of: dict[str, Cover] = {}  # member -> its cover
        self._index = OverlapIndex()  # of the covers
        self._changes: dict[int, _Change] = {}  # token -> what is under way
        self._inside: dict[int, tuple[Wanted, bool]] = {}  # token -> what is asked for though it has a cover, and whether it is new
        self._busy = OverlapIndex()  # what is touched by changes
        self._waiting: deque[Wanted] = deque()
        self._refused: set[str] = set()
        self._old: set[str] = set()  # of an earlier life: given up when all that is wanted has its answer

    @property
    def calm(self) -> bool:
        """Whether nothing is under way."""
        return not (self._changes or self._inside or self._waiting or self._old)

    @property
    def filters(self) -> set[str]:
        """All that the remote may have."""
        asked = (filter_ for change in self._changes.values() for filter_ in change.asked.values())
        return {*self._covers, *self._old, *asked, *(one.filter for one, _ in self._inside.values())}

    def begin(self, wanted: list[Wanted], old: Iterable[str] = ()) -> list[Step]:
        """All that is wanted on a new connection. old: filters of an earlier life that the remote may still have."""
        self._old = set(old)
        steps: list[Step] = []
        by_filter = {one.filter: one for one in wanted}
        for cover, members in self._plan({one.filter: one.qos for one in wanted}).items():
            steps += self._together(cover, [by_filter[one] for one in members])
        return steps + self._go_on()

    def want(self, wanted: Wanted) -> list[Step]:
        """A filter is wanted, also one that is there; or wanted no more."""
        self._waiting.append(wanted)
        return self._go_on()

    def answered(self, token: int, reason: int) -> list[Step]:
        """The remote has answered."""
        inside = self._inside.pop(token, None)
        if inside is not None:
            return self._asked_inside(*inside, reason) + self._go_on()
        change = self._changes.pop(token, None)
        if change is None:
            return []
        change.answers[change.asked.pop(token)] = reason
        if change.asked:
            return []
        for filter_ in change.touches:
            self._busy.remove(filter_)
        return change.then(change.answers) + self._go_on()

    # What can begin

    def _go_on(self) -> list[Step]:
        """Begin what nothing under way, and nothing that came before and waits, has to do with."""
        steps: list[Step] = []
        waiting, self._waiting = self._waiting, deque()
        before = OverlapIndex()
        for one in waiting:
            group = self._group(one.filter) if one.token else [self._of[one.filter].filter] if one.filter in self._of else []
            wide = merged([one.filter, *group])
            if self._busy.find(wide) or before.find(wide):
                self._waiting.append(one)
                before.add(wide)
            else:
                steps += self._want(one, group) if one.token else self._give_up(one.filter)
        if self._old and not (self._changes or self._inside or self._waiting):
            steps += [Drop(filter_) for filter_ in sorted(self._old - self._covers.keys())]
            self._old.clear()
        return steps

    def _group(self, filter_: str) -> list[str]:
        """The covers that overlap a filter, and those that overlap what covers all of these."""
        found = self._index.find(filter_)
        while len(more := self._index.find(merged([filter_, *found]))) > len(found):
            found = more
        return found

    def _plan(self, members: dict[str, int]) -> dict[str, list[str]]:
        """Covers for filters, and which each stands for."""
        index = OverlapIndex()
        found: dict[str, list[str]] = {}
        for filter_ in members:
            wide, group = filter_, index.find(filter_)
            while len(more := index.find(wide := merged([filter_, *group]))) > len(group):
                group = more
            if wide in self._refused or not self._allowed(wide):
                wide, group = filter_, []
            inside = [member for one in group for member in found.pop(one)]
            for one in group:
                index.remove(one)
            index.add(wide)
            found[wide] = [*inside, filter_]
        return found

    # Changes

    def _ask(self, touches: list[str], asks: list[tuple[str, int]], then: Callable[[dict[str, int]], list[Step]]) -> list[Step]:
        change = _Change(touches, then)
        for filter_ in touches:
            self._busy.add(filter_)
        steps: list[Step] = []
        for filter_, qos in asks:
            token = self._new_token()
            self._changes[token] = change
            change.asked[token] = filter_
            steps.append(Ask(token, filter_, qos))
        return steps

    def _want(self, wanted: Wanted, group: list[str]) -> list[Step]:
        cover = self._of.get(wanted.filter) or next((self._covers[one] for one in group if covers(one, wanted.filter)), None)
        if cover is not None and cover.filter != wanted.filter and cover.qos >= wanted.qos:
            token = self._new_token()
            self._inside[token] = wanted, wanted.filter not in self._of
            cover.members[wanted.filter] = wanted.qos
            self._of[wanted.filter] = cover
            return [Ask(token, wanted.filter, wanted.qos), Drop(wanted.filter)]
        return self._together(merged([wanted.filter, *group]), [wanted], group)

    def _asked_inside(self, wanted: Wanted, new: bool, reason: int) -> list[Step]:
        if reason < REFUSED:
            return [Settled(wanted.token, min(wanted.qos, self._of[wanted.filter].granted))]
        if new:
            self._waiting.append(Wanted(0, wanted.filter, 0))
        return [Settled(wanted.token, reason)]

    def _together(self, wide: str, wanted: list[Wanted], group: Iterable[str] = ()) -> list[Step]:
        """Ask for a cover of filters and of the covers in a group, which it replaces."""
        old = [self._covers[one] for one in group]
        members = {member: qos for one in old for member, qos in one.members.items()} | {one.filter: one.qos for one in wanted}
        alone = len(wanted) == 1 and wide == wanted[0].filter
        if not alone and (wide in self._refused or not self._allowed(wide)):
            return self._apart(wanted)

        def then(answers: dict[str, int]) -> list[Step]:
            granted = answers[wide]
            if granted < REFUSED:
                for one in old:
                    self._remove(one)
                settled = [Settled(one.token, min(one.qos, granted)) for one in wanted]
                return [*settled, *(Drop(one.filter) for one in old if one.filter != wide), *self._add(Cover(wide, members, granted))]
            if alone:
                return [Settled(wanted[0].token, granted)]
            self._refused.add(wide)
            return self._apart(wanted)

        return self._ask([wide, *(one.filter for one in old)], [(wide, max(members.values()))], then)

    def _apart(self, wanted: list[Wanted]) -> list[Step]:
        """Ask for filters as they are, which have no cover."""
        return [step for one in wanted for step in self._together(one.filter, [one], {one.filter} & self._covers.keys())]

    def _give_up(self, filter_: str) -> list[Step]:
        cover = self._of.pop(filter_, None)
        if cover is None:
            return []
        del cover.members[filter_]
        if not cover.members:
            self._remove(cover)
            return [Drop(cover.filter)]
        plan = self._plan(cover.members)
        if cover.filter in plan:
            return []

        def then(answers: dict[str, int]) -> list[Step]:
            if max(answers.values()) >= REFUSED:  # it stays as it is
                return [Drop(one) for one, granted in answers.items() if granted < REFUSED]
            self._remove(cover)
            parts = [Cover(one, {member: cover.members[member] for member in members}, answers[one]) for one, members in plan.items()]
            return [Drop(cover.filter), *(step for part in parts for step in self._add(part))]

        return self._ask([cover.filter], [(one, max(cover.members[member] for member in members)) for one, members in plan.items()], then)

    def _add(self, cover: Cover) -> list[Step]:
        self._covers[cover.filter] = cover
        self._index.add(cover.filter)
        steps: list[Step] = []
        for member in cover.members:
            before = self._of.get(member)
            self._of[member] = cover
            if before is not None and self._covers.get(before.filter) is before and before is not cover:  # a cover that was too low for it
                del before.members[member]
                if not before.members:
                    self._remove(before)
                    steps.append(Drop(before.filter))
        return steps

    def _remove(self, cover: Cover) -> None:
        del self._covers[cover.filter]
        self._index.remove(cover.filter)


def merged(filters: list[str]) -> str:
    """The narrowest filter that matches all that these match."""
    wide = filters[0].split("/")
    for one in filters[1:]:
        levels: list[str] = []
        for level, beside in zip_longest(wide, one.split("/")):
            if level is None or beside is None or "#" in (level, beside):
                levels.append("#")
                break
            levels.append(level if level == beside else "+")
        wide = levels
    return "/".join(wide)
