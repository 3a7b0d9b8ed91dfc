"""docs/client.md shows examples/jms.py, which runs as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.brokers import RunningBroker
from support.services import PATIENCE

ROOT = Path(__file__).parents[2]


def test_the_first_program_runs_and_is_what_the_document_shows(broker: RunningBroker) -> None:
    program = ROOT / "examples" / "jms.py"
    assert f"```python\n{program.read_text()}```" in (ROOT / "docs" / "client.md").read_text()
    done = subprocess.run([sys.executable, str(program), broker.url], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("delivered bolt M8, order ID:")
    assert done.stderr == ""


def test_the_table_of_sections_names_those_that_are_tested() -> None:
    """Each section in a test's name stands in the table, and each in the table but the chapters is in some test's name."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    names = re.findall(r"def test_(\d+(?:_\d+)+)(?:_and_(\d+(?:_\d+)+))?_", tests)
    tested = {section.replace("_", ".") for pair in names for section in pair if section}
    table = (ROOT / "docs" / "client.md").read_text().partition("## Section by section")[2].partition("\nNot there")[0]
    first = "".join(
        line.split("|")[1].replace("8.3.1 to 8.3.4", "8.3.1, 8.3.2, 8.3.3, 8.3.4") for line in table.splitlines()[4:] if "|" in line
    )
    named = set(re.findall(r"\d+(?:\.\d+)+", first))
    assert tested <= named, tested - named
    assert named - tested <= {"7.7", "9.1"}, "stand beside another section of the same row"
