"""docs/jakarta-requirements.md lists each assertion that a test has; a row has those of a section that are in one file of tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"def test_((?:\d+_)+)(?:and_((?:\d+_)+))?(\w+)\(")
ROW = re.compile(r"^\| ([\d., ]+) \| ([^|]+) \| \[\w+\]\(\.\./(tests/client/[\w/]+\.py)\) \|$", re.MULTILINE)
Row = tuple[str, str, str]


def sections(row: Row) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", row[0])]


def rows_of_tests() -> list[Row]:
    """(sections, what is asserted, file) of each test in `tests/client` whose name begins with a section."""
    found = []
    for path in (ROOT / "tests" / "client").rglob("test_*.py"):
        for first, second, words in NAME.findall(path.read_text()):
            numbers = ", ".join(part.strip("_").replace("_", ".") for part in (first, second) if part)
            found.append((numbers, words.replace("_", " "), str(path.relative_to(ROOT))))
    return found


def test_each_test_of_a_section_has_its_row_and_each_row_its_test() -> None:
    rows: list[Row] = ROW.findall((ROOT / "docs" / "jakarta-requirements.md").read_text())
    listed = [(numbers, words, file) for numbers, cell, file in rows for words in cell.split("; ")]
    made = rows_of_tests()
    wrong = sorted(set(listed) ^ set(made))
    assert not wrong, f"rows of docs/jakarta-requirements.md that are missing or have no test: {wrong}"
    assert len(listed) == len(made), "docs/jakarta-requirements.md: an assertion is there twice"
    assert rows == sorted(rows, key=sections), "docs/jakarta-requirements.md: the rows are in the order of sections"
