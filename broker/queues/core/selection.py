"""What members with one selector may take of a lane. Each message is looked at once, in the order of the lane.

    ready     parts with messages that were not looked at, and how far each of them was
    again     messages behind that which may be taken again: they were returned, or have a priority of their own

A message that does not fit is passed over, and looked at again only if it was taken and returned. So nobody else is held back, and a look
costs what is new. How much is looked at in a row, the caller says.

What it does not know: selectors, who is asked next.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from .blocks import APART, FREE, SPARE, Lane, Meta, Part

Fits = Callable[[Meta, int], bool]  # what its publisher said of a message, and its priority now
Single = tuple[int, int, Part, int]  # priority below 0, position, part, index


def cost(selector: str, meta: Meta) -> int:
    """For how many usual looks one counts. A pattern of LIKE may compare each of its characters with each of a message's property."""
    said = len(meta.properties)
    return 1 + len(selector) // 64 + said // 128 + len(selector) * said // 32_768


class Found(NamedTuple):
    """A message that fits. key: as `Lane.next`."""

    key: tuple[int, int]
    part: Part
    at: int


class Looks:
    """How many messages are still looked at before everybody else has a turn; some count for several (`cost`)."""

    def __init__(self, left: int = 0) -> None:
        self.left = left


class Selection:
    """See the module. users: numbers of members that have this selector, and are here."""

    __slots__ = ("_again", "_again_most", "_cursors", "_lane", "_noted", "_ready", "_selector", "fits", "users")

    def __init__(self, lane: Lane, selector: str, fits: Fits) -> None:
        self.fits = fits
        self._selector = selector
        self.users: set[int] = set()
        self._lane = lane
        self.start()

    def start(self) -> None:
        """Look at all that may be taken, from the beginning."""
        self._ready = list(self._lane.ready)
        self._cursors = {part: part.cursor for _, _, part in self._ready}
        self._again: list[Single] = list(self._lane.apart)
        self._noted = set(self._again)
        self._again_most = 2 * len(self._again) + SPARE

    def add(self, part: Part, start: int, count: int) -> None:
        """Messages may be taken that could not before."""
        at = part.states.find(APART, start, start + count)
        while at >= 0:
            self.look_again(part, at)
            at = part.states.find(APART, at + 1, start + count)
        cursor = self._cursors.get(part)
        if cursor is None and not start and count == part.block.count:
            self._cursors[part] = 0
            heapq.heappush(self._ready, (-part.block.key.priority, part.block.first, part))
            self._prune()
            return
        for at in range(start, start + count if cursor is None else min(start + count, cursor)):
            self.look_again(part, at)

    def look_again(self, part: Part, at: int) -> None:
        """A message is to be looked at by itself."""
        single = (-part.block.priority_of(at), part.block.first + at, part, at)
        if single not in self._noted:
            self._noted.add(single)
            heapq.heappush(self._again, single)
            if len(self._again) > self._again_most:
                self._again = [one for one in self._again if _stands(one)]
                heapq.heapify(self._again)
                self._noted = set(self._again)
                self._again_most = 2 * len(self._again) + SPARE

    def _prune(self) -> None:
        """Let go of parts that others have taken."""
        if len(self._ready) > 2 * self._lane.blocks + SPARE:
            self._ready = [one for one in self._ready if one[2].free]
            heapq.heapify(self._ready)
            self._cursors = {part: self._cursors[part] for _, _, part in self._ready}

    def next(self, looks: Looks, mine: Callable[[Meta], bool]) -> Found | None:
        """The first message that fits; None: there is none, or nothing is left of `looks`. mine: whether its message group may go there."""
        while looks.left > 0:
            first, single = self._first(), self._single()
            if single is not None and (first is None or single[:2] < first.key):
                first = Found(single[:2], single[2], single[3])
            elif first is None:
                return None
            else:
                single = None
            meta = first.part.block.meta(first.at)
            looks.left -= cost(self._selector, meta)
            if mine(meta) and self.fits(meta, -first.key[0]):
                return first
            if single is None:
                self._cursors[first.part] = first.at + 1
            else:
                self._drop_single()
        return None

    def _first(self) -> Found | None:
        """The first message that was not looked at."""
        while self._ready:
            priority, _, part = self._ready[0]
            at = part.states.find(FREE, self._cursors[part])
            if at >= 0:
                self._cursors[part] = at
                return Found((priority, part.block.first + at), part, at)
            heapq.heappop(self._ready)
            del self._cursors[part]
        return None

    def _single(self) -> Single | None:
        """The first message that is looked at by itself."""
        while self._again and not _stands(self._again[0]):
            self._drop_single()
        return self._again[0] if self._again else None

    def _drop_single(self) -> None:
        self._noted.discard(heapq.heappop(self._again))


def _stands(one: Single) -> bool:
    """Whether a message may still be taken with the priority that it had when it was noted."""
    priority, _, part, at = one
    return part.states[at] in (FREE, APART) and part.block.priority_of(at) == -priority
