"""How many entities an account may write in a time: a burst, and then so many a second. Leases that are renewed do not count.

What a request writes is known when it is done, so it is charged afterwards: an account may go below nothing once, and then waits.
"""

from __future__ import annotations

from ...base.cache import Cache

BURST = 20_000.0  # entities at once: all that an account may own, twice
RATE = 200.0  # entities a second
REMEMBERED = 10_000  # accounts


class Rates:
    """Those of one directory process. rate: entities a second, 0 for no bound. burst: entities at once."""

    def __init__(self, rate: float = RATE, burst: float = BURST) -> None:
        self._rate, self._burst = rate, burst
        self._levels: Cache[str, tuple[float, float]] = Cache(REMEMBERED)  # account -> what is left, when that was so

    def wait(self, account: str, now: float) -> float:
        """Seconds until an account may write again; 0: now."""
        level = self._level(account, now)
        return 0.0 if level > 0 or not self._rate else (1 - level) / self._rate

    def charge(self, account: str, entities: int, now: float) -> None:
        """An account has written."""
        if entities and self._rate:
            self._levels.keep(account, (self._level(account, now) - entities, now))

    def _level(self, account: str, now: float) -> float:
        level, since = self._levels.get(account, (self._burst, now))
        return min(self._burst, level + (now - since) * self._rate)
