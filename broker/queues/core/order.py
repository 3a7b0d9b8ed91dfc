"""Positions in order: mostly added at the end and taken from the front, also where there are millions of them.

A list in pieces, so that taking one away moves a few hundred others and not all.

What it does not know: what stands at a position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

PIECE = 512


class Order:
    """See the module. Each number is in it once at most. begins: no number of a piece is below its own, none of the next one's is."""

    def __init__(self) -> None:
        self._pieces: list[list[int]] = []
        self._begins: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __iter__(self) -> Iterator[int]:
        for piece in self._pieces:
            yield from piece

    @property
    def first(self) -> int:
        """The least of them."""
        return self._pieces[0][0]

    def add(self, number: int) -> None:
        """Have a number that is not in it."""
        pieces = self._pieces
        if not pieces or (number > pieces[-1][-1] and len(pieces[-1]) >= PIECE):
            pieces.append([number])
            self._begins.append(number)
            return
        at = max(0, bisect_right(self._begins, number) - 1)
        piece = pieces[at]
        insort(piece, number)
        self._begins[at] = min(number, self._begins[at])
        if len(piece) > 2 * PIECE:
            pieces.insert(at + 1, piece[PIECE:])
            self._begins.insert(at + 1, piece[PIECE])
            del piece[PIECE:]

    def remove(self, number: int) -> None:
        """Have it no more."""
        at = bisect_right(self._begins, number) - 1
        piece = self._pieces[at]
        del piece[bisect_left(piece, number)]
        if not piece:
            del self._pieces[at]
            del self._begins[at]

    def floor(self, number: int) -> int | None:
        """The largest that is not above a number; None: there is none."""
        at = bisect_right(self._begins, number) - 1
        if at < 0:
            return None
        index = bisect_right(self._pieces[at], number) - 1
        if index >= 0:
            return self._pieces[at][index]
        return self._pieces[at - 1][-1] if at else None

    def above(self, number: int) -> int | None:
        """The least that is above a number; None: there is none."""
        at = max(0, bisect_right(self._begins, number) - 1)
        for piece in self._pieces[at : at + 2]:
            index = bisect_right(piece, number)
            if index < len(piece):
                return piece[index]
        return None
