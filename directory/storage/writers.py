"""Writers of one process take turns: in the order in which they come, those of leases before the others.

The databases have locks of their own, for several processes. SQLite's goes to whoever asks at the right moment, so that one who writes
without a pause could keep others out for as long as they wait.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator
from itertools import count
from threading import Condition


class TooLate(Exception):
    """It is not this writer's turn soon."""


class WriterTurns:
    """Of one store."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: list[tuple[int, int]] = []
        self._numbers = count()
        self._busy = False

    @contextlib.contextmanager
    def turn(self, first: bool, patience: float) -> Iterator[None]:
        """Wait for the turn. first: before all that are not. patience: in seconds. Raises TooLate."""
        with self._changed:
            ticket = (0 if first else 1, next(self._numbers))
            heapq.heappush(self._waiting, ticket)
            mine = self._changed.wait_for(lambda: not self._busy and self._waiting[0] == ticket, patience)
            self._waiting.remove(ticket)
            heapq.heapify(self._waiting)
            if not mine:
                self._changed.notify_all()
                raise TooLate
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
