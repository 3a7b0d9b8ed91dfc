"""Whose secret is compared next, in the threads of one directory: the rules are those of `base/logins.py`.

A thread waits for its turn for a moment only, so that guesses do not use up the threads; after that, and while a name's pause is longer,
the answer is that the directory is busy. A secret that was right is remembered by its keyed hash, with the hash that the database has
of it: comparing it again costs nothing, and another secret of the account makes it wrong.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from threading import Condition

from ...base.cache import Cache
from ...base.logins import Logins

WAITING = 16  # threads that wait at most, of the 40 that there are
TOGETHER = 2  # comparisons at a time: each takes 64 MiB
PATIENCE = 2.0  # seconds
REMEMBERED = 1000


class TooMany(Exception):
    """It is not this login's turn soon."""


class LoginTurns:
    """Of one directory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = Condition()
        self._logins: Logins[object] = Logins(WAITING, TOGETHER)
        self._granted: set[object] = set()
        self._refused: set[object] = set()
        self._key = secrets.token_bytes(32)
        self._right: Cache[bytes, None] = Cache(REMEMBERED)

    def compare(self, source: str, name: str, hashed: str, secret: str, right: Callable[[], bool]) -> bool:
        """Whether a secret is right. source: the address that asks. hashed: what the database has. right: compares. Raises TooMany."""
        digest = hmac.digest(self._key, f"{hashed}\0{secret}".encode("utf-8", "surrogatepass"), "sha256")
        with self._changed:
            if digest in self._right:
                return True
            ticket = object()
            self._wait(ticket, source, name)
        good = False
        try:
            good = right()
        finally:
            with self._changed:
                self._granted.discard(ticket)
                self._logins.done(ticket, good, self._clock())
                if good:
                    self._right.keep(digest, None)
                self._changed.notify_all()
        return good

    def _wait(self, ticket: object, source: str, name: str) -> None:
        """Wait for the turn; the lock is held. Raises TooMany."""
        logins, until = self._logins, self._clock() + PATIENCE
        if logins.pause(source, name, self._clock()) > PATIENCE:
            raise TooMany
        gone = logins.ask(ticket, source, name)
        if gone is not None and gone is not ticket:
            self._refused.add(gone)
            self._changed.notify_all()
        while gone is not ticket and ticket not in self._refused:
            while (granted := logins.take(self._clock())) is not None:
                self._granted.add(granted)
                self._changed.notify_all()
            if ticket in self._granted:
                return
            now = self._clock()
            if now >= until:
                logins.withdraw(ticket)
                break
            at = logins.next_time(now)
            self._changed.wait((until if at is None else min(until, at)) - now)
        self._refused.discard(ticket)
        raise TooMany
