"""Long walks over a broker's state, in slices between which the loop serves everybody else.

A slice is much shorter than those of clients' work (`broker/turns.py`): a walk over a million rows takes hundreds of them, and a message
that comes meanwhile must not wait for more than a fraction of a millisecond. Walks take turns; more than `WAITING` are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any

from .errors import Refused

log = logging.getLogger("mqmesh.broker")

SLICE = 0.00015  # seconds
WAITING = 64  # walks at one time
BUSY = "too many requests wait: ask again later"

Walk = Generator[None, None, Any]
Then = Callable[[Any, Refused | None], None]  # (result, None), or (None, why not)


class Slices:
    """The walks of one broker. before, after: called around what follows a walk."""

    def __init__(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        self._before = before
        self._after = after
        self._walks: deque[tuple[Walk, Then]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, loop: asyncio.AbstractEventLoop, walk: Walk, then: Then) -> None:
        """Go on with a walk until its end; then `then` gets what it returns. Raises Refused while too many are under way."""
        if len(self._walks) >= WAITING:
            raise Refused(BUSY)
        self._walks.append((walk, then))
        if self._loop is None:
            self._loop = loop
            loop.call_soon(self._slice)

    def stop(self) -> None:
        """No walk goes on."""
        self._walks.clear()

    def _slice(self) -> None:
        loop, self._loop = self._loop, None
        if not self._walks or loop is None:
            return
        walk, then = self._walks.popleft()
        end = perf_counter() + SLICE
        try:
            while perf_counter() < end:
                next(walk)
        except StopIteration as stop:
            self._finish(then, stop.value, None)
        except Refused as refused:
            self._finish(then, None, refused)
        except Exception:
            log.exception("event=internal-error work=management")
            self._finish(then, None, Refused("internal error: the log of the broker says more"))
        else:
            self._walks.append((walk, then))
        if self._walks and self._loop is None:
            self._loop = loop
            loop.call_soon(self._slice)

    def _finish(self, then: Then, result: Any, refused: Refused | None) -> None:
        self._before()
        then(result, refused)
        self._after()
