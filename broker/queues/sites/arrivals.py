"""The home's side of PUT: parcels from other sites go into queues, each once.

A parcel leaves custody in a commit of the broker's store, and is put into the queues' log after that. Between the two it stands in the
table of the store (`keeping.py`). After a restart the log says which of these parcels it has; the others are put then. The log never has a
parcel that the store may lack: custody would bring it once more, maybe when its segment is gone, and nobody would know it.

A queue that is full, or is not declared any more, takes no parcel: it waits in its place, in order, and other sites
are told to send no more. If the queue has another home now, its parcels go there, under their numbers.

What it does not know: where parcels come from.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ....base.quoting import quoted
from ..committer import Gate
from ..refused import Refused
from . import wire
from .keeping import ARRIVED, Keeping

log = logging.getLogger("mqmesh.broker")

Put = Callable[[wire.PutPost], Gate | None]
Together = Callable[[list[wire.PutPost]], Gate | None]


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


class Kept(NamedTuple):
    """A parcel with its key in the store, whose order is that of arriving."""

    key: bytes
    post: wire.PutPost


class Arrivals:
    """Parcels that have come. put: puts one into its queue: the gate of its commit; raises Refused while there is no room.
    together: puts several into one queue: the gate of their commit; None: they have to be put one by one.

    unsettled: keys of parcels that are in the log while the store has them too: until that ends, the log has to know them.
    """

    def __init__(self, keeping: Keeping, put: Put, together: Together = lambda posts: None) -> None:
        self._keeping = keeping
        self._put, self._together = put, together
        self._fresh: list[Kept] = []  # parcels of the commit that is open, or was
        self._fresh_of = 0  # its number
        self._serial = 0
        self._over: list[bytes] = []  # keys of parcels that the log has: the store is told with the next ones, or soon
        self._waiting: dict[str, deque[Kept]] = {}  # queue -> parcels that find no room, in order
        self.unsettled: set[bytes] = set()
        self._awaited: list[tuple[set[bytes], Callable[[], None]]] = []

    def restore(self, found: dict[bytes, bytes], known: set[bytes]) -> None:
        """Put what an earlier life has not. found: by their keys. known: parcels that the log has."""
        for key, body in sorted(found.items()):
            self._serial = max(self._serial, int.from_bytes(key, "big"))
            try:
                post = wire.decode_put(body)
            except ValueError as error:
                log.error("event=queue-parcel-damaged key=%s text=%s", key.hex(), error)
                continue
            if post.parcel in known:
                self.unsettled.add(key)
                self._over.append(key)
            else:
                self._take(Kept(key, post))

    def arrive(self, body: bytes, expiry: int | None = None) -> None:
        """A parcel has come, in the batch of the store that is open. expiry: seconds that its messages live; None: as it says itself.

        Raises ValueError.
        """
        post = wire.decode_put(body)
        if expiry is not None and expiry != post.expiry:
            post = post._replace(expiry=max(1, expiry))
            body = wire.encode(post)
        self.keep(post, body)

    def keep(self, post: wire.PutPost, body: bytes = b"") -> None:
        """Put messages of another site, or of a client here, in the batch of the store that is open: they are put when that is on the disk.

        Before that the log must not have them: if the batch is lost, a client sends its message again, under another number.
        body: the post as bytes, where it came so.
        """
        self._forget()
        self._serial += 1
        kept = Kept(self._serial.to_bytes(8, "big"), post)
        self._keeping.put_parcel(ARRIVED, kept.key, body or wire.encode(post))
        commit = self._keeping.commit
        if commit and commit == self._fresh_of:
            self._fresh.append(kept)
            return
        self._fresh, self._fresh_of = [kept], commit
        self._keeping.when_kept(partial(self._take_all, self._fresh))

    def _take_all(self, fresh: list[Kept]) -> None:
        """A commit has parcels: those of each queue are put in their order, together if that may be."""
        if len(fresh) == 1:
            self._take(fresh[0])
            return
        queues: dict[str, list[Kept]] = {}
        for kept in fresh:
            queues.setdefault(kept.post.name, []).append(kept)
        for name, some in queues.items():
            gate = self._together([kept.post for kept in some]) if len(some) > 1 and name not in self._waiting else None
            if gate is None:
                for kept in some:
                    self._take(kept)
            else:
                self.unsettled.update([kept.key for kept in some])
                gate.waiting.append(Arrived(partial(self._done, some), partial(self._again, some)))

    def _take(self, kept: Kept) -> None:
        line = self._waiting.get(kept.post.name)
        if line:
            line.append(kept)
        else:
            self._try(kept)

    def _try(self, kept: Kept) -> bool:
        name = kept.post.name
        try:
            gate = self._put(kept.post)
        except Refused as refused:
            if name not in self._waiting:
                text = "messages of other sites wait: " + refused.text
                log.warning("event=queue-parcel-waits queue=%s text=%s", quoted(name), text)
            self._waiting.setdefault(name, deque()).appendleft(kept)
            return False
        self.unsettled.add(kept.key)
        if gate is None:
            self._done([kept])
        else:
            gate.waiting.append(Arrived(partial(self._done, [kept]), partial(self._again, [kept])))
        return True

    def _done(self, some: list[Kept]) -> None:
        self._over += [kept.key for kept in some]
        if self._awaited:
            self._forget()

    def _forget(self) -> None:
        """What the log has need not be in the store any more."""
        if self._over:
            for key in self._over:
                self._keeping.put_parcel(ARRIVED, key, None)
            over, self._over = self._over, []
            self._keeping.when_kept(partial(self._settled, over))

    def _settled(self, keys: list[bytes]) -> None:
        self.unsettled.difference_update(keys)
        awaited, self._awaited = self._awaited, []
        for waiting, then in awaited:
            waiting.difference_update(keys)
            if waiting:
                self._awaited.append((waiting, then))
            else:
                then()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Go on when all parcels that are in the log now are in it alone."""
        if not self.unsettled:
            then()
            return
        self._awaited.append((set(self.unsettled), then))
        self._forget()

    def _again(self, some: list[Kept]) -> None:
        for kept in some:
            self._settled([kept.key])
            line = self._waiting.setdefault(kept.post.name, deque())
            line.insert(next((at for at, one in enumerate(line) if one.key > kept.key), len(line)), kept)  # before those that came later

    def waits(self, name: str) -> bool:
        """Whether parcels wait for room in a queue."""
        return name in self._waiting

    def leave(self, name: str) -> list[wire.PutPost]:
        """A queue has another home: the parcels that wait for it, which are not kept here any more."""
        line = self._waiting.pop(name, deque())
        for kept in line:
            self._keeping.put_parcel(ARRIVED, kept.key, None)
        return [kept.post for kept in line]

    @property
    def names(self) -> list[str]:
        """The queues that parcels wait for."""
        return list(self._waiting)

    def look(self) -> None:
        """Try again what found no room; forget what is settled."""
        self._forget()
        for name in list(self._waiting):
            line = self._waiting.pop(name)
            while line and self._try(line.popleft()):
                pass
            if line:  # the one that found no room is the first of what waits now
                self._waiting[name].extend(line)
