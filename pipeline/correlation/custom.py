"""Ids of the users' own (M5): a value that a path expression finds in an event's `detail`, beside the message id, so that people ask by it.

Option: `custom.path`, a JSON path such as `$.order`. Brokers write what a topic's configuration selects of a message into `detail`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..context import Context
from ..dates import dated
from ..errors import PipelineError
from .keys import ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run(context: Context) -> None:
    """Write `custom`. Raises PipelineError without a path."""
    path = context.options.get("custom.path", "")
    if not path.startswith("$"):
        raise PipelineError(f"--set custom.path={path}: give a JSON path, such as custom.path=$.order")
    columns = ("kind", "count", "origin", "origin_epoch", "stream", "sequence", "published", "topic", "account", "call", "detail")
    context.write("custom", dated(custom(context.messages_of(context.events(*columns)), path)))


def custom(events: DataFrame, path: str) -> DataFrame:
    """message id, call and the value of each message in whose detail the path leads to something."""
    from pyspark.sql import functions as F

    found = events.where((F.col("origin") >= 0) & F.col("detail").isNotNull()).withColumn("value", F.get_json_object("detail", path))
    return found.where(F.col("value").isNotNull()).select(*ID, "published", "topic", "account", "call", "value").distinct()
