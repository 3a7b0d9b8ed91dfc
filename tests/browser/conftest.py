"""Everything here needs a real browser: all of it carries the marker `service`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{HERE}/"
    for item in items:
        if str(item.path).startswith(here):  # of thousands: pathlib's own comparison takes a second
            item.add_marker("service")
