"""docs/interchange-requirements.md has each requirement of the source: built, with code and a test that are there, or named as missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = {"IA": 11, "IB": 12, "IC": 7, "ID": 13, "IE": 9, "IF": 5, "IG": 16, "IH": 5}  # how many requirements each group has
EVERY = [f"{group}{number}" for group, many in ROWS.items() for number in range(1, many + 1)]
LINES = re.compile(r"\d+(-\d+)?(, \d+(-\d+)?)*")
Row = list[str]


def tables() -> tuple[list[Row], list[Row]]:
    text = (ROOT / "docs" / "interchange-requirements.md").read_text()
    built, missing = (part.partition("\n\n")[2] for part in text.split("\n## ")[1:])
    return _rows(built), _rows(missing)


def _rows(text: str) -> list[Row]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| I")]


BUILT, MISSING = tables()


@pytest.mark.parametrize("row", BUILT, ids=lambda row: row[0])
def test_what_is_built_names_code_and_tests_that_are_there(row: Row) -> None:
    _, lines, what, where, tests = row
    assert LINES.fullmatch(lines)
    assert what
    assert (ROOT / where.strip("`")).is_file()
    names = re.findall(r"`(test_\w+)`", tests)
    assert names
    assert not set(names) - defined(), f"no such test: {set(names) - defined()}"


def defined() -> set[str]:
    if not _defined:
        for path in (ROOT / "tests").rglob("test_*.py"):
            _defined.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    return _defined


_defined: set[str] = set()


def test_each_requirement_is_built_or_said_to_be_missing() -> None:
    order = EVERY.index
    for rows in (BUILT, MISSING):
        names = [row[0] for row in rows]
        assert names == sorted(set(names), key=order), "each once, in order"
    assert {row[0] for row in BUILT + MISSING} == set(EVERY)
    assert all(LINES.fullmatch(row[1]) and row[2] for row in MISSING)
