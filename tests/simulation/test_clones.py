"""Copied data folders: a fifth as many seeds as the other runs, as each takes longer. All of them: `make soak`."""

from __future__ import annotations

import pytest
from support.examples import how_many, sample

from .clones import Clones

SEEDS = max(1, how_many("MQMESH_SEEDS", 50) // 5)
SLICE = 5  # seeds in one test

# Seeds that once failed; what each showed has a test of its own in tests/mesh/node/test_copies.py.
ONCE_FAILED = [25, 48, 76, 133, 178, 202, 249, 512, 513, 678, 683, 1101, 1347, 1711, 521004, 20000231]


@pytest.mark.parametrize("seed", sample(ONCE_FAILED))
def test_seeds_that_once_failed(seed: int) -> None:
    Clones(seed).run()


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_one_of_two_yields_and_nothing_is_lost_or_repeated(start: int) -> None:
    for seed in range(start, min(start + SLICE, SEEDS)):
        try:
            Clones(seed).run()
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}\nrepeat it: python -m tests.simulation --seeds 1 --start {seed} --mode clones")
