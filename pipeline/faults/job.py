"""Fault intervals of links and recipients, fail-overs by alternative, and availability by month.

    faults        what, a, b, recipient, began, noticed, defunct, ended, returned, failed_over
    failovers     date, kind, recipient or alternative, reason, messages
    availability  month, what, a, b, recipient, observed, down (microseconds), share

A link's fault begins when its first end says `link down` and ends when both have said `link up`; `noticed` is when the other end said it. A
recipient's begins at its last success where the event's detail has `last_success`, else with its state FAULT, which is `noticed`. A site
is down while all of its links are. What has not ended has no `ended`, and counts until the end of the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...broker.journal.schema import NOBODY, Kind
from ..context import Context
from ..dates import day_of
from .availability import Interval, availability, site_intervals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPERATIONAL, FAULT, DEFUNCT = 0, 1, 2  # states of a recipient: `to` in the event's detail, else its `value`
_KINDS = (Kind.RETURNED, Kind.FAILED_OVER, Kind.RECIPIENT_STATE, Kind.LINK_UP, Kind.LINK_DOWN)
_COLUMNS = ("what", "a", "b", "recipient", "began", "noticed", "defunct", "ended")


def run(context: Context) -> None:
    """Write `faults`, `failovers`, `availability`."""
    from pyspark.sql import functions as F

    events = context.events(
        "kind", "time", "event", "broker", "to_broker", "recipient", "client", "value", "count", "reason", "detail", by="time"
    )
    to_alternative = (F.col("kind") == int(Kind.RECEIVED)) & (F.col("recipient") != 0)
    events = events.where(F.col("kind").isin(*map(int, _KINDS)) | to_alternative).localCheckpoint()  # few of many: looked for once
    found = link_faults(events).unionByName(recipient_faults(events))
    made = found.join(_given(events, found), ["recipient", "began"], "left").fillna(0, ["returned", "failed_over"])
    context.write("faults", made.select(*_COLUMNS, "returned", "failed_over", day_of("began")))
    context.write("failovers", failovers(events))
    span = _span(context)
    if span is None:
        return
    intervals = [Interval(*row) for row in context.table("faults").select("what", "a", "b", "recipient", "began", "ended").collect()]
    known = events.where(F.col("kind").isin(int(Kind.LINK_UP), int(Kind.LINK_DOWN))).select("broker", "to_broker").distinct().collect()
    ends = sorted({(min(pair), max(pair)) for pair in map(tuple, known)})
    recipients = events.where(F.col("kind") == int(Kind.RECIPIENT_STATE)).groupBy("recipient").agg(F.max("broker")).collect()
    subjects = [("link", a, b, 0) for a, b in ends] + [("recipient", broker, NOBODY, number) for number, broker in map(tuple, recipients)]
    sites = sorted({number for pair in ends for number in pair})
    intervals += [one for site in sites for one in site_intervals(site, ends, intervals, span[1])]
    subjects += [("site", site, NOBODY, 0) for site in sites]
    context.write_arrow("availability", _table(availability(subjects, intervals, *span)))


def link_faults(events: DataFrame) -> DataFrame:
    """One row for each time that a link was down. a, b: its ends, the lower number first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    kind, end = F.col("kind"), Window.partitionBy("broker", "to_broker").orderBy("time", "kind")
    states = events.where(kind.isin(int(Kind.LINK_UP), int(Kind.LINK_DOWN)) & (F.col("to_broker") >= 0)).select(
        "broker", "to_broker", "kind", "time", F.lead("time").over(end).alias("ended"), F.lag("kind").over(end).alias("before")
    )
    down = states.where((kind == int(Kind.LINK_DOWN)) & (~F.col("before").eqNullSafe(int(Kind.LINK_DOWN)))).select(
        F.least("broker", "to_broker").alias("a"), F.greatest("broker", "to_broker").alias("b"), "time", "ended"
    )
    never = F.lit((1 << 63) - 1)
    link = Window.partitionBy("a", "b").orderBy("time")
    before = link.rowsBetween(Window.unboundedPreceding, -1)
    begins = F.coalesce(F.col("time") > F.max(F.coalesce("ended", never)).over(before), F.lit(True)).cast("int")
    numbered = down.select("*", begins.alias("first")).select("*", F.sum("first").over(link).alias("number"))
    ended = F.max(F.coalesce("ended", never))
    made = numbered.groupBy("a", "b", "number").agg(
        F.min("time").alias("began"), F.max("time").alias("noticed"), F.when(ended != never, ended).alias("ended")
    )
    nothing = F.lit(None).cast("long")
    return made.select(
        F.lit("link").alias("what"),
        "a",
        "b",
        F.lit(0).cast("long").alias("recipient"),
        "began",
        "noticed",
        nothing.alias("defunct"),
        "ended",
    )


def recipient_faults(events: DataFrame) -> DataFrame:
    """One row for each time that a recipient did not take messages. a: its broker."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    value, order = F.col("value"), Window.partitionBy("recipient").orderBy("time", "event")
    named = F.get_json_object("detail", "$.to")
    state = F.when(named == "operational", OPERATIONAL).when(named == "fault", FAULT).when(named == "defunct", DEFUNCT)
    known = events.where(F.col("kind") == int(Kind.RECIPIENT_STATE)).withColumn("value", F.coalesce(state, value.cast("int")))
    states = known.select(
        "recipient",
        "broker",
        "value",
        "time",
        "event",
        "detail",
        F.coalesce(F.lag("value").over(order), F.lit(OPERATIONAL)).alias("before"),
    )
    begins = ((value != OPERATIONAL) & (F.col("before") == OPERATIONAL)).cast("int")
    numbered = states.select("*", F.sum(begins).over(order).alias("number")).where(F.col("number") > 0)
    last = F.get_json_object("detail", "$.last_success").cast("long")
    made = numbered.groupBy("recipient", "number").agg(
        F.max("broker").alias("a"),
        F.coalesce(F.min(F.when(value != OPERATIONAL, last)), F.min("time")).alias("began"),
        F.min("time").alias("noticed"),
        F.min(F.when(value == DEFUNCT, F.col("time"))).alias("defunct"),
        F.min(F.when(value == OPERATIONAL, F.col("time"))).alias("ended"),
    )
    return made.select(F.lit("recipient").alias("what"), "a", F.lit(NOBODY).alias("b"), "recipient", "began", "noticed", "defunct", "ended")


def _given(events: DataFrame, faults: DataFrame) -> DataFrame:
    """Messages of a recipient that were returned, or failed over, while it was in fault."""
    from pyspark.sql import functions as F

    kind = F.col("kind")
    gone = events.where(kind.isin(int(Kind.RETURNED), int(Kind.FAILED_OVER)) & (F.col("recipient") != 0)).select(
        F.col("recipient").alias("who"), "kind", "time", "count"
    )
    while_down = (gone["who"] == faults["recipient"]) & (gone["time"] >= faults["began"])
    while_down = while_down & (faults["ended"].isNull() | (gone["time"] <= faults["ended"]))
    joined = gone.join(faults.where(F.col("what") == "recipient"), while_down, "inner")
    count = F.col("count").cast("long")
    return joined.groupBy("recipient", "began").agg(
        F.sum(F.when(kind == int(Kind.RETURNED), count).otherwise(0)).alias("returned"),
        F.sum(F.when(kind == int(Kind.FAILED_OVER), count).otherwise(0)).alias("failed_over"),
    )


def failovers(events: DataFrame) -> DataFrame:
    """Messages that were returned or failed over, by recipient and reason; and those that came to an alternative, by its name."""
    from pyspark.sql import functions as F

    kind, nobody = F.col("kind"), F.lit(None).cast("long")
    came = kind == int(Kind.RECEIVED)
    gone = events.where(kind.isin(int(Kind.RETURNED), int(Kind.FAILED_OVER), int(Kind.RECEIVED)))
    recipient, alternative = F.when(~came, F.col("recipient")).otherwise(nobody), F.when(came, F.col("recipient")).otherwise(nobody)
    key = (day_of("time"), "kind", recipient.alias("recipient"), alternative.alias("alternative"), "reason")
    return gone.groupBy(*key).agg(F.sum(F.col("count").cast("long")).alias("messages"))


def _span(context: Context) -> tuple[int, int] | None:
    """The time that the journal tells of, within the run's dates."""
    segments = context.selection.segments
    if not segments:
        return None
    first, last = min(one.min_time for one in segments), max(one.max_time for one in segments)
    first = first if context.since is None else max(first, context.since)
    last = last if context.until is None else min(last, context.until)
    return (first, min(last, context.selection.latest)) if first < last else None


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    columns = [("month", pa.string()), ("what", pa.string()), ("a", pa.int32()), ("b", pa.int32()), ("recipient", pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema([*columns, ("observed", pa.int64()), ("down", pa.int64()), ("share", pa.float64())]))
