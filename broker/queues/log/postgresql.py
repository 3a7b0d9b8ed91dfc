"""Segments in a schema of a PostgreSQL database. One broker has the schema: it holds its lock.

A connection that is lost is made again with the next commit, or the next look. What the server made of a commit whose answer was lost is
not known; its rows are deleted in the next transaction, before anything else is written.

What it does not know: what is in a segment.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

import psycopg

from ....store.postgresql_schema import Connection, Schema
from .rows import RowSegments

SCHEMA = "mqmesh_queues"
LOCK_CLASS = 0x6D72  # of advisory locks, "mr"
FULL = ("53100", "53400")  # disk full, a limit that is configured
TABLE = 'CREATE TABLE IF NOT EXISTS frames (segment bigint, "offset" bigint, data bytea NOT NULL, PRIMARY KEY (segment, "offset"))'


class PostgresqlSegments(RowSegments):
    """See `Segments`.

    url: `postgresql://user:password@host:port/database?schema=name`; other parameters as in libpq. The schema is made if need be;
    "mqmesh_queues" without. sync: a commit waits for the server's disk.
    """

    def __init__(self, url: str, sync: bool = True) -> None:
        super().__init__()
        self._schema = Schema(url, SCHEMA, LOCK_CLASS)
        self._sync = sync
        self._write: Connection | None = None
        self._read: Connection | None = None

    def open(self) -> list[int]:
        """Make the schema if need be, and take its lock."""
        if wrong := self._schema.wrong:
            raise OSError(errno.EINVAL, f"{self._schema.shown}: {wrong}")
        with self._errors():
            write = self._connection_to_write()
            self._schema.create(write)
            write.execute(TABLE)
            write.execute("ALTER TABLE frames ALTER COLUMN data SET STORAGE EXTERNAL")  # the bytes are not worth compressing
            return [number for (number,) in write.execute("SELECT DISTINCT segment FROM frames ORDER BY 1")]

    def _connection_to_write(self) -> Connection:
        if self._write is None or self._write.closed:
            connection = self._schema.connect()
            try:
                if busy := self._schema.lock(connection):
                    raise OSError(errno.EBUSY, f"{self._schema.shown} {busy}")
                connection.execute(f"SET synchronous_commit TO {'on' if self._sync else 'off'}")
            except BaseException:
                connection.close()
                raise
            self._write = connection
        return self._write

    def name_of(self, number: int) -> str:
        """The schema, and the segment."""
        return f"{self._schema.shown}: segment {number}"

    def close(self) -> None:
        """Close the connections."""
        for one in (self._read, self._write):
            if one is not None:
                with contextlib.suppress(psycopg.Error):
                    one.close()
        self._read = self._write = None

    def _row(self, query: str, values: tuple[int, ...]) -> tuple[Any, ...] | None:
        with self._errors():
            if self._writing:
                return self._connection_to_write().execute(query, values, binary=True).fetchone()
            if self._read is None or self._read.closed:
                self._read = self._schema.connect()
            try:
                return self._read.execute(query, values, binary=True).fetchone()
            except psycopg.OperationalError:
                if not self._read.closed:
                    raise
                self._read = self._schema.connect()
                return self._read.execute(query, values, binary=True).fetchone()

    def _end(self, number: int) -> int:
        query = 'SELECT "offset" + octet_length(data) FROM frames WHERE segment = %s ORDER BY "offset" DESC LIMIT 1'
        row = self._row(query, (number,))
        return int(row[0]) if row is not None else 0

    def _piece(self, number: int, offset: int, size: int) -> bytes:
        query = (
            'SELECT substring(data FROM (%s - "offset" + 1)::int FOR %s) FROM frames'
            ' WHERE segment = %s AND "offset" <= %s ORDER BY "offset" DESC LIMIT 1'
        )
        row = self._row(query, (offset, size, number, offset))
        return bytes(row[0]) if row is not None else b""

    def _start(self) -> None:
        with self._errors():
            self._connection_to_write().execute("BEGIN")

    def _insert(self, number: int, offset: int, data: bytes) -> None:
        assert self._write is not None
        with self._errors():
            self._write.execute("INSERT INTO frames VALUES (%s, %s, %b)", (number, offset, data))

    def _delete(self, number: int, offset: int) -> None:
        assert self._write is not None
        with self._errors():
            self._write.execute('DELETE FROM frames WHERE segment = %s AND "offset" >= %s', (number, offset))

    def _finish(self) -> None:
        assert self._write is not None
        with self._errors():
            self._write.execute("COMMIT")

    def _give_up(self) -> None:
        """Close the connection: the server gives up what it has not committed."""
        write, self._write = self._write, None
        if write is not None:
            with contextlib.suppress(psycopg.Error):
                write.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            line = str(error).strip().partition("\n")[0]
            raise OSError(errno.ENOSPC if error.sqlstate in FULL else errno.EIO, f"{self._schema.shown}: {line}") from error
