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

from ...broker.journal.schema import Kind
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
    events = context.events("kind", "time", "published", "count", "bytes", "origin", "broker", "to_broker", "reason")
    context.write("traffic", matrix(events, window))
    context.write("links", links(events, window))
    context.write("repeats", repeats(events, window))
    used = _rows(context.table("links").groupBy("sender", "receiver").sum("copies", "bytes"))
    flows = _rows(context.table("traffic").groupBy("origin", "broker").sum("messages", "bytes"))
    known = _rows(known_links(context.events("kind", "broker", "to_broker", "value", by="time")))
    mesh = mesh_of(
        [Link(a, b, cost) for a, b, cost in known],
        [Link(a, b, 0, copies, size) for a, b, copies, size in used],
    )
    _copies(context, mesh)
    found = report(mesh, [Flow(*row) for row in flows])
    _files(context, mesh, found, [Flow(*row) for row in flows])


def matrix(events: DataFrame, window: int) -> DataFrame:
    """Messages that reached a broker, by the window of their publication."""
    from pyspark.sql import functions as F

    reached = events.where((F.col("kind") == int(Kind.RECEIVED)) & (F.col("origin") >= 0))
    sums = reached.groupBy(_window("published", window), "origin", "broker").agg(*_sums("messages"))
    return sums.select("*", day_of("window"))


def links(events: DataFrame, window: int) -> DataFrame:
    """What each broker sent to its neighbours."""
    from pyspark.sql import functions as F

    sent = events.where(F.col("kind") == int(Kind.FORWARDED))
    sums = sent.groupBy(_window("published", window), F.col("broker").alias("sender"), F.col("to_broker").alias("receiver"))
    made = sums.agg(*_sums("copies"))
    return made.select("*", (F.col("bytes") / (window / _SECOND)).alias("bytes_a_second"), day_of("window"))


def repeats(events: DataFrame, window: int) -> DataFrame:
    """What brokers dropped, with the reason; repeats that a window recognised are among it."""
    from pyspark.sql import functions as F

    dropped = events.where(F.col("kind") == int(Kind.DROPPED))
    return dropped.groupBy(_window("published", window), "broker", "reason").agg(*_sums("messages")).select("*", day_of("window"))


def known_links(events: DataFrame) -> DataFrame:
    """Links that came up or went down: both ends, and the cost where an event says it."""
    from pyspark.sql import functions as F

    seen = events.where(F.col("kind").isin(int(Kind.LINK_UP), int(Kind.LINK_DOWN)))
    return seen.groupBy("broker", "to_broker").agg(F.max("value").alias("cost"))


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


def _window(column: str, window: int) -> Any:
    from pyspark.sql import functions as F

    return (F.col(column) - F.expr(f"pmod({column}, {window})")).alias("window")


def _sums(name: str) -> list[Any]:
    from pyspark.sql import functions as F

    return [F.sum(F.col("count").cast("long")).alias(name), F.sum("bytes").alias("bytes")]


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]
