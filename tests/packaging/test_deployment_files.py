"""The systemd unit, the image, the compose file and their configurations: what can be held to without a machine of their own."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from mqmesh.base.address import parse_address
from mqmesh.broker.config import load
from mqmesh.cli.main import app
from mqmesh.cli.site.unit import unit as unit_text
from support.command import run, start
from support.services import PATIENCE, free_port, wait_until
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


def test_the_image_serves_those_who_reach_its_port_and_keeps_its_state_in_its_volume() -> None:
    config, image = load(FOLDER / "container.toml"), dockerfile()
    (address,) = map(parse_address, config.listen)
    assert address.host == "0.0.0.0"  # loopback inside a container is nobody's
    assert str(address.port) in image["EXPOSE"][0].split()
    assert [str(config.data)] == image["VOLUME"]


def test_the_image_copies_and_runs_what_there_is() -> None:
    image = dockerfile()
    source, target = image["COPY"][-1].split()
    assert ROOT / source == FOLDER / "container.toml"
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
    text = (FOLDER / "container.toml").read_text()
    config = tmp_path / "broker.toml"
    config.write_text(text.replace("0.0.0.0:1883", "127.0.0.1:0").replace(":9883", ":0").replace("/var/lib/mqmesh", str(tmp_path / "data")))
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


# compose.yaml


def sites() -> dict[str, dict[str, Any]]:
    """The services of the compose file, as the sites' key stands in the environment."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def test_each_site_of_the_compose_file_has_a_port_and_a_volume_of_its_own_and_is_built_from_the_image() -> None:
    volumes = yaml.safe_load((FOLDER / "compose.yaml").read_text())["volumes"]
    ports, taken = set(), set()
    for name, site in sites().items():
        assert (FOLDER / site["build"]["context"] / site["build"]["dockerfile"]).resolve() == FOLDER / "Dockerfile"
        assert site["environment"]["MQMESH_KEY"].startswith("${MQMESH_KEY:?")
        (published,), (volume,) = site["ports"], site["volumes"]
        host, port, inside = published.rsplit(":", 2)
        assert (host, inside) == ("127.0.0.1", "1883")
        ports.add(port)
        assert volume == f"{name}:{dockerfile()['VOLUME'][0]}"
        taken.add(name)
    assert len(ports) == len(taken) == 3
    assert taken == set(volumes)


def test_the_sites_of_the_compose_file_become_one_mesh(tmp_path: Path) -> None:
    """Their own commands as processes, each with its container's file; other containers are at ports of this machine."""
    ports = {name: str(free_port()) for name in sites()}
    (tmp_path / "broker.toml").write_text((FOLDER / "container.toml").read_text().replace(":9883", ":0"))
    with contextlib.ExitStack() as stack:
        for name, site in sites().items():
            words = [re.sub(r"mqtt://(\w+):1883", lambda found: f"mqtt://127.0.0.1:{ports[found[1]]}", word) for word in site["command"]]
            words[words.index("--config") + 1] = str(tmp_path / "broker.toml")
            more = ["--listen", f"mqtt://127.0.0.1:{ports[name]}", "--data", str(tmp_path / name)]
            process = start(
                *words, *more, env={**os.environ, "MQMESH_KEY": "a secret of 16 bytes or more"}, stderr=tmp_path / f"{name}.log"
            )
            stack.callback(process.communicate)
            stack.callback(process.terminate)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready"), (tmp_path / f"{name}.log").read_text()
        wait_until(lambda: reached(ports["turin"]) == {"porto", "lyon", "turin"}, PATIENCE, "one mesh")


def reached(port: str) -> set[str]:
    done = run("status", "-h", f"mqtt://127.0.0.1:{port}", "--json")
    mesh = json.loads(done.stdout)["mesh"] or {"members": []}  # the broker has not published it yet
    return {one["name"] for one in mesh["members"] if one["live"]}
