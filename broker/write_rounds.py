"""When the broker writes what its connections have been given.

The event loop works in rounds: it looks which sockets are readable and reads each once. A message that comes alone in its round is written
at once, because waiting would only add latency. Where many clients send small pieces, several come in one round. They are written together
when the round ends: one system call for each recipient and round, instead of one for each recipient and message.

A large piece is written at once: it holds many messages already. So what waits for the end of a round is bounded.

Each write is a system call, and a message may have many thousand recipients. More than `WRITES` connections are written in the next rounds,
so many in each (`WriteBacklog`). A connection in the backlog keeps the order of what it is given.

A piece that has changed something to be stored ends its own work at once: changes that belong together go into one commit, and the store's
thread may take what is there before the round ends.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ports import Context

log = logging.getLogger("mqmesh.broker")

SMALL = 4096  # bytes of a piece whose messages may wait for others
ACKNOWLEDGEMENT = 4  # bytes of a short acknowledgement; a PUBLISH has more
TOGETHER = 64  # pieces that are written together
WRITES = 256  # connections that are written in one slice of the loop
WRITE_BYTES = 4 * 2**20  # bytes that are written in one slice, and those of one connection more


class WriteRounds:
    """The write rounds of one broker."""

    __slots__ = ("_context", "_crowded", "_latest", "_pieces")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pieces = 0  # small ones in this round
        self._latest: object = None  # the connection that the last of them came from
        self._crowded = False  # the round before had several, so that this one is expected to

    def piece_taken(self, connection: object, size: int) -> None:
        """A connection has taken a piece of so many bytes: write what it caused, now or at the end of the round."""
        context, earlier = self._context, self._pieces
        if size > SMALL:
            context.flush()
            return
        if size <= ACKNOWLEDGEMENT:  # it brings no message, so that it makes no company
            if earlier < (1 if self._crowded else 2) or context.unsaved():
                context.flush()
            return
        if connection is self._latest and not earlier:  # it comes in a round of its own, as a round reads each socket once
            context.flush()
            return
        self._latest = connection
        self._pieces = earlier + 1
        if not earlier:
            context.loop.call_soon(self.end)
        if not (earlier or self._crowded) or earlier % TOGETHER == TOGETHER - 1 or context.unsaved():
            context.flush()

    def end(self) -> None:
        """The round has ended: every socket that was readable has been read."""
        several = self._pieces > 1
        self._pieces = 0
        if several or self._crowded:
            self._crowded = several
            self._context.flush()


class WriteBacklog:
    """Connections that are to be written in the next rounds of the loop."""

    __slots__ = ("_connections", "_context")

    who = "writes"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._connections: deque[Any] = deque()

    def add(self, connections: list[Any]) -> None:
        """Write these later. The address whose work gave them something waits for its next turn until they are written."""
        if not self._connections:
            self._context.turns.wait(self._context.turns.current, self)
        self._connections.extend(connections)

    def turn(self) -> bool:
        """Write some. True: there are more."""
        waiting, written = self._connections, 0
        counters = self._context.counters
        for _ in range(min(WRITES, len(waiting))):
            connection = waiting.popleft()
            before = counters.bytes_sent
            try:
                connection.flush()
            except Exception:  # the others are written all the same
                log.exception("event=internal-error work=%s", self.who)
            written += counters.bytes_sent - before
            if written > WRITE_BYTES:
                break
        self._context.turns.end_round()
        return bool(waiting)
