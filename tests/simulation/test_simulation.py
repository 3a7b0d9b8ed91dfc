"""Many seeds of the simulation: `MQMESH_SEEDS` says how many (10; 2000 in `make soak`).

A failing one names the command that repeats it.
"""

from __future__ import annotations

import pytest
from support.examples import how_many, sample

from .__main__ import mode_of
from .portions import portions_of
from .scenario import Scenario

SEEDS = how_many("MQMESH_SEEDS", 20)
SLICE = 20  # seeds in one test

# Seeds that once failed. Each rule that they changed also has a test of its own in tests/mesh, because what a seed
# does changes with the scenario.
ONCE_FAILED = [
    (124, "routed"),  # a destination that had lost its memory claimed an epoch below its earlier one: repeated deliveries
    (133, "routed"),  # interest of a broker that was not reachable yet was not passed on when a link came up
    (213, "routed"),  # the same
    (616, "routed"),  # a link used before its peer had said all: a number's earlier holder seemed to live, for ever
    (1179, "flood"),  # a flooded stream did not see a new neighbour
    (2279, "flood"),  # the same
    (75, "routed"),  # with records: a new broker under a number owed what its earlier holder had settled
    (842, "routed"),  # the same
    (965, "routed"),  # the same
    (392, "routed"),  # frames went to a destination before the store said that they may: after a crash they counted as never sent
    (2590, "routed"),  # the same, with a shared subscription
    (127, "routed"),  # fails if `noted` does not wait for the commit of the re-pick
    (136, "routed"),  # fails if what is picked again does not wait for its commit
    (166, "routed"),  # the same
    (1, "routed"),  # fails if QoS 2 does not wait for the commit
    (9120, "routed"),  # a retained message was taken to come to a broker that was only picked for a shared subscription
    (1645, "routed"),  # the same
    (320, "routed"),  # announced by a comparison, it came as a pick behind a restart, and ordinary subscribers got it again
    (109, "flood"),  # an older retained message came behind a deletion that nobody had been told of
    (583, "routed"),  # the same
    (46, "routed"),  # a neighbour dropped the beginning of a comparison, and on that link nothing was compared any more
    (51, "routed"),  # the same
]


@pytest.mark.parametrize(("seed", "mode"), sample(ONCE_FAILED))
def test_seeds_that_once_failed(seed: int, mode: str) -> None:
    Scenario(seed, mode).run()


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_nothing_is_lost_repeated_or_reordered(start: int) -> None:
    for seed in range(start, min(start + SLICE, SEEDS)):
        mode = mode_of(seed)
        try:
            Scenario(seed, mode).run()
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}\nrepeat it: python -m tests.simulation --seeds 1 --start {seed} --mode {mode}")


@pytest.mark.parametrize("start", range(0, SEEDS // 4, SLICE))
def test_nothing_changes_when_interest_goes_in_portions(start: int) -> None:
    for seed in range(start, min(start + SLICE, SEEDS // 4)):
        mode, entries = mode_of(seed), 1 + seed % 3
        try:
            with portions_of(entries):
                Scenario(seed, mode).run()
        except Exception as error:
            again = f"python -m tests.simulation --seeds 1 --start {seed} --mode {mode} --portions {entries}"
            pytest.fail(f"seed {seed}: {error}\nrepeat it: {again}")
