"""The benchmark of queues runs and counts every message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.queues.__main__ import app
from benchmarks.queues.large import app as large


@pytest.mark.parametrize("more", [[], ["--uniform"]])
def test_it_counts_every_message(more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["--count", "1000", "--durability", "os", "--json", *more])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["in order"]["messages"] == found["at random"]["messages"] == 1000
    assert not list(tmp_path.iterdir())


def test_a_large_queue_is_read_while_it_is_worked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(large, ["--count", "200000", "--durability", "os"])
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.output.splitlines()]
    assert [one["messages"] for one in found[:-1]] == [10_000, 100_000, 200_000]
    assert not list(tmp_path.iterdir())
