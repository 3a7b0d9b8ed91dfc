"""The stored queue is measured on a real broker, and what a broker does not keep is found missing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.command import start

from benchmarks import runner
from benchmarks.load_generator.generator import generate
from benchmarks.peers import PEERS, PeerError
from benchmarks.scenarios import SCENARIOS
from benchmarks.spec import Result, Spec

MESSAGES = 5000


@contextmanager
def broker(folder: Path, *lines: str) -> Iterator[tuple[str, int]]:
    """An mqmesh broker with these lines in its file: its address."""
    config = folder / "broker.toml"
    config.write_text("\n".join(['listen = ["mqtt://127.0.0.1:0"]', *lines]) + "\n")
    process: subprocess.Popen[str] = start("broker", "--config", config, stderr=folder / "log")
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("ready "), (folder / "log").read_text()
        yield "127.0.0.1", int(line.split()[1].rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate()


def measured(address: tuple[str, int], **fields: Any) -> Result:
    values = {"kind": "stored", "qos": 1, "window": 1000, "persistent": True, "messages": MESSAGES, "patience": 60.0, **fields}
    return generate(Spec(address, address, **values))


@pytest.mark.parametrize("fields", [{}, {"version": 5}, {"qos": 2}], ids=str)
def test_what_is_stored_comes_back(fields: dict[str, Any], tmp_path: Path) -> None:
    with broker(tmp_path, f'data = "{tmp_path}/data"') as address:
        result = measured(address, **fields)
    assert result.error == ""
    assert [result.lost, result.duplicates, result.disorder, result.corrupt] == [0, 0, 0, 0]
    assert result.deliveries == MESSAGES
    assert result.way_in is not None
    assert result.way_in["deliveries"] == MESSAGES
    assert min(result.rate, result.way_in["rate"]) > 0


def test_a_queue_that_does_not_hold_them_is_found_out(tmp_path: Path) -> None:
    with broker(tmp_path, "[limits]", "session_queue_messages = 4000") as address:
        for patience in (4.0, 15.0, 60.0):  # a busy machine moves nothing for a while
            error = measured(address, patience=patience).error
            if "after 4,000 of" in error:
                break
    assert "nothing moves any more after 4,000 of 5,000 messages" in error


def test_a_session_that_is_forgotten_is_found_out(tmp_path: Path) -> None:
    with broker(tmp_path, "[limits]", "session_expiry_maximum = 0") as address:
        result = measured(address)
    assert "forgotten the subscriber's session" in result.error


@pytest.mark.parametrize("fields", [{"qos": 0}, {"persistent": False}, {"messages": 0}, {"publishers": 2}], ids=str)
def test_what_cannot_be_measured_is_named(fields: dict[str, Any], tmp_path: Path) -> None:
    with broker(tmp_path) as address:
        assert "a queue is stored for one persistent subscriber" in measured(address, **fields).error


def test_the_way_in_and_the_way_out_are_one_measurement(tmp_path: Path) -> None:
    rows = [scenario for scenario in SCENARIOS if scenario.spec.get("kind") == "stored"]
    assert [scenario.way_in for scenario in rows] == [True, False]
    said: list[str] = []
    table = runner.run(rows, ["mqmesh"], runner.Settings(0.1, 0.05, 1, 0.002), said.append)
    (way_in,), (way_out,) = (cells[0].results for cells in table)
    assert (way_in["deliveries"], way_out["deliveries"]) == (2000, 2000)
    assert way_out["way_in"] == way_in


@pytest.mark.service
def test_mosquitto_stores_too(tmp_path: Path) -> None:
    try:
        PEERS["mosquitto"].version()
    except PeerError as error:
        pytest.skip(str(error))
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "stored-out")
    result = runner.measure(scenario, PEERS["mosquitto"], runner.Settings(0.1, 0.05, 1, 0.005), tmp_path / "mosquitto")
    assert result["error"] == ""
    assert [result[key] for key in ("deliveries", "lost", "duplicates", "disorder", "corrupt")] == [5000, 0, 0, 0, 0]
