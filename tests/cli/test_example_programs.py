"""The example programs beside the README's run as they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from support.command import start
from support.services import PATIENCE, free_port

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


def test_recipients(tmp_path: Path) -> None:
    program, page = EXAMPLES / "recipients.py", (EXAMPLES.parent / "docs" / "recipients.md").read_text()
    assert f"```python\n{program.read_text()}```" in page, "docs/recipients.md shows it"
    port = free_port()
    (tmp_path / "broker.toml").write_text(f'listen = ["mqtt://127.0.0.1:{port}"]\n\n[recipients]\n')
    broker = start("broker", "--config", tmp_path / "broker.toml", stderr=tmp_path / "log")
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready "), (tmp_path / "log").read_text()
        done = subprocess.run([sys.executable, str(program), f"mqtt://127.0.0.1:{port}"], capture_output=True, text=True, timeout=PATIENCE)
    finally:
        broker.terminate()
        broker.communicate()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "orders-backup has '100 bolts'; orders did not take it",
        "'200 nuts' came back: message-interval, tried orders, orders-backup",
    ]
