"""Traffic between sites: a matrix, the use of links, copies against the tree's optimum, suppressed repeats; and a report with pictures.

    traffic   window, origin, broker, messages, bytes; what stayed at its origin has the same number twice
    links     window, sender, receiver, copies, bytes: what one broker sent the other; bytes_a_second of the window
    copies    origin, reached0 ...: messages for the same brokers; how many copies they took, and how many the shortest-path tree takes
    repeats   window, broker, reason, messages: what a broker dropped

Options: `traffic.window` in seconds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...broker.journal.schema import NOBODY, Kind
from ..context import Context
from ..correlation.messages import BITS
from ..dates import day_of
from .graph import Flow, Link, mesh_of, optimum, report
from .picture import graph_svg, matrix_svg

if TYPE_CHECKING:
    import networkx as nx
    from pyspark.sql import DataFrame

WINDOW = 3_600  # seconds
_SECOND = 1_000_000
REPORTS = "reports"


def run(context: Context) -> None:
    """Write the tables `traffic`, `links`, `copies`, `repeats`, and the files `reports/traffic.json`, `.graphml`, `.svg`, `-matrix.svg`."""
    window = context.option("traffic.window", WINDOW) * _SECOND
    sums = summed(context.events("kind", "published", "count", "bytes", "origin", "broker", "to_broker", "reason"), window)
    sums = sums.localCheckpoint()  # one look at the events serves three tables
    context.write("traffic", matrix(sums))
    context.write("links", links(sums, window))
    context.write("repeats", repeats(sums))
    used = _rows(context.table("links").groupBy("sender", "receiver").sum("copies", "bytes"))
    flows = _rows(context.table("traffic").groupBy("origin", "broker").sum("messages", "bytes"))
    known = _rows(known_links(context.events("kind", "broker", "to_broker", "detail", by="time")))
    mesh = mesh_of(
        [Link(a, b, cost) for a, b, cost in known],
        [Link(a, b, 0, copies, size) for a, b, copies, size in used],
    )
    _copies(context, mesh)
    found = report(mesh, [Flow(*row) for row in flows])
    _files(context, mesh, found, [Flow(*row) for row in flows])


def summed(events: DataFrame, window: int) -> DataFrame:
    """Messages and bytes by kind, window of the publication (microseconds), origin, broker, next broker and reason."""
    from pyspark.sql import functions as F

    received = (F.col("kind") == int(Kind.RECEIVED)) & (F.col("origin") >= 0)
    chosen = events.where(received | F.col("kind").isin(int(Kind.FORWARDED), int(Kind.DROPPED)))
    forwarded, dropped = F.col("kind") == int(Kind.FORWARDED), F.col("kind") == int(Kind.DROPPED)
    key = (
        "kind",
        (F.col("published") - F.expr(f"pmod(published, {window})")).alias("window"),
        F.when(forwarded | dropped, NOBODY).otherwise(F.col("origin")).alias("origin"),
        "broker",
        F.when(forwarded, F.col("to_broker")).otherwise(NOBODY).alias("to_broker"),
        F.when(dropped, F.col("reason")).otherwise(F.lit(0).cast("long")).alias("reason"),
    )
    return chosen.groupBy(*key).agg(F.sum(F.col("count").cast("long")).alias("messages"), F.sum("bytes").alias("bytes"))


def matrix(sums: DataFrame) -> DataFrame:
    """Messages that reached a broker. sums: of `summed`."""
    return _of(sums, Kind.RECEIVED).select("window", "origin", "broker", "messages", "bytes", day_of("window"))


def links(sums: DataFrame, window: int) -> DataFrame:
    """What each broker sent to its neighbours."""
    from pyspark.sql import functions as F

    return _of(sums, Kind.FORWARDED).select(
        "window",
        F.col("broker").alias("sender"),
        F.col("to_broker").alias("receiver"),
        F.col("messages").alias("copies"),
        "bytes",
        (F.col("bytes") / (window / _SECOND)).alias("bytes_a_second"),
        day_of("window"),
    )


def repeats(sums: DataFrame) -> DataFrame:
    """What brokers dropped, with the reason; repeats that a window recognised are among it."""
    return _of(sums, Kind.DROPPED).select("window", "broker", "reason", "messages", "bytes", day_of("window"))


def _of(sums: DataFrame, kind: Kind) -> DataFrame:
    return sums.where(sums["kind"] == int(kind))


def known_links(events: DataFrame) -> DataFrame:
    """Links that came up or went down: both ends, and the cost where the detail of an event says it."""
    from pyspark.sql import functions as F

    seen = events.where(F.col("kind").isin(int(Kind.LINK_UP), int(Kind.LINK_DOWN)))
    cost = F.coalesce(F.get_json_object("detail", "$.cost").cast("int"), F.lit(0))
    return seen.groupBy("broker", "to_broker").agg(F.max(cost).alias("cost"))


def copies(messages: DataFrame) -> DataFrame:
    """Messages with the same origin and the same brokers reached: how many, and how many copies they took."""
    from pyspark.sql import functions as F

    words = [name for name in messages.columns if name.startswith("reached")]
    return (
        messages.where(F.col("arrivals") > 0)
        .groupBy("date", "origin", *words)
        .agg(F.count("*").alias("messages"), F.sum("forwards").alias("copies"), F.sum("arrivals").alias("arrivals"))
    )


def _copies(context: Context, mesh: nx.Graph[int]) -> None:
    import pyarrow as pa

    frame = copies(context.table("messages"))
    version = context.tables.version("messages")
    brokers = version.notes.get("brokers", []) if version is not None else []
    words = [name for name in frame.columns if name.startswith("reached")]
    least: dict[tuple[int, frozenset[int]], int | None] = {}
    rows: list[dict[str, Any]] = []
    for row in frame.collect():
        reached = frozenset(broker for place, broker in enumerate(brokers) if row[words[place // BITS]] >> place % BITS & 1)
        key = (row["origin"], reached)
        if key not in least:
            least[key] = optimum(mesh, *key)
        edges = least[key]
        values = row.asDict()
        rows.append({**values, "brokers": len(reached), "optimum": None if edges is None else edges * values["messages"]})
    names = ["origin", *words, "messages", "copies", "arrivals", "brokers", "optimum"]
    schema = pa.schema([("origin", pa.int32()), *((name, pa.int64()) for name in names[1:]), ("date", pa.string())])
    context.write_arrow("copies", pa.Table.from_pylist(rows, schema))


def _files(context: Context, mesh: nx.Graph[int], found: dict[str, Any], flows: list[Flow]) -> None:
    import networkx as nx

    place = context.tables.place
    place.write(f"{REPORTS}/traffic.json", json.dumps(found, indent=2).encode())
    place.write(f"{REPORTS}/traffic.graphml", "\n".join(nx.generate_graphml(mesh)).encode())
    place.write(f"{REPORTS}/traffic.svg", graph_svg(mesh).encode())
    place.write(f"{REPORTS}/traffic-matrix.svg", matrix_svg(flows).encode())
    for line in found["advice"]:
        context.say(line)


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]
