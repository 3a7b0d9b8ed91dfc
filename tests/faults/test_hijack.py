"""A user tries to take over another one's session while its broker is killed: `python -m benchmarks.trials.hijack` in short."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.scenes import Scene  # noqa: F401  (makes `benchmarks` known)

from benchmarks.trials.hijack import Result, cases, play

pytestmark = [pytest.mark.slow, pytest.mark.keeps]


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_nobody_gets_the_session_of_another_user(tmp_path: Path, store: str) -> None:
    results = [one for one in cases(1, (store,), ("move", "kill", "start")) if one.owner == "alice"]
    begun: list[Result] = []
    asyncio.run(play(tmp_path, store, results, 1, begun.append, roam_wait=60))
    assert begun == results
    for one in results:
        print(one)
        assert one.ok, one
        assert one.acknowledged > 10
