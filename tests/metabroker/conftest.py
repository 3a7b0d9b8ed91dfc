"""Those tests here that talk to other people's brokers carry the marker `service`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in ("test_processes.py", "test_amqp.py", "test_amqp_odd.py", "test_nats.py"):
            item.add_marker("service")
