"""The jobs `usage` and `charged`.

    usage      by account, service, day and role; from the counters
    charged    the messages behind it, where they are journalled: what each line of an invoice leads to

The option `usage.tariffs` names the file of tariffs, which says what services, parties and sites there are. Without it a service is the
first level of a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.settings import ConfigError
from ...broker.journal.layout import COUNTS_FOLDER, PARQUET
from ...broker.journal.schema import COUNTS, Kind
from ..billing.tariff import Role, Tariffs, read_tariffs
from ..errors import PipelineError
from ..schemas import struct
from ..tables.tables import spark_url
from .usage import passed_on, recipients_account, service_of, sites_account, usage, with_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..context import Context

MINUTE = 60_000_000  # microseconds
OPTION = "usage.tariffs"
_EVENT = (
    "kind",
    "broker",
    "origin",
    "origin_epoch",
    "stream",
    "sequence",
    "count",
    "published",
    "account",
    "topic",
    "recipient",
    "client",
    "bytes",
)


def run(context: Context) -> None:
    """Write `usage`."""
    tariffs, names = tariffs_of(context), context.names_frame()
    made = usage(counts(context), names, tariffs)
    if any(party.sites for party in tariffs.parties):
        made = made.unionByName(
            passed_on(context.events("kind", "broker", "origin", "topic", "recipient", "published", "count", "bytes"), names, tariffs)
        )
    context.write("usage", made.select("date", "account", "service", "role", "messages", "bytes"))


def run_charged(context: Context) -> None:
    """Write `charged`."""
    context.write("charged", charged(context.events(*_EVENT), context.names_frame(), tariffs_of(context)))


def tariffs_of(context: Context) -> Tariffs:
    """The tariffs of the option, or none. Raises PipelineError."""
    path = context.options.get(OPTION)
    if path is None:
        return Tariffs()
    try:
        return read_tariffs(path)
    except ConfigError as error:
        raise PipelineError(str(error)) from None


def counts(context: Context) -> DataFrame:
    """The counters of the run's time. A file that cannot be read is counted and said, and left out."""
    from pyspark.sql import functions as F

    schema = struct(COUNTS)
    paths = []
    for name in sorted(context.journal.files(COUNTS_FOLDER, PARQUET)):
        text = _damage(context, name)
        if text is None:
            paths.append(spark_url(context.journal.url(name)))
        else:
            context.counts["count_files_set_aside"] = context.counts.get("count_files_set_aside", 0) + 1
            context.say(f"counters are missing: {name}: {text}")
    frame = context.spark.read.schema(schema).parquet(*paths) if paths else context.spark.createDataFrame([], schema)
    minute = F.col("minute") * MINUTE
    if context.since is not None:
        frame = frame.where(minute >= context.since)
    return frame if context.until is None else frame.where(minute < context.until)


def _damage(context: Context, name: str) -> str | None:
    """Why a file of counters cannot be used; None: it can."""
    import pyarrow.parquet as pq

    try:
        with context.journal.open(name) as file:
            found = pq.ParquetFile(file).schema_arrow
    except Exception as error:  # pyarrow raises several kinds
        return str(error).partition("\n")[0][:200] or type(error).__name__
    missing = [column for column, _, _ in COUNTS if column not in found.names]
    return f"has no column {missing[0]}" if missing else None


def charged(events: DataFrame, names: DataFrame, tariffs: Tariffs) -> DataFrame:
    """One row for each event that an account is charged for: a message, or `count` consecutive ones."""
    from pyspark.sql import functions as F

    plain = with_names(events.where(F.col("kind").isin(int(Kind.PUBLISHED), int(Kind.DELIVERED), int(Kind.FORWARDED))), names, "topic")
    columns = ["origin", "origin_epoch", "stream", "sequence", "count", "published", "topic", "bytes"]
    day = F.expr("cast(date_add(date'1970-01-01', cast(published div 86400000000 as int)) as string)").alias("date")

    def made(frame: DataFrame, role: Role) -> DataFrame:
        return frame.select(day, "account", service_of(tariffs).alias("service"), F.lit(role.value).alias("role"), "recipient", *columns)

    published = with_names(plain.where(F.col("kind") == int(Kind.PUBLISHED)), names, "account", "recipient")
    got = plain.where(F.col("kind") == int(Kind.DELIVERED)).drop("recipient").withColumnRenamed("client", "recipient")
    got = with_names(got, names, "account", "recipient").withColumn("account", recipients_account(tariffs))
    whole = made(published, Role.ORIGINATOR).unionByName(made(got, Role.RECIPIENT))
    if any(party.sites for party in tariffs.parties):
        relayed = plain.where((F.col("kind") == int(Kind.FORWARDED)) & (F.col("broker") != F.col("origin")))
        relayed = with_names(relayed.withColumn("account", sites_account(tariffs)).where(F.col("account") != ""), names, "recipient")
        whole = whole.unionByName(made(relayed, Role.INTERMEDIARY))
    return whole.where(F.col("account") != "")


__all__ = ["OPTION", "charged", "counts", "run", "run_charged", "tariffs_of"]
