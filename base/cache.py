"""A dictionary with a bound, for what may be forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LONGEST = 512  # bytes or characters of a name that strangers choose, beyond which nothing is remembered of it: caches count their entries


class Cache(OrderedDict[K, V]):
    """A dictionary of the entries that were kept last. Reading is that of any dictionary.

    most: number of entries. `keep` drops the oldest entry beyond it.
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, value: V) -> None:
        """Set an entry. It becomes the newest one."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)
