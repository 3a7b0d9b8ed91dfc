"""Calls and causes.

A call (M2) is a request with its responses. Its messages have the same number `call`, which brokers make of Response Topic and
Correlation Data. The first of them is the request.

    status 1 complete: the request and a response are; 2 the request is not; 3 no response; 4 no response is complete

A cause (M9) is a message from which another one was made: the original of a returned or failed-over message, the request of a response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.schema import Kind
from ..context import Context
from ..dates import dated
from .keys import ID, parsed
from .messages import COMPLETE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ANSWERED, NO_REQUEST, NO_RESPONSE, RESPONSE_LOST = 1, 2, 3, 4
_READ = ("kind", "count", "origin", "origin_epoch", "stream", "sequence", "published", "call", "trace", "parent")


def run(context: Context) -> None:
    """Write `causes` and `calls`."""
    made = context.messages_of(causes_of(context.events(*_READ)))
    context.write("causes", dated(causes(made, context.table("messages"))))
    context.write("calls", dated(calls(context.table("messages"))))


def causes_of(events: DataFrame) -> DataFrame:
    """Publications that say what they were made from, or to which trace they belong."""
    from pyspark.sql import functions as F

    known = F.col("parent").isNotNull() | F.col("trace").isNotNull()
    return events.where((F.col("kind") == int(Kind.PUBLISHED)) & (F.col("origin") >= 0) & known)


def causes(events: DataFrame, messages: DataFrame) -> DataFrame:
    """One row for each such message: its id and call, the id of its cause (`parent_...`), and what became of the cause."""
    from pyspark.sql import functions as F

    children = events.select(*ID, "published", "call", "trace", *parsed("parent", "parent_"))
    fates = messages.select(*(F.col(name).alias(f"parent_{name}") for name in (*ID, "call", "status", "reason")))
    return children.join(fates, [f"parent_{name}" for name in ID], "left").select(
        *ID, "published", "call", "trace", *(f"parent_{name}" for name in (*ID, "call", "status", "reason"))
    )


def calls(messages: DataFrame) -> DataFrame:
    """One row for each call; `published` is that of its request."""
    from pyspark.sql import functions as F

    rank = F.struct("published", *ID, "sender", "receiver", "topic", "account", "session", "status")
    members = messages.where(F.col("call") != 0).select(
        "call", rank.alias("it"), "published", "finished", "status", "forwards", "size", *ID, "sender", "reason"
    )
    first = members.groupBy("call").agg(
        F.min("it").alias("request"),
        F.count("*").alias("messages"),
        F.sum("forwards").cast("int").alias("hops"),
        F.sum("size").alias("bytes"),
        F.max("finished").alias("finished"),
        F.sum(F.when(F.col("status") == COMPLETE, 1).otherwise(0)).cast("int").alias("completed"),
        F.max("it").alias("last"),
        F.coalesce(F.max(F.nullif("reason", F.lit(0))), F.lit(0)).alias("reason"),
    )
    request_done = F.col("request.status") == COMPLETE
    status = (
        F.when(~request_done, NO_REQUEST)
        .when(F.col("messages") == 1, NO_RESPONSE)
        .when(F.col("completed") == 1, RESPONSE_LOST)
        .otherwise(ANSWERED)
    )
    many = F.col("messages") > 1
    return first.select(
        "call",
        *(F.col(f"request.{name}").alias(name) for name in ("published", *ID, "topic", "account", "session")),
        F.col("request.sender").alias("requester"),
        F.when(many, F.col("last.sender")).otherwise(F.col("request.receiver")).alias("responder"),
        F.when(many, F.col("last.published")).alias("answered"),
        "finished",
        "messages",
        "completed",
        "hops",
        "bytes",
        "reason",
        status.cast("byte").alias("status"),
    )
