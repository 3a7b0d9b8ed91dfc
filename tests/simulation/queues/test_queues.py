"""Queues with homes, members and publishers at several sites: some seeds with every run of the tests, more with MQMESH_QUEUE_SEEDS."""

from __future__ import annotations

import pytest
from support.examples import how_many

from ..seeds import run_seeds

SEEDS = how_many("MQMESH_QUEUE_SEEDS", 12)
SLICE = 6


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_each_put_ends_once_and_what_is_done_is_never_offered_again(start: int) -> None:
    run_seeds("queues", start, min(SLICE, SEEDS - start))


@pytest.mark.slow
def test_a_seed_repeats_its_run_whatever_the_order_of_sets() -> None:
    first, second = (run_seeds("queues", 4014, 1, hashes=hashes) for hashes in "01")
    assert "DONE" in first
    assert first == second
