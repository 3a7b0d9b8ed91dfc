"""Segments in a schema of a PostgreSQL database. One broker has the schema: it holds its lease (`store/postgresql_lease.py`).

A connection that is lost is made again with the next commit, or the next look. What the server made of a commit whose answer was lost is
not known; its rows are deleted in the next transaction, before anything else is written.

What it does not know: what is in a segment.
"""

from __future__ import annotations

import contextlib
import errno
import time
from typing import Any

import psycopg

from .....store.postgresql_lease import Lease, errors
from .....store.postgresql_schema import BUSY, LOCK_WAIT, Connection
from ..lease import SECONDS, lease_of, schema_of
from .rows import RowSegments

TABLE = 'CREATE TABLE IF NOT EXISTS frames (segment bigint, "offset" bigint, data bytea NOT NULL, PRIMARY KEY (segment, "offset"))'


class PostgresqlSegments(RowSegments):
    """See `Segments`.

    url: `postgresql://user:password@host:port/database?schema=name`; other parameters as in libpq. The schema is made if need be;
    "mqmesh_queues" without. sync: a commit waits for the server's disk. shared: the lease of a schema that several brokers take in turn;
    who has it opens the segments, and opens others when it has it again.
    """

    def __init__(self, url: str, sync: bool = True, shared: Lease | None = None) -> None:
        super().__init__()
        self._schema = schema_of(url)
        self._sync = sync
        self._own = lease_of(url) if shared is None else None
        self._fence = shared.fence if shared is not None else ""
        self._write: Connection | None = None
        self._read: Connection | None = None

    def open(self) -> list[int]:
        """Make the schema if need be, and take its lease."""
        with errors(self._schema):
            if self._own is not None:
                self._take(self._own)
            write = self._connection_to_write()
            write.execute(TABLE)
            write.execute("ALTER TABLE frames ALTER COLUMN data SET STORAGE EXTERNAL")  # the bytes are not worth compressing
            return [number for (number,) in write.execute("SELECT DISTINCT segment FROM frames ORDER BY 1")]

    def _take(self, lease: Lease) -> None:
        """The server may not have noticed yet that a killed broker is gone."""
        end = time.monotonic() + LOCK_WAIT
        while not lease.take():
            if time.monotonic() >= end:
                lease.close()
                raise OSError(errno.EBUSY, f"{self._schema.shown} {BUSY}")
            time.sleep(0.05)
        self._fence = lease.fence

    def _connection_to_write(self) -> Connection:
        if self._write is None or self._write.closed:
            if self._own is not None and not self._own.renew():
                raise self._taken()
            connection = self._schema.connect()
            try:
                connection.execute(f"SET synchronous_commit TO {'on' if self._sync else 'off'}")
                connection.execute(f"SET idle_in_transaction_session_timeout TO '{SECONDS:g}s'")  # it would keep others from the lease
            except BaseException:
                connection.close()
                raise
            self._write = connection
        return self._write

    def _taken(self) -> OSError:
        return OSError(errno.ESTALE, f"{self._schema.shown}: another broker has taken it")

    def name_of(self, number: int) -> str:
        """The schema, and the segment."""
        return f"{self._schema.shown}: segment {number}"

    def close(self) -> None:
        """Close the connections."""
        if self._own is not None:
            self._own.close()
        for one in (self._read, self._write):
            if one is not None:
                with contextlib.suppress(psycopg.Error):
                    one.close()
        self._read = self._write = None

    def _row(self, query: str, values: tuple[int, ...]) -> tuple[Any, ...] | None:
        with errors(self._schema):
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
        """Begin a transaction that counts only as long as no other broker has taken the lease."""
        with errors(self._schema):
            found = self._connection_to_write().execute(f"BEGIN; {self._fence}")
            found.nextset()
            if found.fetchone() is None:
                raise self._taken()

    def _insert(self, number: int, offset: int, data: bytes) -> None:
        assert self._write is not None
        with errors(self._schema):
            self._write.execute("INSERT INTO frames VALUES (%s, %s, %b)", (number, offset, data))

    def _delete(self, number: int, offset: int) -> None:
        assert self._write is not None
        with errors(self._schema):
            self._write.execute('DELETE FROM frames WHERE segment = %s AND "offset" >= %s', (number, offset))

    def _finish(self) -> None:
        assert self._write is not None
        with errors(self._schema):
            self._write.execute("COMMIT")

    def _give_up(self) -> None:
        """Close the connection: the server gives up what it has not committed."""
        write, self._write = self._write, None
        if write is not None:
            with contextlib.suppress(psycopg.Error):
                write.close()
