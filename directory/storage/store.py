"""The records, in SQLite or PostgreSQL, and who may see and change them.

Each request is one transaction, but for those that only read in PostgreSQL: each statement there sees what is committed when it begins, so
a transaction would add two questions to the server and nothing else. Writers take turns (an advisory lock of PostgreSQL, BEGIN IMMEDIATE of
SQLite), so that what a writer has checked still holds when it commits, in several processes over one database too.

What has a lease (`leases`) is there until the lease ends: nobody sees it afterwards, and the next writer removes it. The time is the
database server's where there is one, so that processes on several machines need not agree; else this machine's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import OperationalError

from ...base.cache import Cache
from ...base.settings import ConfigError
from ...base.standing import StandingFile
from .errors import DirectoryError
from .login_turns import LoginTurns
from .rates import Rates
from .rows import ACCOUNT_LIMIT, Records
from .tables import Account, entities, metadata
from .writers import TooLate, WriterTurns

log = logging.getLogger("mqmesh.directory")

LOCK = 0x6D716D65  # the advisory lock of writers
BUSY = 5.0  # seconds that a writer waits for another
REMEMBERED = 10_000  # tokens
SINCE = 1.0  # seconds for which those who read reckon with the time that a server has said


class Store:
    """The database. url: of SQLAlchemy, such as sqlite:///directory.db or postgresql://user@host/name.

    clock: gives seconds since 1970; None: that of the PostgreSQL server, or this machine's.
    logins: whose secret is compared next. standing: who has paid. account_limit: entities of one owner.
    rates: how many entities an account may write.
    changed: called when records have changed in this process.
    searches: how many are best worked at together: a server works at one while this process works at another.
    known_tokens: digest -> account, of those that were good lately: to tell askers apart, not to let them in.
    """

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self.logins = LoginTurns()
        self.standing = StandingFile()
        self.account_limit = ACCOUNT_LIMIT
        self.rates = Rates()
        self.known_tokens: Cache[str, str] = Cache(REMEMBERED)
        self._writers = WriterTurns()
        self._asked = (-SINCE - 1.0, 0.0)  # when, by our clock, the server was asked for the time, and what it said
        self.changed: Callable[[], None] = lambda: None  # called in a writer's thread
        try:
            parsed = make_url(url)
        except ValueError as error:  # SQLAlchemy's own for a port that is no number
            raise sa.exc.ArgumentError(f"{url}: {error}") from None
        self._postgresql = parsed.get_backend_name() == "postgresql"
        self.searches = 2 if self._postgresql else 1
        if self._postgresql:
            server = parsed.set(drivername="postgresql+psycopg")
            self._engine = sa.create_engine(server, pool_pre_ping=True, pool_timeout=BUSY)
            self._reading = sa.create_engine(server, isolation_level="AUTOCOMMIT", pool_timeout=BUSY)
        else:
            if parsed.database and parsed.database != ":memory:" and "uri" not in parsed.query:
                _make_private(Path(parsed.database))
            self._engine = self._reading = sa.create_engine(parsed, connect_args={"timeout": BUSY})
            sa.event.listen(self._engine, "connect", _own_transactions)
            sa.event.listen(self._engine, "begin", _begin)
        with self._transaction(None) as records:
            _bring_up(records._connection)

    def admit(self, owner: Account) -> None:
        """Raise DirectoryError: E_accountLimitExceeded for an account that is overdue, E_busy for one that writes too much."""
        try:
            if self.standing.look(time.monotonic()):
                log.info("event=standing-read accounts=%d", len(self.standing.standings.accounts))
        except ConfigError as error:
            log.error("event=standing-not-read text=%s", error)
        text = self.standing.refusal(owner.name)
        if text is not None:
            raise DirectoryError("E_accountLimitExceeded", text)
        wait = self.rates.wait(owner.name, time.monotonic())
        if wait:
            raise DirectoryError("E_busy", f"this account has written too much; try again in {wait:.0f} s")

    @contextlib.contextmanager
    def reading(self, reader: Account | None = None) -> Iterator[Records]:
        """What reads; DirectoryError E_busy when the database does not answer."""
        with _answers(), contextlib.ExitStack() as stack:
            connection, now = self._connected(stack)
            yield Records(connection, reader, now, self.account_limit)

    @contextlib.contextmanager
    def writing(self, reader: Account | None = None, *, first: bool = False) -> Iterator[Records]:
        """The only transaction that writes at this time. It commits unless an exception leaves it.

        first: before writers of this process that are not.
        """
        with self._in_turn(first), self._transaction(reader) as records:
            records.sweep()
            yield records
            records.flush()
            changed = records.note_changes()
        if changed:
            self.changed()
        if records.reader is not None:
            self.rates.charge(records.reader.name, records.written, time.monotonic())

    @contextlib.contextmanager
    def renewing(self) -> Iterator[Records]:
        """A transaction that renews a lease (`Records.renew`) and writes nothing else. In PostgreSQL it waits for no other writer."""
        with contextlib.nullcontext() if self._postgresql else self._in_turn(True), self._transaction(None, locks=False) as records:
            yield records

    @contextlib.contextmanager
    def _in_turn(self, first: bool) -> Iterator[None]:
        try:
            with self._writers.turn(first, BUSY):
                yield
        except TooLate as error:
            raise DirectoryError("E_busy", "other writers take their time; try again", ours=True) from error

    @contextlib.contextmanager
    def _transaction(self, reader: Account | None, locks: bool = True) -> Iterator[Records]:
        """A transaction that writes. locks: only one at a time."""
        with _answers(), self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            if locks and self._postgresql:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            yield Records(connection, reader, self._now(connection), self.account_limit, writes=True)

    def _connected(self, stack: contextlib.ExitStack) -> tuple[Connection, float]:
        """A connection to read with, in the stack, and the time. One that the server has given up meanwhile is replaced."""
        try:
            connection = stack.enter_context(self._reading.connect())
            return connection, self._about_now(connection)
        except OperationalError as error:
            if not error.connection_invalidated:
                raise
        stack.close()
        connection = stack.enter_context(self._reading.connect())
        return connection, self._about_now(connection)

    def _about_now(self, connection: Connection) -> float:
        """The time for who reads. A server is asked for it after SINCE seconds, which tells whether it still has the connection, too."""
        asked, was = self._asked
        since = time.monotonic() - asked
        if since > SINCE or not self._postgresql or self._clock is not None:
            since, was = 0.0, self._now(connection)
            self._asked = (time.monotonic(), was)
        return was + since

    def _now(self, connection: Connection) -> float:
        """The time, read under the writers' lock: no later writer reads an earlier one while the clock goes forward."""
        if self._clock is not None:
            return self._clock()
        if self._postgresql:
            return float(connection.scalar(sa.select(sa.func.extract("epoch", sa.func.clock_timestamp()))) or 0)
        return time.time()

    def close(self) -> None:
        """End the connections."""
        self._engine.dispose()
        self._reading.dispose()


_FULL = ("disk is full", "no space left on device")  # as SQLite and PostgreSQL say it


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    """DirectoryError E_busy when the database does not."""
    try:
        yield
    except (OperationalError, sa.exc.TimeoutError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        full = any(words in cause.lower() for words in _FULL)
        text = "the disk of the directory is full; try again when there is room" if full else "the database does not answer; try again"
        raise DirectoryError("E_busy", text, ours=True, cause=cause) from error


def _bring_up(connection: Connection) -> None:
    """Make the tables and indexes that are not there; a database of an earlier release gets them too."""
    metadata.create_all(connection)
    for index in entities.indexes:
        index.create(connection, checkfirst=True)
    by_name = '"C"' if connection.dialect.name == "postgresql" else "BINARY"
    for column in ("parent", "kind"):  # of earlier releases: by_position has what the first had, the second led SQLite astray
        connection.exec_driver_sql(f"DROP INDEX IF EXISTS ix_directory_entities_{column}")
    connection.exec_driver_sql(
        f"CREATE INDEX IF NOT EXISTS directory_entities_by_name ON directory_entities (record, name COLLATE {by_name}, parent)"
    )


def _make_private(path: Path) -> None:
    """Make the file readable only for its owner, as it holds hashes of tokens; SQLite gives its other files its mode."""
    with contextlib.suppress(OSError):  # SQLite says what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _own_transactions(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver would begin too late
    connection.execute("PRAGMA journal_mode = WAL")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")
