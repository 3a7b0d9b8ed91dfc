"""What holds of event loops of both kinds, asyncio's and uvloop's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("base", "mqtt", "mesh", "store", "broker", "client", "metabroker", "directory", "interchange", "pipeline", "cli")


def test_a_handle_for_what_is_due_already_has_no_time() -> None:
    """The reason for the next test: uvloop has such a callback called soon."""
    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop()
    assert hasattr(loop.call_at(loop.time() + 1, print), "when")
    assert not hasattr(loop.call_at(loop.time() - 1, print), "when")
    loop.close()


def test_nobody_asks_a_timer_for_its_time() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\.when\(\)", line)
    ]
    assert not found, "note the time beside the timer"
