"""The fuzzers start as `make fuzz` starts them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))


def test_every_part_of_make_fuzz_is_there() -> None:
    recipe = re.search(
        r"^fuzz:.*\n\tfor part in ([a-z ]+); do \$\(BIN\)/python -m tests\.fuzz\.fuzz_", (ROOT / "Makefile").read_text(), re.M
    )
    assert recipe is not None
    assert {f"fuzz_{part}" for part in recipe[1].split()} <= set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_it_starts_by_itself(part: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"tests.fuzz.{part}", "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--seed" in done.stdout
