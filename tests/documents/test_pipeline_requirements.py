"""docs/pipeline-requirements.md has each requirement of correlation, usage and billing, with code and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "pipeline-requirements.md").read_text().splitlines()
    if line.startswith("| M")
]


@pytest.fixture(scope="module")
def defined() -> set[str]:
    """The names of all tests."""
    found = (re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE) for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for names in found for name in names}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_code_and_tests_are_there(row: list[str], defined: set[str]) -> None:
    _, line, what, where, tests = row
    assert line.isdigit()
    assert what
    assert (ROOT / where.strip("`")).is_file()
    names = re.findall(r"`(test_\w+)`", tests)
    assert names
    assert not set(names) - defined


def test_each_requirement_is_there_once_in_order() -> None:
    assert [row[0] for row in ROWS] == [f"M{number}" for number in range(1, 16)]
