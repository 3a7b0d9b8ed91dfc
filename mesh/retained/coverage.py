"""What a site has *heard*: for each origin, up to which time it has everything that was ever retained there.

A topic that is not here says nothing by itself: it may be new elsewhere, or it was here and has been deleted and forgotten. What has
been heard tells the two apart. An origin *promises*, when it compares records with a neighbour, that none of its later keys will
be at or below a time. A site that has reconciled with a neighbour has heard all that the neighbour had heard when they began. So

    key not here, but heard      -> it was here, or what replaced it was: it is gone for good
    key not here, and not heard  -> it is news

From what each member has heard of each member follows what all members have of all: the *stable* time. Below it buried records
need not be kept. Each site works out one number, the lowest time that it has heard of any member, and the sites
pass these numbers on; the lowest of them is the stable time.

Origins are told apart by (number, born): each life of a broker is another origin. A broker that kept its memory *closes* its earlier
lives: it has all that they ever said, so they count as heard to the end. Of lives that nobody closes the `LIVES_KEPT` latest are kept.

It does not know records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .record import HIGHEST_TIME, Key

LIVES_KEPT = 4

Source = tuple[int, int]  # number, born


class Heard(NamedTuple):
    """All keys of this origin up to this time; at `HIGHEST_TIME`, this and all earlier lives are closed."""

    number: int
    born: int
    time: int


class Floor(NamedTuple):
    """A member's word: at its own time `at` it had heard every member up to `time`."""

    number: int
    born: int
    at: int
    time: int


class Vector:
    """How far each origin has been heard."""

    def __init__(self, entries: Iterable[Heard] = ()) -> None:
        self._heard: dict[Source, int] = {}
        self._lives: dict[int, list[int]] = {}  # by number, ascending: those in `_heard`
        self._closed: dict[int, int] = {}  # by number: this life and all before it
        self.merge(entries)

    def entries(self) -> list[Heard]:
        """All of it."""
        closed = [Heard(number, born, HIGHEST_TIME) for number, born in self._closed.items()]
        return closed + [Heard(number, born, time) for (number, born), time in self._heard.items()]

    def covers(self, key: Key) -> bool:
        """Whether everything of the key's origin up to it has been heard."""
        time = self._heard.get((key.origin, key.born))
        if time is not None:
            return key.time <= time
        return key.born <= self._closed.get(key.origin, -1)

    def born(self, number: int) -> int | None:
        """The latest life of a number."""
        lives = self._lives.get(number)
        return lives[-1] if lives else self._closed.get(number)

    def of(self, number: int) -> int:
        """How far the latest life of a number has been heard; -1: not at all."""
        lives = self._lives.get(number)
        return self._heard[number, lives[-1]] if lives else -1

    def merge(self, entries: Iterable[Heard]) -> None:
        """Take over what is further."""
        for number, born, time in entries:
            if time >= HIGHEST_TIME:
                self._close(number, born)
            elif (number, born) in self._heard:
                self._heard[number, born] = max(time, self._heard[number, born])
            elif born > self._closed.get(number, -1):
                lives = self._lives.setdefault(number, [])
                lives.append(born)
                lives.sort()
                self._heard[number, born] = time
                if len(lives) > LIVES_KEPT:
                    self._close(number, lives[0])

    def _close(self, number: int, born: int) -> None:
        if born > self._closed.get(number, -1):
            self._closed[number] = born
            lives = self._lives.get(number, [])
            while lives and lives[0] <= born:
                del self._heard[number, lives.pop(0)]


class Coverage:
    """This site's vector, the members, and what they say about theirs."""

    def __init__(self, number: int) -> None:
        self.vector = Vector()
        self.members = frozenset((number,))
        self._number = number
        self._floors: dict[int, Floor] = {}

    def floors(self) -> list[Floor]:
        """The last word of each member that is known."""
        return list(self._floors.values())

    def merge_floors(self, floors: Iterable[Floor]) -> None:
        """Take over what is newer."""
        for floor in floors:
            known = self._floors.get(floor.number)
            if known is None or (floor.born, floor.at) > (known.born, known.at):
                self._floors[floor.number] = floor

    def floor(self) -> int:
        """Up to which time this site has heard every member; -1: one of them not at all."""
        return min(self.vector.of(number) for number in self.members)

    def say(self, born: int, at: int) -> None:
        """This site's own word, as of its own time."""
        self._floors[self._number] = Floor(self._number, born, at, max(self.floor(), 0))

    def stable(self) -> int:
        """Up to which time every member has everything; -1 when that is not known."""
        lowest = None
        for number in self.members:
            floor = self._floors.get(number)
            if floor is None or floor.born != self.vector.born(number):
                return -1
            lowest = floor.time if lowest is None else min(lowest, floor.time)
        return -1 if lowest is None else lowest
