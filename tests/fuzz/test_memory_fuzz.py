"""Some stories of clients that take memory; `fuzz_memory.py` tells many by hand."""

from __future__ import annotations

import pytest

from .fuzz_memory import story_of


@pytest.mark.parametrize("seed", range(4))
def test_what_the_broker_holds_is_in_its_ledger(seed: int) -> None:
    assert story_of(seed, steps=60).total() == 60
