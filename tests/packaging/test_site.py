"""The site of the documents has each page, in the sections of docs/README.md. What its generator and GitHub read differently is not there.

`make site`, which continuous integration runs, fails at links and anchors that lead nowhere, and at a page that fetches something
from elsewhere.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_list_of_pages_has_each_in_one_of_four_sections() -> None:
    """`.ci/site` makes the navigation of it."""
    _, *sections = re.split(r"^## ", (ROOT / "docs/README.md").read_text(), flags=re.MULTILINE)
    assert [one.partition("\n")[0] for one in sections] == ["Try it", "Run it", "Program with it", "Extend it"]
    listed = {(ROOT / "docs" / one).resolve() for part in sections for one in re.findall(r"^\| \[.+?\]\((.+?)\) \|", part, re.MULTILINE)}
    assert listed == set(PAGES) - {ROOT / "docs/README.md", ROOT / "CHANGELOG.md"}


def test_it_asks_no_other_server() -> None:
    settings = (ROOT / "packaging/site/mkdocs.yml").read_text()
    assert "\n  font: false" in settings
    assert "\n  - offline" in settings
    assert "\nstrict: true" in settings


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_lists_and_tables_are_those_of_both_readers(page: Path) -> None:
    """The generator takes a list or a table only below an empty line, and a list within a list by four spaces."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = ["", *text.splitlines()]
    for number, (before, line) in enumerate(pairwise(lines), 1):
        inside = before.startswith(("- ", "  ", "|")) or re.match(r"\d+\. ", before)
        assert not (re.match(r"- |\d+\. |\|", line) and before.strip() and not inside), f"{page.name}:{number}: an empty line above"
        assert not re.match(r" {1,3}(- |\d+\. )", line), f"{page.name}:{number}: indent by four spaces"
    for table in re.findall(r"(?:^\|.*\n)+", "\n".join(lines) + "\n", re.MULTILINE):
        first, second, *_ = [*table.splitlines(), ""]
        assert re.fullmatch(r"\|(?: *:?-+:? *\|)+", second), f"{page.name}: a table without a heading: {first}"
