"""The states of sessions that have declared nothing: a slow scan, a slice of the sessions at a time. It only shows; nothing fails over.

A session is shown in FAULT when it has something to take, and nothing of it has moved for the fault interval. What is kept in memory is one
entry for each session that has something to take and does not move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..session.session import Session

SLICE = 500  # sessions looked at in one turn


class Sampler:
    """The scan of one broker. sessions: all of them. skip: whether one is watched already. interval: seconds without progress."""

    def __init__(self, sessions: Iterable[Session], skip: Callable[[Session], bool], interval: float) -> None:
        self._sessions = sessions
        self._skip = skip
        self._interval = interval
        self._left: Iterator[Session] = iter(())
        self._still: dict[Session, tuple[tuple[int, int, int], float]] = {}  # session -> (what it had, since when)
        self._next: dict[Session, tuple[tuple[int, int, int], float]] = {}

    def look(self, now: float) -> int:
        """Look at the next sessions: how many. A new round begins behind the last one."""
        part = list(islice(self._left, SLICE))
        if not part:
            self._still, self._next = self._next, {}
            self._left = iter(list(self._sessions))
            return 0
        for session in part:
            waiting = session.queued + session.outbound.in_flight
            if not waiting or session.client_id.startswith("\0") or self._skip(session):
                continue
            sign = (session.queued, session.outbound.in_flight, session.outbound._serial)
            known = self._still.get(session)
            self._next[session] = known if known is not None and known[0] == sign else (sign, now)
        return len(part)

    def faulty(self, now: float) -> list[str]:
        """The client identifiers of those that take nothing."""
        return [session.client_id for session, (_, since) in self._still.items() if now - since >= self._interval]
