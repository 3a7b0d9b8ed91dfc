"""What becomes of a client that comes to a site of a mesh whose clients roam.

Thousands may come at once when a site is lost, or when a load balancer sends them elsewhere. Each move is a dozen messages between brokers;
all at once they would hold both brokers for longer than a link may be silent. So clients whose sessions are elsewhere stand in a `Line`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ...mesh.roaming.names import Places

if TYPE_CHECKING:
    from ..ports import Connection


class Arrival(Enum):
    """The values of the last two are for the client."""

    OPEN = "it is let in now"
    WAITS = "it is let in when its session is here, or refused"
    BUSY = "its session is on its way from another site: try again"
    TAKEN = "another user's client with this identifier waits for its session"


@dataclass(slots=True, eq=False)
class Waiting:
    """A connection whose session is looked for. client: its name. go: lets it in. timer: refuses it."""

    client: str
    connection: Connection
    go: Callable[[], None]
    timer: asyncio.TimerHandle


class Line:
    """Lets clients ask for their sessions while fewer than `MOST` wait for a first answer of the members in reach.

    A member that does not answer holds up the line for `PATIENCE`, not for as long as the client itself waits. That a session will be
    passed on is an answer.
    """

    MOST = 64
    PATIENCE = 0.25  # seconds

    def __init__(self, places: Places) -> None:
        self._places = places
        self._asking: dict[str, float] = {}  # until when those count that ask, and some that did
        self._standing: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """How many stand in it."""
        return len(self._standing)

    def full(self, now: float) -> bool:
        """Whether who comes now has to stand in it."""
        return bool(self._standing) or not self._room(now)

    def stand(self, go: Callable[[], None]) -> None:
        """Call `go` when it is its turn."""
        self._standing.append(go)

    def asks(self, client: str, now: float) -> None:
        """A client waits for answers from now on."""
        self._asking[client] = now + self.PATIENCE

    def go_on(self, now: float) -> None:
        """An answer may have come, or time has passed."""
        while self._standing and self._room(now):
            self._standing.popleft()()

    def _room(self, now: float) -> bool:
        if len(self._asking) >= self.MOST:
            self._asking = {client: until for client, until in self._asking.items() if until > now and self._unanswered(client)}
        return len(self._asking) < self.MOST

    def _unanswered(self, client: str) -> bool:
        place = self._places.get(client)
        return place is not None and bool(place.waiting & ~place.coming)
