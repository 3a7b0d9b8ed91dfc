"""From a measurement to the table, the documentation and the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import docs, plot, report, runner
from benchmarks.peers import PEERS, PeerError, binary
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.spec import Result

SHORT = runner.Settings(0.1, 0.05, 1)


def cell(scenario: Scenario, peer: str, **fields: Any) -> runner.Cell:
    """A cell of one measurement."""
    values = {name: getattr(Result(), name) for name in Result.__dataclass_fields__}
    return runner.Cell(scenario, peer, [{**values, "deliveries": 1000, "seconds": 1.0, **fields}])


def table(**ours: Any) -> list[report.Row]:
    """A table of a throughput row and a latency row."""
    rate = Scenario("rate", "A rate", bars={"mosquitto": 4, "nats": 0.8})
    time = Scenario("time", "A time", {"kind": "latency"}, bars={"mosquitto": 1.2})
    return report.rows(
        [
            [cell(rate, "mqmesh", rate=900e3, **ours), cell(rate, "mosquitto", rate=200e3), cell(rate, "nats", rate=1.5e6)],
            [cell(time, "mqmesh", p50=30e-6, p99=60e-6), cell(time, "mosquitto", p50=28e-6)],
        ]
    )


def test_a_bar_is_reached_from_the_right_side() -> None:
    rate, time = table()
    assert [(peer, reached) for peer, _, _, reached in rate.bars()] == [("mosquitto", True), ("nats", False)]
    assert [reached for _, _, _, reached in time.bars()] == [True]
    assert report.bar_text(rate) == ("≥ 4 × mosquitto, ≥ 0.8 × nats", "4.50 × mosquitto, 0.60 × nats", False)


def test_a_missing_figure_reaches_nothing() -> None:
    rate, _ = table(error="it did not start")
    assert [reached for _, _, _, reached in rate.bars()] == [None, None]
    assert report.figure(rate.cells["mqmesh"]) == "failed"
    assert report.errors([rate]) == [("mqmesh", "it did not start", ["rate"])]


def test_the_terminal_shows_what_was_lost() -> None:
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report.terminal(table(lost=3, duplicates=1), ["mqmesh", "mosquitto", "nats"]))
    said = console.export_text()
    for words in ("900 k", "3 lost, 1 duplicated", "× 4.50", "30 / 60 µs", "≥ 0.8 × nats missed"):
        assert words in said


def test_the_page_keeps_what_stands_around_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = report.as_json(table(), runner.machine(), {"mqmesh": "mqmesh 1", "mosquitto": "mosquitto 2", "nats": "nats 3"}, SHORT)
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{docs.BEGIN}\nold\n{docs.END}\nafter\n")
    for name, path in (("PAGE", page), ("PLOT", tmp_path / "plot.svg"), ("LAST", tmp_path / "last.json")):
        monkeypatch.setattr(docs, name, path)
    docs.write(table(), data)
    text = page.read_text()
    assert (text[:7], text[-7:]) == ("before\n", "\nafter\n")
    assert "old" not in text
    assert "| A rate | 900 k | 200 k | 1.50 M | 4.50 × mosquitto (≥ 4), **0.60 × nats (≥ 0.8)** |" in text
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    assert "runs" not in json.loads((tmp_path / "last.json").read_text())["scenarios"][0]["peers"]["mqmesh"]
    with pytest.raises(ValueError, match="benchmark: begin"):
        docs.between("a page without markers", "text")


def test_a_plot_of_a_part_is_drawn(tmp_path: Path) -> None:
    data = report.as_json(table()[:1], {}, {}, SHORT)
    plot.draw(data, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_scenario_names_are_unique_and_bars_name_peers() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert {peer for scenario in SCENARIOS for peer in (*scenario.bars, *scenario.peers)} <= set(PEERS)


def test_a_run_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with processes: forward stands for a broker."""
    monkeypatch.setattr(command, "OUT", command.ROOT / "out" / "test-bench.json")
    done = CliRunner().invoke(command.app, ["--quick", "--peers", "forward", "--only", "qos0-1to1,latency-qos0"])
    assert done.exit_code == 0, done.output
    data = json.loads(command.OUT.read_text())
    command.OUT.unlink()
    found = {scenario["name"]: scenario["peers"]["forward"] for scenario in data["scenarios"] if "forward" in scenario["peers"]}
    assert found["qos0-1to1"]["median"] > 0
    assert found["qos0-1to1"]["broker_cpu_per_delivery"] >= 0  # the system counts in ticks of 10 ms: on a busy machine there may be none
    assert 0 < found["latency-qos0"]["median"] <= found["latency-qos0"]["p99"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing-like-it"], "no scenario contains"),
        (["--peers", "rabbit"], "no peer is called"),
        (["--write-docs", "--quick"], "documents a whole run"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(command.app, arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_a_broker_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeerError, match="apt install no-such-broker, or set NO_SUCH"):
        binary("NO_SUCH", "no-such-broker")


def test_a_broker_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSQUITTO", "/bin/false")
    result = runner.measure(SCENARIOS[0], PEERS["mosquitto"], SHORT, tmp_path / "broker")
    assert "does not start: it says nothing" in result["error"]


@pytest.mark.service
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", ["amqtt", "mosquitto", "nats"])
def test_real_brokers_are_measured_without_faults(tmp_path: Path, name: str, qos: int) -> None:
    peer = PEERS[name]
    scenario = Scenario("real", "", {"qos": qos, "window": 200})
    if not scenario.fits(peer):
        pytest.skip(f"{name} has no QoS {qos}")
    try:
        peer.version()
    except PeerError as error:
        pytest.skip(str(error))
    result = runner.measure(scenario, peer, SHORT, tmp_path / "broker")
    assert result["error"] == ""
    assert result["deliveries"] >= 100
    assert [result[key] for key in ("lost", "duplicates", "disorder", "corrupt")] == [0, 0, 0, 0]
