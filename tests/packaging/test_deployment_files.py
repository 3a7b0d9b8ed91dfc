"""The systemd unit, the configuration it comes with, and the Dockerfile: what can be held to without a machine of their own."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh.base.address import parse_address
from mqmesh.broker.config import load
from mqmesh.cli.main import app
from mqmesh.cli.site.unit import unit as unit_text
from support.services import PATIENCE, wait_until
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging"
UNIT = FOLDER / "mqmesh-broker.service"
PROGRAM = "/opt/mqmesh/bin/mqmesh"


def unit() -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None, strict=True)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(UNIT.read_text())
    return read


def dockerfile() -> dict[str, list[str]]:
    """instruction -> its arguments, continued lines joined."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            instruction, _, rest = line.partition(" ")
            found.setdefault(instruction, []).append(rest.strip())
    return found


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, sys.executable))  # it wants a program that is there
    done = subprocess.run([program, "verify", "--man=no", copy], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])


def test_the_unit_is_the_one_that_commands_write() -> None:
    text = UNIT.read_text()
    assert text[text.index("[Unit]") :] == unit_text("/etc/mqmesh/broker.toml")
    assert unit()["Service"]["Type"] == "notify"


def test_the_unit_starts_what_there_is() -> None:
    words = unit()["Service"]["ExecStart"].split()
    assert words[0] == PROGRAM
    assert words[-2:] == ["--config", "/etc/mqmesh/broker.toml"]
    assert CliRunner().invoke(app, [*words[1:-2], "--help"]).exit_code == 0


def test_the_configuration_is_open_on_loopback_only_and_keeps_its_state_where_the_unit_lets_it() -> None:
    config = load(FOLDER / "broker.toml")
    assert {parse_address(one).host for one in config.listen} == {"127.0.0.1"}
    assert config.http is not None
    assert config.http[0] == "127.0.0.1"
    assert str(config.data) == f"/var/lib/{unit()['Service']['StateDirectory']}"


def test_the_image_copies_and_runs_what_there_is() -> None:
    image = dockerfile()
    source, target = image["COPY"][-1].split()
    assert (ROOT / source).is_file()
    assert json.loads(image["CMD"][0])[-1] == target
    assert image["ENTRYPOINT"] == [f'["{PROGRAM}"]']
    assert image["USER"] == ["mqmesh"]  # nobody with more rights than needed
    extras = re.search(r"'\.\[([a-z,]+)\]'", image["RUN"][0])
    assert extras is not None
    for extra in extras[1].split(","):
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE), extra


def test_the_health_check_sees_a_broker_and_its_end(tmp_path: Path) -> None:
    """The very command of the image, against a broker from the very configuration, on other ports."""
    line = dockerfile()["HEALTHCHECK"][0]
    command = json.loads(line[line.index("[") :])
    command[0] = sys.executable
    text = (FOLDER / "broker.toml").read_text()
    config = tmp_path / "broker.toml"
    config.write_text(text.replace(":1883", ":0").replace(":9883", ":0").replace("/var/lib/mqmesh", str(tmp_path / "data")))
    start = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(config)]
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as broker:
        assert broker.stdout is not None
        port = re.search(r"http=http://127\.0\.0\.1:(\d+)", broker.stdout.readline())
        assert port is not None
        command[-1] = command[-1].replace("9883", port[1])
        # it waits two seconds for the answer, and is asked again, as on a busy machine
        wait_until(lambda: subprocess.run(command, timeout=PATIENCE).returncode == 0, PATIENCE, "healthy broker")
        broker.terminate()
        assert broker.wait(PATIENCE) == 0
    assert subprocess.run(command, timeout=PATIENCE, stderr=subprocess.DEVNULL).returncode != 0
