"""Whose request is worked at next: lanes with a bound each, and within a lane the accounts and addresses take turns.

A request that reads a lot waits for others that read, one that saves a thousand records for others that save; neither holds up leases or
the question whether the directory lives. Who asks for more than others waits for himself: one request of each in turn. What waits is
bounded; beyond the bound the answer is that the directory is busy.

Searches begin one after the other, or two at a time where a database server works at one meanwhile. Threads that all compute hand the
interpreter's lock to each other at each call of the database: six searches together took twice the processor time of one after the other.
One that takes longer than BRIEF counts no more, so that others do not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

from .storage.errors import DirectoryError

WAITING_EACH = 64  # requests of one account or address that wait in a lane
WAITING = 2000  # of all
BRIEF = 0.05  # seconds: most searches are over in a tenth of that


Turn = asyncio.TimerHandle | None  # what ends it: of one that is counted as long as it is brief


class Lane(Enum):
    """What a request does. The value: how many of them are worked at together."""

    HEALTH = "health", 1
    LEASE = "lease", 2
    LOGIN = "login", 18
    WRITE = "write", 2  # one works while the next one is read
    READ = "read", 6
    CHANGES = "changes", 2

    @property
    def together(self) -> int:
        return int(self.value[1])


class Turns:
    """Those of one lane, used in one event loop.

    together: how many are worked at. begun: how many of these have begun less than BRIEF ago; None: as many.
    """

    def __init__(self, together: int, begun: int | None = None) -> None:
        self._free, self._room = together, begun or together
        self._counted = begun is not None
        self._brief: set[asyncio.TimerHandle] = set()  # of those that have begun less than BRIEF ago, where they are counted
        self._waiting: OrderedDict[str, deque[asyncio.Future[Turn]]] = OrderedDict()  # the next ones first
        self._count = 0

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Wait until it is the turn of one of `who`'s requests. DirectoryError E_busy where too many wait."""
        own = self._begin() if self._open and not self._count else await self._wait(who)
        try:
            yield
        finally:
            self._end(own)

    @property
    def _open(self) -> bool:
        return self._free > 0 and self._room > 0

    def _begin(self) -> Turn:
        """One begins."""
        self._free -= 1
        if not self._counted:
            return None
        self._room -= 1
        own: asyncio.TimerHandle = asyncio.get_running_loop().call_later(BRIEF, lambda: self._takes_long(own))
        self._brief.add(own)
        return own

    def _takes_long(self, own: asyncio.TimerHandle) -> None:
        self._brief.discard(own)
        self._room += 1
        self._next()

    def _end(self, own: Turn) -> None:
        """One has ended."""
        self._free += 1
        if own in self._brief:
            own.cancel()
            self._takes_long(own)
        else:
            self._next()

    async def _wait(self, who: str) -> Turn:
        own = self._waiting.setdefault(who, deque())
        if len(own) >= WAITING_EACH or self._count >= WAITING:
            if not own:
                del self._waiting[who]
            raise DirectoryError("E_busy", "too many requests wait; try again")
        ticket: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        own.append(ticket)
        self._count += 1
        try:
            return await ticket
        except asyncio.CancelledError:
            if not ticket.cancelled():
                self._end(ticket.result())  # it was its turn a moment ago
            raise

    def _next(self) -> None:
        """Let the next ones begin."""
        while self._open and self._waiting:
            who, own = self._waiting.popitem(last=False)
            ticket = own.popleft()
            self._count -= 1
            if own:
                self._waiting[who] = own  # behind the others
            if not ticket.done():  # nor has it given up
                ticket.set_result(self._begin())


class AllTurns:
    """The turns of all lanes. searches: how many begin at a time."""

    def __init__(self, searches: int = 1) -> None:
        self._lanes = {lane: Turns(lane.together, searches if lane is Lane.READ else None) for lane in Lane}

    def turn(self, lane: Lane, who: str) -> contextlib.AbstractAsyncContextManager[None]:
        """See `Turns.turn`."""
        return self._lanes[lane].turn(who)
