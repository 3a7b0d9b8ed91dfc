"""Reading a topic: as a stream through a durable session, acknowledged in Spark's commit; in batch, looking at what waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from .deliveries import Offset, split
from .options import MOST, TopicOptions
from .subscriber import Subscriber

Rows = Iterator[tuple[Any, ...]]


class RowsPartition(InputPartition):
    """A part of a batch: the rows themselves, which stand in the planner's memory until they are acknowledged."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One reader for each query, in Spark's planning process. Workers get copies without a connection."""

    def __init__(self, options: TopicOptions) -> None:
        self.options = options
        self._session: Subscriber | None = None
        self._fence: bytes | None = None
        self._available = False

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def initialOffset(self) -> dict[str, Any]:
        return Offset().json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: what is here, at most 65,535 messages."""
        begin = Offset.of(start)
        session = self._open(begin)
        most = MOST if isinstance(limit, ReadAllAvailable) else min(MOST, getattr(limit, "max_rows", MOST))
        end = begin.count + most
        if self._available:
            end = min(end, self._available_until(session, begin.count, end))
        count = min(end, session.latest())
        return session.offset(begin, count).json() if count > begin.count else start

    def _available_until(self, session: Subscriber, count: int, end: int) -> int:
        """Of what was in the session when the query began: the number up to which it is here. Waits for it."""
        if self._fence is None:
            self._fence = session.fence()
        last = session.until_fence(self._fence, max(count, end - 1))
        return end if last is None else max(last, count)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = Offset.of(start), Offset.of(end)
        if stop.count == begin.count:
            return []
        rows = self._open(begin, stop).rows(begin.count, stop.count)
        return [RowsPartition(part) for part in split(rows, self.options.partitions)] if rows else []

    def read(self, partition: InputPartition) -> Rows:
        assert isinstance(partition, RowsPartition)
        yield from partition.rows

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the batch. Without a session there is nothing to say: what was acknowledged too late comes again and is known."""
        if self._session is not None:
            self._session.commit(end["count"])

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self, start: Offset, end: Offset | None = None) -> Subscriber:
        if self._session is None:
            self._session = Subscriber(self.options, start, end)
        return self._session


class TopicReader(DataSourceReader):
    """What waits in the session now. Nothing is acknowledged: it stays there."""

    def __init__(self, options: TopicOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        session = Subscriber(self.options, Offset())
        try:
            session.until_fence(session.fence(), self.options.rows)
            count = min(session.latest(), self.options.rows)
            rows = session.rows(0, count)
        finally:
            session.close()
        return [RowsPartition(part) for part in split(rows, self.options.partitions)] if rows else [RowsPartition([])]

    def read(self, partition: InputPartition) -> Rows:
        assert isinstance(partition, RowsPartition)
        yield from partition.rows
