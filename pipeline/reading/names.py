"""Names of topics, clients, accounts, recipients and reasons: from the journal's dimension files, as a small data frame or a dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.place import Place
from ...broker.journal.reading import Damaged, Journal
from ...broker.journal.schema import NAMES
from ..schemas import struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def names_of(place: Place) -> tuple[dict[int, str], list[tuple[str, str]]]:
    """id -> name of everything, and files that cannot be read with the reason. Without names, tables have numbers."""
    try:
        return Journal(place).names(), []
    except Damaged as error:
        path, _, text = str(error).partition(": ")
        return {}, [(path, text)]


def prefix(topic: str, levels: int) -> str:
    """The first levels of a topic; a longer one ends with `/#`. levels: 0 is all of it."""
    parts = topic.split("/")
    return topic if not levels or len(parts) <= levels else "/".join(parts[:levels]) + "/#"


def names_frame(spark: SparkSession, names: dict[int, str]) -> DataFrame:
    """The columns id and name, small enough to be sent to every worker."""
    schema = struct(NAMES, ("id", "name"))
    return spark.createDataFrame(list(names.items()), schema)


def prefixes_frame(spark: SparkSession, names: dict[int, str], levels: int) -> DataFrame:
    """The columns id and prefix: the topic prefix of every name, as a topic would have it."""
    rows = [(number, prefix(name, levels)) for number, name in names.items()]
    return spark.createDataFrame(rows, "id bigint, prefix string")
