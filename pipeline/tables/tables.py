"""The output tables of one folder: read them with Spark or pyarrow, replace them from a data frame."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ...broker.journal.place import Place
from ..errors import MissingExtra, PipelineError
from ..schemas import TABLES_VERSION
from .manifest import File, Version, commit, newest, replaced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATE = "date"
DATA = "data"
ROWS = 65_536  # of a row group: whoever looks for one message reads all columns of few rows (`pipeline/trace/`)
_ARROW = {"byte": "int8", "short": "int16", "integer": "int32", "long": "int64", "string": "string", "double": "float64", "boolean": "bool"}


def run_name(now: float | None = None) -> str:
    """The name of a run: its time, and a part that no other run has."""
    moment = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    return f"{moment:%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Around reading with pyarrow: a file that is damaged or gone raises PipelineError. where: the folder, for the message."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("pyarrow") from None
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        text = str(error).partition("\n")[0]
        raise PipelineError(f"{where}: a file cannot be read: {text}: run the job again that makes the table") from None


class Tables:
    """A folder or URL with output tables. run: stands in the paths of all that is written here."""

    def __init__(self, root: str | os.PathLike[str], run: str | None = None) -> None:
        """Raises PipelineError when the URL cannot be used."""
        try:
            self.place = Place(root)
        except ValueError as error:
            raise PipelineError(str(error)) from None
        self.run = run or run_name()

    # reading

    def version(self, table: str) -> Version | None:
        """What a table consists of now; None: nothing has been written. Raises PipelineError."""
        return newest(self.place, table)

    def names(self) -> list[str]:
        """The tables that are there."""
        return sorted({name.split("/")[0] for name in self.place.files("", ".json") if "/_manifest/" in name})

    def paths(self, table: str, version: Version | None = None) -> list[str]:
        """The files of a table, for any program that reads Parquet. Raises PipelineError when there is no such table."""
        return [self.place.url(f"{table}/{file.path}") for file in self._known(table, version).files]

    def frame(self, spark: SparkSession, table: str) -> DataFrame:
        """A table as a data frame; the column `date` is the partition. Raises PipelineError when there is no such table."""
        from pyspark.sql.types import StructType

        version = self._known(table)
        schema = StructType.fromJson(version.schema)
        paths = [spark_url(path) for path in self.paths(table, version)]
        if not paths:
            return spark.createDataFrame([], schema)
        # Without a schema of its own for the partition Spark would put `date` last whatever we say: name the order afterwards.
        return (
            spark.read.schema(schema).option("basePath", spark_url(self.place.url(f"{table}/{DATA}"))).parquet(*paths).select(*schema.names)
        )

    def arrow(self, table: str, columns: list[str] | None = None, filters: Any = None) -> Any:
        """A table as a pyarrow table, without a JVM; `date` is a column. filters: an expression of `pyarrow.compute`.

        Raises PipelineError when there is no such table, or a file of it cannot be read.
        """
        with damage_named(self.place.url(table)):
            return self.dataset(table).to_table(columns=columns, filter=filters)

    def dataset(self, table: str) -> Any:
        """The same as a `pyarrow.dataset`. Raises PipelineError when there is no such table."""
        try:
            import pyarrow.dataset as ds
        except ImportError:
            raise MissingExtra("pyarrow") from None
        version = self._known(table)
        schema = arrow_of(version.schema)
        if not version.files:
            return ds.dataset(schema.empty_table())
        if self.place.remote:
            import fsspec

            fs, _ = fsspec.core.url_to_fs(self.place.root)
            files = [fs._strip_protocol(path) for path in self.paths(table, version)]
            return ds.dataset(files, schema=schema, format="parquet", partitioning="hive", filesystem=fs)
        return ds.dataset(self.paths(table, version), schema=schema, format="parquet", partitioning="hive")

    def _known(self, table: str, version: Version | None = None) -> Version:
        found = version or self.version(table)
        if found is None:
            raise PipelineError(f"{self.place.url(table)}: there is no such table: run the job that makes it (mqmesh pipeline jobs)")
        return found

    # writing

    def write(self, table: str, frame: DataFrame, dates: Iterable[str] | None = None, **notes: Any) -> Version:
        """Replace a table, or some of its dates, with the rows of a data frame.

        frame: a table that has a column `date` (text, such as 2026-11-22) is partitioned by it.
        dates: what the frame holds anew, whether it has rows of them or not; None: all of the table. notes: kept in the manifest.
        Raises PipelineError, OSError, and what Spark raises.
        """
        folder = f"{DATA}/run={self.run}"
        writer = frame.write.mode("overwrite").option("parquet.block.row.count.limit", ROWS)
        if DATE in frame.columns:
            writer = writer.partitionBy(DATE)
        writer.parquet(spark_url(self.place.url(f"{table}/{folder}")))
        return self._commit(table, folder, frame.schema.jsonValue(), dates, notes)

    def write_arrow(self, table: str, rows: Any, dates: Iterable[str] | None = None, **notes: Any) -> Version:
        """The same from a pyarrow table, without Spark, for small tables that the driver makes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = f"{DATA}/run={self.run}"
        parts = {"": rows}
        if DATE in rows.column_names:
            column = rows.column(DATE)
            parts = {date: rows.filter(pa.compute.equal(column, date)).drop_columns([DATE]) for date in sorted(set(column.to_pylist()))}
        for date, part in parts.items():
            sink = io.BytesIO()
            pq.write_table(part, sink, compression="zstd")
            where = f"{folder}/{DATE}={date}" if date else folder
            self.place.write(f"{table}/{where}/part-{uuid4().hex[:12]}.parquet", sink.getvalue())
        return self._commit(table, folder, spark_schema_of(rows.schema), dates, notes)

    def _commit(self, table: str, folder: str, schema: dict[str, Any], dates: Iterable[str] | None, notes: dict[str, Any]) -> Version:
        files = self._staged(table, folder)
        chosen = None if dates is None else sorted(set(dates))

        def change(before: Version) -> Version:
            if chosen is not None and before.files and before.schema_version != TABLES_VERSION:
                raise PipelineError(
                    f"{self.place.url(table)}: has columns of version {before.schema_version}, this release writes {TABLES_VERSION}:"
                    " run the job once without --since and --until"
                )
            kept = replaced(before, files, chosen)
            return Version(table, 0, TABLES_VERSION, schema, kept, int(time.time() * 1e6), self.run, notes)

        return commit(self.place, table, change)

    def _staged(self, table: str, folder: str) -> list[File]:
        """What a run has written. Files without rows are left out, and removed."""
        import pyarrow.parquet as pq

        found = []
        for name in sorted(self.place.files(f"{table}/{folder}", ".parquet")):
            path = name.removeprefix(f"{table}/")
            with self.place.open(name) as file:
                footer = pq.ParquetFile(file).metadata
            date = path.partition(f"/{DATE}=")[2].partition("/")[0]
            if footer.num_rows:
                found.append(File(path, footer.num_rows, _size(self.place, name), date))
            else:
                self.place.remove(name)
        return found


def _size(place: Place, name: str) -> int:
    if not place.remote:
        return Path(place.url(name)).stat().st_size
    with place.open(name) as file:
        return file.seek(0, os.SEEK_END)


def spark_url(url: str) -> str:
    """A URL as Hadoop's file systems call it."""
    return url.replace("s3://", "s3a://", 1) if url.startswith("s3://") else url


def arrow_of(schema: dict[str, Any]) -> Any:
    """The pyarrow schema of a Spark schema in JSON."""
    import pyarrow as pa

    return pa.schema([pa.field(one["name"], _arrow_type(one["type"])) for one in schema["fields"]])


def _arrow_type(kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(kind, dict) and kind["type"] == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    if isinstance(kind, dict) and kind["type"] == "struct":
        return pa.struct([pa.field(one["name"], _arrow_type(one["type"])) for one in kind["fields"]])
    if isinstance(kind, str) and kind.startswith("decimal"):
        precision, scale = kind[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return pa.type_for_alias(_ARROW[kind])


def spark_schema_of(schema: Any) -> dict[str, Any]:
    """The Spark schema in JSON of a pyarrow schema."""
    return {"type": "struct", "fields": [_spark_field(field) for field in schema]}


def _spark_field(field: Any) -> dict[str, Any]:
    return {"name": field.name, "type": _spark_type(field.type), "nullable": True, "metadata": {}}


def _spark_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_spark_field(field) for field in kind]}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    names = {pa.type_for_alias(alias): name for name, alias in _ARROW.items()}
    return names[kind]
