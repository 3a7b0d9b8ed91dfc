"""The store in one SQLite file: the default of a broker with a data folder.

Write-ahead logging lets queries (a connection of their own) go on while a commit waits for the disk. With `sync` each commit
waits for the disk (`synchronous = FULL`), without it only checkpoints do (`NORMAL`): the file stays sound after a power loss,
and the last commits may be missing.

Strategy: few calls. Python's sqlite3 gives up the interpreter lock at every step of every statement, and takes it again only
after whoever runs meanwhile gives it back: beside a busy event loop, `executemany` of a thousand rows lost 99 % of its speed.
So rows go in by statements with many rows of VALUES. To keep the number of different statements small (they are parsed once
and cached), the row count is rounded up and the last row is repeated: inserting the same row again changes nothing.

SQLite notices a page whose structure is broken, but not a wrong byte inside a row: every row carries a checksum over all of it
(`checksums.py`), and a table of one row says how many there are. What is looked at when it is opened is in `sqlite_check.py`.

What it does not know: what states and values mean.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from struct import error as StructError
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote

from ..base.process.files import sync_folder
from . import sqlite_migration
from .base import CHECKED_SIZE, CONVERTED, PAGE, SCHEMA_VERSION, SIZES_PAGE, Kind, StoreError, damaged, gapless, wrong_version
from .checksums import delivery_checksum, recipient_checksum, run_checksum, value_checksum, with_checksums
from .folder import (
    FolderLock,
    full,
    identity,
    is_read_only,
    make_folder,
    make_private,
    out_of_space,
    read_only,
    refuse_gone,
    refuse_half_salvaged,
    space_of,
)
from .records import Batch, Counts, StoredDelivery, StoredRun, StoredValue
from .sqlite_check import check_log, check_schema, check_structure, log_of

log = logging.getLogger(__name__)

APPLICATION_ID = 0x6D71_6D73  # "mqms", in the file's header
VALUE_PAGE = 100  # values and runs may be large
ROWS = 1024  # of one statement, at most; times 11 columns stays below SQLite's limit of 32,766 parameters
TERMS = 256  # of one condition: below SQLite's limit of 1,000
FEW = 8  # numbers that are not worth a statement of their own

SCHEMA = (
    """CREATE TABLE runs (id INTEGER PRIMARY KEY, topic BLOB NOT NULL, qos INTEGER NOT NULL, retain INTEGER NOT NULL,
    properties BLOB NOT NULL, expires_at REAL, published_at REAL NOT NULL, length INTEGER NOT NULL, count INTEGER NOT NULL,
    payloads BLOB NOT NULL, checksum INTEGER NOT NULL)""",
    """CREATE TABLE deliveries (recipient TEXT NOT NULL, "order" INTEGER NOT NULL, run INTEGER NOT NULL, start INTEGER NOT NULL,
    count INTEGER NOT NULL, qos INTEGER NOT NULL, state INTEGER NOT NULL, packet_id INTEGER NOT NULL, extra BLOB NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (recipient, "order")) WITHOUT ROWID""",
    """CREATE TABLE "values" ("table" TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY ("table", key))""",
    'CREATE TABLE tally (id INTEGER PRIMARY KEY, runs INTEGER NOT NULL, deliveries INTEGER NOT NULL, "values" INTEGER NOT NULL)',
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
RUN_COLUMNS = "id, topic, qos, retain, properties, expires_at, published_at, length, count, payloads, checksum"
RUN_ROW = "(?,?,?,?,?,?,?,?,?,?,?)"
DELIVERY_ROW = "(?,?,?,?,?,?,?,?,?,?)"
DELIVERY_COLUMNS = 'recipient, "order", run, start, count, qos, state, packet_id, extra, checksum'
T = TypeVar("T")
_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the second one of a damaged text, also in messages of the first


class SqliteStore:
    """One SQLite file.

    path: of the file; its folder is made if need be and locked. sync: whether `commit` waits for the disk.
    """

    counted = True

    def __init__(self, path: Path, sync: bool = True) -> None:
        self._path = path
        self.name = str(path)
        self._sync = sync
        self._lock = FolderLock(path.parent)
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._reading_lock = Lock()
        self._identity = (0, 0)
        self._counted = True  # whether the file may have counts

    def open(self) -> None:
        """Make or check the file, see `Store.open`."""
        make_folder(self._path.parent, self.name)
        self._lock.acquire(self.name)
        try:
            refuse_half_salvaged(self._path, self.name)
            make_private(self._path)  # SQLite gives its other files the mode of this one
            self._writing = self._prepare()
            self._reading = self._connect()
            self._identity = identity(self._path)
        except BaseException as error:
            self.close()
            if isinstance(error, _ERRORS):
                raise self._error(error) from error
            raise

    def attach(self) -> None:
        """Open for queries only, see `Store.attach`."""
        if not self._path.exists():
            raise StoreError(Kind.OTHER, self.name, "does not exist: no broker has used it yet")
        try:
            self._reading = self._connect_reading()
            self._check_version(self._reading)
            if self._reading.execute("SELECT 1 FROM sqlite_master WHERE name = 'migration'").fetchone():
                raise wrong_version(self.name, CONVERTED[-1])
        except BaseException as error:
            self.close()
            if isinstance(error, _ERRORS):
                raise self._error(error) from error
            raise

    def close(self) -> None:
        """Close the file; SQLite folds its log into it."""
        with self._reading_lock:
            connections, self._reading, self._writing = (self._reading, self._writing), None, None
        for connection in connections:
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):  # a full disk keeps the log unfolded, which the next open copes with
                    connection.close()
        self._lock.release()

    # Writing.

    def commit(self, batch: Batch) -> None:
        """Apply a batch in one transaction."""
        connection = self._writing
        if connection is None:
            raise StoreError(Kind.OTHER, self.name, "is not open")
        refuse_gone(self._path, self._identity, self.name)
        try:
            connection.execute("BEGIN IMMEDIATE")
            _apply(connection, batch)
            counted = batch.counts if batch.worth_counting else None
            if counted is not None:
                connection.execute("INSERT OR REPLACE INTO tally VALUES (1,?,?,?)", counted)
            elif self._counted:
                connection.execute("DELETE FROM tally")
            connection.execute("COMMIT")
            self._counted = counted is not None
        except BaseException as error:
            self._counted = True
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if isinstance(error, _ERRORS):
                raise self._error(error) from error
            raise

    # Queries.

    def run(self, run: int) -> StoredRun | None:
        """The run of this id, or None."""
        return self.runs((run,)).get(run)

    def runs(self, ids: Iterable[int]) -> dict[int, StoredRun]:
        """The runs of these ids that are there."""
        wanted = list(ids)
        found = {}
        for i in range(0, len(wanted), VALUE_PAGE):
            part = wanted[i : i + VALUE_PAGE]
            for row in self._query(f"SELECT {RUN_COLUMNS} FROM runs WHERE id IN ({','.join('?' * len(part))})", part):
                found[row[0]] = self._stored_run(row)
        return found

    def deliveries(
        self, recipient: str | None = None, state: int | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[StoredDelivery]:
        """Deliveries in their order, see `Store.deliveries`."""
        if recipient is None:
            where, last = '(recipient, "order") > (?, ?)', ("", 0)
        else:
            where, last = 'recipient = ? AND "order" > ?', (recipient, after)
        if state is not None:
            where += f" AND state = {int(state)}"
        if recipient is None and after:
            where += f' AND "order" > {int(after)}'
        query = f'SELECT {DELIVERY_COLUMNS} FROM deliveries WHERE {where} ORDER BY recipient, "order" LIMIT ?'
        left = limit
        while left is None or left > 0:
            wanted = PAGE if left is None else min(PAGE, left)
            rows = self._query(query, (*last, wanted))
            for row in rows:
                yield self._stored_delivery(row)
            if len(rows) < wanted:
                return
            last = rows[-1][:2]
            left = None if left is None else left - wanted

    def count(self, recipient: str, state: int | None = None) -> int:
        """How many messages are stored for a recipient."""
        where = "" if state is None else f" AND state = {int(state)}"
        return int(self._query(f"SELECT coalesce(sum(count), 0) FROM deliveries WHERE recipient = ?{where}", (recipient,))[0][0])

    def value(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""
        rows = self._query('SELECT value, checksum FROM "values" WHERE "table" = ? AND key = ?', (table, key))
        return self._checked_value(table, key, *rows[0]) if rows else None

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table."""
        last = b""
        while True:
            rows = self._query(
                'SELECT key, value, checksum FROM "values" WHERE "table" = ? AND key > ? ORDER BY key LIMIT ?', (table, last, VALUE_PAGE)
            )
            for key, value, checksum in rows:
                yield key, self._checked_value(table, key, value, checksum)
            if len(rows) < VALUE_PAGE:
                return
            last = rows[-1][0]

    def highest_run(self) -> int:
        """The highest id of a stored run, 0 without any."""
        return int(self._query("SELECT coalesce(max(id), 0) FROM runs", ())[0][0])

    def highest_order(self, recipient: str) -> int:
        """The highest order among a recipient's deliveries, 0 without any."""
        return int(self._query('SELECT coalesce(max("order"), 0) FROM deliveries WHERE recipient = ?', (recipient,))[0][0])

    def run_sizes(self) -> Iterator[tuple[int, int]]:
        """(id, bytes) of each run; SQLite knows the length of a long blob without reading it."""
        query = "SELECT id, length(topic) + length(properties) + length(payloads) FROM runs WHERE id > ? ORDER BY id LIMIT ?"
        last = -1
        while rows := self._query(query, (last, SIZES_PAGE)):
            yield from rows
            last = rows[-1][0]

    def value_sizes(self) -> Iterator[tuple[str, bytes, int]]:
        """(table, key, bytes) of each value."""
        query = 'SELECT "table", key, length(value) FROM "values" WHERE ("table", key) > (?, ?) ORDER BY "table", key LIMIT ?'
        last: tuple[str, bytes] = ("", b"")
        while rows := self._query(query, (*last, SIZES_PAGE)):
            yield from rows
            last = rows[-1][:2]

    def counts(self) -> Counts | None:
        """How many rows there were after the last commit that said so."""
        rows = self._query('SELECT runs, deliveries, "values" FROM tally WHERE id = 1', ())
        return Counts._make(rows[0]) if rows else None

    def remains(self, say: Callable[[str], object]) -> Iterator[StoredDelivery | StoredValue]:
        """All deliveries and values that are whole, see `Store.remains`."""
        deliveries = f'SELECT {DELIVERY_COLUMNS} FROM deliveries ORDER BY recipient {{0}}, "order" {{0}}'
        values = 'SELECT "table", key, value, checksum FROM "values" NOT INDEXED ORDER BY rowid {0}'
        by_index = 'SELECT "table", key, value, checksum FROM "values" ORDER BY "table" {0}, key {0}'
        yield from self._both_ways(deliveries, self._stored_delivery, say)
        for query in (values, by_index):
            yield from self._both_ways(query, lambda row: StoredValue(row[0], row[1], self._checked_value(*row)), say)

    def _both_ways(self, query: str, make: Callable[[tuple[Any, ...]], T], say: Callable[[str], object]) -> Iterator[T]:
        if self._reading is None:
            raise StoreError(Kind.OTHER, self.name, "is not open")
        for direction in ("ASC", "DESC"):
            try:
                for row in self._reading.execute(query.format(direction)):
                    try:
                        yield make(row)
                    except StoreError as error:
                        say(error.cause)
            except _ERRORS as error:
                say(self._error(error).cause)
            else:
                return

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """One read transaction, see `Store.snapshot`."""
        if (connection := self._reading) is None:
            raise StoreError(Kind.OTHER, self.name, "is not open")
        connection.execute("BEGIN")
        try:
            yield
        finally:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    def check_pages(self) -> None:
        """Walk through all pages and the log. Raises StoreError (corrupt)."""
        with self._reading_lock:
            assert self._reading is not None
            try:
                check_structure(self._reading, self.name)
                check_schema(self._reading, self.name, set(SCHEMA[:4]))
            except _ERRORS as error:
                raise self._error(error) from error

    def space(self) -> int | None:
        """What its files take and what is free on their disk."""
        return space_of(self._path, log_of(self._path))

    # Inside.

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False, cached_statements=256)

    def _connect_reading(self) -> sqlite3.Connection:
        """A connection that leaves the log as it is: the last one to write folds it into the file when it is closed."""
        place = f"file:{quote(self.name)}?mode=ro"
        return sqlite3.connect(place, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False, cached_statements=256)

    def _prepare(self) -> sqlite3.Connection:
        connection = self._connect()
        guard = self._connect_reading()  # while it is open, a connection that fails does not fold the log when it is closed
        try:
            with contextlib.suppress(*_ERRORS):  # whoever reads next says what is wrong
                guard.execute("PRAGMA user_version").fetchall()
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._sync else 'NORMAL'}")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")  # pages: 16 MB of log before it is folded into the file
            connection.execute("PRAGMA cache_size = -32000")
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            self._check_log(connection)
            if not tables:
                self._create(connection)
            self._check_version(connection, CONVERTED)
            if self._path.stat().st_size <= CHECKED_SIZE:
                check_structure(connection, self.name)
            if connection.execute("PRAGMA user_version").fetchone()[0] in CONVERTED:
                sqlite_migration.begin(connection, SCHEMA[3])
            sqlite_migration.go_on(connection, self.name, RUN_COLUMNS, DELIVERY_COLUMNS)
            check_schema(connection, self.name, set(SCHEMA[:4]))
            connection.execute("DELETE FROM runs WHERE id NOT IN (SELECT run FROM deliveries)")
        except BaseException:
            connection.close()
            raise
        finally:
            guard.close()
        return connection

    def _check_log(self, connection: sqlite3.Connection) -> None:
        try:
            check_log(connection, log_of(self._path), self.name)
        except StoreError as error:
            if self._sync:
                raise
            log.warning("event=store-log-cut store=%s text=%s: commits that waited for no disk may be missing", self.name, error.cause)

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")
        sync_folder(self._path.parent)

    def _check_version(self, connection: sqlite3.Connection, converted: Collection[int] = ()) -> None:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(Kind.SCHEMA, self.name, "is an SQLite file of another program: name another file or folder")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found != SCHEMA_VERSION and found not in converted:
            raise wrong_version(self.name, found)

    def _query(self, query: str, parameters: Sequence[Any]) -> list[Any]:
        with self._reading_lock:
            if self._reading is None:
                raise StoreError(Kind.OTHER, self.name, "is not open")
            try:
                return self._reading.execute(query, parameters).fetchall()
            except _ERRORS as error:
                raise self._error(error) from error

    def _stored_run(self, row: tuple[Any, ...]) -> StoredRun:
        stored = StoredRun(row[0], row[1], row[2], row[3] == 1, *row[4:10])
        try:
            whole = row[10] == run_checksum(stored) and row[3] in (0, 1)
        except (TypeError, StructError):
            whole = False
        if not whole:
            raise damaged(self.name, f"run {row[0]} does not have its checksum")
        return stored

    def _stored_delivery(self, row: tuple[Any, ...]) -> StoredDelivery:
        stored = StoredDelivery._make(row[:9])
        try:
            whole = row[9] == delivery_checksum(stored, recipient_checksum(stored.recipient))
        except (TypeError, AttributeError, StructError):
            whole = False
        if not whole:
            raise damaged(self.name, f"delivery {row[1]!r} of {row[0]!r} does not have its checksum")
        return stored

    def _checked_value(self, table: str, key: bytes, value: bytes, checksum: int) -> bytes:
        try:
            whole = checksum == value_checksum(table, key, value)
        except TypeError:
            whole = False
        if not whole:
            raise damaged(self.name, f"the value of {key[:40]!r} in {table} does not have its checksum")
        return value

    def _error(self, error: sqlite3.Error | ValueError) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if isinstance(error, ValueError) or str(error).startswith("Could not decode"):
            return damaged(self.name, "a text in it is none")
        folder = self._path.parent
        if code == sqlite3.SQLITE_FULL:
            return full(self.name)
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return read_only(self.name, str(error))
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            if out_of_space(folder):
                return full(self.name)
            if is_read_only(folder):
                return read_only(self.name, str(error))
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return damaged(self.name, str(error))
        if code == sqlite3.SQLITE_BUSY:
            return StoreError(Kind.BUSY, self.name, "is locked by another program: close what else has this file open")
        return StoreError(Kind.OTHER, self.name, f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})")


def _apply(connection: sqlite3.Connection, batch: Batch) -> None:
    """The changes of a batch in their order (see `records.py`)."""
    for recipient in batch.recipients:
        connection.execute("DELETE FROM deliveries WHERE recipient = ?", (recipient,))
    if batch.runs:
        # retain as 0 or 1: a bool is no exact int and would take sqlite3's slow way.
        runs = [(r[0], r[1], r[2], 1 if r[3] else 0, r[4], r[5], r[6], r[7], r[8], r[9], run_checksum(r)) for r in batch.runs.values()]
        _each(connection, "INSERT OR IGNORE INTO runs VALUES", RUN_ROW, runs)
    _delete_deliveries(connection, batch)
    deliveries = [row for recipient, orders in batch.deliveries.items() for row in with_checksums(recipient, orders.values())]
    _each(connection, "INSERT OR REPLACE INTO deliveries VALUES", DELIVERY_ROW, deliveries)
    _delete_runs(connection, batch.runs_gone)
    values = list(batch.value_changes())
    put = [(table, key, value, value_checksum(table, key, value)) for table, key, value in values if value is not None]
    _each(connection, 'INSERT OR REPLACE INTO "values" VALUES', "(?,?,?,?)", put)
    gone = [change[:2] for change in values if change[2] is None]
    _delete_each(connection, 'DELETE FROM "values" WHERE', '("table" = ? AND key = ?)', gone)


def _delete_deliveries(connection: sqlite3.Connection, batch: Batch) -> None:
    pairs: list[tuple[str, int]] = []
    for recipient, gone in batch.gone.items():
        if len(gone) > FEW and (span := gapless(gone)):
            connection.execute('DELETE FROM deliveries WHERE recipient = ? AND "order" BETWEEN ? AND ?', (recipient, *span))
        else:
            pairs += [(recipient, order) for order in gone]
    _delete_each(connection, "DELETE FROM deliveries WHERE", '(recipient = ? AND "order" = ?)', pairs)


def _delete_runs(connection: sqlite3.Connection, runs: Collection[int]) -> None:
    if len(runs) > FEW and (span := gapless(runs)):
        connection.execute("DELETE FROM runs WHERE id BETWEEN ? AND ?", span)
    else:
        _each(connection, "DELETE FROM runs WHERE id IN (", "?", [(run,) for run in runs])


def _delete_each(connection: sqlite3.Connection, head: str, row: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Delete rows by their keys. With `IN (VALUES ...)` SQLite would read the whole table; with OR it looks each up in the index."""
    _each(connection, head, row, rows, " OR ", TERMS)


def _each(
    connection: sqlite3.Connection, head: str, row: str, rows: Sequence[tuple[Any, ...]], between: str = ",", most: int = ROWS
) -> None:
    """Run a statement that ends in a list of rows, for as many of them at once as may be."""
    for i in range(0, len(rows), most):
        part = rows[i : i + most]
        wanted = _rounded(len(part))
        values = list(chain.from_iterable(part))
        values += part[-1] * (wanted - len(part))
        connection.execute(_statement(head, row, wanted, between), values)


@lru_cache(maxsize=1024)
def _statement(head: str, row: str, rows: int, between: str) -> str:
    return f"{head} {between.join([row] * rows)}{')' if head.count('(') > head.count(')') else ''}"


@lru_cache(maxsize=ROWS)
def _rounded(rows: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    size = 1
    while size < rows:
        if size * 3 // 2 >= rows and size > 1:
            return size * 3 // 2
        size *= 2
    return size
