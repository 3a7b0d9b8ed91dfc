"""The lease of a schema: which of several programs writes in it. One row says it.

    token     of the program that has it; the next one that takes it has a higher one
    holder    that program's name
    until     by the database's clock: who has not renewed it by then may lose it
    pid       the server's process behind its connection, which has an advisory lock for as long as it lives

Taking needs that lock. So a program that is killed loses the lease at once, with its connection. The connection of one that is silent
for longer than its lease is ended by another one. A program that was away still has its token: each of its transactions looks for it
first, and keeps the row from those who take the lease until it ends. So what it writes later does not count. A transaction that does not
end, because its program stands still in the middle of it, is ended by who takes the lease.

Methods raise OSError. One thread at a time calls them.

What it does not know: what is written.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator

import psycopg

from .base import Away
from .postgresql_schema import Connection, Schema

SECONDS = 5.0  # of a lease
PATIENCE = 2.0  # seconds that a transaction of who had the lease may go on
SOON = 1.0  # seconds in which the database has to say its time for that to be taken
FULL = ("53100", "53400")  # disk full, a limit that is configured
TABLE = (
    "CREATE TABLE IF NOT EXISTS lease"
    " (one boolean PRIMARY KEY CHECK (one), token bigint UNIQUE NOT NULL, holder text NOT NULL,"
    " until timestamptz NOT NULL, pid int NOT NULL)"
)

_END_WRITERS = (  # transactions that have looked for their token (`Lease.fence`)
    "SELECT pg_terminate_backend(pid) FROM pg_locks"
    " WHERE relation = 'lease'::regclass AND mode = 'RowShareLock' AND granted AND pid <> pg_backend_pid()"
)


class Lease:
    """See the module. holder: this program. seconds: until it may be taken from one that is silent; None: never. clock: of the database.

    token: 0 until it was taken. offset: seconds from `time.monotonic` to that clock, as last asked; None: it has not said it yet.
    """

    def __init__(self, schema: Schema, holder: str = "", seconds: float | None = None, clock: str = "clock_timestamp()") -> None:
        self.token = 0
        self.offset: float | None = None
        self._schema = schema
        self.seconds = seconds or 0.0
        self._holder = holder
        until = f"{clock} + interval '{seconds} seconds'" if seconds is not None else "'infinity'"
        self._take = f"UPDATE lease SET token = token + 1, holder = %s, until = {until}, pid = pg_backend_pid() RETURNING token"
        self._renew = f"UPDATE lease SET until = {until}, pid = pg_backend_pid() WHERE token = %s RETURNING token"
        self._end_silent = (
            "SELECT pg_terminate_backend(pid) FROM lease JOIN pg_stat_activity USING (pid)"
            f" WHERE until < {clock} AND application_name = %s AND pid <> pg_backend_pid()"
        )
        self._clock = f"SELECT extract(epoch FROM {clock})::float8"
        self._connection: Connection | None = None
        self._locked = False

    @property
    def fence(self) -> str:
        """A query whose answer is empty if another program has taken the lease; else nobody takes it before the transaction ends."""
        return f"SELECT token FROM lease WHERE token = {self.token} FOR KEY SHARE"

    def take(self) -> bool:
        """Take it, unless another program has it. One that is silent for too long has it the next time no more."""
        with errors(self._schema):
            connection = self._connected()
            self._ask_clock(connection)
            if not self._lock(connection):
                with contextlib.suppress(psycopg.errors.UndefinedTable):
                    connection.execute(self._end_silent, (self._schema.application,))
                return False
            self._schema.create(connection)
            connection.execute(TABLE)
            connection.execute("INSERT INTO lease VALUES (true, 0, '', '-infinity', 0) ON CONFLICT DO NOTHING")
            try:
                self._have(connection)
            except psycopg.errors.LockNotAvailable:
                connection.execute(_END_WRITERS)
                self._have(connection)
            return True

    def _have(self, connection: Connection) -> None:
        connection.execute(f"SET lock_timeout = '{PATIENCE:g}s'")
        try:
            row = connection.execute(self._take, (self._holder,)).fetchone()
        finally:
            connection.execute("SET lock_timeout = 0")
        assert row is not None
        self.token = int(row[0])

    def renew(self) -> bool:
        """Have it for another while: whether no other broker has taken it."""
        with errors(self._schema):
            connection = self._connected()
            self._ask_clock(connection)
            try:
                row = connection.execute(self._renew, (self.token,)).fetchone()
            except psycopg.errors.UndefinedTable:  # with all that was in the schema
                row = None
            if row is None:
                return False
            self._lock(connection)  # after a lost connection; if the server still holds that for alive, the next time
            return True

    def look(self) -> None:
        """Ask for the time of the database only."""
        with errors(self._schema):
            self._ask_clock(self._connected())

    def _ask_clock(self, connection: Connection) -> None:
        asked = time.monotonic()
        row = connection.execute(self._clock).fetchone()
        answered = time.monotonic()
        if row is not None and answered - asked < SOON:
            self.offset = row[0] - (asked + answered) / 2

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection, self._locked = self._schema.connect(), False
        return self._connection

    def _lock(self, connection: Connection) -> bool:
        self._locked = self._locked or self._schema.try_lock(connection)
        return self._locked

    def close(self) -> None:
        """Give it up: another program may take it at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


@contextlib.contextmanager
def errors(schema: Schema) -> Iterator[None]:
    """What the server and the way to it say, as OSError."""
    try:
        yield
    except psycopg.Error as error:
        line = str(error).strip().partition("\n")[0]
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):  # no connection, or the server ends it
            raise Away(errno.EIO, f"{schema.shown}: {line}") from error
        raise OSError(errno.ENOSPC if error.sqlstate in FULL else errno.EIO, f"{schema.shown}: {line}") from error
