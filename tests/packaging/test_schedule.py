"""The order of test files in a parallel run names files that exist."""

from __future__ import annotations

import re

import pytest
from support import schedule


@pytest.mark.parametrize("file", sorted(schedule.SECONDS))
def test_each_listed_file_exists(file: str) -> None:
    assert (schedule.TESTS / file).is_file()


def files_of_the_pipeline(pattern: str) -> set[str]:
    files = (schedule.TESTS / "pipeline").rglob("test_*.py")
    return {path.relative_to(schedule.TESTS).as_posix() for path in files if re.search(pattern, path.read_text())}


def test_files_that_need_a_spark_session_are_two_groups() -> None:
    """Starting a session takes longer than most tests."""
    assert files_of_the_pipeline(r"\b(?:spark: SparkSession|(?:run_)?tables: tuple)") == {*schedule.SPARK, *schedule.SPARK_TABLES}


def test_files_that_need_the_tables_of_a_run_share_a_process() -> None:
    assert files_of_the_pipeline(r"\b(?:run_)?tables: tuple") <= set(schedule.SPARK_TABLES)
