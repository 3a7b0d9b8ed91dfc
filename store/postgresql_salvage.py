"""A damaged schema: its tables read block by block, and a new schema in its place.

Rows are read in the order of the table's file, without its indexes. Where the server cannot read a range of blocks, it is halved; where it
cannot read one block, each row is asked for by its place. So a damaged block costs its rows, a damaged long value costs one.

`SchemaSalvage` exchanges two schemas in one transaction. A salvage that is interrupted changes nothing.

Source: "TID Range Scan", release notes of PostgreSQL 14. An older server reads the whole table for each range.

What it does not know: what rows mean, which of them are whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from .base import Kind, StoreError
from .postgresql_schema import Connection, Schema

BLOCKS = 64  # that one query reads
LEAST_ROW = 28  # bytes that a row takes in a block
LONGEST_NAME = 40  # of a schema whose name goes into that of the one that is set aside

Query = Callable[[str, tuple[Any, ...]], list[Any]]


def rows_of(query: Query, columns: LiteralString, table: LiteralString, say: Callable[[str], object]) -> Iterator[Any]:
    """The rows of a table that the server can read. query: runs one, raises StoreError. say: is told of what cannot be read."""
    query("SELECT set_config('enable_seqscan', 'off', false)", ())  # else the whole of a short table is read for one block
    ((size, block),) = query("SELECT pg_relation_size(%s::regclass), current_setting('block_size')::int", (table,))
    blocks = size // block
    ranged = f"SELECT {columns} FROM {table} WHERE ctid >= %s::tid AND ctid < %s::tid"
    single = f"SELECT {columns} FROM {table} WHERE ctid = %s::tid"

    def read(low: int, high: int) -> Iterator[Any]:
        try:
            yield from query(ranged, (f"({low},0)", f"({high},0)"))
        except StoreError as error:
            if error.kind not in (Kind.CORRUPT, Kind.OTHER):
                raise
            middle = (low + high) // 2
            if middle > low:
                yield from read(low, middle)
                yield from read(middle, high)
            else:
                yield from one_by_one(low)

    def one_by_one(number: int) -> Iterator[Any]:
        for place in range(1, block // LEAST_ROW + 1):
            try:
                yield from query(single, (f"({number},{place})",))
            except StoreError as error:
                if error.kind not in (Kind.CORRUPT, Kind.OTHER):
                    raise
                say(error.cause)

    for low in range(0, blocks, BLOCKS):
        yield from read(low, min(low + BLOCKS, blocks))


class SchemaSalvage:
    """Holds a schema's lock while its rows are copied into a new one. Methods raise StoreError. fresh: the address of the new one."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.fresh = ""
        self._connection: Connection | None = None
        self._new = ""

    def begin(self) -> None:
        """Take the lock; indexes are made anew, which a damaged table refuses; what an interrupted salvage left goes."""
        with self._guarded():
            self._connection = connection = self._schema.connect()
            if busy := self._schema.lock(connection):
                raise StoreError(Kind.BUSY, self._schema.shown, busy)
            row = connection.execute("SELECT oid FROM pg_namespace WHERE nspname = %s", (self._schema.name,)).fetchone()
            if row is None:
                raise StoreError(Kind.OTHER, self._schema.shown, "does not exist: there is nothing to salvage")
            self._new = f"mqmesh_salvaged_{row[0]}"
            self.fresh = self._schema.sibling(self._new)
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(self._new)))
            for table in ("runs", "deliveries", '"values"'):
                with contextlib.suppress(psycopg.InternalError, psycopg.errors.IoError, psycopg.errors.UniqueViolation):
                    connection.execute(f"REINDEX TABLE {table}")

    def exchange(self) -> str:
        """Set the damaged schema aside and put the new one in its place: the name that the damaged one has now."""
        connection = self._connection
        assert connection is not None
        aside = f"{self._schema.name[:LONGEST_NAME]}_damaged_{time.strftime('%Y%m%d_%H%M%S')}"
        rename = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
        with self._guarded(), connection.transaction():
            if connection.execute("SELECT to_regclass('lease')").fetchone() != (None,):  # it is of the place, not of its rows
                connection.execute(sql.SQL("ALTER TABLE lease SET SCHEMA {}").format(sql.Identifier(self._new)))
            connection.execute(rename.format(sql.Identifier(self._schema.name), sql.Identifier(aside)))
            connection.execute(rename.format(sql.Identifier(self._new), sql.Identifier(self._schema.name)))
        return aside

    def end(self) -> None:
        """Let go of the lock."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._schema.error(error) from error
