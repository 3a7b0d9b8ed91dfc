"""Whose request is worked at next: lanes with a bound each, and within a lane the accounts and addresses take turns.

A request that reads a lot waits for others that read, one that saves a thousand records for others that save; neither holds up leases or
the question whether the directory lives. Who asks for more than others waits for himself: one request of each in turn. What waits is
bounded; beyond the bound the answer is that the directory is busy.
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
    """Those of one lane, used in one event loop."""

    def __init__(self, together: int) -> None:
        self._free = together
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next ones first
        self._count = 0

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Wait until it is the turn of one of `who`'s requests. DirectoryError E_busy where too many wait."""
        if self._free and not self._count:
            self._free -= 1
        else:
            await self._wait(who)
        try:
            yield
        finally:
            self._free += 1
            self._next()

    async def _wait(self, who: str) -> None:
        own = self._waiting.setdefault(who, deque())
        if len(own) >= WAITING_EACH or self._count >= WAITING:
            if not own:
                del self._waiting[who]
            raise DirectoryError("E_busy", "too many requests wait; try again")
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own.append(ticket)
        self._count += 1
        try:
            await ticket
        except asyncio.CancelledError:
            if not ticket.cancelled():
                self._free += 1  # it was its turn a moment ago
                self._next()
            raise

    def _next(self) -> None:
        """Let the next ones begin."""
        while self._free and self._waiting:
            who, own = self._waiting.popitem(last=False)
            ticket = own.popleft()
            self._count -= 1
            if own:
                self._waiting[who] = own  # behind the others
            if not ticket.done():  # nor has it given up
                self._free -= 1
                ticket.set_result(None)


class AllTurns:
    """The turns of all lanes."""

    def __init__(self) -> None:
        self._lanes = {lane: Turns(lane.together) for lane in Lane}

    def turn(self, lane: Lane, who: str) -> contextlib.AbstractAsyncContextManager[None]:
        """See `Turns.turn`."""
        return self._lanes[lane].turn(who)
