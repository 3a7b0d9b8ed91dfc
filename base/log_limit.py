"""Bounds the lines of a log by event: however often something happens, and whatever text peers put into it, a minute has few lines of it.

Whoever logs what strangers do bounds it by its source (`refusals.py`), so that one of them does not hide what others do. This stands
behind all of that, for what nobody has thought of: a record's event is its first word, `event=...`, which no peer chooses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

MOST = 200  # lines of one event...
MINUTE = 60.0  # ...within so many seconds
EVENTS = 500  # different ones that are counted; the rest counts as one
NOTE = "event=note"  # of records of libraries, which have no event


class LogLimit(logging.Filter):
    """For a handler: lets MOST warnings and errors of an event a minute pass. The last one says so; the first one of a later
    minute says how many were left out. Lower levels pass: they are left out by the level.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[float, int]] = {}  # event -> since when, how many came

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        if record.levelno < logging.WARNING:
            return True
        try:
            text = record.getMessage()
        except Exception:
            return True  # wrong arguments: the handler says so
        event = text.partition(" ")[0] if text.startswith("event=") else NOTE
        now = self._clock()
        with self._lock:
            counts = self._counts
            if event not in counts and len(counts) >= EVENTS:
                event = NOTE
            since, count = counts.get(event, (now, 0))
            if now - since >= MINUTE:
                left_out, since, count = max(0, count - MOST), now, 0
            else:
                left_out = 0
            counts[event] = since, count + 1
        if count >= MOST:
            return False
        if left_out:
            record.msg, record.args = f"{text} left_out={left_out}", ()
        elif count == MOST - 1:
            record.msg, record.args = f"{text} left_out=the-rest-of-this-minute", ()
        return True
