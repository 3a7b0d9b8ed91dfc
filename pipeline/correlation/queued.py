"""Messages in queues: one row for each, from its queue states.

    status    1 complete: each group of subscribers has an outcome; 3 some group has none; 4 its PUT is not in the journal
    waited    from the PUT until a member got it for the first time
    worked    from then until its last outcome

A message that is complete may be revealed again: its groups stand as their last states say. A dead letter has the id of the message that it
was in `parent_...`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.schema import Kind, QueueState
from ..context import Context
from ..dates import dated
from .keys import ID, parsed
from .messages import COMPLETE, NO_END, NOT_PUBLISHED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OUTCOMES = (QueueState.UNUSABLE, QueueState.DONE, QueueState.EXPIRED, QueueState.JOURNALLED)
_COUNTED = {
    "gets": QueueState.GET, "returns": QueueState.CLEAN, "dones": QueueState.DONE, "unusable": QueueState.UNUSABLE,
    "expiries": QueueState.EXPIRED, "withdrawals": QueueState.UNAVAILABLE,
}  # fmt: skip
_READ = ("kind", "time", "epoch", "event", "count", *ID, "published", "size", "topic", "client", "value", "parent", "detail")


def run(context: Context) -> None:
    """Write `queue_messages`."""
    from pyspark.sql import functions as F

    events = context.events(*_READ).where(F.col("kind") == int(Kind.QUEUE_STATE))
    context.write("queue_messages", dated(queue_messages(context.messages_of(events))))


def queue_messages(events: DataFrame) -> DataFrame:
    """One row for each message. events: queue states of one message each."""
    from pyspark.sql import functions as F

    def of(*states: QueueState) -> Column:
        return F.col("value").isin(*map(int, states))

    put, subscribers = of(QueueState.PUT), (F.col("value") == int(QueueState.CLEAN)) | (F.col("value") >= int(QueueState.GET))
    detail = F.get_json_object("detail", "$.group").cast("int")
    groups = F.coalesce(F.get_json_object("detail", "$.groups").cast("int"), F.lit(1))
    last = F.max_by(F.when(subscribers, F.col("value")), F.when(subscribers, F.struct("epoch", "event")))
    by_group = events.groupBy(*ID, F.coalesce(detail, F.lit(0)).alias("group")).agg(
        *(F.sum(of(state).cast("int")).alias(name) for name, state in _COUNTED.items()),
        *(F.max(name).alias(name) for name in ("published", "topic", "size", "parent")),
        F.max(F.when(put, F.col("client"))).alias("sender"),
        F.max(F.when(of(QueueState.DONE), F.col("client"))).alias("receiver"),
        F.max(F.when(put, groups)).alias("groups"),
        F.min(F.when(of(QueueState.GET), F.col("time"))).alias("got"),
        F.max(F.when(of(*OUTCOMES), F.col("time"))).alias("finished"),
        F.max("time").alias("last"),
        last.isin(*map(int, OUTCOMES)).cast("int").alias("through"),
    )
    made = by_group.groupBy(*ID).agg(
        *(F.sum(name).cast("int").alias(name) for name in (*_COUNTED, "through")),
        *(F.max(name).alias(name) for name in ("published", "topic", "size", "parent", "sender", "receiver", "groups", "finished", "last")),
        F.min("got").alias("got"),
    )
    status = F.when(F.col("groups").isNull(), NOT_PUBLISHED).when(F.coalesce("through", F.lit(0)) < F.col("groups"), NO_END)
    return made.select(
        *ID, "published", "topic", "size", "sender", F.coalesce("receiver", F.lit(0)).alias("receiver"),
        *_COUNTED, "groups", F.coalesce("through", F.lit(0)).alias("through"), "got", "finished", "last",
        (F.col("got") - F.col("published")).alias("waited"), (F.col("finished") - F.col("got")).alias("worked"),
        *parsed("parent", "parent_"), status.otherwise(COMPLETE).cast("byte").alias("status"),
    )  # fmt: skip
