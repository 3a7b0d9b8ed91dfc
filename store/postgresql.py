"""The store in a PostgreSQL server: for sites that have one, with its backups and its replication.

One broker's store is one schema of the database. Rows go in with COPY, the rest of a batch is one statement for each kind of
change, over arrays, so that a commit costs a handful of round trips whatever its size. With `sync` a commit returns when the
server has it on disk, without it the server may lose its last commits (`synchronous_commit = off`), never their soundness.

A lost connection fails the commit under way, whose outcome nobody knows; the next commit connects again, sees to it that the
server has ended the old connection, and so may be given the same batch. Every row carries a checksum over all of it (`checksums.py`), and
a table of one row says how many there are; pages are the server's (`initdb --data-checksums`).

What it does not know: what states and values mean.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from struct import error as StructError
from threading import Lock
from typing import Any, LiteralString, TypeVar

import psycopg

from .base import CONVERTED, PAGE, SCHEMA_VERSION, SIZES_PAGE, Kind, StoreError, damaged, gapless, wrong_version
from .checksums import delivery_checksum, recipient_checksum, run_checksum, value_checksum, with_checksums
from .postgresql_salvage import rows_of
from .postgresql_schema import Connection, Schema
from .records import Batch, Counts, StoredDelivery, StoredRun, StoredValue

VALUE_PAGE = 100
DEFAULT_SCHEMA = "mqmesh"
LOCK_CLASS = 0x6D71  # of advisory locks, "mq"

TABLES = """
CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE runs (id bigint PRIMARY KEY, topic bytea NOT NULL, qos smallint NOT NULL, retain boolean NOT NULL, properties bytea NOT NULL,
    expires_at double precision, published_at double precision NOT NULL, length integer NOT NULL, count integer NOT NULL,
    payloads bytea NOT NULL, checksum bigint);
CREATE TABLE recipients (number integer PRIMARY KEY, name text NOT NULL);
CREATE TABLE deliveries (recipient integer NOT NULL, "order" bigint NOT NULL, run bigint NOT NULL, start bigint NOT NULL,
    count bigint NOT NULL, qos smallint NOT NULL, state integer NOT NULL, packet_id integer NOT NULL, extra bytea NOT NULL,
    checksum bigint, PRIMARY KEY (recipient, "order"));
CREATE TABLE "values" ("table" text NOT NULL, digest bytea NOT NULL GENERATED ALWAYS AS (sha256(key)) STORED, key bytea NOT NULL,
    value bytea NOT NULL, checksum bigint, PRIMARY KEY ("table", digest));
ALTER TABLE runs ALTER payloads SET STORAGE EXTERNAL;
"""
TALLY = 'CREATE TABLE tally (id integer PRIMARY KEY, runs bigint NOT NULL, deliveries bigint NOT NULL, "values" bigint NOT NULL)'
CONVERTED_STEP = 500  # rows of an older version that one commit converts
RUN_TYPES = ("int8", "bytea", "int2", "bool", "bytea", "float8", "float8", "int4", "int4", "bytea", "int8")
DELIVERY_TYPES = ("int4", "int8", "int8", "int8", "int8", "int2", "int4", "int4", "bytea", "int8")

# Rows without a checksum: two numbers or texts that name each, and what the checksum is made of; how they get one.
_CONVERSIONS: tuple[tuple[LiteralString, LiteralString, Callable[[Sequence[Any]], int]], ...] = (
    (
        """SELECT id, 0, id, topic, qos, retain, properties, expires_at, published_at, length, count, payloads
            FROM runs WHERE checksum IS NULL LIMIT %s""",
        """UPDATE runs SET checksum = sum FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) g(number, zero, sum) WHERE id = number""",
        lambda row: run_checksum(StoredRun._make(row)),
    ),
    (
        """SELECT recipient, "order", name, "order", run, start, count, qos, state, packet_id, extra
            FROM deliveries LEFT JOIN recipients ON number = recipient WHERE checksum IS NULL LIMIT %s""",
        """UPDATE deliveries SET checksum = sum FROM unnest(%s::integer[], %s::bigint[], %s::bigint[]) g(number, place, sum)
            WHERE recipient = number AND "order" = place""",
        lambda row: delivery_checksum(StoredDelivery._make(row), recipient_checksum(row[0] or "")),
    ),
    (
        """SELECT "table", digest, "table", key, value FROM "values" WHERE checksum IS NULL LIMIT %s""",
        """UPDATE "values" SET checksum = sum FROM unnest(%s::text[], %s::bytea[], %s::bigint[]) g(name, place, sum)
            WHERE "table" = name AND digest = place""",
        lambda row: value_checksum(*row),
    ),
)

T = TypeVar("T")


class PostgresqlStore:
    """One schema of a PostgreSQL database.

    url: `postgresql://user:password@host:port/database?schema=name`; other parameters as in libpq. schema is made if need be
    (the user must be allowed to); "mqmesh" without. sync: whether `commit` waits for the server's disk.
    """

    counted = True

    def __init__(self, url: str, sync: bool = True) -> None:
        self._schema = Schema(url, DEFAULT_SCHEMA, LOCK_CLASS)
        self.name = self._schema.shown
        self._sync = sync
        self._writing: Connection | None = None
        self._reading: Connection | None = None
        self._reading_lock = Lock()
        self._in_snapshot = False
        self._numbers: dict[str, int] = {}
        self._next_number = 1
        self._opened = False
        self._counted = True  # whether the schema may have counts
        self.value_page = VALUE_PAGE  # values that one query reads

    def open(self) -> None:
        """Connect, make or check the schema, see `Store.open`."""
        if wrong := self._schema.wrong:
            raise StoreError(Kind.OTHER, self.name, wrong)
        try:
            self._guarded(self._prepare)
            self._opened = True
        except BaseException:
            self.close()
            raise

    def attach(self) -> None:
        """Connect for queries only, see `Store.attach`."""

        def start() -> None:
            self._reading = self._schema.connect()
            self._check_version(self._reading)
            if self._reading.execute("SELECT 1 FROM meta WHERE key = 'conversion'").fetchone():
                raise wrong_version(self.name, CONVERTED[-1])

        try:
            self._guarded(start)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._opened = False
        self._drop_writing()
        with self._reading_lock:
            self._drop_reading()

    # Writing.

    def commit(self, batch: Batch) -> None:
        """Apply a batch in one transaction; connects again if the connection was lost."""
        added: dict[str, int] = {}

        if not self._opened:
            raise StoreError(Kind.OTHER, self.name, "is not open")

        def run() -> None:
            connection = self._writing or self._reconnect()
            try:
                with connection.transaction():
                    self._before(connection, batch)
                    _apply(connection, batch, self._numbered(connection, batch, added), staged=batch.tried, may_count=self._counted)
            except psycopg.errors.UniqueViolation:  # something of it is there already: take the longer way
                with connection.transaction():
                    self._before(connection, batch)
                    added.clear()
                    _apply(connection, batch, self._numbered(connection, batch, added), staged=True, may_count=True)

        try:
            self._guarded(run)
        except BaseException:
            self._counted = True
            self._drop_writing()  # the outcome may be unknown: begin anew, with the names as the server has them
            raise
        self._counted = batch.counts is not None and batch.worth_counting
        for recipient in batch.recipients:
            self._numbers.pop(recipient, None)
        self._numbers.update(added)
        self._next_number += len(added)

    def _before(self, connection: Connection, batch: Batch) -> None:
        """What stands in the transaction of each batch before its changes."""

    def _numbered(self, connection: Connection, batch: Batch, added: dict[str, int]) -> dict[str, int]:
        """Drop the recipients that go; the numbers of all others that the batch names, new ones for those that had none."""
        gone = [self._numbers[name] for name in batch.recipients if name in self._numbers]
        if gone:
            connection.execute("DELETE FROM deliveries WHERE recipient = ANY(%s)", (gone,))
            connection.execute("DELETE FROM recipients WHERE number = ANY(%s)", (gone,))
        numbers = {}
        for name in chain(batch.deliveries, batch.gone):
            number = None if name in batch.recipients else self._numbers.get(name)
            if number is None and batch.deliveries.get(name):
                number = added.get(name)
                if number is None:
                    number = added[name] = self._next_number + len(added)
            if number is not None:
                numbers[name] = number
        if added:
            query = "INSERT INTO recipients SELECT * FROM unnest(%s::integer[], %s::text[])"
            connection.execute(query, (list(added.values()), list(added)))
        return numbers

    # Queries.

    def run(self, run: int) -> StoredRun | None:
        """The run of this id, or None."""
        return self.runs((run,)).get(run)

    def runs(self, ids: Iterable[int]) -> dict[int, StoredRun]:
        """The runs of these ids that are there."""
        wanted = list(ids)
        found = {}
        for i in range(0, len(wanted), VALUE_PAGE):
            for row in self._query("SELECT * FROM runs WHERE id = ANY(%s)", (wanted[i : i + VALUE_PAGE],)):
                found[row[0]] = stored = StoredRun._make(row[:10])
                self._check(row[10], partial(run_checksum, stored), f"run {row[0]}")
        return found

    def deliveries(
        self, recipient: str | None = None, state: int | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[StoredDelivery]:
        """Deliveries in their order, see `Store.deliveries`."""
        last: tuple[int, int] = (0, 0)
        if recipient is not None:
            rows = self._query("SELECT number FROM recipients WHERE name = %s", (recipient,))
            if not rows:
                return
            last = (rows[0][0], after)
        query = f"""SELECT recipient, name, "order", run, start, count, qos, state, packet_id, extra, checksum FROM deliveries
            JOIN recipients ON number = recipient
            WHERE {'(recipient, "order") > (%s, %s)' if recipient is None else 'recipient = %s AND "order" > %s'}
            {"" if state is None else f"AND state = {int(state)}"} {f'AND "order" > {int(after)}' if recipient is None and after else ""}
            ORDER BY recipient, "order" LIMIT %s"""
        left = limit
        while left is None or left > 0:
            wanted = PAGE if left is None else min(PAGE, left)
            rows = self._query(query, (*last, wanted))
            for row in rows:
                stored = StoredDelivery._make(row[1:10])
                self._check_delivery(row[10], stored)
                yield stored
            if len(rows) < wanted:
                return
            last = (rows[-1][0], rows[-1][2])
            left = None if left is None else left - wanted

    def count(self, recipient: str, state: int | None = None) -> int:
        """How many messages are stored for a recipient."""
        query = "SELECT coalesce(sum(count), 0)::bigint FROM deliveries JOIN recipients ON number = recipient WHERE name = %s"
        return int(self._query(query + ("" if state is None else f" AND state = {int(state)}"), (recipient,))[0][0])

    def value(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""
        rows = self._query('SELECT value, checksum FROM "values" WHERE "table" = %s AND digest = sha256(%s)', (table, key))
        if not rows:
            return None
        self._check_value(rows[0][1], table, key, rows[0][0])
        return rows[0][0]  # type: ignore[no-any-return]

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table."""
        last = b""
        query = 'SELECT key, value, checksum, digest FROM "values" WHERE "table" = %s AND digest > %s ORDER BY digest LIMIT %s'
        while True:
            rows = self._query(query, (table, last, self.value_page))
            for key, value, checksum, _ in rows:
                self._check_value(checksum, table, key, value)
                yield key, value
            if len(rows) < self.value_page:
                return
            last = rows[-1][3]

    def highest_run(self) -> int:
        """The highest id of a stored run, 0 without any."""
        return int(self._query("SELECT coalesce(max(id), 0) FROM runs", ())[0][0])

    def highest_order(self, recipient: str) -> int:
        """The highest order among a recipient's deliveries, 0 without any."""
        query = 'SELECT coalesce(max("order"), 0) FROM deliveries WHERE recipient = (SELECT number FROM recipients WHERE name = %s)'
        return int(self._query(query, (recipient,))[0][0])

    def run_sizes(self) -> Iterator[tuple[int, int]]:
        """(id, bytes) of each run; the server knows the length of a long one without reading it."""
        size = "octet_length(topic) + octet_length(properties) + octet_length(payloads)"
        query = f"SELECT id, {size} FROM runs WHERE id > %s ORDER BY id LIMIT %s"
        last = -1
        while rows := self._query(query, (last, SIZES_PAGE)):
            yield from rows
            last = rows[-1][0]

    def value_sizes(self) -> Iterator[tuple[str, bytes, int]]:
        """(table, key, bytes) of each value."""
        query = """SELECT "table", key, octet_length(value), digest FROM "values" WHERE ("table", digest) > (%s, %s)
            ORDER BY "table", digest LIMIT %s"""
        last: tuple[str, bytes] = ("", b"")
        while rows := self._query(query, (*last, SIZES_PAGE)):
            for row in rows:
                yield row[:3]
            last = rows[-1][0], rows[-1][3]

    def counts(self) -> Counts | None:
        """How many rows there were after the last commit that said so."""
        rows = self._query('SELECT runs, deliveries, "values" FROM tally', ())
        return Counts._make(rows[0]) if rows else None

    def remains(self, say: Callable[[str], object]) -> Iterator[StoredDelivery | StoredValue]:
        """All deliveries and values that are whole, see `Store.remains`; the server says which page is not."""
        names = dict(rows_of(self._query, "number, name", "recipients", say))
        columns: LiteralString = 'recipient, "order", run, start, count, qos, state, packet_id, extra, checksum'
        for row in rows_of(self._query, columns, "deliveries", say):
            stored = StoredDelivery(names.get(row[0], ""), *row[1:9])
            try:
                self._check_delivery(row[9], stored)
            except StoreError as error:
                say(error.cause)
            else:
                yield stored
        for table, key, value, checksum in rows_of(self._query, '"table", key, value, checksum', '"values"', say):
            try:
                self._check_value(checksum, table, key, value)
            except StoreError as error:
                say(error.cause)
            else:
                yield StoredValue(table, key, value)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """One read transaction, see `Store.snapshot`."""
        for statement in ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SAVEPOINT begun"):
            self._guarded(partial(self._open_reading().execute, statement))
        self._in_snapshot = True
        try:
            yield
        finally:
            self._in_snapshot = False
            with contextlib.suppress(psycopg.Error, StoreError):
                self._open_reading().execute("ROLLBACK")

    def check_pages(self) -> None:
        """Nothing: pages are the server's."""

    def space(self) -> int | None:
        """Not known: the disk is the server's."""
        return None

    # Inside.

    def _check_delivery(self, checksum: int, stored: StoredDelivery) -> None:
        self._check(checksum, partial(_delivery_checksum, stored), f"delivery {stored.order} of {stored.recipient!r}")

    def _check_value(self, checksum: int, table: str, key: bytes, value: bytes) -> None:
        self._check(checksum, partial(value_checksum, table, key, value), f"the value of {key[:40]!r} in {table}")

    def _check(self, checksum: int, right: Callable[[], int], what: str) -> None:
        try:
            whole = checksum == right()
        except StructError:
            whole = False
        if not whole:
            raise damaged(self.name, f"{what} does not have its checksum")

    def _convert(self, connection: Connection) -> None:
        """Convert a schema of version 1 (mqmesh 0.1) in place, in steps; rows without a checksum are those that are left."""
        version: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        if int(version["schema"]) in CONVERTED:
            with connection.transaction():
                for table in ("runs", "deliveries", '"values"'):
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum bigint")
                connection.execute(TALLY)
                connection.execute("UPDATE meta SET value = %s WHERE key = 'schema'", (str(SCHEMA_VERSION),))
                connection.execute("INSERT INTO meta VALUES ('conversion', 'runs')")
            version["conversion"] = "runs"
        if "conversion" not in version:
            return
        for select, update, checksum in _CONVERSIONS:
            while rows := connection.execute(select, (CONVERTED_STEP,), binary=True).fetchall():
                keys = [list(column) for column in zip(*[row[0:2] for row in rows], strict=True)]
                connection.execute(update, (*keys, [checksum(row[2:]) for row in rows]))
        connection.execute("DELETE FROM meta WHERE key = 'conversion'")

    def _prepare(self) -> None:
        connection = self._reconnect(create=True)
        with connection.transaction():
            connection.execute("DELETE FROM runs WHERE NOT EXISTS (SELECT FROM deliveries WHERE run = runs.id)")
            connection.execute("DELETE FROM recipients WHERE NOT EXISTS (SELECT FROM deliveries WHERE recipient = number)")
        self._load_numbers(connection)
        self._reading = self._schema.connect()

    def _reconnect(self, create: bool = False) -> Connection:
        connection = self._schema.connect()
        try:
            if busy := self._schema.lock(connection):
                raise StoreError(Kind.BUSY, self.name, busy)
            if create:
                self._create(connection)
            self._check_version(connection, CONVERTED if create else ())
            if create:
                self._convert(connection)
            connection.execute(f"SET synchronous_commit TO {'on' if self._sync else 'off'}")
            connection.execute("CREATE TEMPORARY TABLE new_runs (LIKE runs) ON COMMIT DELETE ROWS")
            connection.execute("CREATE TEMPORARY TABLE new_deliveries (LIKE deliveries) ON COMMIT DELETE ROWS")
            self._load_numbers(connection)
        except BaseException:
            connection.close()
            raise
        self._writing = connection
        return connection

    def _create(self, connection: Connection) -> None:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (self._schema.name,)).fetchall()
        if ("meta",) in tables:
            return
        if any(table != ("lease",) for table in tables):
            raise StoreError(Kind.SCHEMA, self.name, f"schema {self._schema.name} holds tables of another program: name another schema")
        with connection.transaction():
            self._schema.create(connection)
            connection.execute(TABLES)
            connection.execute(TALLY)
            connection.execute("INSERT INTO meta VALUES ('schema', %s)", (str(SCHEMA_VERSION),))

    def _check_version(self, connection: Connection, converted: Collection[int] = ()) -> None:
        try:
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise StoreError(Kind.SCHEMA, self.name, f"schema {self._schema.name} is not a store: no broker has used it yet") from error
        found = int(row[0]) if row is not None else 0
        if found != SCHEMA_VERSION and found not in converted:
            raise wrong_version(self.name, found)

    def _load_numbers(self, connection: Connection) -> None:
        rows = connection.execute("SELECT name, number FROM recipients").fetchall()
        self._numbers = dict(rows)
        self._next_number = max(self._numbers.values(), default=0) + 1

    def _open_reading(self) -> Connection:
        if self._reading is None:
            raise StoreError(Kind.OTHER, self.name, "is not open")
        return self._reading

    def _query(self, query: str, parameters: Sequence[Any]) -> list[Any]:
        def run() -> list[Any]:
            connection = self._open_reading()
            try:
                return connection.execute(query, parameters, binary=True).fetchall()
            except psycopg.Error as error:
                if self._in_snapshot:
                    if not connection.broken:
                        connection.execute("ROLLBACK TO SAVEPOINT begun")  # a query that failed does not end the others
                    raise
                if not connection.broken or not isinstance(error, psycopg.OperationalError):
                    raise
                connection.close()
                self._reading = self._schema.connect()
                return self._reading.execute(query, parameters, binary=True).fetchall()

        with self._reading_lock:
            return self._guarded(run)

    def _drop_writing(self) -> None:
        connection, self._writing = self._writing, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _drop_reading(self) -> None:
        connection, self._reading = self._reading, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except psycopg.Error as error:
            raise self._schema.error(error) from error
        except UnicodeDecodeError as error:
            raise damaged(self.name, f"a text is not UTF-8: {error}") from error


def _apply(connection: Connection, batch: Batch, numbers: dict[str, int], staged: bool, may_count: bool) -> None:
    """The changes of a batch in their order, but for the recipients that go. staged: insert by way of temporary tables, which
    copes with rows that are there already."""
    if batch.runs:
        _copy(connection, "runs", RUN_TYPES, [(*run, run_checksum(run)) for run in batch.runs.values()], "ON CONFLICT DO NOTHING", staged)
    _delete_deliveries(connection, batch.gone, numbers)
    if not staged:
        _delete_deliveries(connection, batch.replaced, numbers)
    rows = []
    for recipient, orders in batch.deliveries.items():
        rows += [(numbers[recipient], *row[1:]) for row in with_checksums(recipient, orders.values())]
    if rows:
        update = """ON CONFLICT (recipient, "order") DO UPDATE SET run = excluded.run, start = excluded.start, count = excluded.count,
            qos = excluded.qos, state = excluded.state, packet_id = excluded.packet_id, extra = excluded.extra,
            checksum = excluded.checksum"""
        _copy(connection, "deliveries", DELIVERY_TYPES, rows, update, staged)
    if batch.runs_gone:
        lows, highs = _spans(batch.runs_gone)
        connection.execute(
            "DELETE FROM runs USING unnest(%s::bigint[], %s::bigint[]) g(low, high) WHERE id BETWEEN low AND high", (lows, highs)
        )
    _apply_values(connection, batch)
    counted = batch.counts if batch.worth_counting else None
    if counted is not None:
        query = """INSERT INTO tally VALUES (1, %s, %s, %s) ON CONFLICT (id) DO UPDATE
            SET runs = excluded.runs, deliveries = excluded.deliveries, "values" = excluded."values" """
        connection.execute(query, counted)
    elif may_count:
        connection.execute("DELETE FROM tally")


def _copy(connection: Connection, table: str, types: Sequence[str], rows: Iterable[Sequence[Any]], conflict: str, staged: bool) -> None:
    target = f"new_{table}" if staged else table
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY {target} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)
        if staged:
            cursor.execute(f"INSERT INTO {table} SELECT * FROM {target} {conflict}")


def _delete_deliveries(connection: Connection, gone: dict[str, set[int]], numbers: dict[str, int]) -> None:
    names, lows, highs = [], [], []
    for name, orders in gone.items():
        if orders and name in numbers:
            low, high = _spans(orders)
            names += [numbers[name]] * len(low)
            lows += low
            highs += high
    if names:
        query = """DELETE FROM deliveries USING unnest(%s::integer[], %s::bigint[], %s::bigint[]) g(name, low, high)
            WHERE recipient = name AND "order" BETWEEN low AND high"""
        connection.execute(query, (names, lows, highs))


def _spans(numbers: set[int]) -> tuple[list[int], list[int]]:
    """The lowest and the highest of each range: one if there is no gap, else each number by itself."""
    span = gapless(numbers)
    return ([span[0]], [span[1]]) if span else (list(numbers), list(numbers))


def _delivery_checksum(delivery: StoredDelivery) -> int:
    return delivery_checksum(delivery, recipient_checksum(delivery.recipient))


def _apply_values(connection: Connection, batch: Batch) -> None:
    changes = list(batch.value_changes())
    put = [(table, key, value, value_checksum(table, key, value)) for table, key, value in changes if value is not None]
    gone = [change for change in changes if change[2] is None]
    if put:
        query = """INSERT INTO "values" ("table", key, value, checksum)
            SELECT * FROM unnest(%s::text[], %s::bytea[], %s::bytea[], %s::bigint[])
            ON CONFLICT ("table", digest) DO UPDATE SET value = excluded.value, checksum = excluded.checksum"""
        connection.execute(query, tuple(map(list, zip(*put, strict=True))))
    if gone:
        query = """DELETE FROM "values" USING unnest(%s::text[], %s::bytea[]) g(t, k)
            WHERE "table" = t AND digest = sha256(k)"""
        connection.execute(query, tuple(map(list, zip(*gone, strict=True)))[:2])
