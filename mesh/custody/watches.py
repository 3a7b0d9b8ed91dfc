"""Watches: which brokers have the messages of one published run, for a publisher that wants to know.

Custody knows it already; a watch remembers it beyond the entry's end and says when nobody is waited for any more. Only runs that
somebody asked for are watched (`Node.watch`, right behind `Node.publish`); the others cost one look at an empty dictionary.

A run travels in *legs*: one for each entry that it was put into, and one more whenever a shared subscription's message is picked
again for another broker, as that is a new entry. A leg is *open* for the brokers that owe the receipt. It *awaits* those of
them that hold an acknowledgement back: all that were reachable when it began. Who gets out of reach is awaited no more, and not
again when it comes back; it stays open.

Invariants
- a watch is finished once, and then for good: none of its legs awaits anybody;
- `standing` speaks of one message: of a leg that a receipt covers in part only the messages above the receipt are open.

It does not know acknowledgements, clients or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..wire.control import Position
from ..wire.visited import numbers

if TYPE_CHECKING:
    from .custody import Destination, Entry


class Standing(NamedTuple):
    """Where one message stands: who has it, who owes the receipt (sets of brokers), and who will not get it, with the reason."""

    received: int
    awaited: int
    lost: dict[int, str]


class Leg:
    """Messages `start` to `stop` - 1 of a watched run, in one entry.

    epoch, sequence: of the first of them. not_there: for some of them, (start, stop, broker, reason); without a reason another leg serves
    them instead.
    """

    __slots__ = ("awaited", "epoch", "got", "not_there", "open", "sequence", "start", "stop")

    def __init__(self, start: int, stop: int, at: Position, brokers: int, awaited: int) -> None:
        self.start = start
        self.stop = stop
        self.epoch, self.sequence = at
        self.open = brokers
        self.awaited = brokers & awaited
        self.got = 0
        self.not_there: list[tuple[int, int, int, str]] = []


class Watch:
    """One published run of `count` messages, (epoch, first) and those behind it. owner: whatever the one who watches puts there."""

    __slots__ = ("count", "done", "epoch", "first", "legs", "owner", "time")

    def __init__(self, epoch: int, first: int, count: int, time: int) -> None:
        self.epoch = epoch
        self.first = first
        self.count = count
        self.time = time  # of publishing, ms since 1970
        self.legs: list[Leg] = []
        self.done = False
        self.owner: Any = None


class Watches:
    """All watches of one origin. legs: of entries in custody, by the entry's position. finished: since somebody looked last."""

    def __init__(self) -> None:
        self.legs: dict[Position, tuple[Watch, Leg]] = {}
        self.finished: list[Watch] = []

    def begin(self, entries: list[Entry], reachable: int) -> Watch:
        """Watch what was just published: these entries, whose sequences follow each other."""
        first, last = entries[0], entries[-1]
        watch = Watch(first.epoch, first.first, last.last[1] - first.first + 1, first.time)
        for entry in entries:
            start = entry.first - first.first
            self._add(watch, Leg(start, start + entry.count, (entry.epoch, entry.first), entry.open, reachable), entry)
        self._look(watch)
        return watch

    def _add(self, watch: Watch, leg: Leg, entry: Entry) -> None:
        watch.legs.append(leg)
        self.legs[entry.epoch, entry.first] = watch, leg

    def _look(self, watch: Watch) -> None:
        if not watch.done and not any(leg.awaited for leg in watch.legs):
            watch.done = True
            self.finished.append(watch)

    # ---- what happens to entries

    def closed(self, entry: Entry, bit: int, settled: bool) -> None:
        """A broker owes nothing for an entry any more. settled: it has it."""
        found = self.legs.get((entry.epoch, entry.first))
        if found is None:
            return
        watch, leg = found
        leg.open &= ~bit
        leg.awaited &= ~bit
        if settled:
            leg.got |= bit
        if not leg.open:
            del self.legs[entry.epoch, entry.first]
        self._look(watch)

    def closed_between(self, first: Position, last: Position, bit: int, settled: bool) -> None:
        """The same for all entries from one position to another."""
        for position, (watch, leg) in list(self.legs.items()):
            if first <= position <= last and leg.open & bit:
                leg.open &= ~bit
                leg.awaited &= ~bit
                if settled:
                    leg.got |= bit
                if not leg.open:
                    del self.legs[position]
                self._look(watch)

    def lost_between(self, first: Position, last: Position, number: int, reason: str) -> None:
        """A broker will not get the messages of entries from one position to another."""
        for position, (_, leg) in self.legs.items():
            if first <= position <= last and leg.open >> number & 1:
                leg.not_there.append((leg.start, leg.stop, number, reason))

    def split(self, entry: Entry, parts: list[Entry]) -> None:
        """An entry has become others, each of one message, for the same brokers."""
        found = self.legs.pop((entry.epoch, entry.first), None)
        if found is None:
            return
        watch, old = found
        watch.legs.remove(old)
        for index, part in enumerate(parts, old.start):
            leg = Leg(index, index + 1, (part.epoch, part.first), old.open, old.awaited)
            leg.got, leg.not_there = old.got, list(old.not_there)
            self._add(watch, leg, part)

    def lost(self, entry: Entry, number: int, reason: str, offset: int = 0, count: int | None = None, had: int = 0) -> None:
        """A broker will not get some messages of an entry. had: it has so many of the first ones."""
        found = self.legs.get((entry.epoch, entry.first))
        if found is None:
            return
        watch, leg = found
        start = leg.start + max(offset, had)
        leg.not_there.append((start, leg.stop if count is None else start + count, number, reason))
        if had > 0:
            watch.legs.append(Leg(leg.start, start, (entry.epoch, entry.first), 0, 0))
            watch.legs[-1].got = 1 << number

    def moved(self, entry: Entry, offset: int, fresh: Entry, instead: int | None, reachable: int) -> None:
        """Messages of an entry, from `offset` on, are in a fresh one for another broker. instead: who serves them no more; None: nobody."""
        found = self.legs.get((entry.epoch, entry.first))
        if found is not None:
            watch, old = found
            leg = Leg(old.start + offset, old.start + offset + fresh.count, (fresh.epoch, fresh.first), fresh.open, reachable)
            self._add(watch, leg, fresh)
            self._leave(old, leg, instead)

    def served(self, entry: Entry, offset: int, count: int, bit: int, instead: int | None) -> None:
        """Messages of an entry are served by a member of this very broker."""
        found = self.legs.get((entry.epoch, entry.first))
        if found is not None:
            watch, old = found
            leg = Leg(old.start + offset, old.start + offset + count, (entry.epoch, entry.first), 0, 0)
            leg.got = bit
            watch.legs.append(leg)
            self._leave(old, leg, instead)

    @staticmethod
    def _leave(old: Leg, new: Leg, number: int | None) -> None:
        if number is not None:
            old.not_there.append((new.start, new.stop, number, ""))

    def away(self, number: int) -> None:
        """A broker cannot be reached: it holds nothing back."""
        bit = 1 << number
        for watch, leg in list(self.legs.values()):
            if leg.awaited & bit:
                leg.awaited ^= bit
                self._look(watch)

    def take(self) -> Iterable[Watch]:
        """The watches that were finished since the last time."""
        finished, self.finished = self.finished, []
        return finished


def standing(watch: Watch, index: int, destinations: Mapping[int, Destination]) -> Standing:
    """Where the message with this index stands."""
    received = awaited = 0
    lost: dict[int, str] = {}
    for leg in watch.legs:
        if not leg.start <= index < leg.stop:
            continue
        not_there = {number: reason for start, stop, number, reason in leg.not_there if start <= index < stop}
        at = (leg.epoch, leg.sequence + index - leg.start)
        for number in numbers(leg.open | leg.got):
            d = destinations.get(number)
            if number in not_there:
                continue
            if leg.got >> number & 1 or (d is not None and d.settled >= at):
                received |= 1 << number
            else:
                awaited |= 1 << number
        lost.update({number: reason for number, reason in not_there.items() if reason})
    awaited &= ~received
    return Standing(received, awaited, {number: reason for number, reason in lost.items() if not (received | awaited) >> number & 1})


__all__ = ["Standing", "Watch", "Watches", "standing"]
