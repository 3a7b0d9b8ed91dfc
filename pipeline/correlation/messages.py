"""The message table (M1): one row for each message, from all events of it at all brokers.

One shuffle by the message's key, and numbers only: that is what decides its speed. What every event repeats (publish time, topic, account,
size) is taken from any of them; the rest are sums and bounds. An end is `delivered` at QoS 0, or acknowledged, dropped, expired,
returned, failed over.

    complete     every broker has received it, and each target there has an end
    status       1 complete; 2 not received by every broker; 3 received, and a target has no end; 4 its publication is not in the journal
    reason       of the last event that says one: why it was dropped, returned, ...

An acknowledgement is counted once for each client and broker, also when the broker was killed between the client's acknowledgement and its
commit, and both of its lives wrote one (`once`).

Refused publications have no message id: they have a table of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.schema import Kind
from ..context import DAY, Context
from .keys import KEY, source, unpacked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COMPLETE, NOT_RECEIVED, NO_END, NOT_PUBLISHED = 1, 2, 3, 4
STATUS = {COMPLETE: "complete", NOT_RECEIVED: "not received", NO_END: "no end", NOT_PUBLISHED: "publication unknown"}
BITS = 62  # brokers in one number of `reached`
_KINDS = (
    Kind.PUBLISHED, Kind.FORWARDED, Kind.RECEIVED, Kind.DELIVERED, Kind.ACKNOWLEDGED, Kind.DROPPED, Kind.EXPIRED, Kind.RETURNED,
    Kind.FAILED_OVER, Kind.CUSTODY_TAKEN, Kind.CUSTODY_RELEASED,
)  # fmt: skip
_READ = (
    "kind", "time", "broker", "count", "origin", "origin_epoch", "stream", "sequence", "published", "size", "account", "topic", "client",
    "from_broker", "to_broker", "call", "session", "qos", "version_in", "protocol_in", "protocol_out", "reason", "value",
)  # fmt: skip


def run(context: Context) -> None:
    """Write `messages` and `refused`."""
    frame = context.messages_of(context.events(*_READ))
    if context.selection.lives > 1:
        frame = once(frame)
    made = messages(frame, context.selection.brokers)
    context.write("messages", dated(unpacked(made)), brokers=context.selection.brokers)
    columns = ("time", "broker", "client", "account", "topic", "size", "count", "qos", "protocol_in", "version_in", "reason", "published")
    context.write("refused", refused(context.events("kind", *columns)).select(*columns, day_of("published")))


def once(events: DataFrame) -> DataFrame:
    """Each end of a message at a client once, though two lives of the broker have written it."""
    from pyspark.sql import functions as F

    ends = F.col("kind").isin(int(Kind.ACKNOWLEDGED), int(Kind.DELIVERED)) & (F.col("origin") >= 0)
    key = ["origin", "origin_epoch", "stream", "sequence", "kind", "broker", "client"]
    return events.where(~ends).unionByName(events.where(ends).dropDuplicates(key))


def messages(events: DataFrame, brokers: list[int]) -> DataFrame:
    """One row for each message. brokers: of the mesh, whose place in this list is their bit in `reached`."""
    from pyspark.sql import functions as F

    narrow = _narrow(events, brokers)
    words = [name for name in narrow.columns if name.startswith("reached")]
    totals = [F.max(name).alias(name) for name in ("published", "size", "qos_in", "entered", "wanted")]
    totals += [F.coalesce(F.max(name), F.lit(0)).alias(name) for name in _NAMES]
    totals += [F.sum(name).cast("int").alias(name) for name in _COUNTS]
    totals += [F.max("last_end").alias("finished"), F.max("last").alias("last"), F.bit_or("ways_out").alias("ways_out")]
    totals += [F.bit_or(word).alias(word) for word in words]
    # One repartition by the key first: then each message is aggregated once, and not in parts before and after the shuffle.
    grouped = narrow.repartition(*KEY).groupBy(*KEY).agg(*totals)
    status = (
        F.when(F.col("publications") == 0, NOT_PUBLISHED)
        .when(F.col("arrivals") < F.col("wanted"), NOT_RECEIVED)
        .when(F.col("ends") < F.col("targets"), NO_END)
        .otherwise(COMPLETE)
    )
    return grouped.withColumn("status", status.cast("byte"))


_NAMES = ("account", "topic", "call", "session", "sender", "receiver", "reason")  # ids, of which 0 is none
_COUNTS = (
    "publications",
    "arrivals",
    "targets",
    "ends",
    "forwards",
    "deliveries",
    "acknowledgements",
    "drops",
    "expiries",
    "returns",
    "failovers",
    "releases",
)


def _narrow(events: DataFrame, brokers: list[int]) -> DataFrame:
    """What the shuffle carries of an event: its key, what it repeats, and one column for each count."""
    from pyspark.sql import functions as F

    kind, zero = F.col("kind"), F.lit(0).cast("long")

    def when(condition: Column, value: Column | int) -> Column:
        return F.when(condition, F.lit(value) if isinstance(value, int) else value).otherwise(zero)

    def one(*kinds: Kind) -> Column:
        return F.when(kind.isin(*map(int, kinds)), 1).otherwise(0)

    published, received, delivered = kind == int(Kind.PUBLISHED), kind == int(Kind.RECEIVED), kind == int(Kind.DELIVERED)
    elsewhere = received & (F.col("broker") != F.col("origin"))
    end = kind.isin(int(Kind.ACKNOWLEDGED), int(Kind.DROPPED), int(Kind.EXPIRED), int(Kind.RETURNED), int(Kind.FAILED_OVER))
    end = end | (delivered & (F.col("qos") == 0))
    columns = [
        source().alias("source"),
        F.col("sequence"),
        F.col("published"),
        F.col("size"),
        *(F.nullif(F.col(name), F.lit(0)).alias(name) for name in ("account", "topic", "call", "session", "reason")),
        F.when(published, F.col("client")).alias("sender"),
        F.when(delivered, F.col("client")).alias("receiver"),
        F.col("time").alias("last"),
        when(end, F.col("time")).alias("last_end"),
        when(published, F.col("qos").cast("long")).cast("byte").alias("qos_in"),
        when(published, F.col("protocol_in") * 16 + F.col("version_in")).cast("short").alias("entered"),
        when(published, F.col("value")).cast("int").alias("wanted"),
        when(received, F.col("value")).cast("int").alias("targets"),
        F.when(elsewhere, 1).otherwise(0).alias("arrivals"), F.when(end, 1).otherwise(0).alias("ends"),
        one(Kind.PUBLISHED).alias("publications"), one(Kind.FORWARDED).alias("forwards"), one(Kind.DELIVERED).alias("deliveries"),
        one(Kind.ACKNOWLEDGED).alias("acknowledgements"), one(Kind.DROPPED).alias("drops"), one(Kind.EXPIRED).alias("expiries"),
        one(Kind.RETURNED).alias("returns"), one(Kind.FAILED_OVER).alias("failovers"), one(Kind.CUSTODY_RELEASED).alias("releases"),
        F.when(delivered, F.expr("shiftleft(1, int(protocol_out))")).otherwise(0).alias("ways_out"),
    ]  # fmt: skip
    for word in range(max(1, -(-len(brokers) // BITS))):
        columns.append(_bits(brokers[word * BITS : (word + 1) * BITS], elsewhere).alias(f"reached{word}"))
    return events.where((F.col("origin") >= 0) & kind.isin(*map(int, _KINDS))).select(*columns)


def _bits(brokers: list[int], condition: Column) -> Column:
    """The bit of the event's broker, where the condition is true."""
    from pyspark.sql import functions as F

    if brokers == list(range(brokers[0], brokers[0] + len(brokers))) if brokers else True:
        first = brokers[0] if brokers else 0
        inside = condition & F.col("broker").between(first, first + max(0, len(brokers) - 1))
        return F.when(inside, F.expr(f"shiftleft(1L, broker - {first})")).otherwise(F.lit(0).cast("long"))
    made = F.lit(0).cast("long")
    for place, broker in enumerate(brokers):
        made = F.when(condition & (F.col("broker") == broker), F.lit(1 << place).cast("long")).otherwise(made)
    return made


def dated(frame: DataFrame) -> DataFrame:
    """With the column `date` of the publication (UTC), by which tables of messages are partitioned."""
    return frame.select("*", day_of("published"))


def day_of(column: str) -> Column:
    """The date (UTC) of a column of microseconds, as text."""
    from pyspark.sql import functions as F

    days = F.floor(F.col(column) / DAY).cast("int")
    return F.date_format(F.date_from_unix_date(days), "yyyy-MM-dd").alias("date")


def refused(events: DataFrame) -> DataFrame:
    """Publications that were not accepted (M10)."""
    from pyspark.sql import functions as F

    return events.where(F.col("kind") == int(Kind.REFUSED))
