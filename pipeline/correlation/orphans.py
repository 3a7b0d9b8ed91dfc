"""Messages that were accepted and have no end: some broker or session never got them, or what they failed over to has no end itself.

Option: `orphans.grace`, the seconds that a message may be under way; younger ones are no orphans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..context import Context
from ..dates import dated
from .keys import ID
from .messages import COMPLETE, NO_END, NOT_RECEIVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GRACE = 3_600  # seconds


def run(context: Context) -> None:
    """Write `orphans`."""
    before = context.now - context.option("orphans.grace", GRACE) * 1_000_000
    context.write("orphans", dated(orphans(context.table("messages"), context.table("causes"), before)))


def orphans(messages: DataFrame, causes: DataFrame, before: int) -> DataFrame:
    """before: microseconds since 1970; later publications are left out. missing: brokers or sessions."""
    from pyspark.sql import functions as F

    failed_over = messages.where((F.col("status") == COMPLETE) & (F.col("failovers") > 0)).select(*ID)
    children = causes.join(messages.select(*ID, "status"), list(ID), "inner").select(
        *(F.col(f"parent_{name}").alias(name) for name in ID), F.col("status").alias("child")
    )
    lost = children.join(failed_over, list(ID), "left_semi").where(F.col("child") != COMPLETE).select(*ID).distinct()
    marked = messages.join(lost.withColumn("child_lost", F.lit(True)), list(ID), "left")
    why = (
        F.when(F.col("status") == NOT_RECEIVED, "a broker has not received it")
        .when(F.col("status") == NO_END, "a session has no end")
        .when(F.col("child_lost"), "it failed over, and the alternative has no end")
    )
    missing = F.when(F.col("status") == NOT_RECEIVED, F.col("wanted") - F.col("arrivals")).otherwise(F.col("targets") - F.col("ends"))
    return marked.where(why.isNotNull() & (F.col("published") < before)).select(
        *ID, "published", "last", "topic", "account", "sender", "call", "qos_in", "status", why.alias("why"), missing.alias("missing")
    )
