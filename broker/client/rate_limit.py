"""How many messages a second one client may send: beyond, its socket is not read for a while.

Looked at once a piece of bytes, never for a message. A bucket holds one second's messages, so that bursts pass; one piece may overdraw it,
and then nothing is read until that has been made up for. The client notices only that sending takes longer: TCP holds it back.
"""

from __future__ import annotations

LONGEST = 10.0  # seconds until it is looked whether the client is still there
SHORTEST = 0.02  # seconds that a pause has at least, so that few are needed


class Throttle:
    """rate: messages a second. now: seconds. taken: messages that the connection has taken so far."""

    __slots__ = ("_at", "_rate", "_taken", "_tokens")

    def __init__(self, rate: int, now: float, taken: int) -> None:
        self._rate = rate
        self._tokens = float(rate)
        self._at = now
        self._taken = taken

    def look(self, now: float, taken: int) -> float:
        """Seconds to wait before more is read; 0: read on."""
        earned = self._tokens + (now - self._at) * self._rate
        self._tokens = min(float(self._rate), earned) - (taken - self._taken)
        self._at = now
        self._taken = taken
        return 0.0 if self._tokens > 0 else min(LONGEST, max(SHORTEST, -self._tokens / self._rate))

    @property
    def allowance(self) -> float:
        """The connection's messages in all until which nothing needs to be looked at."""
        return self._taken + max(0.0, self._tokens)
