"""examples/directory.py registers a service and finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.directories import Directory
from support.services import PATIENCE

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "directory.py"


def test_the_example_finds_what_it_registers(directory: Directory) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, directory.url, "alice", directory.secrets["alice"]], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [["lyon", "mqtt://127.0.0.1:1884"], ["porto", "mqtt://127.0.0.1:1883"]]
