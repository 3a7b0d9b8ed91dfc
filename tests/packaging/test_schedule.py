"""The order of test files in a parallel run names files that exist."""

from __future__ import annotations

import re

import pytest
from support import schedule


@pytest.mark.parametrize("file", sorted(schedule.SECONDS))
def test_each_listed_file_exists(file: str) -> None:
    assert (schedule.TESTS / file).is_file()


@pytest.mark.parametrize(
    ("group", "needs"),
    [
        (schedule.SPARK_TABLES, r"\b(?:run_)?tables: tuple"),
        ((*schedule.SPARK_TABLES, *schedule.SPARK), r"\bspark: SparkSession|\b(?:run_)?tables: tuple"),
    ],
    ids=["tables", "session"],
)
def test_files_that_need_the_spark_session_share_a_process(group: tuple[str, ...], needs: str) -> None:
    """Starting a session, and making the tables of a run, take longer than most tests."""
    files = (schedule.TESTS / "pipeline").rglob("test_*.py")
    found = {path.relative_to(schedule.TESTS).as_posix() for path in files if re.search(needs, path.read_text())}
    assert found == set(group)
