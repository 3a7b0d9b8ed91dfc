"""`spark.dataSource.register(MqmeshSource)`: the format "mqmesh" for batch and streaming, reading and writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

from ..errors import PipelineError
from .journal_reader import JournalReader, JournalStreamReader, schema_text
from .options import TopicOptions
from .sink import BatchSink, SinkSettings, StreamSink
from .subscriber import SCHEMA
from .topic_reader import TopicReader, TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class MqmeshSource(DataSource):
    """Options: docs/spark.md. `journal` reads a journal, `topic` a topic; a sink has `broker` and `topic` or a column of that name."""

    @classmethod
    def name(cls) -> str:
        return "mqmesh"

    def schema(self) -> str:
        if self.options.get("journal"):
            return schema_text(self.options)
        if self.options.get("topic"):
            return SCHEMA
        raise PipelineError("say what to read: option journal, or the options broker, topic and client")

    def reader(self, schema: StructType) -> DataSourceReader:
        return JournalReader(self.options) if self.options.get("journal") else TopicReader(TopicOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return JournalStreamReader(self.options) if self.options.get("journal") else TopicStreamReader(TopicOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(SinkSettings(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamSink(SinkSettings(self.options, schema))


def register(spark: SparkSession) -> None:
    """Make the format "mqmesh" known to a session."""
    spark.dataSource.register(MqmeshSource)
