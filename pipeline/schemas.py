"""Schemas as Spark has them: of the journal, and of what every output table shares.

The journal's own definition is `broker/journal/schema.py`; here it is turned into Spark's types, and nothing is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..broker.journal.schema import COUNTS, EVENTS, NAMES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TABLES_VERSION = 1  # of the output tables' columns
_TYPES = {"int8": "byte", "int16": "short", "int32": "int", "int64": "bigint", "string": "string"}
_Columns = tuple[tuple[str, str, int | None], ...]


def ddl(columns: _Columns, only: tuple[str, ...] = ()) -> str:
    """Columns as Spark's text of a schema, in their order. only: these alone; empty: all."""
    return ", ".join(f"{name} {_TYPES[kind]}" for name, kind, _ in columns if not only or name in only)


def struct(columns: _Columns = EVENTS, only: tuple[str, ...] = ()) -> StructType:
    """Columns of the journal as a Spark schema. Raises KeyError for a column that the journal does not have."""
    from pyspark.sql.types import StructType

    known = {name for name, _, _ in columns}
    for name in only:
        if name not in known:
            raise KeyError(name)
    made = StructType.fromDDL(ddl(columns, only))
    assert isinstance(made, StructType)
    return made


__all__ = ["COUNTS", "EVENTS", "NAMES", "TABLES_VERSION", "ddl", "struct"]
