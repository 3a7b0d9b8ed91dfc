"""Walks of short steps, gone through at once; and turns of one step each."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from mqmesh.broker.turns import Turns

Found = TypeVar("Found")


def ended(steps: Generator[None, None, Found]) -> Found:
    """What a walk returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Found = end.value
            return found


def one_step_a_round(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is a slice, after which the loop looks at its sockets."""

    def over() -> bool:
        turns.end_round()
        return True

    monkeypatch.setattr(turns, "over", over)
