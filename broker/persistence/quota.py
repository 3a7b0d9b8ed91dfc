"""The quota of one broker's store: bytes in the store, and sessions that outlive their connections.

Each session has its own bounds (`Limits.session_queue_...`). The quota bounds what they cannot: very many sessions whose clients do
not return, custody that no link takes, retained messages. It measures what the store has to keep. The writer holds that sum ready
(`Coalescer.stored`), so a look costs one comparison. It takes place at the end of each piece of work that changed the store.

    state         begins when                              what it means
    full          the sum reaches the limit                messages that have to be kept are refused, or their publishers are not
                                                           read; no new subscription, session or retained message is kept
    not full      a sixteenth of the limit is free         all messages are taken again
    custody_full  custody reaches half of the limit        messages for sites that cannot be reached are refused
    not so        a sixteenth of that half is free         they are taken again

Acknowledged messages stay, whatever the quota. A session whose client is connected and has nothing on disk *passes messages on*: its
messages need the store only for a moment. They have bounds of their own, so a full store does not stop connected subscribers. The same
holds for a site that can be reached: in both states a sixteenth of the limit may be on its way to each site (`StoreQuota.on_its_way`).
So full queues of absent sessions do not stop the traffic between sites, and a site that is gone leaves half of the store to the sessions.

This file does not know who is refused, and how (`commits.py`, `client/connect.py`, `mesh/incoming.py`).
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

SHARE = 1, 2  # part of the space on disk, used and free, that the store may have when the limit is left out
FREED = 16  # a limit counts as reached until one part of so many is free again
CUSTODY = 2  # custody may have one part of so many of the limit
OK = "ok"


class StoreQuota:
    """Compares what the store holds with its limits, and remembers which of them are reached.

    limit: bytes that the store may hold; 0: no limit.
    session_limit: sessions that the store may keep; 0: no limit.
    sessions: sessions that the store keeps.
    full: the store keeps no more bytes.
    custody_full: the store keeps no more messages for sites that cannot be reached.
    sessions_full: the store keeps no more sessions.
    custody: returns the bytes of custody in the store; None: there is no mesh.
    refused: messages for which there was no room.
    refused_sessions: sessions for which there was no room.
    """

    def __init__(self, writer: Writer, changed: Callable[[], None]) -> None:
        """changed: called when `full` or `custody_full` changes."""
        self._writer = writer
        self._changed = changed
        self.limit = 0
        self.session_limit = 0
        self.sessions = 0
        self.full = False
        self.custody_full = False
        self.sessions_full = False
        self.custody: Callable[[], int] | None = None
        self.refused = 0
        self.refused_sessions = 0
        self._low = 0

    def set(self, limits: Limits, store: Store, workers: int = 1) -> None:
        """Set the limits from a configuration. store: an open store, which may know the space of its disk. workers: that share the disk."""
        limit = limits.stored_bytes
        if limit is None:
            space = store.space()
            if isinstance(store, MemoryStore):
                limit = limits.broker_bytes
            else:
                limit = 0 if space is None else space * SHARE[0] // SHARE[1] // workers
        self.limit = limit
        self._low = limit - limit // FREED
        self.session_limit = limits.stored_sessions
        self.count(0)

    @property
    def stored(self) -> int:
        """Bytes in the store, once all changes are committed."""
        return self._writer.stored

    def look(self) -> None:
        """Compare the sum with the limits, and report a change of state."""
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
        if self.custody_full:
            if not limit or stored <= limit - limit // FREED:
                self.custody_full = False
                log.warning("event=custody-room bytes=%d limit=%d text=what is for sites out of reach is taken again", stored, limit)
                self._changed()
        elif stored >= limit > 0:
            self.custody_full = True
            log.warning("event=custody-bound bytes=%d limit=%d text=%s", stored, limit, self._custody_text)
            self._changed()

    @property
    def on_its_way(self) -> int:
        """Bytes that may be on their way to each site that can be reached, while `full` or `custody_full`; 0: no such bound now."""
        return max(1, self.limit // FREED) if self.full or self.custody_full else 0

    @property
    def text(self) -> str | None:
        """Why something is not kept; None: nothing is refused."""
        return self.full_text if self.full else self._custody_text if self.custody_full else None

    @property
    def full_text(self) -> str:
        """Why nothing more is kept."""
        return f"the store has the {self.limit} bytes that it may (limits.stored_bytes)"

    @property
    def _custody_text(self) -> str:
        return f"messages for other sites have the {self.limit // CUSTODY} bytes that they may (half of limits.stored_bytes)"

    @property
    def state(self) -> str:
        """The state for `$SYS`: `ok`, or which limit is reached."""
        return self.text or (self._sessions_text if self.sessions_full else OK)

    # Sessions

    def count(self, change: int) -> None:
        """Add to the number of sessions that the store keeps. change: 1 or -1; 0 compares with a new limit."""
        self.sessions += change
        if self.session_limit and self.sessions >= self.session_limit and not self.sessions_full:
            self.sessions_full = True
            log.warning("event=sessions-bound sessions=%d limit=%d text=%s", self.sessions, self.session_limit, self._sessions_text)
        elif self.sessions_full and (not self.session_limit or self.sessions <= self.session_limit - max(1, self.session_limit // FREED)):
            self.sessions_full = False
            log.warning("event=sessions-room sessions=%d limit=%d text=new sessions are kept again", self.sessions, self.session_limit)

    def refusal(self, known: Recipient | None) -> str | None:
        """Why the store cannot keep a session for a client; None: it can. known: the client's present session here, if any."""
        if known is not None and known.stored:
            return None  # the client resumes or replaces it
        if self.full:
            text: str | None = self.full_text
        elif self.session_limit and self.sessions >= self.session_limit:
            text = self._sessions_text
        else:
            return None
        self.refused_sessions += 1
        return text

    @property
    def _sessions_text(self) -> str:
        return f"there are the {self.session_limit} sessions that may be kept (limits.stored_sessions)"

    # For `$SYS`

    def values(self) -> dict[str, int]:
        """For `$SYS/broker/store/`."""
        return {
            "bytes": self.stored,
            "bytes/limit": self.limit,
            "sessions": self.sessions,
            "sessions/limit": self.session_limit,
            "messages/refused": self.refused,
            "sessions/refused": self.refused_sessions,
        }


def passes(session: Recipient) -> bool:
    """Whether messages for a session need the store for a moment only, or not at all."""
    if not session.stored:
        return True
    return session.connection is not None and not getattr(session, "spilled", 1)  # a session that moves has no such attribute
