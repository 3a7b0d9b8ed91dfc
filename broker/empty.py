"""Empty containers that all idle sessions and connections share: an own empty deque takes 760 bytes, a set 216.

Whoever has something to put in makes a container of its own first (`if self.queue is NOTHING: self.queue = deque()`).
"""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

NOBODY: Any = frozenset()  # stands where a set is expected, and has no way to add to it


class _Nothing(deque[Any]):
    """Stays empty: what is put in would show up everywhere."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("make a queue of your own first: this one is shared by all who have nothing")

    append = appendleft = extend = extendleft = insert = __iadd__ = _refuse


NOTHING: deque[Any] = _Nothing()
