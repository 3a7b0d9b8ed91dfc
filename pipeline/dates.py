"""The date column by which output tables are partitioned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables.tables import DATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAY = 86_400_000_000  # microseconds


def dated(frame: DataFrame) -> DataFrame:
    """With the column `date` of the publication (UTC), by which tables of messages are partitioned."""
    return frame.select("*", day_of("published"))


def day_of(column: str) -> Column:
    """The date (UTC) of a column of microseconds, as text."""
    from pyspark.sql import functions as F

    days = F.floor(F.col(column) / DAY).cast("int")
    return F.date_format(F.date_from_unix_date(days), "yyyy-MM-dd").alias(DATE)
