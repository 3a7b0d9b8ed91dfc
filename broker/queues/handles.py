"""The handles of publishers: which messages were put under which name, so that a repeat is not put again (docs/queues.md).

A handle belongs to the client identifier that put it, and to the queue. Of each a digest is kept, and the position of its message; until
the commit, the gate that the first one's acknowledgement waits at. Their number is bounded: beyond it the publisher that has most loses
its oldest, so nobody can have those of others forgotten.

What it does not know: messages, the log.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .committer import Gate
    from .core.blocks import Block

EVICTED = 64  # handles that go at a time
OWNER_BYTES, HANDLE_BYTES = 8, 16
WEIGHT = 200  # bytes of memory of one


def key_of(queue: str, publisher: str, handle: str) -> bytes:
    """What a handle is known by."""
    owner = blake2b(publisher.encode(), digest_size=OWNER_BYTES).digest()
    return owner + blake2b(f"{queue}\0{handle}".encode(), digest_size=HANDLE_BYTES).digest()


class Handles:
    """The handles that one broker knows. room: how many."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._count = 0
        self._owners: dict[bytes, dict[bytes, Gate | int]] = {}  # each in the order in which they came
        self._ranks: dict[int, OrderedDict[bytes, None]] = {}  # publishers by how many handles they have
        self._most = 0  # handles of the publisher that has most, or more

    def __len__(self) -> int:
        return self._count

    def find(self, key: bytes) -> Gate | int | None:
        """The position of the message with this handle; the gate that it waits at; None: there was none."""
        found = self._owners.get(key[:OWNER_BYTES])
        return found.get(key) if found is not None else None

    def keep(self, key: bytes, what: Gate | int) -> None:
        """A message has this handle."""
        owner = key[:OWNER_BYTES]
        handles = self._owners.setdefault(owner, {})
        if key not in handles:
            self._count += 1
            self._rank(owner, len(handles), len(handles) + 1)
        handles[key] = what
        if self._count > self.room:
            self._evict()

    def forget(self, key: bytes) -> None:
        """The message was not put."""
        owner = key[:OWNER_BYTES]
        handles = self._owners.get(owner, {})
        if handles.pop(key, None) is not None:
            self._count -= 1
            self._rank(owner, len(handles) + 1, len(handles))
            if not handles:
                del self._owners[owner]

    def _rank(self, owner: bytes, before: int, now: int) -> None:
        """A publisher has one handle more, or less."""
        if before:
            rank = self._ranks[before]
            del rank[owner]
            if not rank:
                del self._ranks[before]
        if now:
            self._ranks.setdefault(now, OrderedDict())[owner] = None
            self._most = max(self._most, now)

    def _evict(self) -> None:
        """The publisher with the most handles loses its oldest. No search among all publishers: there may be as many as handles."""
        while self._most not in self._ranks:
            self._most -= 1
        handles = self._owners[next(iter(self._ranks[self._most]))]
        for key in [key for key, _ in zip(handles, range(min(EVICTED, -(-len(handles) // 2))), strict=False)]:
            self.forget(key)


class Pending:
    """A message with a handle waits for its commit, before its acknowledgement does."""

    __slots__ = ("_block", "_gate", "_handles", "_index", "_key", "_refused")

    def __init__(self, handles: Handles, key: bytes, gate: Gate, block: Block, index: int) -> None:
        self._handles, self._key, self._gate = handles, key, gate
        self._block, self._index = block, index
        self._refused = False
        handles.keep(key, gate)
        gate.waiting.append(self)

    def refused(self, text: str) -> None:
        """The commit has failed: the same handle may come again."""
        self._refused = True

    def go(self) -> None:
        """The commit is done."""
        if self._handles.find(self._key) is not self._gate:
            return  # it was forgotten meanwhile
        if self._refused:
            self._handles.forget(self._key)
        else:
            self._handles.keep(self._key, self._block.first + self._index)
