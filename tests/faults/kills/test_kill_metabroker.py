"""A metabroker and a remote that are killed again and again: `python -m benchmarks.trials.metabroker_kill` in short."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scenes import Scene  # noqa: F401  (makes `benchmarks` known)

from benchmarks.trials.kill import errors_in
from benchmarks.trials.metabroker_kill import MEMBERS, PUBLISHERS, trial

pytestmark = pytest.mark.slow
ROUNDS = 2


@pytest.mark.parametrize("inside", [False, True], ids=["apart", "inside"])
def test_durable_sessions_go_on_and_nothing_is_lost(tmp_path: Path, inside: bool) -> None:
    verdict = trial(tmp_path, 1, ROUNDS, "mqmesh", 150, inside=inside)
    print(verdict)
    assert verdict.good, verdict
    assert (verdict.rounds, verdict.metabroker_kills, verdict.remote_kills) == (ROUNDS, ROUNDS, ROUNDS)
    assert verdict.published >= ROUNDS * PUBLISHERS
    assert verdict.delivered == MEMBERS * verdict.published
    assert verdict.arrived == verdict.requested
    assert not errors_in(tmp_path / "metabroker.log")
