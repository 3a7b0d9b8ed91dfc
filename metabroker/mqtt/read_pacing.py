"""Decides when to read a connection in fewer and larger pieces. No I/O.

A broker that writes each message separately wakes the metabroker for each of them, the metabroker wakes the next broker, and so on: most
of the work is waking up. When messages come fast, the reader rests for a moment after each piece and then takes everything that came
meanwhile. A rest costs each message up to `REST` seconds, so it is done only while it pays. A rest that brings fewer than `ENOUGH`
messages shows that the sender waits for us; then there are no rests for a while, twice as long each time.
"""

from __future__ import annotations

from ...base.backoff import Backoff

REST = 0.001  # seconds
FAST = 8_000  # messages and acknowledgements a second
LOOK = 0.01  # seconds over which that is measured
ENOUGH = 8  # messages
LARGE = 32_768  # bytes that come at once: no need to wait for more
PAUSES = (0.05, 3.2)  # seconds without rests: first, longest


class ReadPacing:
    """Of one connection."""

    def __init__(self) -> None:
        self._messages = 0
        self._since = 0.0
        self._rested = False
        self._not_before = 0.0
        self._backoff = Backoff(*PAUSES)

    def rests(self, messages: int, size: int, now: float) -> bool:
        """Whether to rest now. messages: and acknowledgements in the last piece, of `size` bytes."""
        if size >= LARGE:
            self._rested = False
            return False
        if self._rested:
            if messages >= ENOUGH:
                self._backoff.reset()
                return True
            self._rested = False
            self._not_before = now + self._backoff.next()
            return False
        self._messages += messages
        passed = now - self._since
        if passed < LOOK:
            return False
        self._rested = self._messages >= FAST * passed and now >= self._not_before
        self._messages, self._since = 0, now
        return self._rested
