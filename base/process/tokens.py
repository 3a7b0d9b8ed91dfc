"""Random bytes that nobody guesses, for numbers that are given one after the other: the system is asked for many of them together."""

from __future__ import annotations

import secrets

MANY = 128


class Tokens:
    """Gives so many bytes at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left: list[bytes] = []

    def next(self) -> bytes:
        """Other ones each time."""
        if not self._left:
            many = secrets.token_bytes(MANY * self._size)
            self._left = [many[at : at + self._size] for at in range(0, len(many), self._size)]
        return self._left.pop()
