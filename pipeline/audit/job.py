"""The job `audit`: who did what, from the events of the journal, chained by hashes. See trail.py for the files.

It takes actions of people and programs: connections, subscriptions, refusals, management, changes of retained messages, states of
recipients, gateway sessions. The way of each message is in the other tables. Source: US 9,037,726, audit trail (rows M10, M12).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...broker.journal.kinds import MessageId
from ...broker.journal.schema import Kind
from ..reading.events import events
from .trail import Life, Ranges, Trail, missing

if TYPE_CHECKING:
    from pyspark.sql import Column

    from ..context import Context

KINDS = (
    Kind.REFUSED, Kind.RECIPIENT_STATE, Kind.CONNECTED, Kind.DISCONNECTED, Kind.SUBSCRIBED, Kind.UNSUBSCRIBED, Kind.GATEWAY_SESSION,
    Kind.RETAINED_CHANGED, Kind.MANAGED, Kind.LINK_UP, Kind.LINK_DOWN, Kind.GAP, Kind.FAILED_OVER, Kind.RETURNED,
)  # fmt: skip
NAMED = ("account", "client", "recipient", "topic", "reason")
_READ = (
    "kind", "time", "broker", "epoch", "event", "count", "origin", "origin_epoch", "stream", "sequence", *NAMED, "to_broker", "value",
    "detail",
)  # fmt: skip


def run(context: Context) -> None:
    """Add what is not in the trail yet."""
    trail = Trail(context.tables.place)
    state = trail.state()
    fresh: dict[Life, Ranges] = {}
    for segment in context.selection.segments:
        life = (segment.broker, segment.epoch)
        parts = missing(segment.first, segment.last, state.covered.get(life, []))
        if parts:
            fresh.setdefault(life, []).extend(parts)
    before = state.head.number
    if fresh:
        frame = events(context.spark, context.journal, context.selection, *_READ)
        chosen = frame.where(frame["kind"].isin(*map(int, KINDS)) & _within(fresh)).orderBy("time", "broker", "epoch", "event")
        names = context.names
        state = trail.append(state, (record(row.asDict(), names) for row in chosen.toLocalIterator()), fresh)
    context.counts |= {"records": state.head.number - before, "in_all": state.head.number}
    context.say(f"audit trail: head {state.head}")


def _within(fresh: Mapping[Life, Ranges]) -> Column:
    """Whether an event is in one of these ranges."""
    from pyspark.sql import functions as F

    made = F.lit(False)
    for (broker, epoch), ranges in fresh.items():
        inside = F.lit(False)
        for first, last in ranges:
            inside = inside | F.col("event").between(first, last)
        made = made | ((F.col("broker") == broker) & (F.col("epoch") == epoch) & inside)
    return made


def record(row: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """An event as a record of the trail. What says nothing is left out."""
    moment = datetime.fromtimestamp(row["time"] // 1_000_000, UTC).replace(microsecond=row["time"] % 1_000_000)
    made: dict[str, Any] = {
        "time": moment.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "what": Kind(row["kind"]).name.lower(),
        "broker": row["broker"],
        "epoch": row["epoch"],
        "event": row["event"],
    }
    made |= dict(_named(row, names))
    if row["origin"] >= 0:
        made["message"] = str(MessageId(row["origin"], row["origin_epoch"], row["stream"], row["sequence"]))
    if row["count"] != 1:
        made["count"] = row["count"]
    if row["to_broker"] >= 0:
        made["to_broker"] = row["to_broker"]
    if row["value"]:
        made["value"] = row["value"]
    if row["detail"] is not None:
        made["detail"] = _parsed(row["detail"])
    return made


def _named(row: Mapping[str, Any], names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    for column in NAMED:
        if row[column]:
            yield column, names.get(row[column], f"#{row[column]}")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
