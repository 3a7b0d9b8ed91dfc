"""A short run of the fuzzing of migration; `fuzz_migrate.py` runs longer by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from mqmesh.cli.migrate import command

from .fuzz_migrate import CONF, check, round_of

SEEDS = 3


def test_what_is_written_can_be_started_from_or_is_said_to_need_more() -> None:
    outcomes = sum((round_of(seed) for seed in range(SEEDS)), Counter[str]())
    assert outcomes["written"]
    assert outcomes["refused"]


def test_the_check_finds_what_is_written_and_cannot_be_started_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would say nothing."""
    for name in ("acl", "users"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "plant.conf").write_text(CONF.replace("cafile ca.pem\n", ""))
    assert check([str(tmp_path / "plant.conf")], tmp_path / "first") == "written, needs more"
    monkeypatch.setattr(command, "_check", lambda *_: None)
    with pytest.raises(AssertionError, match="nobody can start from it"):
        check([str(tmp_path / "plant.conf")], tmp_path / "second")
