"""Walks over a large dictionary in pieces, while it changes between them, without a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

AGAIN = 20_000  # values that are taken at once while keys come and go

V = TypeVar("V")


def pieces(table: Mapping[Any, V], size: int, deleted: Callable[[], int]) -> Iterator[list[V]]:
    """The values in lists of at most `size`, the oldest keys first. deleted: how many keys were deleted so far.

    A key that stays is found, once unless keys were deleted; one that comes or goes may be found or not. Once keys come or go, each `AGAIN`
    values take a look past all that were found: a few ms behind a million.
    """
    found, before = 0, deleted()
    rest: Iterator[V] | None = iter(table.values())
    while True:
        if rest is not None:
            try:
                part = list(islice(rest, size))
            except RuntimeError:  # the dictionary has another size
                rest = None
                continue
        else:
            found = max(0, found - (deleted() - before))  # as far as it is certain what stands before
            before = deleted()
            part = list(islice(table.values(), found, found + AGAIN))
        if not part:
            return
        found += len(part)
        for start in range(0, len(part), size):
            yield part[start : start + size]
