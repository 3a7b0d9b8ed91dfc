"""The README's first program is examples/first.py, runs as shown, and the README's links and commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from mqmesh.cli.main import COMMANDS
from support.services import PATIENCE

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_first_program_runs_and_is_what_the_readme_shows(tmp_path: Path) -> None:
    program = ROOT / "examples" / "first.py"
    assert f"```python\n{program.read_text()}```" in (ROOT / "README.md").read_text()
    with Fleet(ring(), tmp_path) as fleet:
        fleet.wait_settled(90)
        ports = [str(fleet.members[name].address.port) for name in ("porto", "turin")]
        done = subprocess.run([sys.executable, str(program), *ports], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "turin got plant/3/temperature = 21.5"


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
