"""How many of its examples and seeds a test tries: half of them in `make test`, all and more in `make nightly`, a tenth in `make quick`."""

from __future__ import annotations

import os
from typing import TypeVar

FACTOR = int(os.environ.get("MQMESH_EXAMPLES", "1"))
QUICK = os.environ.get("MQMESH_QUICK") == "1"
FEWER = 10 if QUICK else 2 if FACTOR == 1 else 1  # a run tries one in so many
Case = TypeVar("Case")


def examples(count: int) -> int:
    """For `settings(max_examples=...)` of a test that names `count`: a part of them, or MQMESH_EXAMPLES times as many."""
    return max(1, count // FEWER) if FEWER > 1 else count * FACTOR


def how_many(variable: str, count: int) -> int:
    """How many seeds, cases or days a test has: what the variable of the environment says, else `count` or a part of them."""
    return int(os.environ.get(variable) or max(1, count // FEWER))


def sample(cases: list[Case]) -> list[Case]:
    """All cases, or in a quick run some of them."""
    return cases[::FEWER] if QUICK else cases
