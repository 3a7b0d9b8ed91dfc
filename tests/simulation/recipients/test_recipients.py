"""Recipients that hang, die and return: some seeds with every run of the tests, more with MQMESH_RECIPIENT_SEEDS."""

from __future__ import annotations

import pytest
from support.examples import how_many

from ..seeds import run_seeds

SEEDS = how_many("MQMESH_RECIPIENT_SEEDS", 12)
IN_TURNS = max(1, SEEDS // 3)
SLICE = 4


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_each_acknowledged_message_ends_somewhere_and_repeats_are_marked(start: int) -> None:
    run_seeds("recipients", start, min(SLICE, SEEDS - start))


@pytest.mark.parametrize("start", range(0, IN_TURNS, SLICE))
def test_the_same_where_every_message_is_delivered_in_turns(start: int) -> None:
    run_seeds("recipients", start, min(SLICE, IN_TURNS - start), "--turns")
