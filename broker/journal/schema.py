"""The Arrow schemas of the journal's tables, and what readers need to use them: versions, empty tables, runs expanded to messages.

Everything here works without a broker. It needs pyarrow (the extra `mqmesh[journal]`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .kinds import NOBODY, NONE, VERSION, Kind, MessageId, Protocol, QueueState, Stream, call_id, hop_id, name_id

__all__ = [
    "COUNTS",
    "EVENTS",
    "NAMES",
    "NOBODY",
    "NONE",
    "VERSION",
    "Kind",
    "MessageId",
    "Protocol",
    "QueueState",
    "Stream",
    "arrow_schema",
    "call_id",
    "conform",
    "expand",
    "hop_id",
    "name_id",
]

# name, Arrow type, what stands where an older segment has no such column; None: the column may be null
EVENTS: tuple[tuple[str, str, int | None], ...] = (
    ("kind", "int16", 0),
    ("time", "int64", 0),  # microseconds since 1970, the broker's wall clock
    ("mono", "int64", 0),  # microseconds, the broker's monotonic clock
    ("broker", "int32", NOBODY),
    ("epoch", "int64", 0),  # of the broker's life
    ("event", "int64", 0),  # number of the event in that life, from 1
    ("count", "int32", 1),  # consecutive messages that the event stands for
    ("origin", "int32", NOBODY),
    ("origin_epoch", "int64", 0),
    ("stream", "int8", 0),
    ("sequence", "int64", 0),  # of the first of these messages
    ("published", "int64", 0),  # microseconds since 1970, at the origin
    ("size", "int32", 0),  # payload bytes of one message; the mean of messages of several sizes
    ("bytes", "int64", 0),  # payload bytes of all `count` messages
    ("account", "int64", NONE),
    ("topic", "int64", NONE),
    ("client", "int64", NONE),
    ("recipient", "int64", NONE),
    ("from_broker", "int32", NOBODY),
    ("to_broker", "int32", NOBODY),
    ("hop", "int64", NONE),
    ("call", "int64", NONE),
    ("session", "int64", NONE),
    ("trace", "string", None),  # the trace id of a `traceparent`, 32 hexadecimal figures
    ("parent", "string", None),  # the message id that this one was made from
    ("qos", "int8", 0),
    ("version_in", "int8", 0),  # 4: MQTT 3.1.1, 5: MQTT 5
    ("version_out", "int8", 0),
    ("protocol_in", "int8", 0),
    ("protocol_out", "int8", 0),
    ("reason", "int64", NONE),
    ("value", "int64", 0),  # its meaning depends on the kind
    ("detail", "string", None),  # JSON
)
COUNTS: tuple[tuple[str, str, int | None], ...] = (
    ("minute", "int64", 0),  # minutes since 1970
    ("broker", "int32", NOBODY),
    ("kind", "int16", 0),
    ("topic", "int64", NONE),
    ("account", "int64", NONE),
    ("recipient", "int64", NONE),
    ("messages", "int64", 0),
    ("bytes", "int64", 0),
)
NAMES: tuple[tuple[str, str, int | None], ...] = (("kind", "string", None), ("id", "int64", NONE), ("name", "string", None))


@cache
def arrow_schema(columns: tuple[tuple[str, str, int | None], ...] = EVENTS) -> Any:
    """The pyarrow schema of `EVENTS`, `COUNTS` or `NAMES`; its metadata holds the version."""
    import pyarrow as pa

    fields = [pa.field(name, pa.type_for_alias(kind), nullable=default is None) for name, kind, default in columns]
    return pa.schema(fields, {b"mqmesh.journal.version": str(VERSION).encode()})


def version_of(schema: Any) -> int:
    """The version that a table or file was written with; 0: it names none."""
    text = (schema.metadata or {}).get(b"mqmesh.journal.version", b"0")
    return int(text) if text.isdigit() else 0


def conform(table: Any, columns: tuple[tuple[str, str, int | None], ...] = EVENTS) -> Any:
    """A table of an older version with today's columns: what is missing has its default, what is unknown is left out."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    arrays = []
    for field, (name, _, default) in zip(schema, columns, strict=True):
        if name in table.column_names:
            arrays.append(table.column(name).cast(field.type))
        else:
            arrays.append(pa.array([default] * table.num_rows, field.type))
    return pa.table(arrays, schema=schema)


def expand(table: Any) -> Any:
    """One row for each message: an event of `count` messages becomes `count` rows with consecutive sequences.

    table: of `EVENTS`. `bytes` of a row is then its share; the shares of a run add up to what they were.
    """
    import numpy
    import pyarrow as pa

    counts = table.column("count").to_numpy()
    if not len(counts) or counts.max() <= 1:
        return table
    rows = numpy.repeat(numpy.arange(len(counts)), counts)
    offsets = numpy.arange(len(rows)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    made = table.take(pa.array(rows))
    total = made.column("bytes").to_numpy()
    many = counts[rows]
    share = total // many + (offsets < total % many)
    for name, values in (
        ("sequence", made.column("sequence").to_numpy() + numpy.where(made.column("origin").to_numpy() >= 0, offsets, 0)),
        ("count", numpy.ones(len(rows), dtype="int32")),
        ("bytes", share),
    ):
        place = made.schema.get_field_index(name)
        made = made.set_column(place, made.schema.field(place), pa.array(values, made.schema.field(place).type))
    return made
