"""The feed of changes: who asks for what has changed gets it at once, or waits for it.

A writer of this process wakes those who wait. For writers of other processes over the same database, and for leases that end, the feed
looks at the database a few times a second, while somebody waits.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.concurrency import run_in_threadpool

from .storage.errors import DirectoryError
from .storage.store import Store

LONGEST = 30.0  # seconds that a request waits
LOOK = 0.25  # seconds between two looks at the database
WAITING = 400  # requests that wait; one more is answered at once
MOST = 1000  # changes in one answer

log = logging.getLogger("mqmesh.directory")


class Feed:
    """That of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last = 0
        self._waiting: dict[asyncio.Future[None], int] = {}  # each with the number that it has seen
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False
        store.changed = self._changed

    async def wait(self, seen: int, seconds: float) -> bool:
        """Wait for a change after number `seen`, for so many seconds at most; not at all where too many wait. Whether to ask again."""
        if self._ended or len(self._waiting) >= WAITING or seconds <= 0:
            return False
        if self._last > seen:
            return True
        self._loop = asyncio.get_running_loop()
        ticket: asyncio.Future[None] = self._loop.create_future()
        self._waiting[ticket] = seen
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="directory-feed")
        try:
            async with asyncio.timeout(seconds):
                await ticket
            return not self._ended
        except TimeoutError:
            return False
        finally:
            del self._waiting[ticket]

    def end(self) -> None:
        """Answer those who wait, and let nobody wait any more."""
        self._ended = True
        self._wake(None)

    def _changed(self) -> None:
        """Something has changed; called in a writer's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, None)

    def _wake(self, last: int | None) -> None:
        """Wake those who have not seen a change; None: all."""
        for ticket, seen in self._waiting.items():
            if not ticket.done() and (last is None or seen < last):
                ticket.set_result(None)

    async def _look(self) -> None:
        """Look at the database while somebody waits."""
        failed = False
        while self._waiting:
            try:
                last = await run_in_threadpool(self._newest)
            except DirectoryError as error:
                if not failed:
                    log.warning("event=feed-waits error=%s", error)
                failed = True
            else:
                if failed:
                    log.warning("event=feed-goes-on")
                failed = False
                self._last = last
                self._wake(last)
            await asyncio.sleep(LOOK)

    def _newest(self) -> int:
        """The number of the last change, once what no lease holds any more is removed."""
        with self._store.reading() as records:
            end, last = records.next_end(), records.last_change()
            over = end is not None and end <= records.now
        if not over:
            return last
        with self._store.writing(first=True) as records:
            return records.last_change()
