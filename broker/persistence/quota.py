"""The bounds on everything durable of one broker together: bytes in its store, and sessions that outlive their connections.

Each session has bounds of its own (`Limits.session_queue_...`); these are for very many sessions that nobody comes back to, for custody
that no link takes, for retained messages. What is measured is what the store has to keep, a sum that its writer holds ready
(`Coalescer.stored`), so that looking costs a comparison, at the end of each piece of work that changed the store.

    state     begins when                        what it means
    full      the sum has reached the limit      messages that would have to be kept are refused, or their publishers not read;
                                                 no new subscription, session or retained message is kept
    room      a sixteenth of the limit is free   everything goes on
    laden     custody has half of the limit      messages for sites that are out of reach are refused
    light     a sixteenth of that is free        they are taken again

Acknowledged messages stay, whatever the bound. A session whose client is connected and has nothing on disk *passes messages on*: what it
gets needs the store for a moment only, within bounds of its own, so that those who listen are served though others do not. So does a
site that can be reached: while the store is full or custody laden, a sixteenth of the limit may be on its way to each
(`StoreQuota.on_its_way`). So a full queue of absent sessions does not stop the traffic between sites, and a site that is gone
leaves half of
the store to the sessions.

What it does not know: who is refused, and how (`commits.py`, `client/connect.py`, `mesh/incoming.py`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...mesh.topology.settings import Limits
    from ...store import Store, Writer
    from ..ports import Recipient

log = logging.getLogger("mqmesh.broker")

SHARE = 1, 2  # of the space that the store's disk has for it, when the limit is left out
FREED = 16  # one part of so many has to be free again
CUSTODY = 2  # custody may have one part of so many
OK = "ok"


class StoreQuota:
    """Of one broker. changed: called when `full` has changed.

    limit: bytes in the store, 0 for none. most: sessions that the store keeps, 0 for none. sessions: how many there are. full: no more
    bytes are to be kept. laden: no more for sites out of reach. crowded: no more sessions are. custody: says how much of the store custody
    has; None: there is no mesh. refused, refused_sessions: messages and sessions for which there was no room.
    """

    def __init__(self, writer: Writer, changed: Callable[[], None]) -> None:
        self._writer = writer
        self._changed = changed
        self.limit = 0
        self.most = 0
        self.sessions = 0
        self.full = False
        self.laden = False
        self.crowded = False
        self.custody: Callable[[], int] | None = None
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
            log.warning("event=store-bound bytes=%d limit=%d sessions=%d text=%s", stored, self.limit, self.sessions, self.full_text)
            self._changed()
        if self.custody is not None:
            self._look_at_custody(self.custody())

    def _look_at_custody(self, stored: int) -> None:
        limit = self.limit // CUSTODY
        if self.laden:
            if not limit or stored <= limit - limit // FREED:
                self.laden = False
                log.warning("event=custody-room bytes=%d limit=%d text=what is for sites out of reach is taken again", stored, limit)
                self._changed()
        elif stored >= limit > 0:
            self.laden = True
            log.warning("event=custody-bound bytes=%d limit=%d text=%s", stored, limit, self._laden)
            self._changed()

    @property
    def on_its_way(self) -> int:
        """Bytes that may be on their way to each site that can be reached, while nothing is kept for longer; 0: no such bound now."""
        return max(1, self.limit // FREED) if self.full or self.laden else 0

    @property
    def text(self) -> str | None:
        """Why something is not kept; None: nothing is refused."""
        return self.full_text if self.full else self._laden if self.laden else None

    @property
    def full_text(self) -> str:
        """Why nothing more is kept."""
        return f"the store has the {self.limit} bytes that it may (limits.stored_bytes)"

    @property
    def _laden(self) -> str:
        return f"messages for other sites have the {self.limit // CUSTODY} bytes that they may (half of limits.stored_bytes)"

    @property
    def state(self) -> str:
        """In a word, or why not."""
        return self.text or (self._crowd if self.crowded else OK)

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

    def refusal(self, known: Recipient | None) -> str | None:
        """Why no session can be kept for a client, which has this one here or none; None: one can."""
        if known is not None and known.stored:
            return None  # it is taken up, or its place is taken
        if self.full:
            text: str | None = self.full_text
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


def passes(session: Recipient) -> bool:
    """Whether messages for a session need the store for a moment only, or not at all."""
    if not session.stored:
        return True
    return session.connection is not None and not getattr(session, "spilled", 1)  # a session that moves has no such attribute
