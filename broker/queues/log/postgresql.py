"""Segments in a schema of a PostgreSQL database. One broker has the schema: it holds an advisory lock.

A connection that is lost is made again with the next commit, or the next look. What the server made of a commit whose answer was lost is
not known; its rows are deleted in the next transaction, before anything else is written.

What it does not know: what is in a segment.
"""

from __future__ import annotations

import contextlib
import errno
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from .rows import RowSegments

SCHEMA = "mqmesh_queues"
LOCK_CLASS = 0x6D72  # of advisory locks, "mr"
LOCK_WAIT = 10.0  # seconds: the server may not have noticed yet that a killed broker is gone
CONNECT_TIMEOUT = 5  # seconds
SILENCE = 10_000  # milliseconds without a word from the server until a commit gives up
FULL = ("53100", "53400")  # disk full, a limit that is configured
TABLE = 'CREATE TABLE IF NOT EXISTS frames (segment bigint, "offset" bigint, data bytea NOT NULL, PRIMARY KEY (segment, "offset"))'

Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresqlSegments(RowSegments):
    """See `Segments`.

    url: `postgresql://user:password@host:port/database?schema=name`; other parameters as in libpq. The schema is made if need be;
    "mqmesh_queues" without. sync: a commit waits for the server's disk.
    """

    def __init__(self, url: str, sync: bool = True) -> None:
        super().__init__()
        parts = urlsplit(url)
        parameters = parse_qsl(parts.query)
        self._schema = dict(parameters).get("schema", SCHEMA)
        query = urlencode([pair for pair in parameters if pair[0] != "schema"], quote_via=quote)
        self._url = urlunsplit(parts._replace(query=query))
        self._shown = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}?schema={self._schema}"
        self._sync = sync
        self._write: Connection | None = None
        self._read: Connection | None = None
        self._process = 0  # the server's process behind the last connection that wrote

    def open(self) -> list[int]:
        """Make the schema if need be, and take its lock."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self._schema):
            raise OSError(errno.EINVAL, f"{self._shown}: 1 to 63 lower-case letters, digits or '_' are right for a schema")
        with self._errors():
            write = self._connection_to_write()
            write.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema)))
            write.execute(TABLE)
            write.execute("ALTER TABLE frames ALTER COLUMN data SET STORAGE EXTERNAL")  # the bytes are not worth compressing
            return [number for (number,) in write.execute("SELECT DISTINCT segment FROM frames ORDER BY 1")]

    def _connect(self) -> Connection:
        connection = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT,
            application_name=f"mqmesh {self._schema}",
            keepalives_idle=SILENCE // 1000,
            tcp_user_timeout=SILENCE,
        )
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))
        connection.execute("SET client_min_messages TO warning")
        connection.execute(f"SET synchronous_commit TO {'on' if self._sync else 'off'}")
        return connection

    def _connection_to_write(self) -> Connection:
        if self._write is None or self._write.closed:
            connection = self._connect()
            try:
                self._take_lock(connection)
            except BaseException:
                connection.close()
                raise
            self._write, self._process = connection, connection.info.backend_pid
        return self._write

    def _take_lock(self, connection: Connection) -> None:
        end = time.monotonic() + LOCK_WAIT
        while True:
            query = "SELECT pg_try_advisory_lock(%s, hashtext(current_database() || '.' || %s))"
            row = connection.execute(query, (LOCK_CLASS, self._schema)).fetchone()
            if row is not None and row[0]:
                return
            if self._process:  # our own last connection, which the server still holds for alive
                query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
                connection.execute(query, (self._process, f"mqmesh {self._schema}"))
            if time.monotonic() >= end:
                raise OSError(errno.EBUSY, f"{self._shown} is open in another broker: stop that one, or name another schema (?schema=name)")
            time.sleep(0.05)

    def name_of(self, number: int) -> str:
        """The schema, and the segment."""
        return f"{self._shown}: segment {number}"

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
                self._read = self._connect()
            try:
                return self._read.execute(query, values, binary=True).fetchone()
            except psycopg.OperationalError:
                if not self._read.closed:
                    raise
                self._read = self._connect()
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
            raise OSError(errno.ENOSPC if error.sqlstate in FULL else errno.EIO, f"{self._shown}: {line}") from error
