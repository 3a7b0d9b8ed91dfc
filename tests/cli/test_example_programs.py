"""The example programs beside the README's run as they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from support.command import start
from support.services import PATIENCE, free_port

pytestmark = pytest.mark.process

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


def run_at_a_broker(program: Path, config: str, folder: Path) -> list[str]:
    """What a program prints at a broker with these lines in its file."""
    port = free_port()
    (folder / "broker.toml").write_text(config.replace("1883", str(port)))
    broker = start("broker", "--config", folder / "broker.toml", stderr=folder / "log")
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready "), (folder / "log").read_text()
        done = subprocess.run([sys.executable, str(program), f"mqtt://127.0.0.1:{port}"], capture_output=True, text=True, timeout=PATIENCE)
    finally:
        broker.terminate()
        broker.communicate()
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_recipients(tmp_path: Path) -> None:
    program, page = EXAMPLES / "recipients.py", (EXAMPLES.parent / "docs" / "recipients.md").read_text()
    assert f"```python\n{program.read_text()}```" in page, "docs/recipients.md shows it"
    assert run_at_a_broker(program, 'listen = ["mqtt://127.0.0.1:1883"]\n\n[recipients]\n', tmp_path) == [
        "orders-backup has '100 bolts'; orders did not take it",
        "'200 nuts' came back: message-interval, tried orders, orders-backup",
    ]


def test_work_queue(tmp_path: Path) -> None:
    program, docs = EXAMPLES / "work_queue.py", EXAMPLES.parent / "docs"
    assert f"```python\n{program.read_text()}```" in (docs / "client.md").read_text(), "docs/client.md shows it"
    config = re.search(r"```toml\n# porto.toml\n(.*?)```", (docs / "queues.md").read_text(), re.DOTALL)
    assert config is not None, "the file that docs/queues.md begins with"
    printed = run_at_a_broker(program, config[1].replace("/var/lib/mqmesh/porto", str(tmp_path / "data")), tmp_path)
    assert printed[:2] == ["5 orders wait", "delivered 1 crane, today"]
    assert sorted(printed[2:-1]) == ["delivered 100 bolts", "delivered 200 nuts", "delivered 50 screws"]
    assert printed[-1] == "'???' is dead: given to members 5 times"


def test_questions_to_a_queue_and_answers_to_a_temporary_one(tmp_path: Path) -> None:
    config = f'listen = ["mqtt://127.0.0.1:1883"]\ndata = "{tmp_path / "data"}"\n\n[queues.questions]\n'
    assert run_at_a_broker(EXAMPLES / "ask_a_queue.py", config, tmp_path) == ["How much? (en)", "Quanto? (pt)"]
