"""The home's side of PUT: parcels from other sites go into queues, each once.

A parcel leaves custody in a commit of the broker's store, and is in the queues' log after a commit of its own. Between the two it stands in
the table of the store (`keeping.py`). After a restart the log says which parcels it has; the others are put then.

A queue that is full, or is not declared any more, takes no parcel: it waits in its place, in order, and other sites
are told to send no more.

What it does not know: where parcels come from.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from ....base.quoting import quoted
from ..committer import Gate
from ..refused import Refused
from . import wire
from .keeping import ARRIVED, Keeping

log = logging.getLogger("mqmesh.broker")

Put = Callable[[wire.PutPost], Gate | None]


class Arrived:
    """A parcel that waits for the commit of the queues' log."""

    __slots__ = ("done", "failed")

    def __init__(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        self.done, self.failed = done, failed

    def refused(self, text: str) -> None:
        """The commit has failed: nothing was put."""
        self.done = self.failed

    def go(self) -> None:
        """The gate is open."""
        self.done()


class Arrivals:
    """Parcels that have come. put: puts one into its queue: the gate of its commit; raises Refused. unsettled: what the log may lack."""

    def __init__(self, keeping: Keeping, put: Put) -> None:
        self._keeping = keeping
        self._put = put
        self._waiting: dict[str, deque[wire.PutPost]] = {}  # queue -> parcels that find no room, in order
        self.unsettled = 0

    def restore(self, found: dict[bytes, bytes], known: set[bytes]) -> None:
        """Put what an earlier life has not. known: parcels that the log has."""
        for parcel, body in sorted(found.items()):
            if parcel in known:
                self._keeping.put_parcel(ARRIVED, parcel, None)
                continue
            try:
                self._take(wire.decode_put(body))
            except ValueError as error:
                log.error("event=queue-parcel-damaged parcel=%s text=%s", parcel.hex(), error)

    def arrive(self, body: bytes) -> None:
        """A parcel has come, in the batch of the store that is open. Raises ValueError."""
        post = wire.decode_put(body)
        self._keeping.put_parcel(ARRIVED, post.parcel, body)
        self._take(post)

    def _take(self, post: wire.PutPost) -> None:
        self.unsettled += 1
        line = self._waiting.get(post.name)
        if line:
            line.append(post)
        else:
            self._try(post)

    def _try(self, post: wire.PutPost) -> bool:
        try:
            gate = self._put(post)
        except Refused as refused:
            if post.name not in self._waiting:
                text = "messages of other sites wait: " + refused.text
                log.warning("event=queue-parcel-waits queue=%s text=%s", quoted(post.name), text)
            self._waiting.setdefault(post.name, deque()).appendleft(post)
            return False
        if gate is None:
            self._done(post)
        else:
            gate.waiting.append(Arrived(partial(self._done, post), partial(self._again, post)))
        return True

    def _done(self, post: wire.PutPost) -> None:
        self._keeping.put_parcel(ARRIVED, post.parcel, None)
        self.unsettled -= 1

    def _again(self, post: wire.PutPost) -> None:
        self._waiting.setdefault(post.name, deque()).append(post)

    def waits(self, name: str) -> bool:
        """Whether parcels wait for room in a queue."""
        return name in self._waiting

    def look(self) -> None:
        """Try again what found no room."""
        for name in list(self._waiting):
            line = self._waiting.pop(name)
            while line and self._try(line.popleft()):
                pass
            if line:  # the one that found no room is the first of what waits now
                self._waiting[name].extend(line)
