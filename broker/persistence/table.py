"""A table of the broker's store, as a part of the broker uses it that keeps small values of its own there.

What it does not know: what the keys and values mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .commits import Persistence


class Table:
    """A table; it keeps nothing while there is no store. persistence: None: there is none."""

    def __init__(self, name: str, persistence: Persistence | None = None) -> None:
        self.name = name
        self.persistence = persistence

    def values(self) -> list[tuple[bytes, bytes]]:
        """Each key with its value, as the disk has them. Raises StoreError."""
        return [] if self.persistence is None else list(self.persistence.store.values(self.name))

    def put(self, key: bytes, value: bytes | None) -> None:
        """Keep a value, or forget it (None), in the batch that is open."""
        if self.persistence is None:
            return
        if value is None:
            self.persistence.writer.delete_value(self.name, key)
        else:
            self.persistence.writer.put_value(self.name, key, value)

    @property
    def commit(self) -> int:
        """The number of the commit that is open; 0: there is no store."""
        return 0 if self.persistence is None else self.persistence.next_commit

    def need_commit(self) -> None:
        """What a client is answered now waits for the commit."""
        if self.persistence is not None:
            self.persistence.need_commit()

    def when_kept(self, then: Callable[[], None]) -> None:
        """Go on when everything so far is on the disk."""
        if self.persistence is None:
            then()
        else:
            self.persistence.when(self.persistence.mark(), then)
