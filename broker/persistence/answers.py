"""What waits for a commit of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ports import Connection

NEVER = 1 << 62  # no commit has this number


class Answer:
    """Bytes that wait for a commit.

    ticket: of the commit. runs: the stored runs it speaks for, as long as it could also go when all of them are settled.
    """

    __slots__ = ("data", "runs", "ticket")

    def __init__(self, data: bytes | bytearray, ticket: int, runs: set[int]) -> None:
        self.data = data
        self.ticket = ticket
        self.runs = runs


class Dirty(Protocol):
    """Has something that belongs into the open batch, and is written at the end of the piece of work."""

    def write_state(self) -> None:
        """Write it."""


class Unwritten(NamedTuple):
    """The answer to a message that is not in the open batch, and what puts it there."""

    connection: Connection
    answer: Answer
    write: Callable[[], object]
