"""Link state: what each broker says about its links, and the picture of the mesh that follows.

Each broker floods one record; the newest (epoch, sequence) of each (number, UUID) is kept. A link is used only when both its
ends list the same incarnation, so that a half-open connection, or one that has just been replaced, carries nothing.

Two UUIDs under one number: if one of them is not reachable, the other is simply the broker with that number. If both are, the
one with the lower epoch *holds* the number, whoever sees it (it was there first); the other is an *intruder* and left out of the
picture, and its neighbours close their links to it.

Two lives of one UUID (lives.py): `records` has the one that holds it, `twins` the others. A life that is not reachable gives its place to
one that is, as after any restart. If both are reachable, the data folder was copied: lives.py says which one holds, and the other is left
out of the picture until it yields.

What a record changes is found without looking at all others (edges.py), as long as each number and UUID has one life. A link that comes
leads to those beyond it. A link that goes changes nobody's reach while there is a detour between its ends. A number that two have, or a
twin, is looked at as a whole. Paths are computed when somebody asks for them, so not by who sends nothing.

Invariants
- records only ever grow in (epoch, sequence); one that is not newer is not passed on, so that flooding ends;
- what two brokers compute from the same records is the same but for the point of view.

It does not know messages, interest, connections or time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from typing import Any, NamedTuple
from uuid import UUID

from ..wire.control import LinkRecord
from ..wire.identity import LIFE_BYTES, Identity
from ..wire.policy import Policy
from .edges import Edge, Edges, Key
from .lives import Lives, precedence

Graph = dict[int, dict[int, tuple[int, int]]]  # number -> neighbour -> (cost, incarnation)

LIVES_KEPT = 16  # UUIDs remembered for one number, and lives of one UUID
UUID_BYTES = 16


class Path(NamedTuple):
    """How a broker is reached in a shortest-path tree."""

    parent: int
    incarnation: int
    cost: int
    hops: int


class LinkStates:
    """The records, and what follows from them after `refresh`."""

    def __init__(self, own: Key, lives: Lives | None = None) -> None:
        """lives: who lives; None: each UUID has one life."""
        self._own = own
        self._lives = lives or Lives(Identity("", "", own[0], UUID(bytes=own[1]), 0))
        self.twins: dict[Key, LinkRecord] = {}  # number, UUID and life in one: of lives that do not hold their UUID
        self.contested: list[LinkRecord] = []  # those of them that can be reached
        self.taken_over: list[Key] = []  # which UUIDs another life holds now, until whoever asks has emptied it
        self.records: dict[Key, LinkRecord] = {}
        self.holders: dict[int, LinkRecord] = {}  # reachable brokers, this one included once it has a record
        self.live = 1 << own[0]  # the same as a set
        self.intruders: list[tuple[LinkRecord, LinkRecord]] = []  # (holder, intruder), both reachable
        self._changed = False  # the picture, since `changes` was asked
        self._news: set[int] | None = set()  # numbers that have a holder since then, or another life of it; None: any may be so
        self.dirty = True
        self._as_a_whole = True
        self._edges = Edges()
        self._renewed: set[Key] = set()  # records that have changed since the last `refresh`
        self._uuids: dict[int, int] = {}  # records of each number
        self.crowded = 0  # numbers with several
        self._reachable: set[Key] = {own}
        self._left_out: set[Key] = set()
        self._graph: Graph = {}  # that `_paths` were computed from
        self._paths: dict[int, Path] = {}
        self._paths_due = False

    @property
    def policies(self) -> dict[int, dict[int, Policy]]:
        """Incarnation -> the policies of its ends, by number; of used links only."""
        return self._edges.policies

    @property
    def paths(self) -> dict[int, Path]:
        """Shortest paths from here, in order of distance, without this broker. Records must be up to date (`refresh`)."""
        if self._paths_due:
            self._paths_due = False
            graph = self._picture()
            if graph != self._graph:  # a link that comes and goes in between changes no path
                self._graph = graph
                self._paths = shortest_paths(graph, self._own[0])
        return self._paths

    # ---- records

    def _put(self, key: Key, record: LinkRecord | None) -> None:
        """The record of a UUID or a twin is this one now; None: there is none any more."""
        uuids = len(key[1]) == UUID_BYTES
        known = self.records if uuids else self.twins
        before = known.get(key)
        if record is not None:
            known[key] = record
        elif before is not None:
            del known[key]
        if uuids and (before is None) != (record is None):
            count = self._uuids.get(key[0], 0) + (1 if record is not None else -1)
            self.crowded += (count == 2 and record is not None) - (count == 1 and record is None)
            self._uuids[key[0]] = count
        self._edges.change(key, before, record)
        self._renewed.add(key)
        self.dirty = True

    def judge_anew(self) -> None:
        """Look at all of it with the next `refresh`: something else than a record has changed."""
        self.dirty = self._as_a_whole = True

    def offer(self, record: LinkRecord) -> bool:
        """Keep a record if it is newer than what is known; whether it was."""
        if not self.newer(record):
            return False
        key = (record.number, record.uuid)
        if key not in self.records and not self._room(record):
            return False
        twin = self._twin(record)
        if twin is None:
            self._put(key, record)
        elif twin in self.twins or self._twin_room(key, record):
            self._put(twin, record)
        else:
            return False
        return True

    def newer(self, record: LinkRecord) -> bool:
        """Whether a record says more than what is known."""
        twin = self._twin(record)
        known = self.records.get((record.number, record.uuid)) if twin is None else self.twins.get(twin)
        return known is None or (record.epoch, record.sequence) > (known.epoch, known.sequence)

    def _twin(self, record: LinkRecord) -> Key | None:
        """Where the record of another life than the one that holds its UUID stands; None for one of that very life."""
        known = self.records.get((record.number, record.uuid))
        if known is None or not self._lives.differ(record.number, record.uuid, record.epoch, known.epoch):
            return None
        return self._twin_key(record)

    def _twin_key(self, record: LinkRecord) -> Key:
        life = self._lives.life_at(record.number, record.uuid, record.epoch)
        return record.number, record.uuid + (life.life if life is not None else bytes(LIFE_BYTES))

    def _twin_room(self, key: Key, record: LinkRecord) -> bool:
        """Make room for one more life of a UUID: the oldest goes, unless the new one is older still."""
        here = [twin for twin in self.twins if twin[0] == key[0] and twin[1].startswith(key[1])]
        if len(here) < LIVES_KEPT:
            return True
        oldest = min(here, key=lambda twin: self.twins[twin].epoch)
        if self.twins[oldest].epoch >= record.epoch:
            return False
        self._put(oldest, None)
        return True

    def foreign(self, number: int, uuid: bytes, epoch: int) -> bool:
        """Whether an epoch is that of a life that does not hold its UUID, while the one that does can be reached. Records must be up to
        date (`refresh`)."""
        held = self.records.get((number, uuid))
        return held is not None and bool(self.live >> number & 1) and self._lives.differ(number, uuid, epoch, held.epoch)

    def _room(self, record: LinkRecord) -> bool:
        """Make room for one more UUID under a number: the oldest one that is not reachable goes, unless the new one is older still."""
        if self._uuids.get(record.number, 0) < LIVES_KEPT:
            return True
        lives = [r for (number, _), r in self.records.items() if number == record.number]
        oldest = min(lives, key=lambda r: (r.epoch, r.uuid))
        held = self.holders.get(record.number)
        if oldest.epoch >= record.epoch or oldest.uuid in (self._own[1], held.uuid if held else None):
            return False
        self.drop((oldest.number, oldest.uuid))
        return True

    def drop(self, key: Key, epoch: int | None = None) -> None:
        """Forget the record of a UUID, and those of its other lives. epoch: of these, up to this one; None: all."""
        twins = [twin for twin in self.twins if (twin[0], twin[1][:UUID_BYTES]) == key]
        gone = [twin for twin in twins if epoch is None or self.twins[twin].epoch <= epoch]
        if key in self.records:
            gone.append(key)
        for one in gone:
            self._put(one, None)
        if gone:
            self.judge_anew()

    def disown(self, number: int, key: bytes) -> None:
        """Forget all records under a number but those that this key has signed."""
        for records in (self.records, self.twins):
            for one in [one for one, r in records.items() if r.number == number and (r.seal is None or r.seal.key != key)]:
                self._put(one, None)
                self.judge_anew()

    # ---- the picture

    def changes(self) -> Collection[int] | None:
        """Whose holders have come, or may be others, since the last call; None: the whole picture is as it was then."""
        self.refresh()
        if not self._changed:
            return None
        news = self.holders.keys() if self._news is None else self._news
        self._changed, self._news = False, set()
        return news

    def refresh(self) -> None:
        """Bring the picture up to date."""
        if not self.dirty:
            return
        gained, lost = self._edges.taken()
        if self._as_a_whole or self.twins or self.crowded:
            self._compute()
        else:
            self._shrink(lost)
            self._grow(gained)
        self.dirty = self._as_a_whole = False
        self._renewed.clear()

    def _shrink(self, lost: list[Edge]) -> None:
        """Links have gone. Whoever has lost its path from here has a link on that path with no detour, whose far end is looked at too."""
        for edge in lost:
            self._paths_due = self._changed = True
            if self._apart(edge.one, edge.other) is None:
                continue
            for end in (edge.one, edge.other):
                if end in self._reachable and (part := self._apart(end, self._own)) is not None:
                    self._lose(self._reachable - part if self._own in part else self._reachable & part)

    def _apart(self, one: Key, other: Key) -> set[Key] | None:
        """Of two that no path joins, all that one of them can reach; None if a path joins them.

        Two searches take turns, nearest first, so that both end early where there is a short detour or little beyond one of them.
        """
        found, beyond = {one}, deque([one])
        theirs, beyond_them = {other}, deque([other])
        if one == other:
            return None
        while beyond:
            for peer, _ in self._edges.of.get(beyond.popleft(), {}).values():
                if peer in theirs:
                    return None
                if peer not in found:
                    found.add(peer)
                    beyond.append(peer)
            found, beyond, theirs, beyond_them = theirs, beyond_them, found, beyond
        return found

    def _lose(self, gone: set[Key]) -> None:
        """These cannot be reached any more."""
        self._reachable -= gone
        for number, _ in gone:
            self.holders.pop(number, None)
            self.live &= ~(1 << number)

    def _grow(self, gained: list[Edge]) -> None:
        """Records are newer and links have come."""
        came: set[Key] = set()
        for edge in gained:
            for here, there in ((edge.one, edge.other), (edge.other, edge.one)):
                if here in self._reachable and there not in self._reachable:
                    came |= self._spread(there)
        for key in came | self._renewed:
            record = self.records.get(key)
            if record is None or key not in self._reachable:
                continue
            held = self.holders.get(key[0])
            self.holders[key[0]] = record
            self.live |= 1 << key[0]
            if held is None or (held.uuid, held.epoch, held.name) != (record.uuid, record.epoch, record.name):
                self._changed = True
                if self._news is not None:
                    self._news.add(key[0])
        if gained:
            self._paths_due = self._changed = True

    def _compute(self) -> None:
        """All of it."""
        self._left_out = set()
        self._reach()
        left_out: set[Key] = set()
        if self.twins:
            if self._take_over(self._reachable):
                self._reach()
            left_out = self._contested(self._reachable)
        self.holders, self.intruders = _hold(self.records, self._reachable - left_out)
        left_out |= {(i.number, i.uuid) for _, i in self.intruders}
        self._left_out = left_out
        if left_out:
            self._reach()
            self.holders = {number: r for number, r in self.holders.items() if (number, r.uuid) in self._reachable}
        self.live = 0
        for number, _ in self._reachable:
            self.live |= 1 << number
        self._news = None
        self._changed = self._paths_due = True
        self._edges.taken()

    def _reach(self) -> None:
        """Who can be reached."""
        self._reachable = {self._own}
        if self._own not in self._left_out:
            self._spread(self._own)

    def _spread(self, start: Key) -> set[Key]:
        """Who can be reached from here, and could not be before, can be now; who that is, this one included."""
        found = {start}
        self._reachable.add(start)
        todo = [start]
        while todo:
            for other, _ in self._edges.of.get(todo.pop(), {}).values():
                if other not in self._reachable and other not in self._left_out:
                    self._reachable.add(other)
                    found.add(other)
                    todo.append(other)
        return found

    def _picture(self) -> Graph:
        """The links between those that can be reached; of several between two, the latest."""
        graph: Graph = {}
        if self._own in self._left_out:
            return graph
        for key in self._reachable:
            ends = graph[key[0]] = {}
            for incarnation, (other, cost) in self._edges.of.get(key, {}).items():
                if other not in self._left_out and ends.get(other[0], (0, -1))[1] < incarnation:
                    ends[other[0]] = cost, incarnation
        return graph

    def _take_over(self, reachable: set[Key]) -> bool:
        """Have each UUID held by the one of its lives that can be reached, by lives.py where these are several; whether one has changed."""
        lives: dict[Key, list[Key]] = {}
        for twin in self.twins:
            lives.setdefault((twin[0], twin[1][:UUID_BYTES]), []).append(twin)
        changed = False
        for key, twins in lives.items():
            here = [node for node in (key, *twins) if node in reachable]
            holder = key if key == self._own else min(here, key=self._precedence, default=key)
            if holder == key:
                continue
            earlier = self.records.get(key)  # None: that life was forgotten, and the other one is heard of only now
            record = self.twins[holder]
            self._put(holder, None)
            self._put(key, record)
            if earlier is not None:
                self._put(self._twin_key(earlier), earlier)
            self.taken_over.append(key)
            changed = True
        return changed

    def _contested(self, reachable: set[Key]) -> set[Key]:
        """Which lives are left out of the picture because another one holds their UUID."""
        left_out = {twin for twin in self.twins if twin in reachable}
        self.contested = [self.twins[twin] for twin in sorted(left_out)]
        own = self._precedence(self._own) if self._own in self.records else None
        number, uuid = self._own
        if own is not None and any(t[0] == number and t[1].startswith(uuid) and self._precedence(t) < own for t in left_out):
            left_out.add(self._own)
        return left_out

    def _precedence(self, node: Key) -> tuple[Any, ...]:
        record = self.records.get(node) or self.twins[node]
        life = self._lives.life_at(record.number, record.uuid, record.epoch)
        return precedence(life) if life is not None else (False, 0, record.epoch, b"")

    def is_live(self, number: int, other_than: bytes) -> LinkRecord | None:
        """The reachable record of this number under another UUID than the given one."""
        self.refresh()
        record = self.holders.get(number)
        here = number != self._own[0] and self.live >> number & 1
        return record if record is not None and record.uuid != other_than and here else None

    def listed(self) -> list[tuple[int, int, int, bool]]:
        """All links that the newest record of each number lists, as (number, number, cost, used), the lower number first; sorted.

        used: both ends list it, and both can be reached. What is listed by one end alone is a link that the other has lost, as the last
        record of a broker that was killed lists those that it had, or one that is coming up. Records must be up to date (`refresh`).
        """
        newest = dict(self.holders)
        for record in self.records.values():
            held = newest.setdefault(record.number, record)
            if record.number not in self.holders and record.epoch > held.epoch:
                newest[record.number] = record
        costs: dict[tuple[int, int], dict[int, list[int]]] = {}
        for record in newest.values():
            for entry in record.links:
                pair = min(record.number, entry.peer), max(record.number, entry.peer)
                costs.setdefault(pair, {}).setdefault(entry.incarnation, []).append(entry.cost)
        found = []
        for (low, high), links in sorted(costs.items()):
            ends = max(links.values(), key=lambda seen: (len(seen), max(seen)))
            used = len(ends) == 2 and bool(self.live >> low & self.live >> high & 1)
            found.append((low, high, max(*ends, 1), used))
        return found


def _hold(records: dict[Key, LinkRecord], reachable: set[Key]) -> tuple[dict[int, LinkRecord], list[tuple[LinkRecord, LinkRecord]]]:
    """Who holds each number, and who intrudes."""
    holders: dict[int, LinkRecord] = {}
    intruders = []
    for record in sorted((records[key] for key in reachable if key in records), key=lambda r: (r.epoch, r.uuid)):
        holder = holders.setdefault(record.number, record)
        if holder is not record:
            intruders.append((holder, record))
    return holders, intruders


def shortest_paths(graph: Graph, root: int) -> dict[int, Path]:
    """Shortest paths from a root, nearest first; of equal ones the parent with the lowest number wins.

    Parents stand before their children in the result, which does not hold the root.
    """
    best: dict[int, Path] = {root: Path(root, 0, 0, 0)}
    order: dict[int, Path] = {}
    heap = [(0, root)]
    while heap:
        cost, number = heapq.heappop(heap)
        if number in order or cost > best[number].cost:
            continue
        order[number] = best[number]
        hops = best[number].hops + 1
        for other, (step, incarnation) in graph.get(number, {}).items():
            known = best.get(other)
            total = cost + step
            if known is None or total < known.cost:
                heapq.heappush(heap, (total, other))
            elif total > known.cost or number >= known.parent or other == root:
                continue
            best[other] = Path(number, incarnation, total, hops)
    del order[root]
    return order
