"""The events of the segments that a run reads, as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.place import Place
from ...broker.journal.schema import EVENTS, Kind
from ..schemas import struct
from ..tables.tables import spark_url
from .segments import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DEFAULTS = {name: default for name, _, default in EVENTS if default is not None}


def events(spark: SparkSession, place: Place, selection: Selection, *columns: str) -> DataFrame:
    """Events of all chosen segments.

    columns: only these, in this order; none: all. An event may stand for several messages (`expanded`).
    """
    from pyspark.sql import functions as F

    names = columns or tuple(name for name, _, _ in EVENTS)
    needed = tuple(dict.fromkeys((*names, *(("time", "kind") if selection.suspect else ()))))
    schema = struct(EVENTS, needed)
    paths = [spark_url(place.url(segment.path)) for segment in selection.segments]
    frame = spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)
    if selection.older:
        frame = frame.fillna({name: _DEFAULTS[name] for name in needed if name in _DEFAULTS})
    if selection.suspect:
        frame = frame.where((F.col("time") <= selection.latest) & F.col("kind").between(int(min(Kind)), int(max(Kind))))
    return frame.select(*names)


def expanded(frame: DataFrame, selection: Selection) -> DataFrame:
    """One row for each message: an event of `count` messages becomes `count` rows with consecutive sequences and their shares of `bytes`.

    frame: has the columns count, origin and sequence. Where no segment has such events nothing is done.
    """
    from pyspark.sql import functions as F

    if not selection.runs:
        return frame
    offset = F.explode(F.expr("sequence(0, count - 1)")).alias("_offset")
    rows = frame.select("*", offset)
    changed = {
        "sequence": F.when(F.col("origin") >= 0, F.col("sequence") + F.col("_offset")).otherwise(F.col("sequence")),
        "count": F.lit(1),
    }
    if "bytes" in frame.columns:
        share = F.expr("bytes div count") + F.when(F.col("_offset") < F.expr("bytes % count"), 1).otherwise(0)
        changed["bytes"] = share
    return rows.select(*(changed[name].alias(name) if name in changed else F.col(name) for name in frame.columns))
