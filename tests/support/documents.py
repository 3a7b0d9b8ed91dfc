"""The blocks of the documents: what people copy from them is run by tests, or marked in the page with the reason why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- not run: (?P<mark>.+) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """mark: why it is not run, as the page says; None: it is run. section: the heading (of level 2) above it."""

    page: str
    line: int
    section: str
    language: str
    text: str
    mark: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for one in BLOCK.finditer(text):
        above = text[: one.start("text")]
        headings = re.findall(r"^## (.+)$", above, re.MULTILINE)
        place = str(page.relative_to(ROOT)), above.count("\n"), headings[-1] if headings else ""
        found.append(Block(*place, one["language"], one["text"], one["mark"]))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(language: str, page: str = "", section: str = "") -> list[Block]:
    """The blocks of a language that are run: of all pages, of a page, of a section of it."""
    return [
        one for one in BLOCKS if one.language == language and one.mark is None and page in ("", one.page) and section in ("", one.section)
    ]
