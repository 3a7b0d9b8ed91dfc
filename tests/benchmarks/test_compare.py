"""Two checkouts compared: intervals, which checkout runs, the command line."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import compare
from benchmarks.peers import ROOT
from benchmarks.scenarios import Scenario
from benchmarks.spec import Result

RATE = Scenario("rate", "A rate")
TIME = Scenario("time", "A time", {"kind": "latency"})


def result(**fields: Any) -> dict[str, Any]:
    """The fields of one measurement."""
    values = {name: getattr(Result(), name) for name in Result.__dataclass_fields__}
    return {**values, "deliveries": 1000, "seconds": 1.0, **fields}


def test_the_interval_is_that_of_students_distribution() -> None:
    found = compare.interval([math.exp(value) for value in (-0.1, 0.0, 0.1)])
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    half = 4.303 * 0.1 / math.sqrt(3)
    assert [math.log(value) for value in (found.mean, found.low, found.high)] == pytest.approx([0.0, -half, half], abs=1e-3)


def test_one_ratio_has_no_interval_and_none_no_mean() -> None:
    assert compare.interval([0.5]) == compare.Interval(0.5, None, None)
    assert compare.interval([]) is None


@pytest.mark.parametrize(("high", "reaches"), [(0.969, False), (0.971, True)])
def test_a_row_is_not_slower_when_its_interval_reaches_the_level(high: float, reaches: bool) -> None:
    assert compare.Interval(0.9, 0.8, high).reaches(compare.ENOUGH) is reaches


def test_ratios_are_of_speed_and_of_processor_time() -> None:
    row = compare.Comparison(RATE, [result(rate=100.0, broker_cpu=1.0)], [result(rate=90.0, broker_cpu=1.2)])
    assert (row.ratios("speed"), row.ratios("cpu")) == ([pytest.approx(0.9)], [pytest.approx(1.2)])
    assert row.slower
    slow = compare.Comparison(TIME, [result(p50=10e-6)], [result(p50=20e-6)])
    assert slow.ratios("speed") == [pytest.approx(0.5)]


def test_a_pair_without_a_figure_is_left_out_and_named() -> None:
    row = compare.Comparison(RATE, [result(rate=1.0), result(error="it does not start")], [result(rate=1.0), result(rate=1.0, lost=2)])
    assert row.ratios("speed") == [1.0]
    assert row.trouble == "base: it does not start; here: 2 lost"


def test_each_checkout_runs_its_own_code(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "__init__.py").write_text("")
    for name, folder in (("base", other), ("here", ROOT)):
        peer = compare.Checkout(name, folder, tmp_path / name)
        command = [*peer.python(0), "-c", "import mqmesh; print(mqmesh.__file__)"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        assert Path(said.strip()).resolve() == folder / "__init__.py"


def test_a_revision_is_checked_out_and_removed(tmp_path: Path) -> None:
    def worktrees() -> str:
        return subprocess.run(["git", "-C", str(ROOT), "worktree", "list"], capture_output=True, text=True, check=True).stdout

    before = worktrees()
    with compare.checkout("HEAD", tmp_path) as folder:
        assert (folder / "broker").is_dir()
    assert worktrees() == before


def test_a_run_from_the_command_line() -> None:
    """The whole way, with processes: this checkout against itself."""
    arguments = [str(ROOT), "--pairs", "2", "--only", "qos0-1to1-ws,single-20to1-qos0", "--seconds", "0.1", "--warm-up", "0.05", "--json"]
    done = CliRunner().invoke(compare.app, arguments)
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {"qos0-1to1-ws", "single-20to1-qos0", "single-20to1-qos0-durable"}
    for row in rows.values():
        assert row["trouble"] == ""
        assert len(row["speed_ratios"]) == 2
        assert row["speed"]["low"] <= row["speed"]["mean"] <= row["speed"]["high"]
    assert done.exit_code == any(row["slower"] for row in rows.values())


def test_the_table_says_which_row_is_slower() -> None:
    row = compare.Comparison(RATE, [result(rate=100e3)] * 3, [result(rate=50e3)] * 3)
    (verdict,) = compare.table([row]).columns[-1].cells
    assert str(verdict) == "[red]below 0.97[/]"


@pytest.mark.parametrize(("base", "said"), [("no-such-revision", "neither a folder nor a revision"), ("/", "no checkout of mqmesh")])
def test_what_is_no_checkout_is_named(base: str, said: str) -> None:
    done = CliRunner().invoke(compare.app, [base, "--only", "qos0-1to1-ws"])
    assert done.exit_code == 2
    assert said in done.output
