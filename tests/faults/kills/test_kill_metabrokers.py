"""One of three metabrokers of a ring is harmed under load: `python -m benchmarks.trials.metabrokers_kill` in short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.peers.postgres import server
from support.scenes import Scene  # noqa: F401  (makes `benchmarks` known)

from benchmarks.trials.metabrokers_kill import trial

pytestmark = [pytest.mark.slow, pytest.mark.service]
KILLS = int(os.environ.get("MQMESH_METABROKER_KILLS", "1"))
MEMBERS = 300 if KILLS > 1 else 9
OTHERS = {"drain": 1, "part": KILLS // 10} if KILLS > 1 else {"drain": 1}


def test_sessions_go_on_and_nothing_is_lost(tmp_path: Path) -> None:
    with server() as postgres:
        verdict = trial(
            tmp_path,
            1,
            postgres.url,
            ["kill"] * KILLS + [kind for kind, count in OTHERS.items() for _ in range(count)],
            MEMBERS,
            20 if KILLS == 1 else 5,
        )
    print(verdict)
    assert verdict.good, verdict
    assert verdict.rounds == {"kill": KILLS, **OTHERS}
    assert verdict.moved > 0
    for log in tmp_path.glob("metabroker-*.log"):
        assert "Traceback" not in log.read_text()
