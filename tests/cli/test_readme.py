"""The links and commands of the README and the other documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mqmesh.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_the_repository_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_commands_and_make_targets_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    blocks = "\n".join(re.findall(r"```(?:sh|text)?\n(.*?)```", text, re.DOTALL)) + "\n".join(re.findall(r"`([^`\n]+)`", text))
    for command in re.findall(r"\bmqmesh ([a-z]+)", blocks):
        assert command in COMMANDS, command
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"\bmake ([a-z]+)", blocks):
        assert target in targets, target
