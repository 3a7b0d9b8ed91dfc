"""Brokers that restart without a link: what they acknowledge for those whose interest they knew arrives (docs/mesh-protocol.md, 11).

`make nightly` runs 2,000 seeds of it.
"""

from __future__ import annotations

import pytest
from support.examples import how_many

from .scenario import RESTARTS, Scenario

SEEDS = how_many("MQMESH_SEEDS", 10)
SLICE = 10  # seeds in one test


class Restarts(Scenario):
    """Little else happens than that brokers die and come back alone."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faults = RESTARTS


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_what_is_acknowledged_before_the_first_link_arrives(start: int) -> None:
    apart = 0
    for seed in range(start, min(start + SLICE, SEEDS)):
        try:
            apart += Restarts(seed).run().apart
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}")
    assert apart, "no broker took a message for others without a link"
