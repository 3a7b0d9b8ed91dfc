"""A broker is started on a copy of another one's data folder: `python -m benchmarks.trials.clones` in short."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scenes import Scene  # noqa: F401  (makes `benchmarks` known)

from benchmarks.trials.clones import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("shape", "site", "apart"), [("triangle", "a", False), ("chain", "b", True)])
def test_the_copy_stops_and_what_both_acknowledged_arrives(tmp_path: Path, shape: str, site: str, apart: bool) -> None:
    result = run(tmp_path, shape, site, apart, 500.0, 1)
    print(result)
    assert result.ok, result
    assert result.acknowledged > 100
    assert result.here > 0
