"""Latency by topic prefix, pair of sites and window, as percentiles from histograms.

Each event repeats the time of its publication, so nothing is joined and runs are not expanded: an event counts for all of its messages.

    level "arrival"     from the publication until another broker has it
    level "delivery"    from the publication until it is sent to a client

Clocks of two brokers differ; latencies below zero are counted in `negative`. Options: `latency.window` in seconds, `latency.levels`: how
many levels of a topic make its prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.schema import Kind
from ..context import Context
from ..dates import day_of
from .histogram import NEGATIVE, PARTS, PERCENTILES, bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW = 3_600  # seconds
LEVELS = 2
_SECOND = 1_000_000
_KEY = ("level", "window", "prefix", "origin", "broker")


def run(context: Context) -> None:
    """Write `latency`."""
    events = context.events("kind", "time", "published", "count", "topic", "origin", "broker")
    window = context.option("latency.window", WINDOW) * _SECOND
    prefixes = context.prefixes_frame(context.option("latency.levels", LEVELS))
    context.write("latency", percentiles(histograms(events, prefixes, window), _KEY))


def histograms(events: DataFrame, prefixes: DataFrame, window: int) -> DataFrame:
    """The key, bucket and messages. window: microseconds. prefixes: id and prefix of each topic."""
    from pyspark.sql import functions as F

    arrived = (F.col("kind") == int(Kind.RECEIVED)) & (F.col("origin") != F.col("broker"))
    delivered = F.col("kind") == int(Kind.DELIVERED)
    chosen = events.where((F.col("origin") >= 0) & (arrived | delivered)).select(
        "kind",
        (F.col("published") - F.expr(f"pmod(published, {window})")).alias("window"),
        "topic",
        "origin",
        "broker",
        bucket(F.col("time") - F.col("published")).alias("bucket"),
        F.col("count").cast("long").alias("messages"),
    )
    by_topic = chosen.groupBy("kind", "window", "topic", "origin", "broker", "bucket").agg(F.sum("messages").alias("messages"))
    named = by_topic.join(F.broadcast(prefixes), by_topic["topic"] == prefixes["id"], "left").select(
        F.when(F.col("kind") == int(Kind.RECEIVED), "arrival").otherwise("delivery").alias("level"),
        "window",
        F.coalesce("prefix", F.concat(F.lit("#"), F.col("topic").cast("string"))).alias("prefix"),
        "origin",
        "broker",
        "bucket",
        "messages",
    )
    return named.groupBy(*_KEY, "bucket").agg(F.sum("messages").alias("messages"))


def percentiles(histogram: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """One row for each key: messages, percentiles in microseconds, and the histogram itself. histogram: key, bucket, messages."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    group = Window.partitionBy(*key)
    ordered = histogram.select(
        *key,
        "bucket",
        "messages",
        F.sum("messages").over(group).alias("total"),
        F.sum("messages").over(group.orderBy("bucket")).alias("until"),
    )

    def value(number: object) -> object:
        return F.when(number < 0, 0).otherwise(F.round(F.exp((number + 0.5) / PARTS) - 0.5).cast("long"))  # type: ignore[operator, arg-type]

    found = [
        value(F.min(F.when(F.col("until") >= F.ceil(F.col("total") * share / 100), F.col("bucket")))).alias(f"p{share}")  # type: ignore[attr-defined]
        for share in PERCENTILES
    ]
    made = ordered.groupBy(*key).agg(
        F.sum("messages").alias("messages"),
        F.coalesce(F.sum(F.when(F.col("bucket") == NEGATIVE, F.col("messages"))), F.lit(0)).alias("negative"),
        *found,
        value(F.max("bucket")).alias("max"),  # type: ignore[attr-defined]
        F.sort_array(F.collect_list(F.struct("bucket", "messages"))).alias("histogram"),
    )
    return made.select("*", day_of("window"))
