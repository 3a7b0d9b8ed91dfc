"""Recipients that hang, die and return: some seeds with every run of the tests, more with MQMESH_RECIPIENT_SEEDS."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from .scenario import run

SEEDS = int(os.environ.get("MQMESH_RECIPIENT_SEEDS", "12"))
SLICE = 4


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_each_acknowledged_message_ends_somewhere_and_repeats_are_marked(start: int) -> None:
    for seed in range(start, min(start + SLICE, SEEDS)):
        run(seed)
