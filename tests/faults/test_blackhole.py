"""Links and brokers that are silent without a reset: `python -m benchmarks.trials.blackhole` in short."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from rich.console import Console
from support.scenes import assert_clean

from benchmarks.trials.blackhole import run  # behind scenes, which makes `benchmarks` known

pytestmark = pytest.mark.slow


def test_nothing_is_lost_and_traffic_goes_round(tmp_path: Path) -> None:
    rounds = run(tmp_path, 2, random.Random(1), 300.0, 0.8, Console(quiet=True))
    assert [one.what.split()[0] for one in rounds] == ["stall", "stop"]
    for one in rounds:
        assert_clean(one)
        assert one.worst > 0.5  # it was one
