"""The example programs beside the README's run as they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from support.services import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_receipts(tmp_path: Path) -> None:
    with Fleet(ring(), tmp_path) as fleet:
        fleet.wait_settled(90)
        ports = [str(fleet.members[name].address.port) for name in ("porto", "turin")]
        done = subprocess.run([sys.executable, str(EXAMPLES / "receipts.py"), *ports], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("turin has 1:")
    assert second == "orders/7 is done: turin"
