"""What services of the interchange have sent each other: hops, calls and sessions (M1, M2, M3), from the journals of their homes.

A home notes each delivery to a service, and each call when it has ended (`interchange/shell/noting.py`). A call without an end is open: its
hops are known, and nothing else. Identifiers are sixteen hexadecimal digits, of a session its first sixteen. Times are microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.kinds import Invoked, Kind
from ..context import Context
from ..dates import dated

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_READ = ("kind", "time", "epoch", "event", "broker", "published", "size", "topic", "client", "recipient", "call", "session", "hop")
OPEN = "open"
CALL = """
    kind string, created bigint, expires bigint, ended bigint, topic string, handle string, trace string, recipients array<struct<
        recipient string, state string, code string, reason string, route array<struct<service string, revision int>>,
        hops array<struct<
            hop string, service string, kind string, size bigint, given bigint, ended bigint, acknowledged bigint, status string>>>>
"""


def run(context: Context) -> None:
    """Write `service_hops`, `service_calls` and `service_sessions`."""
    from pyspark.sql import functions as F

    events = context.events(*_READ, "reason", "value", "detail").where(F.col("kind") == int(Kind.INVOKED))
    if events.isEmpty() and context.tables.version("service_calls") is None:
        return  # there is no interchange
    names = context.names_frame()
    deliveries, ends = deliveries_of(events, names).localCheckpoint(), ends_of(events, names).localCheckpoint()
    hops, calls = service_hops(deliveries, ends).localCheckpoint(), service_calls(deliveries, ends).localCheckpoint()
    context.write("service_hops", dated(hops))
    context.write("service_calls", dated(calls))
    context.write("service_sessions", dated(service_sessions(calls, hops)))


def deliveries_of(events: DataFrame, names: DataFrame) -> DataFrame:
    """One row for each delivery to a service, with names."""
    from pyspark.sql import functions as F

    found = events.where(F.col("value") == int(Invoked.DELIVERED))
    for column in ("client", "recipient", "reason"):
        named = names.select(F.col("id").alias(column), F.col("name").alias(f"{column}_name"))
        found = found.join(F.broadcast(named.dropDuplicates([column])), column, "left")
    return found.select(
        *(_text(name) for name in ("hop", "call", "session")),
        "published",
        F.col("broker").alias("home"),
        F.col("client_name").alias("sender"),
        F.col("recipient_name").alias("receiver"),
        F.col("reason_name").alias("kind"),
        "size",
        F.col("time").alias("given"),
    ).dropDuplicates(["hop", "call", "receiver", "kind"])


def ends_of(events: DataFrame, names: DataFrame) -> DataFrame:
    """One row for each call that has ended: what its home has said last of it."""
    from pyspark.sql import functions as F

    found = events.where((F.col("value") == int(Invoked.ENDED)) & F.col("detail").isNotNull())
    latest = F.max_by(F.struct("detail", "reason", "client", "broker", "published"), F.struct("epoch", "event"))
    last = found.groupBy("call", "session").agg(latest.alias("it"))
    for column in ("reason", "client"):
        named = names.select(F.col("id").alias(f"{column}_id"), F.col("name").alias(column))
        last = last.join(F.broadcast(named.dropDuplicates([f"{column}_id"])), F.col(f"it.{column}") == F.col(f"{column}_id"), "left")
    return last.select(
        _text("call"),
        _text("session"),
        F.col("it.broker").alias("home"),
        F.col("it.published").alias("published"),
        F.col("client").alias("sender"),
        F.col("reason").alias("status"),
        F.from_json("it.detail", CALL).alias("said"),
    )


def service_hops(deliveries: DataFrame, ends: DataFrame) -> DataFrame:
    """One row for each message that went to a service: what it was, and whether the service has done its part (M1)."""
    from pyspark.sql import functions as F

    branch = ends.select(F.explode("said.recipients").alias("branch"))
    fates = branch.select(F.explode("branch.hops").alias("it")).select(
        F.col("it.hop").alias("hop"),
        (F.col("it.ended") * 1000).alias("ended"),
        (F.col("it.acknowledged") * 1000).alias("acknowledged"),
        F.col("it.status").alias("status"),
    )
    made = deliveries.join(fates.dropDuplicates(["hop"]), "hop", "left")
    return made.withColumn("status", F.coalesce("status", F.when(F.col("kind") == "request", OPEN), F.lit("delivered")))


def service_calls(deliveries: DataFrame, ends: DataFrame) -> DataFrame:
    """One row for each call: complete or why not, its parties, its calculated route with the revisions of the rules, its hops (M2)."""
    from pyspark.sql import functions as F

    of_hops = deliveries.groupBy("call", "session").agg(
        F.min_by(F.struct("sender", "kind", "home"), "given").alias("first"),
        F.min("published").alias("begun"),
        F.count("*").cast("int").alias("hops"),
        F.sum("size").alias("bytes"),
        F.array_sort(F.collect_set("receiver")).alias("receivers"),
    )
    made = of_hops.join(ends, ["call", "session"], "full")
    branches = F.col("said.recipients")
    failed = F.filter(branches, lambda one: one.reason.isNotNull())
    return made.select(
        "call",
        "session",
        F.coalesce("published", "begun").alias("published"),
        F.coalesce("home", "first.home").alias("home"),
        F.coalesce("said.kind", "first.kind").alias("kind"),
        F.coalesce("sender", "first.sender").alias("sender"),
        F.coalesce(F.transform(branches, lambda one: one.recipient), "receivers").alias("recipients"),
        F.col("said.topic").alias("topic"),
        F.coalesce("status", F.lit(OPEN)).alias("status"),
        F.element_at(F.transform(failed, lambda one: one.code), 1).alias("code"),
        F.element_at(F.transform(failed, lambda one: one.reason), 1).alias("reason"),
        (F.col("said.ended") * 1000).alias("ended"),
        F.coalesce("hops", F.lit(0)).alias("hops"),
        F.coalesce("bytes", F.lit(0)).alias("bytes"),
        F.flatten(F.transform(branches, lambda one: one.route)).alias("route"),
    )


def service_sessions(calls: DataFrame, hops: DataFrame) -> DataFrame:
    """One row for each session: its calls, the route that was calculated and the one that was taken, with sizes and states (M3)."""
    from pyspark.sql import functions as F

    complete = F.col("status").isin("answered", "delivered")
    routes = F.array_sort(F.collect_list(F.struct("published", "call", "route")))
    of_calls = calls.groupBy("session").agg(
        F.min("published").alias("published"),
        F.when(F.max(F.col("ended").isNull()), None).otherwise(F.max("ended")).alias("ended"),
        F.array_sort(F.collect_set("call")).alias("calls"),
        F.min(complete).alias("complete"),
        F.max("reason").alias("reason"),
        F.flatten(F.transform(routes, lambda one: one.route)).alias("calculated"),
    )
    stage = F.struct("given", "hop", "call", "sender", "receiver", "kind", "size", "status")
    of_hops = hops.groupBy("session").agg(
        F.sort_array(F.collect_list(stage)).alias("executed"),
        F.sum("size").alias("bytes"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list(F.array("sender", "receiver"))))).alias("services"),
    )
    return of_calls.join(of_hops, "session", "left")


def _text(column: str) -> Column:
    """A number of the journal as the identifier that services know."""
    from pyspark.sql import functions as F

    return F.lpad(F.lower(F.hex(column)), 16, "0").alias(column)
