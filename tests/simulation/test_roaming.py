"""Roaming clients: some seeds of `roaming.py` with every run of the tests, more with MQMESH_SEEDS."""

from __future__ import annotations

import pytest
from support.examples import how_many

from .roaming import World

SEEDS = how_many("MQMESH_SEEDS", 100)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_seeds(first: int) -> None:
    for seed in range(first, min(first + 50, SEEDS)):
        try:
            World(seed, owned=seed % 2 == 1).run()
        except Exception as error:
            error.add_note(f"repeat it: python -m tests.simulation.roaming --seeds 1 --start {seed}")
            raise
