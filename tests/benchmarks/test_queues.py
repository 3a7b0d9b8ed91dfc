"""The benchmark of queues runs and counts every message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.queues.__main__ import app


@pytest.mark.parametrize("more", [[], ["--uniform"]])
def test_it_counts_every_message(more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["--count", "1000", "--durability", "os", "--json", *more])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["in order"]["messages"] == found["at random"]["messages"] == 1000
    assert not list(tmp_path.iterdir())
