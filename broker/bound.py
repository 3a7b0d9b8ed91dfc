"""The bounds on everything durable of one broker together: bytes in its store, and sessions that outlive their connections.

Each session has bounds of its own (`Limits.session_queue_...`); these are for very many sessions that nobody comes back to, for custody
that no link takes, for retained messages. What is measured is what the store has to keep, a sum that its writer holds ready
(`Coalescer.stored`), so that looking costs a comparison, at the end of each piece of work that changed the store.

    state     begins when                        what it means
    full      the sum has reached the limit      messages that would have to be kept are refused, or their publishers not read;
                                                 no new subscription, session or retained message is kept
    room      a sixteenth of the limit is free   everything goes on

Acknowledged messages stay, whatever the bound. A session whose client is connected and has nothing on disk *passes messages on*: what it
gets needs the store for a moment only, within bounds of its own, so that those who listen are served though others do not.

What it does not know: who is refused, and how (`durable.py`, `handshake.py`, `arrivals.py`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..mesh.settings import Limits
    from .durable_session import DurableSession
    from .session import Session
    from .store import Store, Writer

log = logging.getLogger("mqmesh.broker")

SHARE = 1, 2  # of the space that the store's disk has for it, when the limit is left out
FREED = 16  # one part of so many has to be free again
OK = "ok"


class Bound:
    """Of one broker. changed: called when `full` has changed.

    limit: bytes in the store, 0 for none. most: sessions that the store keeps, 0 for none. sessions: how many there are. full: no more
    bytes are to be kept. crowded: no more sessions are. refused, refused_sessions: messages and sessions for which there was no room.
    """

    def __init__(self, writer: Writer, changed: Callable[[], None]) -> None:
        self._writer = writer
        self._changed = changed
        self.limit = 0
        self.most = 0
        self.sessions = 0
        self.full = False
        self.crowded = False
        self.refused = 0
        self.refused_sessions = 0
        self._low = 0

    def set(self, limits: Limits, store: Store) -> None:
        """Take the limits of a configuration. store: open."""
        limit = limits.stored_bytes
        if limit is None:
            space = store.space()
            if isinstance(store, MemoryStore):
                limit = limits.broker_bytes
            else:
                limit = 0 if space is None else space * SHARE[0] // SHARE[1]
        self.limit = limit
        self._low = limit - limit // FREED
        self.most = limits.stored_sessions
        self.count(0)

    @property
    def stored(self) -> int:
        """Bytes in the store, once all changes are committed."""
        return self._writer.stored

    def look(self) -> None:
        """The sum may have changed."""
        stored = self._writer.stored
        if self.full:
            if not self.limit or (stored <= self._low and stored < self.limit):
                self.full = False
                log.warning("event=store-room bytes=%d limit=%d text=what needs the store is taken again", stored, self.limit)
                self._changed()
        elif stored >= self.limit > 0:
            self.full = True
            log.warning("event=store-bound bytes=%d limit=%d sessions=%d text=%s", stored, self.limit, self.sessions, self.text)
            self._changed()

    @property
    def text(self) -> str:
        """Why nothing more is kept."""
        return f"the store has the {self.limit} bytes that it may (limits.stored_bytes)"

    @property
    def state(self) -> str:
        """In a word, or why not."""
        return self.text if self.full else self._crowd if self.crowded else OK

    # Sessions

    def count(self, change: int) -> None:
        """A session is kept from now on, or no more."""
        self.sessions += change
        if self.most and self.sessions >= self.most and not self.crowded:
            self.crowded = True
            log.warning("event=sessions-bound sessions=%d limit=%d text=%s", self.sessions, self.most, self._crowd)
        elif self.crowded and (not self.most or self.sessions <= self.most - max(1, self.most // FREED)):
            self.crowded = False
            log.warning("event=sessions-room sessions=%d limit=%d text=new sessions are kept again", self.sessions, self.most)

    def refusal(self, known: Session | None) -> str | None:
        """Why no session can be kept for a client, which has this one here or none; None: one can."""
        if known is not None and known.stored:
            return None  # it is taken up, or its place is taken
        if self.full:
            text: str | None = self.text
        elif self.most and self.sessions >= self.most:
            text = self._crowd
        else:
            return None
        self.refused_sessions += 1
        return text

    @property
    def _crowd(self) -> str:
        return f"there are the {self.most} sessions that may be kept (limits.stored_sessions)"

    # For `$SYS`

    def values(self) -> dict[str, int]:
        """For `$SYS/broker/store/`."""
        return {
            "bytes": self.stored,
            "bytes/limit": self.limit,
            "sessions": self.sessions,
            "sessions/limit": self.most,
            "messages/refused": self.refused,
            "sessions/refused": self.refused_sessions,
        }


def passes(session: Session) -> bool:
    """Whether messages for a session need the store for a moment only, or not at all."""
    if not session.stored:
        return True
    durable: DurableSession = session  # type: ignore[assignment]
    return durable.connection is not None and not getattr(durable, "spilled", 1)  # a gate says nothing: its session moves
