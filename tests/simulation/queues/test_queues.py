"""Queues with homes, members and publishers at several sites: some seeds with every run of the tests, more with MQMESH_QUEUE_SEEDS."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from .scenario import run

SEEDS = int(os.environ.get("MQMESH_QUEUE_SEEDS", "20"))
SLICE = 10


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_each_put_ends_once_and_what_is_done_is_never_offered_again(start: int) -> None:
    for seed in range(start, min(start + SLICE, SEEDS)):
        run(seed)
