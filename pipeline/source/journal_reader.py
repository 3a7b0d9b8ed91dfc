"""Reading a journal: closed segments in batch, and as a stream whose offset is a position of the journal.

A segment is a partition. Repeats are left out by segment, and what is damaged is left out and named in the log, as the pipeline's jobs
do it. Filters on columns decide which segments are read, and are applied before Spark gets rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ...broker.journal.following import Position, advanced, new_segments, position_of, position_text
from ...broker.journal.layout import Segment
from ...broker.journal.reading import Damaged, Journal
from ...broker.journal.schema import EVENTS, arrow_schema
from ..errors import PipelineError
from .options import flag, whole

log = logging.getLogger("mqmesh.pipeline")

NAMED = ("topic", "client", "account", "recipient", "reason")
TYPES = {"int8": "byte", "int16": "short", "int32": "int", "int64": "bigint", "string": "string"}
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "__eq__",
    GreaterThan: "__gt__",
    GreaterThanOrEqual: "__ge__",
    LessThan: "__lt__",
    LessThanOrEqual: "__le__",
}
Condition = tuple[str, str, Any]  # column, operator, value


def schema_text(options: Mapping[str, str]) -> str:
    """Spark's schema. Option names: beside each number of a name its text, such as topic_name."""
    columns = [f"{name} {TYPES[kind]}" for name, kind, _ in EVENTS]
    if flag(options, "names"):
        columns += [f"{name}_name string" for name in NAMED]
    return ", ".join(columns)


class SegmentPartition(InputPartition):
    """The events of one segment above one number and up to another one. conditions: those of the filters that Parquet takes."""

    def __init__(self, segment: Segment, after: int = 0, until: int | None = None, conditions: Sequence[Condition] = ()) -> None:
        self.segment = segment
        self.after = after
        self.until = segment.last if until is None else until
        self.conditions = list(conditions)


class _Reading:
    """What batch and stream have in common. Copies of it go to the workers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.root = options["journal"]
        self.names = flag(options, "names")
        self.verify = flag(options, "verify", True)

    def journal(self) -> Journal:
        try:
            return Journal(self.root)
        except ValueError as error:
            raise PipelineError(str(error)) from None

    def batches(self, partition: SegmentPartition) -> Iterator[Any]:
        """The events of a partition as record batches."""
        import pyarrow as pa
        import pyarrow.compute as pc

        journal = self.journal()
        try:
            table = journal.table(partition.segment, verify=self.verify)
        except Damaged as error:
            log.error("event=segment-left-out text=%s", error)
            table = arrow_schema().empty_table()
        inside = (pc.field("event") > partition.after) & (pc.field("event") <= partition.until)
        table = table.filter(reduce(and_, map(_expression, partition.conditions), inside))
        if self.names:
            known = journal.names()
            for name in NAMED:
                numbers = table.column(name)
                texts = {number: known.get(number) for number in pc.unique(numbers).to_pylist()}
                table = table.append_column(f"{name}_name", pa.array([texts[number] for number in numbers.to_pylist()], pa.string()))
        nullable = pa.table(table.columns, names=table.column_names)  # Spark compares schemas, and its own columns are nullable
        yield from nullable.combine_chunks().to_batches(max_chunksize=65_536)


class JournalReader(DataSourceReader):
    """All closed segments of a time."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._reading = _Reading(options)
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Comparisons of a column with a value. Spark applies the others."""
        known = {name for name, _, _ in EVENTS}
        for one in filters:
            attribute: tuple[str, ...] = getattr(one, "attribute", ())
            column = attribute[0] if len(attribute) == 1 else ""
            if column in known and type(one) in _COMPARISONS:
                self._conditions.append((column, _COMPARISONS[type(one)], getattr(one, "value", None)))
            elif column in known and isinstance(one, In):
                self._conditions.append((column, "isin", list(one.value)))
            else:
                yield one

    def partitions(self) -> Sequence[InputPartition]:
        found = [one for one in self._reading.journal().segments() if _may_hold(one, self._conditions)]
        return [SegmentPartition(one, conditions=self._conditions) for one in found] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, SegmentPartition):
            yield from self._reading.batches(partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """New segments, the oldest first."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._reading = _Reading(options)
        self._rows = whole(options, "maxrows", 0, 0, 1 << 62)
        self._latest = str(options.get("startingoffsets", "earliest"))
        if self._latest not in ("earliest", "latest"):
            raise PipelineError(f'option startingOffsets = "{self._latest}": give earliest or latest')
        self._target: Position | None = None

    def initialOffset(self) -> dict[str, int]:
        return position_text(self._all()) if self._latest == "latest" else {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows) if self._rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._all()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the next batch: as many segments as fit into its limit, and at least one."""
        position = position_of(start)
        most = getattr(limit, "max_rows", None)
        chosen: list[Segment] = []
        rows = 0
        for segment in new_segments(self._segments(), position):
            rows += segment.events
            if chosen and most is not None and rows > most:
                break
            chosen.append(segment)
        return position_text(advanced(position, chosen)) if chosen else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        begin, stop = position_of(start), position_of(end)
        made: list[InputPartition] = []
        for segment in new_segments(self._reading.journal().segments(), begin):
            key = segment.broker, segment.epoch
            after, until = begin.get(key, 0), stop.get(key, 0)
            if segment.first <= until:
                made.append(SegmentPartition(segment, after, min(until, segment.last)))
        return made

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SegmentPartition)
        yield from self._reading.batches(partition)

    def _segments(self) -> list[Segment]:
        found = self._reading.journal().segments()
        if self._target is None:
            return found
        return [one for one in found if one.last <= self._target.get((one.broker, one.epoch), 0)]

    def _all(self) -> Position:
        return advanced({}, self._reading.journal().segments())


def _may_hold(segment: Segment, conditions: Sequence[Condition]) -> bool:
    """Whether a segment may have events for all conditions, as far as its manifest says."""
    bounds = {"time": (segment.min_time, segment.max_time), "broker": (segment.broker,) * 2, "epoch": (segment.epoch,) * 2}
    return all(_possible(*bounds[column], operator, value) for column, operator, value in conditions if column in bounds)


def _possible(low: int, high: int, operator: str, value: Any) -> bool:
    """Whether a value from `low` to `high` may be so."""
    if operator == "isin":
        return any(low <= one <= high for one in value)
    if operator == "__eq__":
        return bool(low <= value <= high)
    return bool(getattr(high if operator in ("__gt__", "__ge__") else low, operator)(value))


def _expression(condition: Condition) -> Any:
    import pyarrow.compute as pc

    column, operator, value = condition
    compare: Callable[[Any], Any] = getattr(pc.field(column), operator)
    return compare(value)
