"""`SteadyClock`: the wall clock without its jumps, for times that are compared later, also in a later life of the broker.

A wall clock jumps: somebody sets it, a time service corrects it, the machine has slept. A session that may be away for half an hour, a
message that lives for ten seconds and a delay of five must not notice. So

- what is stored has the time of the steady clock, which goes on as if nothing had happened;
- it then approaches the wall clock, up to a tenth faster or slower than time passes, until both are the same again;
- how far it is from the wall clock is kept in the store, and the next life goes on from there;
- it never goes back, not even if the wall clock was set back while the broker was stopped;
- if it is more than a day behind, it follows at once: then time has passed.

What it does not know: which clocks these are, the store. The wall clock of a broker with queues that have several homes is that of their
database (`Context.reference`). Times are seconds.
"""

from __future__ import annotations

from typing import NamedTuple

PACE = 0.1  # how much faster or slower it may be than time passes
CLOSE = 1.0  # seconds in which a small difference is to be gone
JUMP = 2.0  # seconds that are a jump: less is an adjustment
DAY = 86_400.0


class Noted(NamedTuple):
    """What a life leaves to the next. steady: the time of its last note. behind: by how much the wall clock was ahead of it."""

    steady: float
    behind: float


class SteadyClock:
    """See the module."""

    __slots__ = ("_at", "_base", "_gap", "_pace")

    def __init__(self, now: float, wall: float) -> None:
        """now: of a clock that does not jump. wall: the wall clock then."""
        self._at, self._base, self._pace, self._gap = now, wall, 1.0, wall - now

    def time(self, now: float) -> float:
        """Seconds since 1970, but for jumps."""
        return self._base + (now - self._at) * self._pace

    def offset(self, now: float) -> float:
        """Seconds from the clock of `now` to this one."""
        return self.time(now) - now

    def resume(self, noted: Noted, now: float, wall: float) -> float:
        """Go on where an earlier life was. How far the wall clock was set back, at least, since that; 0.0: not."""
        self._set(max(wall - noted.behind, noted.steady), now, wall)
        return min(0.0, wall - (noted.steady + noted.behind))

    def look(self, now: float, wall: float) -> float:
        """To be called every now and then. How far the wall clock has jumped since the last call; 0.0: not."""
        jumped = wall - now - self._gap
        self._set(self.time(now), now, wall)
        return jumped if abs(jumped) >= JUMP else 0.0

    def noted(self, now: float, wall: float) -> Noted:
        """What the store is to keep."""
        steady = self.time(now)
        return Noted(steady, wall - steady)

    def _set(self, steady: float, now: float, wall: float) -> None:
        if wall - steady > DAY:
            steady = wall
        pace = (wall - steady) / CLOSE
        self._at, self._base, self._gap = now, steady, wall - now
        self._pace = 1.0 + max(-PACE, min(PACE, pace))
