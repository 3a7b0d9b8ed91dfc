"""Values that brokers have selected from payloads (M1), such as an order's number: ids of the users' own, by which people ask (M5).

Which ones is said by `select` in a topic's rule of `[journal]` (`broker/journal/selecting.py`). They stand in the `detail` of `published`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.schema import Kind
from ..context import Context
from ..dates import dated
from .keys import ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run(context: Context) -> None:
    """Write `custom`."""
    columns = ("kind", "count", "origin", "origin_epoch", "stream", "sequence", "published", "topic", "account", "call", "detail")
    context.write("custom", dated(custom(context.messages_of(_with_values(context.events(*columns))))))


def _with_values(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return events.where((F.col("kind") == int(Kind.PUBLISHED)) & (F.col("origin") >= 0) & F.col("detail").isNotNull())


def custom(events: DataFrame) -> DataFrame:
    """One row for each value of a message: its id and call, name and value, as text."""
    from pyspark.sql import functions as F

    values = F.explode(F.from_json("detail", "map<string,string>")).alias("name", "value")
    return events.select(*ID, "published", "topic", "account", "call", values)
