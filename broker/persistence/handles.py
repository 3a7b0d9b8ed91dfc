"""The window of publisher handles: which messages with a handle of their publisher's were taken, so that a repeat is known.

A publisher may give a message a *handle*, a text of its own choice, in the user property `mqmesh-handle` of PUBLISH. The same handle from
the same user is the same message: it is answered as the first one was, and not delivered again. The client identifier, the connection and
the packet identifier do not matter. So a program that does not know whether its message was taken sends it again with the same handle,
even after it was killed and started anew. Publisher handles: patent rows Q20 (once-only by handle) and IC4.

The window is bounded. When it is full, the user with the most handles loses its oldest. It is kept in the store, in the batch with
the message; each handle is one value:

    table "handles"    key: digest of the user (8 bytes), digest of the handle (16 bytes)    value: [1, number, epoch, sequence]

number: the order in which handles came. epoch, sequence: of the message in the custody of this broker; 0, 0: no other broker got it.

What it does not know: packets, connections, how a message is published (`publish/handles.py`).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from .codec import pack, unpack

if TYPE_CHECKING:
    from ...store import Store
    from .commits import Persistence

TABLE = "handles"
USER_BYTES, HANDLE_BYTES = 8, 16
EVICTED = 64  # handles that go at a time
Position = tuple[int, int]
NOWHERE: Position = (0, 0)


def key_of(user: str | None, handle: str) -> bytes:
    """What a handle is known by. user: the name that the client has proven; all clients without one count as one user."""
    owner = blake2b(b"" if user is None else b"=" + user.encode(), digest_size=USER_BYTES).digest()
    return owner + blake2b(handle.encode(), digest_size=HANDLE_BYTES).digest()


class HandleWindow:
    """The handles that one broker remembers. room: how many. repeats: messages that were known."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.repeats = 0
        self.persistence: Persistence | None = None
        self._count = 0
        self._next = 1
        self._users: dict[bytes, dict[bytes, Position]] = {}  # each in the order in which they came

    def __len__(self) -> int:
        return self._count

    def find(self, key: bytes) -> Position | None:
        """The position of the first message with this handle, `NOWHERE` if it has none; None: no message had it."""
        handles = self._users.get(key[:USER_BYTES])
        return handles.get(key) if handles is not None else None

    def keep(self, key: bytes, position: Position) -> None:
        """A message with a handle was taken. It goes into the store's open batch; the caller sees to it that its answer waits for that."""
        self._put(key, position)
        if self.persistence is not None:
            self.persistence.writer.put_value(TABLE, key, pack(self._next, *position))
            self.persistence.need_commit()
        self._next += 1
        if self._count > self.room:
            self._evict()

    def forget(self, key: bytes) -> None:
        """A message with a handle was not taken after all."""
        handles = self._users.get(key[:USER_BYTES])
        if handles is None or handles.pop(key, None) is None:
            return
        self._count -= 1
        if not handles:
            del self._users[key[:USER_BYTES]]
        if self.persistence is not None:
            self.persistence.writer.delete_value(TABLE, key)

    def restore(self, store: Store) -> None:
        """Take over what an earlier life kept. Raises StoreError."""
        found = []
        for key, value in store.values(TABLE):
            number, epoch, sequence = unpack(TABLE, key, value, 3)[:3]
            found.append((number, key, (epoch, sequence)))
        for number, key, position in sorted(found):
            self._put(key, position)
            self._next = number + 1
        while self._count > self.room:
            self._evict()

    def _put(self, key: bytes, position: Position) -> None:
        handles = self._users.setdefault(key[:USER_BYTES], {})
        self._count += key not in handles
        handles[key] = position

    def _evict(self) -> None:
        """The user with the most handles loses its oldest."""
        owner, handles = max(self._users.items(), key=lambda item: len(item[1]))
        for key in [key for key, _ in zip(handles, range(EVICTED), strict=False)]:
            del handles[key]
            self._count -= 1
            if self.persistence is not None:
                self.persistence.writer.delete_value(TABLE, key)
        if not handles:
            del self._users[owner]
