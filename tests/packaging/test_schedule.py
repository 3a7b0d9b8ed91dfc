"""The order of test files in a parallel run names files that exist."""

from __future__ import annotations

import pytest
from support import schedule


@pytest.mark.parametrize("file", sorted(schedule.SECONDS))
def test_each_listed_file_exists(file: str) -> None:
    assert (schedule.TESTS / file).is_file()
