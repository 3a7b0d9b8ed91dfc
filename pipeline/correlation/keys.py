"""The key of a message as two numbers, so that a shuffle carries little.

`source` holds origin (16 bits), stream (2) and epoch (46); the other number is the sequence. Epochs are milliseconds since 1970 or a
little more, which fit until the year 4199.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STREAM, _ORIGIN = 46, 48
_EPOCH_MASK = (1 << _STREAM) - 1
KEY = ("source", "sequence")
ID = ("origin", "origin_epoch", "stream", "sequence")
_ID_PATTERN = r"^(\d{1,5})\.(\d{1,19})\.([0-3])\.(\d{1,19})$"


def source() -> Column:
    """`source` from the columns origin, origin_epoch and stream."""
    from pyspark.sql import functions as F

    origin = F.shiftleft(F.col("origin").cast("long"), _ORIGIN)
    return origin.bitwiseOR(F.shiftleft(F.col("stream").cast("long"), _STREAM)).bitwiseOR(F.col("origin_epoch"))


def unpacked(frame: DataFrame) -> DataFrame:
    """The columns of `ID` in place of `source`."""
    from pyspark.sql import functions as F

    key = F.col("source")
    origin = F.shiftrightunsigned(key, _ORIGIN).cast("int").alias("origin")
    stream = F.shiftrightunsigned(key, _STREAM).bitwiseAND(F.lit(3)).cast("byte").alias("stream")
    epoch = key.bitwiseAND(F.lit(_EPOCH_MASK)).alias("origin_epoch")
    rest = [F.col(name) for name in frame.columns if name not in KEY]
    return frame.select(origin, epoch, stream, F.col("sequence"), *rest)


def parsed(text: str, prefix: str) -> list[Column]:
    """The columns of `ID`, each with a prefix, from a column with a message id as text; null where it is none."""
    from pyspark.sql import functions as F

    kinds = ("int", "bigint", "tinyint", "bigint")
    parts = [F.regexp_extract(F.col(text), _ID_PATTERN, place + 1) for place in range(4)]
    return [F.when(part != "", part.cast(kind)).alias(prefix + name) for part, kind, name in zip(parts, kinds, ID, strict=True)]
