"""docs/client.md shows examples/jms.py, which runs as shown."""

from __future__ import annotations

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
