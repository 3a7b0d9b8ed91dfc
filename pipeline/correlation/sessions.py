"""The session table (M3): calls that belong together.

The session of a call is, in this order: the one that the interchange gave it; its trace (`traceparent`); that of the call which caused
it, also over several steps (M8: a response belongs to the session of its request); or itself. Its text begins with `s:`, `t:` or `c:`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..context import Context
from ..dates import dated
from .calls import ANSWERED
from .keys import ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEEPEST = 20  # doublings: calls may cause each other 2 ** 20 times


def run(context: Context) -> None:
    """Write `sessions` and `session_calls`."""
    calls = context.table("calls")
    members = sessions_of(calls, context.table("causes")).localCheckpoint()
    context.write("session_calls", dated(members.join(calls.select("call", "published"), "call", "inner")))
    context.write("sessions", dated(sessions(members, calls, context.table("messages"))))


def sessions_of(calls: DataFrame, causes: DataFrame) -> DataFrame:
    """call and session of each call."""
    from pyspark.sql import functions as F

    of_request = causes.join(calls.select(*ID, F.col("call").alias("own")), list(ID), "inner")
    other = F.when(F.col("parent_call") != F.col("own"), F.nullif("parent_call", F.lit(0)))
    origins = of_request.groupBy(F.col("own").alias("call")).agg(F.max("trace").alias("trace"), F.max(other).alias("above"))
    known = calls.select("call", "session").join(origins, "call", "left")
    roots = _roots(known.select("call", F.coalesce("above", "call").alias("root")))
    named = known.select(
        F.col("call").alias("root"),
        F.coalesce(
            F.when(F.col("session") != 0, F.concat(F.lit("s:"), F.col("session").cast("string"))),
            F.concat(F.lit("t:"), F.col("trace")),
            F.concat(F.lit("c:"), F.col("call").cast("string")),
        ).alias("session"),
    )
    return roots.join(named, "root", "left").select("call", F.coalesce("session", F.concat(F.lit("c:"), F.col("root"))).alias("session"))


def _roots(above: DataFrame) -> DataFrame:
    """call and root: each step doubles how far up it looks, until nothing changes."""
    from pyspark.sql import functions as F

    found = above.localCheckpoint()
    for _ in range(_DEEPEST):
        upper = found.select(F.col("call").alias("root"), F.col("root").alias("further"))
        made = found.join(upper, "root", "left").select("call", F.coalesce("further", "root").alias("to"), "root").localCheckpoint()
        changed = made.where(F.col("to") != F.col("root")).limit(1).count()
        found = made.select("call", F.col("to").alias("root"))
        if not changed:
            break
    return found


def sessions(members: DataFrame, calls: DataFrame, messages: DataFrame) -> DataFrame:
    """One row for each session. route: its messages in order of publication, with their size and status at each stage."""
    from pyspark.sql import functions as F

    named = members.select("call", F.col("session").alias("id"))
    of_calls = named.join(calls.select("call", F.col("status").alias("of_call")), "call", "inner")
    heads = of_calls.groupBy("id").agg(
        F.count("*").alias("calls"), F.sum(F.when(F.col("of_call") == ANSWERED, 1).otherwise(0)).alias("answered")
    )
    stage = F.struct("published", *ID, "sender", "receiver", "wanted", "arrivals", "size", "status")
    steps = named.join(messages.where(F.col("call") != 0), "call", "inner")
    routes = steps.groupBy("id").agg(
        F.min("published").alias("published"),
        F.max("finished").alias("finished"),
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list(F.array("sender", "receiver"))))).alias("services"),
        F.sort_array(F.collect_list(stage)).alias("route"),
        F.coalesce(F.max(F.nullif("reason", F.lit(0))), F.lit(0)).alias("reason"),
    )
    made = heads.join(routes, "id", "inner")
    return made.select(F.col("id").alias("session"), *(name for name in made.columns if name != "id")).withColumn(
        "complete", F.col("answered") == F.col("calls")
    )
