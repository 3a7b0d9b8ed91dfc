"""Everything here talks to a real third-party client: all of it carries the marker `service`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{HERE}/"
    for item in items:
        if str(item.path).startswith(here):  # of thousands: pathlib's own comparison takes a second
            item.add_marker("service")
