"""The order of test files in a parallel run names files that exist."""

from __future__ import annotations

import re

import pytest
from support import schedule


@pytest.mark.parametrize("file", sorted(schedule.SECONDS))
def test_each_listed_file_exists(file: str) -> None:
    assert (schedule.TESTS / file).is_file()


def test_files_that_need_the_spark_session_share_a_process() -> None:
    """Starting a session, and making the tables of a run, take longer than most tests."""
    needs = re.compile(r"\b(?:spark: SparkSession|(?:run_)?tables: tuple)")
    files = (schedule.TESTS / "pipeline").rglob("test_*.py")
    found = {path.relative_to(schedule.TESTS).as_posix() for path in files if needs.search(path.read_text())}
    assert found == set(schedule.SPARK)
