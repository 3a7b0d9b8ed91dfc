"""What the log of the queues needs of the place that it is kept in: segments of bytes that are appended to, many of them in one commit.

A store is a place with these few operations. The log in it is the same everywhere: frames of records (`format.py`), and what becomes of
segments (`store.py`). `tests/broker/queues/test_stores.py` holds every store against this page.

Whatever fails raises OSError; ENOSPC where there is no room; `Away` where a server cannot be reached, and may be again.
"""

from __future__ import annotations

from typing import Protocol

from ....store.base import Away as Away


class Segments(Protocol):
    """Segments by number. `begin` to `commit` or `undo` are called by one thread at a time; `read` and `size` by any, at any time.

    What is appended and not committed is seen by the thread that appends. After a crash, what was committed is there, and of what was not
    perhaps a part.
    """

    def open(self) -> list[int]:
        """Find the segments that there are: their numbers, in order."""

    def name_of(self, number: int) -> str:
        """What to call a segment in a line of a log."""

    def size(self, number: int) -> int:
        """The bytes of a segment."""

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of a segment; fewer at its end."""

    def begin(self, number: int) -> None:
        """A segment that is empty; one of this number that is there is gone."""

    def append(self, number: int, offset: int, data: list[bytes]) -> int:
        """Write at the end of a segment, which is at an offset: where it ends then."""

    def commit(self) -> None:
        """Have all that was appended survive. Blocks."""

    def undo(self, number: int, offset: int) -> None:
        """What was appended is given up: a segment ends at an offset."""

    def drop(self, number: int) -> None:
        """A segment may go, with the next commit at the latest."""

    def set_aside(self) -> bool:
        """Keep room for states, for when there is no other: whether there is some."""

    def give_up(self) -> None:
        """Use the room that was set aside."""

    def close(self) -> None:
        """The end."""
