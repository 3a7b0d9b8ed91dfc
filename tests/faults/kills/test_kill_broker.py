"""A broker that is killed again and again under QoS 1 and 2 load keeps what it acknowledged (short form of `benchmarks.trials.kill`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.scenes import Scene  # noqa: F401  (makes `benchmarks` known)

from benchmarks.trials.kill import STORES, errors_in, trial

pytestmark = pytest.mark.slow
ROUNDS = 5


@pytest.mark.parametrize("store", STORES)
def test_nothing_acknowledged_is_lost(store: str, tmp_path: Path) -> None:
    verdict = asyncio.run(trial(tmp_path, 1, ROUNDS, [], rate=800, store=store))
    print(verdict)
    assert verdict.good, verdict
    assert verdict.rounds == ROUNDS
    assert verdict.acknowledged > 20 * ROUNDS
    assert not errors_in(tmp_path / "log")
