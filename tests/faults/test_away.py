"""A site that is away while messages wait for a session there: `python -m benchmarks.trials.away` in short."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from support.scenes import assert_clean

from benchmarks.trials.away import run  # behind scenes, which makes `benchmarks` known

pytestmark = [pytest.mark.slow, pytest.mark.cold]  # it looks at the broker's memory


def test_all_that_waited_arrives(tmp_path: Path) -> None:
    found = run(tmp_path, 10_000, 5_000.0, Console(quiet=True))
    assert found.round is not None
    assert_clean(found.round)
    assert found.memory[-1][0] >= 10_000
    assert found.stream.received == found.sent > 10_000
    assert found.problems() == []
