"""Empty containers that all idle sessions and connections share. An empty deque takes 760 bytes, a set 216.

Code that adds an element creates a container first (`if self.queue is EMPTY_QUEUE: self.queue = deque()`).
"""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

EMPTY_SET: Any = frozenset()  # has no method that adds to it


class _EmptyQueue(deque[Any]):
    """A deque that refuses every addition, because all idle objects share it."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("make a deque first: this empty one is shared")

    append = appendleft = extend = extendleft = insert = __iadd__ = _refuse


EMPTY_QUEUE: deque[Any] = _EmptyQueue()
