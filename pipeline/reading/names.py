"""Names of topics, clients, accounts, recipients and reasons: from the journal's dimension files, as a small data frame or a dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.place import Place
from ...broker.journal.reading import Journal, Wrong

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def names_of(place: Place) -> tuple[dict[int, str], Wrong]:
    """id -> name of everything, and files that cannot be read with the reason. Tables have numbers instead of their names."""
    wrong: Wrong = []
    return Journal(place).names(wrong), wrong


def prefix(topic: str, levels: int) -> str:
    """The first levels of a topic; a longer one ends with `/#`. levels: 0 is all of it."""
    parts = topic.split("/")
    return topic if not levels or len(parts) <= levels else "/".join(parts[:levels]) + "/#"


def names_frame(spark: SparkSession, names: dict[int, str]) -> DataFrame:
    """The columns id and name, small enough to be sent to every worker."""
    return _frame(spark, names, "name", list(names.values()))


def prefixes_frame(spark: SparkSession, names: dict[int, str], levels: int) -> DataFrame:
    """The columns id and prefix: the topic prefix of every name, as a topic would have it."""
    return _frame(spark, names, "prefix", [prefix(name, levels) for name in names.values()])


def _frame(spark: SparkSession, names: dict[int, str], column: str, texts: list[str]) -> DataFrame:
    """From an Arrow table: a list of rows would go through processes of Python."""
    import pyarrow as pa

    schema = pa.schema([("id", pa.int64()), (column, pa.string())])
    return spark.createDataFrame(pa.table([list(names), texts], schema=schema))
