"""Identifiers of sessions, calls and hops (us-9037726, l. 218-246): each names its home, and none is ever issued twice.

    session     home (16 bits)  count (48 bits)  random (64 bits)     32 hexadecimal digits, as a W3C trace-id has them
    call, hop   home (16 bits)  count (48 bits)                       16 hexadecimal digits

One count serves all three: max(last + 1, milliseconds since 2025-01-01 x 128). What is issued is never ahead of the clock: a home that has
lost its disk begins at its clock, and so beyond all that its earlier life has issued. A home whose clock was set back issues nothing
until the clock has caught up; within one life the shell passes a clock that does not go back.

What it does not know: clocks, where the last count is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from .refusals import Code, Refusal

BEGINNING = 1_735_689_600_000  # 2025-01-01 in milliseconds since 1970-01-01, both UTC
EACH = 128  # counts of a millisecond
COUNT_BITS = 48


class Identifiers:
    """Issues the identifiers of one home.

    home: number of its broker, below 65,536.
    last: the highest count that was issued; it has to be kept with what the identifiers stand for.
    random: gives 16 hexadecimal digits that nobody guesses.
    """

    def __init__(self, home: int, last: int, random: Callable[[], str]) -> None:
        self.home = home
        self.last = last
        self._random = random

    def session(self, now: int) -> str:
        """A new session. now: milliseconds since 1970. Raises Refusal unavailable."""
        return self.one(now) + self._random()

    def one(self, now: int) -> str:
        """A new call or hop. Raises Refusal unavailable."""
        return self.some(1, now)[0]

    def some(self, many: int, now: int) -> list[str]:
        """New calls and hops: all of them, or a Refusal unavailable, which issues none."""
        least = first_count(now)
        first = self.last + 1 if self.last >= least else least
        last = first + many - 1
        if not many:
            return []
        if last >= least + EACH:
            text = f"this home has issued identifiers up to {(last - least) // EACH:,} ms ahead of its clock"
            raise Refusal(Code.UNAVAILABLE, text, "post it again later")
        self.last = last
        home = self.home << COUNT_BITS
        return [f"{home | count:016x}" for count in range(first, last + 1)]

    def ahead(self, now: int, many: int) -> int:
        """Milliseconds until so many can be issued."""
        return max(0, -(-(self.last + many - first_count(now + 1) + 1) // EACH))


def first_count(now: int) -> int:
    """The lowest count of a millisecond."""
    return max(0, now - BEGINNING) * EACH


def home_of(identifier: str) -> int:
    """The number of the home of a session, call or hop."""
    return int(identifier[:4], 16)


def count_of(identifier: str) -> int:
    """Its place among all identifiers of its home."""
    return int(identifier[4:16], 16)


def time_of(identifier: str) -> int:
    """About when it was issued: milliseconds since 1970."""
    return BEGINNING + count_of(identifier) // EACH
