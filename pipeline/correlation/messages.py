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
from ..context import Context
from ..dates import dated, day_of
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
    columns = ("time", "broker", "client", "account", "topic", "size", "count", "qos", "protocol_in", "version_in", "reason")
    context.write("refused", refused(context.events("kind", *columns, by="time")).select(*columns, day_of("time")))


def once(events: DataFrame) -> DataFrame:
    """Each end of a message at a client once, though two lives of the broker have written it."""
    from pyspark.sql import functions as F

    ends = F.col("kind").isin(int(Kind.ACKNOWLEDGED), int(Kind.DELIVERED)) & (F.col("origin") >= 0)
    key = ["origin", "origin_epoch", "stream", "sequence", "kind", "broker", "client"]
    return events.where(~ends).unionByName(events.where(ends).dropDuplicates(key))


def messages(events: DataFrame, brokers: list[int]) -> DataFrame:
    """One row for each message. brokers: of the mesh, whose place in this list is their bit in `reached`."""
    from pyspark.sql import functions as F

    total = _totals(brokers)
    # One repartition by the key first: then each message is aggregated once, and not in parts before and after the shuffle.
    grouped = _narrow(events, brokers).repartition(*KEY).groupBy(*KEY).agg(*total)
    grouped = grouped.select(*KEY, *_unpacked(grouped.columns))
    status = (
        F.when(F.col("publications") == 0, NOT_PUBLISHED)
        .when(F.col("arrivals") + F.col("given_up") < F.col("wanted"), NOT_RECEIVED)
        .when(F.col("ends") < F.col("targets"), NO_END)
        .otherwise(COMPLETE)
    )
    return grouped.withColumn("status", status.cast("byte"))


_NAMES = ("account", "topic", "call", "session", "sender", "receiver", "reason")  # ids, of which 0 is none
# Counts of events, three in one number of 63 bits: a message has at most 2,097,151 of each. To add one number is cheaper than to add three.
_COUNTS = (
    "publications", "arrivals", "ends", "forwards", "deliveries", "acknowledgements", "drops", "expiries", "returns", "failovers",
    "releases", "given_up",
)  # fmt: skip
_IN_ONE, _WIDTH = 3, 21
_MASK = (1 << _WIDTH) - 1


def _narrow(events: DataFrame, brokers: list[int]) -> DataFrame:
    """What the shuffle carries of an event. `what`: small numbers in one; the place of its broker in the list from bit 32 on."""
    from pyspark.sql import functions as F

    elsewhere = F.when(F.col("broker") != F.col("origin"), 1).otherwise(0)
    # Dropped or expired for another broker: the origin gave up to send it there. At a client it says no broker, or its own.
    away = F.col("kind").isin(int(Kind.DROPPED), int(Kind.EXPIRED)) & (F.col("to_broker") >= 0) & (F.col("to_broker") != F.col("broker"))
    away = F.when(away, 1).otherwise(0)
    parts = (
        (away, 25),
        (F.col("qos"), 8),
        (F.col("protocol_out"), 12),
        (F.col("protocol_in"), 16),
        (F.col("version_in"), 20),
        (elsewhere, 24),
    )
    what = F.col("kind").cast("long")
    for part, shift in (*parts, (_place(brokers), 32)):
        what = what + F.shiftleft(part.cast("long"), shift)
    columns = [
        source().alias("source"),
        F.col("sequence"),
        what.alias("what"),
        F.col("value").cast("int").alias("value"),
        *(F.col(name) for name in ("time", "published", "size")),
        *(F.nullif(F.col(name), F.lit(0)).alias(name) for name in ("account", "topic", "client", "call", "session", "reason")),
    ]
    return events.where((F.col("origin") >= 0) & F.col("kind").isin(*map(int, _KINDS))).select(*columns)


def _place(brokers: list[int]) -> Column:
    """The place of an event's broker in a list."""
    from pyspark.sql import functions as F

    first = brokers[0] if brokers else 0
    if brokers == list(range(first, first + len(brokers))):
        return F.col("broker") - first
    return F.array_position(F.array(*map(F.lit, brokers)), F.col("broker")) - 1


def _totals(brokers: list[int]) -> list[Column]:
    """Aggregates over the events of one message."""
    from pyspark.sql import functions as F

    what, zero = F.col("what"), F.lit(0).cast("long")
    kind, elsewhere = what.bitwiseAND(F.lit(255)), F.expr("(what >> 24) & 1") == 1

    def of(*kinds: Kind) -> Column:
        return kind.isin(*map(int, kinds)) if len(kinds) > 1 else kind == int(kinds[0])

    published, received, delivered = of(Kind.PUBLISHED), of(Kind.RECEIVED), of(Kind.DELIVERED)
    end = of(Kind.ACKNOWLEDGED, Kind.DROPPED, Kind.EXPIRED, Kind.RETURNED, Kind.FAILED_OVER)
    away = F.expr("(what >> 25) & 1") == 1
    end = (end & ~away) | (delivered & (F.expr("(what >> 8) & 15") == 0))
    conditions = {
        "publications": published, "arrivals": received & elsewhere, "ends": end, "forwards": of(Kind.FORWARDED), "deliveries": delivered,
        "acknowledgements": of(Kind.ACKNOWLEDGED), "drops": of(Kind.DROPPED), "expiries": of(Kind.EXPIRED), "returns": of(Kind.RETURNED),
        "failovers": of(Kind.FAILED_OVER), "releases": of(Kind.CUSTODY_RELEASED), "given_up": away,
    }  # fmt: skip
    total = []
    for number in range(0, len(_COUNTS), _IN_ONE):
        added = zero
        for place, name in enumerate(_COUNTS[number : number + _IN_ONE]):
            added = added + F.when(conditions[name], F.lit(1 << (_WIDTH * place)).cast("long")).otherwise(zero)
        total.append(F.sum(added).alias(f"counts{number // _IN_ONE}"))
    total += [F.max(name).alias(name) for name in ("published", "size", "topic", "call", "session", "reason")]
    total += [
        F.max(F.when(published, F.col("account"))).alias("account"),
        F.max(F.when(published, F.col("client"))).alias("sender"),
        F.max(F.when(delivered, F.col("client"))).alias("receiver"),
        F.max(F.when(published, F.shiftleft(F.col("value").cast("long"), 32) + F.expr("(what >> 8) & 65535"))).alias("came"),
        F.sum(F.when(received, F.col("value")).otherwise(0)).cast("int").alias("targets"),
        F.coalesce(F.max(F.when(end, F.col("time"))), zero).alias("finished"),
        F.max("time").alias("last"),
        F.bit_or(F.when(delivered, F.expr("shiftleft(1, int((what >> 12) & 15))")).otherwise(0)).alias("ways_out"),
    ]
    for word in range(max(1, -(-len(brokers) // BITS))):
        inside = received & elsewhere & F.expr(f"(what >> 32) div {BITS}").eqNullSafe(word)
        bit = F.expr(f"shiftleft(1L, int((what >> 32) - {word * BITS}))")
        total.append(F.bit_or(F.when(inside, bit).otherwise(zero)).alias(f"reached{word}"))
    return total


def _unpacked(columns: list[str]) -> list[Column]:
    """The columns of the table, from aggregates."""
    from pyspark.sql import functions as F

    made = [F.coalesce(F.col(name), F.lit(0)).alias(name) for name in _NAMES]
    for number, name in enumerate(_COUNTS):
        shifted = F.shiftright(F.col(f"counts{number // _IN_ONE}"), _WIDTH * (number % _IN_ONE))
        made.append(shifted.bitwiseAND(F.lit(_MASK)).cast("int").alias(name))
    came = F.coalesce(F.col("came"), F.lit(0))
    made += [
        F.shiftright(came, 32).cast("int").alias("wanted"),
        came.bitwiseAND(F.lit(15)).cast("byte").alias("qos_in"),
        F.expr("smallint(coalesce(((came >> 8) & 15) * 16 + ((came >> 12) & 15), 0))").alias("entered"),
    ]
    kept = [
        name for name in columns if name in ("published", "size", "targets", "finished", "last", "ways_out") or name.startswith("reached")
    ]
    return made + [F.col(name) for name in kept]


def refused(events: DataFrame) -> DataFrame:
    """Publications that were not accepted (M10)."""
    from pyspark.sql import functions as F

    return events.where(F.col("kind") == int(Kind.REFUSED))
