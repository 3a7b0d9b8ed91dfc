"""`mqmesh pipeline`, as far as it needs no Spark: lists, made journals, and what is said of wrong orders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mqmesh.cli.pipeline.command import app
from mqmesh.pipeline.registry import JOBS
from mqmesh.pipeline.tables.tables import Tables
from typer.testing import CliRunner, Result

ROOT = Path(__file__).parents[2]
RING = ROOT / "topologies" / "ring-of-five.toml"


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_jobs() -> None:
    listed = json.loads(command("jobs", "--json").stdout)
    assert [one["name"] for one in listed] == list(JOBS)
    assert "messages" in command("jobs").stdout


def test_synthesize_says_what_it_made(tmp_path: Path) -> None:
    made = json.loads(command("synthesize", RING, tmp_path / "journal", "--events", 500, "--topics", 20, "--json").stdout)
    truth = json.loads((tmp_path / "journal" / "truth.json").read_text())
    assert made["messages"] == truth["messages"] > 0
    again = command("synthesize", RING, tmp_path / "journal")
    assert again.exit_code == 2
    assert "holds a journal already: give an empty folder" in again.stderr


def test_synthesize_of_no_topology(tmp_path: Path) -> None:
    found = command("synthesize", tmp_path / "none.toml", tmp_path / "journal")
    assert found.exit_code == 2
    assert "none.toml" in found.stderr
    assert len([line for line in found.stderr.splitlines() if line.strip()]) == 1


def test_tables(tmp_path: Path) -> None:
    import pyarrow as pa

    Tables(tmp_path).write_arrow("messages", pa.table({"date": ["2026-11-01", "2026-11-03"], "value": [1, 2]}))
    (listed,) = json.loads(command("tables", "--out", tmp_path, "--json").stdout)
    assert (listed["table"], listed["rows"], listed["dates"]) == ("messages", 2, ["2026-11-01", "2026-11-03"])
    assert all(Path(path).exists() for path in listed["files"])
    assert "2026-11-01 to 2026-11-03" in command("tables", "--out", tmp_path).stdout


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("nothing",), '"nothing" is no job: give one of messages'),
        (("--since", "now"), "--since now: give a date (UTC), such as 2026-11-22"),
        (("--set", "latency.window"), "--set latency.window: write JOB.KEY=VALUE"),
        ((), "has no closed segments of this time: give the journal's folder"),
    ],
)
def test_wrong_orders(tmp_path: Path, more: tuple[str, ...], text: str) -> None:
    found = command("run", "--journal", tmp_path / "journal", "--out", tmp_path / "out", *more)
    assert found.exit_code == 2
    assert text in found.stderr
    assert not (tmp_path / "out").exists()
