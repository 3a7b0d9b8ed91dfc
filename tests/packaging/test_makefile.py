"""The Makefile explains itself, and the scripts behind it are sound."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / ".ci").iterdir())


def test_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    shown = subprocess.check_output(["make", "--no-print-directory", "-C", str(ROOT), "help"], text=True)
    for target in phony[1].split():
        assert re.search(rf"^  make {target} +\S", shown, re.MULTILINE), target


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_strict_and_executable(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
