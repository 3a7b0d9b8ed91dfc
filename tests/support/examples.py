"""How much a test tries: as many examples and seeds as it names, more for `make nightly`, fewer for `make quick`."""

from __future__ import annotations

import os
from typing import TypeVar

FACTOR = int(os.environ.get("MQMESH_EXAMPLES", "1"))
QUICK = os.environ.get("MQMESH_QUICK") == "1"
FEWER = 10  # a quick run tries one in so many
Case = TypeVar("Case")


def examples(count: int) -> int:
    """For `settings(max_examples=...)` of a test for which `count` are enough every time: MQMESH_EXAMPLES times as many, or fewer."""
    return max(1, count // FEWER) if QUICK else count * FACTOR


def how_many(variable: str, count: int) -> int:
    """How many seeds, cases or days a test has: what the variable of the environment says, else `count`, or fewer."""
    return int(os.environ.get(variable) or (max(1, count // FEWER) if QUICK else count))


def sample(cases: list[Case]) -> list[Case]:
    """All cases, or some of them."""
    return cases[::FEWER] if QUICK else cases
