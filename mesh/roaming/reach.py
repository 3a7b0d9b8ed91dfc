"""Members that come in reach or go out of it: what that means for each client here, for a few of them at a time.

When a member comes in reach, each client that it has not been asked for is claimed there; there may be a hundred thousand. At once that
would hold this broker for seconds, and that one, so that their link would count as silent. So it goes in *rounds* of small portions, and
the next portion waits until the one before is answered, or for `PATIENCE`. Clients whose connections wait come first.

A client that no round has come to yet is as if the member were still out of reach, or had just gone: nothing is lost by it, and what else
happens to the client meanwhile finds it like that.

Invariant: a member has one round at most for each of the two, and none that claims once it is out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import wire
from .asking import Asking
from .names import Places
from .places import NO_KEY, Place
from .port import Port
from .wire import Claim

PORTION = 20  # clients of one portion that something is done for
LOOKS = 500  # clients of one portion that are looked at
PATIENCE = 0.25  # seconds


class Round:
    """One member's. steps: its portions, each with the last place that is claimed there, if any."""

    __slots__ = ("asked", "bit", "steps", "until")

    def __init__(self, bit: int, steps: Iterator[Place | None]) -> None:
        self.bit = bit
        self.steps = steps
        self.asked: Place | None = None
        self.until = 0.0  # when it waits no longer for the answer


class Reach:
    """One broker's.

    fence: asks a broker (as a set) for the marker of a place. save: keeps a place. resolved: its client waits for one member less.
    """

    def __init__(
        self,
        places: Places,
        asking: Asking,
        port: Port,
        fence: Callable[[Place, int], None],
        save: Callable[[Place], None],
        resolved: Callable[[Place], None],
    ) -> None:
        self._places = places
        self._asking = asking
        self._port = port
        self._fence = fence
        self._save = save
        self._resolved = resolved
        self._rounds: dict[tuple[int, bool], Round] = {}  # (member, whether it is in reach); the next one first

    def __len__(self) -> int:
        """Rounds that are under way."""
        return len(self._rounds)

    def up(self, number: int) -> None:
        """A member is in reach."""
        bit = 1 << number
        for place in self._places.values():
            if place.waiting and not place.asked & bit:
                place.waiting |= bit  # a client that waits still, or comes now, waits for its answer too
        self._rounds[number, True] = Round(bit, self._claimed(bit))

    def down(self, number: int) -> None:
        """A member is out of reach: nobody waits for it."""
        self._rounds.pop((number, True), None)
        bit = 1 << number
        found = [place for place in self._places.values() if place.waiting & bit]
        for place in found:
            place.waiting &= ~bit
        if found:
            self._rounds[number, False] = Round(bit, self._told(found))

    def go_on(self, now: float) -> bool:
        """Do a portion of one round, if none of them has to wait. Whether there is something left to do."""
        for key, one in list(self._rounds.items()):
            place = one.asked
            if place is not None and now < one.until and self._is_here(place) and not place.asked & one.bit:
                continue
            del self._rounds[key]
            for last in one.steps:
                one.asked, one.until = last, now + PATIENCE
                self._rounds[key] = one
                break
            break
        return bool(self._rounds)

    def _is_here(self, place: Place) -> bool:
        return self._places.get(place.client) is place

    def _claimed(self, bit: int) -> Iterator[Place | None]:
        """Claim what a member may have, ask for markers that it has not set."""
        claims: list[Claim] = []
        looked = done = 0
        last = None
        for place in dict.fromkeys([*self._asking, *self._places.values()]):
            if not self._is_here(place):
                continue
            looked += 1
            if not place.asked & bit:
                claims += place.claims
                place.claimed |= bit
                self._save(place)
                last = place
                done += 1
            if place.pending == NO_KEY and (place.sources or (place.cut.fenced and not place.cut.marked(bit))):
                self._fence(place, bit)
                done += 1
            if done >= PORTION or looked >= LOOKS:
                self._send(bit, claims)
                yield last
                claims, last, looked, done = [], None, 0, 0
        self._send(bit, claims)

    def _send(self, bit: int, claims: list[Claim]) -> None:
        if claims:
            self._port.send_to_brokers(bit, wire.CLAIM, wire.encode_claims(claims))

    def _told(self, found: list[Place]) -> Iterator[None]:
        for count, place in enumerate(found, 1):
            if self._is_here(place):
                self._resolved(place)
            if not count % PORTION:
                yield
