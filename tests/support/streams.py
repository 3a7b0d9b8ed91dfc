"""Streams of Spark that read the format "mqmesh" and end by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def drain(spark: SparkSession, folder: Path, **options: Any) -> list[int]:
    """Read what is there into the table of Parquet `folder/out`: how many rows each batch has."""
    query = (
        spark.readStream.format("mqmesh")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
