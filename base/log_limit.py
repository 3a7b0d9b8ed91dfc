"""Bounds the lines of a log by event: however often something happens, and whatever text peers put into it, a minute has few lines of it.

Whoever logs what strangers do bounds it by its source (`refusals.py`), so that one of them does not hide what others do. This stands
behind all of that, for what nobody has thought of: a record's event is its first word, `event=...`, which no peer chooses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

MOST = 200  # warnings and errors of one event...
MOST_TOLD = 6000  # ...and lines of a lower level, such as one for each client that connects...
MINUTE = 60.0  # ...within so many seconds
EVENTS = 500  # different ones that are counted; the rest counts as one
NOTE = "event=note"  # of records of libraries, which have no event


class PerMinute:
    """Counts what comes within a minute, by a key. keys: different ones of a minute that are counted; the rest counts as `rest`."""

    def __init__(self, keys: int, rest: str) -> None:
        self._keys, self._rest = keys, rest
        self._counts: dict[str, tuple[float, int]] = {}  # key -> since when, how many came

    def count(self, key: str, now: float, most: int) -> tuple[int, int]:
        """Count one: how many of its key came in this minute before it, and how many beyond `most` came in the one that has ended."""
        if key not in self._counts and len(self._counts) >= self._keys:
            self._counts = {one: said for one, said in self._counts.items() if now - said[0] < MINUTE}
            if len(self._counts) >= self._keys:
                key = self._rest
        since, before = self._counts.get(key, (now, 0))
        left_out = 0
        if now - since >= MINUTE:
            left_out, since, before = max(0, before - most), now, 0
        self._counts[key] = since, before + 1
        return before, left_out


class LogLimit(logging.Filter):
    """For a handler: lets MOST warnings and errors of an event a minute pass, and MOST_TOLD lines of lower levels. The last one says so;
    the first one of a later minute says how many were left out. Debugging is not bounded.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = PerMinute(EVENTS, NOTE)
        self._told = PerMinute(EVENTS, NOTE)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        if record.levelno < logging.INFO:
            return True
        try:
            text = record.getMessage()
        except Exception:
            return True  # wrong arguments: the handler says so
        event = text.partition(" ")[0] if text.startswith("event=") else NOTE
        counts, most = (self._counts, MOST) if record.levelno >= logging.WARNING else (self._told, MOST_TOLD)
        with self._lock:
            count, left_out = counts.count(event, self._clock(), most)
        if count >= most:
            return False
        if left_out:
            record.msg, record.args = f"{text} left_out={left_out}", ()
        elif count == most - 1:
            record.msg, record.args = f"{text} left_out=the-rest-of-this-minute", ()
        return True
