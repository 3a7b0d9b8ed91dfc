"""`spark.dataSource.register(MqmeshSource)`: the format "mqmesh" for batch and streaming, reading and writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

from ..errors import PipelineError
from .journal_reader import JournalReader, JournalStreamReader, schema_text
from .options import TopicOptions
from .queue_reader import QUEUE_SCHEMA, QueueOptions, QueueReader, QueueStreamReader
from .sink import BatchSink, SinkSettings, StreamSink
from .subscriber import SCHEMA
from .topic_reader import TopicReader, TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class MqmeshSource(DataSource):
    """Options: docs/spark.md. `journal`, `topic` and `queue` read such; a sink has `broker` and `topic` or a column of that name."""

    @classmethod
    def name(cls) -> str:
        return "mqmesh"

    def schema(self) -> str:
        if self.options.get("journal"):
            return schema_text(self.options)
        if self.options.get("topic"):
            return SCHEMA
        if self.options.get("queue"):
            return QUEUE_SCHEMA
        raise PipelineError("say what to read: option journal, the options broker, topic and client, or the options broker and queue")

    def reader(self, schema: StructType) -> DataSourceReader:
        if self.options.get("journal"):
            return JournalReader(self.options)
        return TopicReader(TopicOptions.of(self.options)) if self.options.get("topic") else QueueReader(QueueOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.options.get("journal"):
            return JournalStreamReader(self.options)
        if self.options.get("topic"):
            return TopicStreamReader(TopicOptions.of(self.options))
        return QueueStreamReader(QueueOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(SinkSettings(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamSink(SinkSettings(self.options, schema))


def register(spark: SparkSession) -> None:
    """Make the format "mqmesh" known to a session."""
    spark.dataSource.register(MqmeshSource)
