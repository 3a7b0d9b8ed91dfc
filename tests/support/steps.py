"""Walks of short steps, gone through at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Found = TypeVar("Found")


def ended(steps: Generator[None, None, Found]) -> Found:
    """What a walk returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Found = end.value
            return found
