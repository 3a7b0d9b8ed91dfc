"""The hop table: each step of a message, from a broker to the next one or from a broker to a client; and the latency of steps between
brokers.

A relay without subscribers writes no `received`: a step to it has no time of arrival, and the relay's own steps show that it was there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.schema import NOBODY, Kind
from ..context import Context
from ..dates import dated
from ..latency.histogram import bucket
from ..latency.job import LEVELS, WINDOW, percentiles
from .keys import source, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_READ = (
    "kind", "time", "broker", "count", "origin", "origin_epoch", "stream", "sequence", "published", "topic", "client", "from_broker",
    "to_broker", "hop", "qos", "protocol_out", "reason",
)  # fmt: skip
_ENDS = (Kind.ACKNOWLEDGED, Kind.DROPPED, Kind.EXPIRED, Kind.RETURNED, Kind.FAILED_OVER)
_KEY = ("source", "sequence", "sender", "receiver", "client")
_LATENCY_KEY = ("window", "prefix", "sender", "receiver")


def run(context: Context) -> None:
    """Write `hops` and `hop_latency`."""
    from pyspark.sql import functions as F

    made = hops(context.messages_of(context.events(*_READ)))
    context.write("hops", dated(unpacked(made)))
    window = context.option("latency.window", WINDOW) * 1_000_000
    prefixes = context.prefixes_frame(context.option("latency.levels", LEVELS))
    table = context.table("hops").where(F.col("client").isNull() & (F.col("sent") > 0) & (F.col("arrived") > 0))
    context.write("hop_latency", percentiles(latencies(table, prefixes, window), _LATENCY_KEY))


def hops(events: DataFrame) -> DataFrame:
    """One row for each step. client: null between brokers. end: the kind of event that ended a step to a client; null: none did."""
    from pyspark.sql import functions as F

    kind = F.col("kind")
    forwarded, received = kind == int(Kind.FORWARDED), (kind == int(Kind.RECEIVED)) & (F.col("from_broker") != F.col("broker"))
    away = kind.isin(int(Kind.DROPPED), int(Kind.EXPIRED)) & (F.col("to_broker") >= 0) & (F.col("to_broker") != F.col("broker"))
    delivered, ended = kind == int(Kind.DELIVERED), kind.isin(*map(int, _ENDS)) & ~away  # `away` is no step: the origin gave up
    steps = events.where((F.col("origin") >= 0) & (forwarded | received | delivered | ended)).select(
        source().alias("source"),
        "sequence",
        F.when(received, F.col("from_broker")).otherwise(F.col("broker")).alias("sender"),
        F.when(forwarded, F.col("to_broker")).when(received, F.col("broker")).otherwise(NOBODY).alias("receiver"),
        F.when(delivered | ended, F.col("client")).alias("client"),
        "published",
        "topic",
        F.nullif(F.col("hop"), F.lit(0)).alias("hop"),
        F.when(forwarded | delivered, F.col("time")).alias("sent"),
        F.when(received | ended | (delivered & (F.col("qos") == 0)), F.col("time")).alias("arrived"),
        F.when(ended | (delivered & (F.col("qos") == 0)), kind).alias("end"),
        "qos",
        "protocol_out",
        F.nullif(F.col("reason"), F.lit(0)).alias("reason"),
    )
    names = ("published", "topic", "hop", "sent", "arrived", "end", "qos", "protocol_out", "reason")
    return steps.repartition("source", "sequence").groupBy(*_KEY).agg(*(F.max(name).alias(name) for name in names))


def latencies(steps: DataFrame, prefixes: DataFrame, window: int) -> DataFrame:
    """Histograms of steps between brokers: the key, bucket and messages."""
    from pyspark.sql import functions as F

    known = steps.join(F.broadcast(prefixes), steps["topic"] == prefixes["id"], "left").select(
        (F.col("published") - F.expr(f"pmod(published, {window})")).alias("window"),
        F.coalesce("prefix", F.concat(F.lit("#"), F.col("topic").cast("string"))).alias("prefix"),
        "sender",
        "receiver",
        bucket(F.col("arrived") - F.col("sent")).alias("bucket"),
    )
    return known.groupBy(*_LATENCY_KEY, "bucket").agg(F.count("*").alias("messages"))
