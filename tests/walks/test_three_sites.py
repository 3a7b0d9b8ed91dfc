"""docs/three-sites.md, played block by block on machines with the page's own addresses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.lan import Lan
from support.services import PATIENCE, wait_until

PAGE = (Path(__file__).parents[2] / "docs/three-sites.md").read_text()
SITES = dict(re.findall(r"^\| (\w+) \| ([\d.]+) \|$", PAGE, re.MULTILINE))
DESK = "at your desk"


def blocks(step: int) -> list[tuple[str, str]]:
    """Where, and what is pasted there."""
    text = re.split(r"\n## ", PAGE)[step]
    return re.findall(r"```sh\n# ([^\n]+)\n(.*?)```", text, re.DOTALL)


@pytest.mark.service
def test_the_page_makes_a_mesh_of_three_machines(tmp_path: Path) -> None:
    assert SITES.keys() == {"porto", "lyon", "turin"}
    desk = tmp_path / "desk"
    desk.mkdir()
    with Lan({**SITES, "desk": "10.78.1.100"}) as lan:
        said = describe(lan, desk)
        assert "good" in said
        for name in SITES:
            shutil.move(desk / "sites" / name, tmp_path / name)  # step 2
        (desk / "sites/porto/tls").mkdir(parents=True)
        shutil.copy(tmp_path / "porto/tls/ca.crt", desk / "sites/porto/tls")
        start(lan, tmp_path)
        lose_a_site(lan, desk, listen_and_publish(lan, desk))


def describe(lan: Lan, desk: Path) -> str:
    (file,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (desk / "sites.toml").write_text(file)
    ((where, commands),) = blocks(1)
    assert where == DESK
    done = lan.run("desk", desk, commands)
    assert done.returncode == 0, done.stderr
    assert "weak" not in done.stdout + done.stderr
    return done.stdout


def start(lan: Lan, folder: Path) -> None:
    brokers = []
    for where, commands in blocks(3):
        name = where.removeprefix("on ")
        brokers.append(lan.start(name, folder / name, commands, folder / f"{name}.log"))
    assert len(brokers) == len(SITES)
    for broker in brokers:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready"), [path.read_text() for path in folder.glob("*.log")]


def listen_and_publish(lan: Lan, desk: Path) -> subprocess.Popen[str]:
    """Step 4. Returns the other terminal."""
    (_, status), (other, listen), (_, publish) = blocks(4)
    assert other == f"{DESK}, in another terminal"
    password, status = status.splitlines()
    wait_until(lambda: at_desk(lan, desk, password, f"{status} --check").returncode == 0, PATIENCE, "all links up")
    terminal = lan.start("desk", desk, listen, desk / "listen.log")

    def turin_wants_it() -> bool:
        found = json.loads(at_desk(lan, desk, password, f"{status} --json").stdout)
        return any(one["name"] == "turin" and one["filters"] > 0 for one in found["mesh"]["members"])

    wait_until(turin_wants_it, PATIENCE, "porto knows what turin wants")
    done = at_desk(lan, desk, password, publish)
    assert done.returncode == 0, done.stderr
    assert terminal.stdout is not None
    assert terminal.stdout.readline() == "plant/1/state running\n"
    return terminal


def lose_a_site(lan: Lan, desk: Path, terminal: subprocess.Popen[str]) -> None:
    (where, down), (_, check), (_, publish), (_, up) = blocks(5)
    assert where == "on turin"
    password = blocks(4)[0][1].splitlines()[0]
    assert lan.run("turin", desk, down).returncode == 0
    wait_until(lambda: at_desk(lan, desk, password, check).returncode == 1, PATIENCE, "porto misses turin")
    assert at_desk(lan, desk, password, publish).returncode == 0
    assert lan.run("turin", desk, up).returncode == 0
    assert terminal.stdout is not None
    assert terminal.stdout.readline() == "plant/1/state stopped\n"
    wait_until(lambda: at_desk(lan, desk, password, check).returncode == 0, PATIENCE, "all is well again")


def at_desk(lan: Lan, desk: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    return lan.run("desk", desk, "\n".join(commands))
