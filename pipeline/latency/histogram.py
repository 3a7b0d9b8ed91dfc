"""The histogram of latencies: which bucket a latency is in, and what a bucket stands for.

A bucket is a sixteenth of a factor e wide, so that a percentile is right within about 3 %. Its number is floor(16 ln(microseconds +
0.5)): no whole number of microseconds lies on a border, so that every program that computes it gets the same number. Latencies below
zero (clocks of two brokers differ) are in bucket -1, and so counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column

PARTS = 16
NEGATIVE = -1
PERCENTILES = (50, 90, 99)


def bucket(latency: Column) -> Column:
    """The bucket of a latency in microseconds."""
    from pyspark.sql import functions as F

    inside = F.floor(F.log(latency + 0.5) * PARTS).cast("int")
    return F.when(latency < 0, NEGATIVE).otherwise(F.greatest(inside, F.lit(0)))


def buckets(latencies: Any) -> Any:
    """The same for an array of numpy."""
    import numpy as np

    inside = np.floor(np.log(np.maximum(latencies, 0) + 0.5) * PARTS).astype(np.int32)
    return np.where(latencies < 0, NEGATIVE, np.maximum(inside, 0))


def value_of(number: int) -> int:
    """The middle of a bucket, in microseconds; 0 for latencies below zero."""
    return 0 if number < 0 else round(math.exp((number + 0.5) / PARTS) - 0.5)


def percentile(histogram: Sequence[tuple[int, int]], share: float) -> int:
    """Microseconds below which a share of all lies. histogram: (bucket, count), sorted. Raises ValueError for an empty one."""
    total = sum(count for _, count in histogram)
    if not total:
        raise ValueError("an empty histogram has no percentiles")
    rank, seen = max(1, math.ceil(share * total)), 0
    for number, count in histogram:
        seen += count
        if seen >= rank:
            return value_of(number)
    return value_of(histogram[-1][0])


def percentiles(histogram: Iterable[tuple[int, int]]) -> dict[str, int]:
    """p50, p90, p99 and the greatest, in microseconds."""
    rows = sorted(histogram)
    return {f"p{one}": percentile(rows, one / 100) for one in PERCENTILES} | {"max": value_of(rows[-1][0])}
