"""The job `health`: counts in = counts out, for every job whose tables are there.

Each row of the table `health` compares two numbers that have to be equal. `expected` is counted in the journal, `found` in an output table.
Rows with `must` false are for people to read: they differ where topics are sampled or counted only, or where a broker crashed.

What was set aside stands in `rejected`, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...broker.journal.kinds import Invoked, Kind
from ..audit.job import KINDS
from ..audit.trail import Life, Ranges, Trail, joined
from ..billing.tariff import Role
from ..errors import PipelineError
from ..usage.job import counts

if TYPE_CHECKING:
    from ..context import Context

_COUNTED = {"publications": Kind.PUBLISHED, "deliveries": Kind.DELIVERED, "acknowledgements": Kind.ACKNOWLEDGED, "drops": Kind.DROPPED}
_ROLES = {Role.ORIGINATOR: Kind.PUBLISHED, Role.RECIPIENT: Kind.DELIVERED}


@dataclass(frozen=True, slots=True)
class Check:
    """expected: what went in. found: what came out. must: whether they have to be equal."""

    job: str
    name: str
    expected: int
    found: int
    must: bool = True

    @property
    def ok(self) -> bool:
        return self.expected == self.found or not self.must


def run(context: Context) -> None:
    """Write `health`. Raises PipelineError, after the table is written, when something is missing or doubled."""
    checks = list(look(context))
    write(context, checks)
    wrong = [one for one in checks if not one.ok]
    context.counts |= {"checks": len(checks), "wrong": len(wrong)}
    if wrong:
        said = "; ".join(f"{one.job}: {one.name}: {one.found:,} came out of {one.expected:,}" for one in wrong[:5])
        raise PipelineError(f"{len(wrong)} of {len(checks)} checks fail: {said}")


def look(context: Context) -> Iterator[Check]:
    """Compare what is there."""
    by_kind = _events(context)
    counted = _counts(context)
    there = context.tables.version
    if there("messages") is not None:
        table = _sums(context, "messages", *_COUNTED)
        for column, kind in _COUNTED.items():
            yield Check("messages", f"messages {kind.name.lower()}", by_kind.get(int(kind), 0), table[column], must=_exact(context, kind))
    if there("refused") is not None:
        yield Check("messages", "messages refused", by_kind.get(int(Kind.REFUSED), 0), _sums(context, "refused", "count")["count"])
    if there("usage") is not None:
        used = _usage(context)
        for role, kind in _ROLES.items():
            messages, size = counted.get(int(kind), (0, 0))
            yield Check("usage", f"messages {kind.name.lower()}", messages, used.get(role.value, (0, 0))[0])
            yield Check("usage", f"bytes {kind.name.lower()}", size, used.get(role.value, (0, 0))[1])
    if there("custom") is not None:
        yield Check("custom", "values", _values(context), context.table("custom").count())
    if there("service_calls") is not None:
        yield from _invoked(context)
    for kind in _ROLES.values():
        yield Check(
            "journal",
            f"counters and events of messages {kind.name.lower()}",
            counted.get(int(kind), (0, 0))[0],
            by_kind.get(int(kind), 0),
            False,
        )
    yield from _audit(context)
    yield from _segments(context)


def _exact(context: Context, kind: Kind) -> bool:
    """Ends that two lives of a broker have both written count once in `messages`."""
    return kind not in (Kind.DELIVERED, Kind.ACKNOWLEDGED) or context.selection.lives <= 1


def _events(context: Context) -> dict[int, int]:
    """kind -> messages, of the run's time; of a refusal there is no message id, of the others there is."""
    from pyspark.sql import functions as F

    frame = context.events("kind", "count", "origin")
    frame = frame.where((F.col("origin") >= 0) | (F.col("kind") == int(Kind.REFUSED)))
    return {row["kind"]: row["n"] for row in frame.groupBy("kind").agg(F.sum("count").alias("n")).collect()}


def _counts(context: Context) -> dict[int, tuple[int, int]]:
    """kind -> messages and bytes of the counters."""
    from pyspark.sql import functions as F

    frame = counts(context).groupBy("kind").agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    return {row["kind"]: (row["messages"], row["bytes"]) for row in frame.collect()}


def _usage(context: Context) -> dict[str, tuple[int, int]]:
    from pyspark.sql import functions as F

    frame = context.table("usage").groupBy("role").agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    return {row["role"]: (row["messages"], row["bytes"]) for row in frame.collect()}


def _values(context: Context) -> int:
    """Selected values: of each message as many as its `published` names."""
    from pyspark.sql import functions as F

    frame = context.events("kind", "count", "origin", "detail").where((F.col("kind") == int(Kind.PUBLISHED)) & (F.col("origin") >= 0))
    each = F.size(F.map_keys(F.from_json("detail", "map<string,string>"))) * F.col("count")
    return frame.where(F.col("detail").isNotNull()).agg(F.sum(each)).collect()[0][0] or 0


def _invoked(context: Context) -> Iterator[Check]:
    """Calls and deliveries of the interchange; a home that was killed may have noted a delivery, or an end, twice."""
    from pyspark.sql import functions as F

    frame = context.events("kind", "value", "call").where(F.col("kind") == int(Kind.INVOKED))
    given = F.sum((F.col("value") == int(Invoked.DELIVERED)).cast("long")).alias("given")
    noted = frame.agg(given, F.countDistinct("call").alias("calls")).collect()[0]
    hops = context.table("service_hops").count()
    yield Check("invoked", "deliveries to services", noted["given"] or 0, hops, must=context.selection.lives <= 1)
    yield Check("invoked", "calls of services", noted["calls"], context.table("service_calls").count())
    yield Check("invoked", "deliveries of calls", hops, _sums(context, "service_calls", "hops")["hops"])


def _sums(context: Context, table: str, *columns: str) -> dict[str, int]:
    from pyspark.sql import functions as F

    row = context.table(table).agg(*(F.sum(column).alias(column) for column in columns)).collect()[0]
    return {column: row[column] or 0 for column in columns}


def _audit(context: Context) -> Iterator[Check]:
    """The records of the trail are the events that it covers."""
    from pyspark.sql import functions as F

    state = Trail(context.tables.place).state()
    there: dict[Life, Ranges] = {}
    for one in context.selection.segments:
        there.setdefault((one.broker, one.epoch), []).append((one.first, one.last))
    covered = {life: joined(ranges) for life, ranges in there.items()}
    if covered != state.covered or context.since is not None or context.until is not None:
        return  # the journal has forgotten what the trail keeps, or has more than the trail was told of
    frame = context.events("kind", by="time").where(F.col("kind").isin(*map(int, KINDS)))
    yield Check("audit", "actions", frame.count(), state.head.number)


def _segments(context: Context) -> Iterator[Check]:
    """Every event that a manifest names is read or set aside with a reason."""
    aside = sum(one.events for one in context.selection.rejected if one.events > 0)
    yield Check("journal", "events set aside", 0, aside, False)


def write(context: Context, checks: list[Check]) -> None:
    """Replace the table `health`."""
    import pyarrow as pa

    columns: list[tuple[str, Any]] = [("run", pa.string()), ("job", pa.string()), ("name", pa.string())]
    columns += [("expected", pa.int64()), ("found", pa.int64()), ("must", pa.bool_()), ("ok", pa.bool_())]
    rows = [asdict(one) | {"ok": one.ok, "run": context.tables.run} for one in checks]
    context.write_arrow("health", pa.Table.from_pylist(rows, pa.schema(columns)))
