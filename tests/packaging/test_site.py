"""The site of the documents has each page, in the sections of docs/README.md. What its generator and GitHub read differently is not there.

`make site`, which continuous integration runs, fails at links and anchors that lead nowhere, and at a page that fetches something
from elsewhere.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BESIDE = {"README.md", "docs/README.md", "CHANGELOG.md"}  # in the navigation, and not in the lists of docs/README.md


class _Loader(yaml.SafeLoader):
    """Takes the one object of Python in the file as nothing."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
SITE: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)


def test_the_navigation_has_the_pages_of_the_list_in_its_sections() -> None:
    listed = {}
    for part in re.split(r"^## ", (ROOT / "docs/README.md").read_text(), flags=re.MULTILINE)[1:]:
        targets = re.findall(r"^\| \[.+?\]\((.+?)\)", part, re.MULTILINE)
        listed[part.partition("\n")[0]] = [(ROOT / "docs" / one).resolve().relative_to(ROOT).as_posix() for one in targets]
    shown = {
        section: [page for entry in pages for page in entry.values()]
        for one in SITE["nav"]
        for section, pages in one.items()
        if section != "Home"
    }
    assert list(shown) == list(listed) == ["Try it", "Run it", "Program with it", "Extend it"]
    for section, pages in listed.items():
        assert [one for one in shown[section] if one not in BESIDE] == [one for one in pages if one not in BESIDE]
    everywhere = {page for pages in shown.values() for page in pages} | {"README.md"}
    assert everywhere == {page.relative_to(ROOT).as_posix() for page in PAGES}


def test_it_asks_no_other_server() -> None:
    assert SITE["theme"]["font"] is False
    assert "offline" in SITE["plugins"]
    assert SITE["strict"] is True


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_lists_and_tables_are_those_of_both_readers(page: Path) -> None:
    """The generator takes a list or a table only below an empty line, and a list within a list by four spaces."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = ["", *text.splitlines()]
    for number, (before, line) in enumerate(pairwise(lines), 1):
        inside = before.startswith(("- ", "  ", "|")) or re.match(r"\d+\. ", before)
        assert not (re.match(r"- |\d+\. |\|", line) and before.strip() and not inside), f"{page.name}:{number}: an empty line above"
        assert not re.match(r" {1,3}(- |\d+\. )", line), f"{page.name}:{number}: indent by four spaces"
