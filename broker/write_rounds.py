"""When the broker writes what its connections have been given.

The event loop works in rounds: it looks which sockets are readable and reads each once. A message that comes alone in its round is written
at once, because waiting would only add latency. Where many clients send small pieces, several come in one round. They are written together
when the round ends: one system call for each recipient and round, instead of one for each recipient and message. The same goes for the
frames that single messages give a link: the neighbour is woken once, and takes them in one piece.

A large piece is written at once: it holds many messages already. So what waits for the end of a round is bounded.

Each write is a system call and a copy, and a message may have many thousand recipients. More than `WRITES` connections or `WRITE_BYTES`
are written in the next rounds, so many in each (`WriteBacklog`). A connection in the backlog keeps the order of what it is given.

A piece that has changed something to be stored ends its own work at once: changes that belong together go into one commit, and the store's
thread may take what is there before the round ends.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from .ports import Context
    from .turns import Share

log = logging.getLogger("mqmesh.broker")

SMALL = 4096  # bytes of a piece whose messages may wait for others
ACKNOWLEDGEMENT = 4  # bytes of a short acknowledgement; a PUBLISH has more
TOGETHER = 64  # pieces that are written together
WRITES = 256  # connections that are written in one slice of the loop
WRITE_BYTES = 3 * 2**20  # bytes that are written in one slice, and those of one connection more


class Link(Protocol):
    """What frames of the mesh are written to."""

    def flush(self) -> None:
        """Write what it has been given."""


class WriteRounds:
    """The write rounds of one broker."""

    __slots__ = ("_context", "_crowded", "_latest", "_links", "_pieces")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pieces = 0  # small ones in this round
        self._latest: object = None  # the connection that the last of them came from
        self._crowded = False  # the round before had several, so that this one is expected to
        self._links: dict[Link, int] = {}  # that have been given frames in this round: how many

    def gathers(self, size: int) -> bool:
        """Whether what a piece of so many bytes gives a link waits for others of its round: one came before, or they are expected."""
        return (self._crowded or self._pieces > 0) and size <= SMALL

    def frame_given(self, link: Link) -> None:
        """A link has been given a frame that waits for others."""
        if not self._links:
            self._context.loop.call_soon(self._write_links)
        frames = self._links.get(link, 0) + 1
        if frames == TOGETHER:
            link.flush()
            frames = 0
        self._links[link] = frames

    def _write_links(self) -> None:
        links, self._links = self._links, {}
        for link in links:
            link.flush()

    def piece_taken(self, connection: object, size: int, finish: Callable[[], None]) -> None:
        """A connection has taken a piece of so many bytes: write what it caused, now or at the end of the round.

        finish: what ends the piece's work: `Context.flush`, or `Context.write` where there is nothing to do but to write.
        """
        context, earlier = self._context, self._pieces
        if size > SMALL:
            finish()
            return
        if size <= ACKNOWLEDGEMENT:  # it brings no message, so that it makes no company
            if earlier < (1 if self._crowded else 2) or context.unsaved():
                finish()
            return
        if connection is self._latest and not earlier:  # it comes in a round of its own, as a round reads each socket once
            finish()
            return
        self._latest = connection
        self._pieces = earlier + 1
        if not earlier:
            context.loop.call_soon(self.end)
        if not (earlier or self._crowded) or earlier % TOGETHER == TOGETHER - 1 or context.unsaved():
            finish()

    def end(self) -> None:
        """The round has ended: every socket that was readable has been read."""
        several = self._pieces > 1
        self._pieces = 0
        if several or self._crowded:
            self._crowded = several
            self._context.flush()


class WriteBacklog:
    """Connections that are to be written in the next rounds of the loop, by the address whose work gave them something.

    They are written before that address has another turn: what it causes is on its way before it causes more, so that what waits here is
    bounded by one piece of each address, times its recipients.
    """

    __slots__ = ("_context", "_queues")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues: dict[Share, _Queue] = {}

    def add(self, connections: list[Any]) -> None:
        """Write these later, in the turns of the address whose work is being done."""
        share = self._context.turns.current
        queue = self._queues.get(share)
        if queue is None:
            queue = self._queues[share] = _Queue(self._context, share, self._queues)
            self._context.turns.wait(share, queue, first=True)
        queue.connections.extend(connections)


class _Queue:
    """The connections of one address."""

    __slots__ = ("_context", "_queues", "_share", "connections")

    who = "writes"

    def __init__(self, context: Context, share: Share, queues: dict[Share, _Queue]) -> None:
        self.connections: deque[Any] = deque()
        self._context = context
        self._share = share
        self._queues = queues

    def turn(self) -> bool:
        """Write some; what is left has the next turn of the address."""
        waiting = self.connections
        counters, turns = self._context.counters, self._context.turns
        most = counters.bytes_sent + WRITE_BYTES
        for _ in range(min(WRITES, len(waiting))):
            connection = waiting.popleft()
            try:
                connection.flush()
            except Exception:  # the others are written all the same
                log.exception("event=internal-error work=%s", self.who)
            if counters.bytes_sent > most:
                break
        turns.end_round()
        if waiting:
            turns.wait(self._share, self, first=True)
        else:
            del self._queues[self._share]
        return False
