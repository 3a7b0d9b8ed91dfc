"""The sink: each row is published once, though tasks and queries fail and run again.

A row's handle (docs/receipts.md) is made from the query, the batch and the row; the broker knows it again. A stream's batch that is run
again has the same number and rows. Of rows that are alike, the first in its part of the batch has number 0, the next one 1. Where a
column gives the handle, that is taken with the query's name instead: it is right though the parts of a batch differ from run to run.

A batch of `df.write` has no number: it needs a column with handles, or option `batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, BooleanType, ByteType, IntegerType, LongType, MapType, ShortType, StringType, StructType

from ..errors import PipelineError
from .options import BrokerOptions, whole
from .publisher import Message, Publisher

if TYPE_CHECKING:
    from pyspark.sql import Row

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of a streaming task
WINDOW = 200_000  # handles that a broker remembers, if it is not told otherwise
_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: dict[str, tuple[type, ...]] = {
    "topic": (StringType,),
    "payload": (BinaryType, StringType),
    "qos": _NUMBERS,
    "retain": (BooleanType,),
    "properties": (MapType,),
    "content_type": (StringType,),
    "response_topic": (StringType,),
    "correlation": (BinaryType,),
    "expiry": _NUMBERS,
    "handle": (StringType,),
}


@dataclass
class Published(WriterCommitMessage):
    """What one task has done. repeated: of them the broker knew."""

    rows: int
    repeated: int


class SinkSettings:
    """Raises PipelineError for options or columns that cannot be used."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.broker = BrokerOptions.of(options)
        self.topic = options.get("topic")
        self.query = options.get("query")
        self.batch = options.get("batch")
        self.most = whole(options, "window", WINDOW, 1, 10**7)
        fields = {field.name: field.dataType for field in schema.fields}
        self.has_handles = "handle" in fields
        for name, kind in fields.items():
            if name not in _COLUMNS:
                raise PipelineError(f"the column {name} means nothing to the sink: select {', '.join(_COLUMNS)}")
            if not isinstance(kind, _COLUMNS[name]):
                raise PipelineError(f"the column {name} is {kind.simpleString()}: cast it")
        if "payload" not in fields:
            raise PipelineError("there is no column payload: select one, binary or text")
        if "topic" not in fields and not self.topic:
            raise PipelineError("there is no column topic: select one, or give the option topic")

    def message(self, row: Row) -> Message:
        """A row as a message. Raises PipelineError."""
        values = row.asDict()
        topic, payload = values.get("topic") or self.topic, values["payload"]
        if not topic:
            raise PipelineError("a row has no topic, and there is no option topic")
        if self.has_handles and not values["handle"]:
            raise PipelineError(f"a row for {topic} has no handle: give each row one, or leave the column out")
        data = payload.encode() if isinstance(payload, str) else bytes(payload or b"")
        correlation = values.get("correlation")
        return Message(
            topic,
            data,
            1 if values.get("qos") is None else int(values["qos"]),
            bool(values.get("retain")),
            sorted((values.get("properties") or {}).items()),
            values.get("content_type"),
            values.get("response_topic"),
            bytes(correlation) if correlation is not None else None,
            values.get("expiry"),
            values.get("handle") or "",
        )

    def publish(self, rows: Iterator[Row], prefix: str) -> Published:
        """Publish the rows of one task, and wait until the broker has them all. Raises PipelineError."""
        seen: dict[bytes, int] = {}
        count = 0
        with Publisher(self.broker) as publisher:
            for row in rows:
                message = self.message(row)
                if message.handle:
                    handle = f"{self.query or 'spark'}/{message.handle}"
                else:
                    digest = message.digest()
                    seen[digest] = seen.get(digest, -1) + 1
                    handle = f"{prefix}/{digest.hex()}/{seen[digest]}"
                publisher.publish(message, handle)
                count += 1
                if count > self.most:
                    raise PipelineError(
                        f"more than {self.most} rows in one part of a batch: a broker does not remember so many handles. "
                        "Lower the source's rows of a batch, or raise limits.publisher_handles and the option window"
                    )
            publisher.finish()
            return Published(count, publisher.repeated)


class StreamSink(DataSourceStreamWriter):
    """For `writeStream`."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = self.settings.query or (context and context.getLocalProperty(QUERY))
        batch = context and context.getLocalProperty(BATCH)
        if context is None or query is None or batch is None:
            raise PipelineError("Spark does not say which query and batch this is: give the option query, and a column handle")
        return self.settings.publish(iterator, f"{query}/{batch}/{context.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The rows are published."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was published stays; the batch is run again, and its repeats are known."""


class BatchSink(DataSourceWriter):
    """For `write`."""

    def __init__(self, settings: SinkSettings) -> None:
        if not settings.has_handles and not settings.batch:
            raise PipelineError("a batch needs names for its rows: give a column handle, or the option batch with a name for this write")
        self.settings = settings

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        return self.settings.publish(iterator, f"{self.settings.query or 'spark'}/{self.settings.batch}/{part}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """The rows are published."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was published stays; a second run repeats it, which the broker knows."""


__all__ = ["BatchSink", "Published", "SinkSettings", "StreamSink"]
