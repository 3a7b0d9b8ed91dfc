"""The commands of docs/from-mosquitto.md, as they stand there; those for two bridged sites are in test_bridged_sites.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import Block, of
from support.mosquittos import Mosquitto

PAGE = "docs/from-mosquitto.md"
BLOCKS = [block for block in of("sh", PAGE) if not block.section.startswith("Two bridged sites")]
BROKER = "mqmesh broker "  # it would run for ever
OPEN = "listener 1883\nallow_anonymous true\npersistence true\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the commands name; of the blocks before, what they have written."""
    found = tmp_path_factory.mktemp("page") / "plant"
    found.mkdir()
    (found / "mosquitto.conf").write_text(OPEN)
    (found / "hub.conf").write_text(OPEN)
    (found / "plant.conf").write_text(f"{OPEN}connection hub\naddress 10.0.0.1\ntopic # both 2\n")
    (found / "acl.conf").write_text('{allow, {user, "a"}, all, ["a/#"]}.\n{deny, all}.\n')
    with Mosquitto(found) as its:
        its.stop()
    (found / "mosquitto.db").write_bytes(next((found / "mosquitto-data").iterdir()).read_bytes())
    return found


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_each_command_does_what_the_page_says(block: Block, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    lines = [line for line in block.text.splitlines() if not line.startswith(BROKER)]
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in block.text.splitlines():
        if line.startswith(BROKER):
            assert (folder / line.split()[-1]).exists()
