"""The sessions of several metabrokers in one PostgreSQL database: each has a schema, its *home*, and others take over those of the dead.

Who has a home's lease writes in it (`store/postgresql_lease.py`): each commit looks for it first. The lease of a metabroker that was killed
is free at once, that of one that is silent after some seconds. Who takes it reads the home, puts everything into its own, and drops the
schema in the same commit. Requests are by far the most of it, and are moved by the server. So a session is in one home at any time.

A metabroker has a new home each time that it begins. What it had before is taken over like that of any other.

What it does not know: when a home is to be taken (`peers/roster.py`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from ...store.base import Kind, StoreError
from ...store.lease_keeper import Keeper
from ...store.postgresql import PostgresqlStore
from ...store.postgresql_lease import Lease
from ...store.postgresql_schema import Connection, Schema
from ...store.records import Batch, StoredDelivery, StoredRun
from ..core.records import ACKED, ASKED, FILTER, LIFE, REMOTE, REQUEST, SESSION, TAKEN

SCHEMA = "mqmesh_metabroker"
LOCK_CLASS = 0x6D73  # of advisory locks, "ms"
SECONDS = 5.0  # of a lease
VALUES = 100_000  # small ones, that one query reads
LOST = "another metabroker has taken its sessions over"


class HomeStore(PostgresqlStore):
    """The store in a home. lease: of the home; without it nothing is committed."""

    def __init__(self, url: str, lease: Lease, base: str) -> None:
        super().__init__(url)
        self._lease, self._base = lease, base

    def _before(self, connection: Connection, batch: Batch) -> None:
        try:
            has = connection.execute(self._lease.fence).fetchone() is not None
        except psycopg.errors.UndefinedTable:
            has = False
        if not has:
            raise StoreError(Kind.BUSY, self.name, LOST)
        for key, value in batch.values.get(TAKEN, {}).items():
            if value is not None:
                _move(connection, f"{self._base}_{key.decode()}")


def _move(connection: Connection, home: str) -> None:
    """Move the requests of a home into that of the connection, and drop it.

    It is not there any more if this was done before: a commit whose outcome was not known is repeated. It may have no tables yet.
    """
    name = sql.Identifier(home)
    if connection.execute("SELECT to_regclass(%s)", (f'{home}."values"',)).fetchone() != (None,):
        query = """INSERT INTO "values" ("table", key, value, checksum)
            SELECT "table", key, value, checksum FROM {}."values" WHERE "table" = %s ORDER BY digest
            ON CONFLICT ("table", digest) DO UPDATE SET value = excluded.value, checksum = excluded.checksum"""
        connection.execute(sql.SQL(query).format(name), (REQUEST,))
    connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


class TakenHome:
    """What was in another one's home, and its lease: a `Readable`."""

    def __init__(self, number: int, lease: Lease) -> None:
        self.number, self.lease = number, lease
        self._values: dict[str, list[tuple[bytes, bytes]]] = {}
        self._deliveries: list[StoredDelivery] = []
        self._runs: dict[int, StoredRun] = {}

    def read(self, url: str) -> None:
        """Read it. Raises StoreError."""
        store = PostgresqlStore(url)
        store.value_page = VALUES
        store.attach()
        try:
            for table in (REMOTE, SESSION, FILTER, ASKED, ACKED, REQUEST, LIFE):
                self._values[table] = list(store.values(table))
            self._deliveries = list(store.deliveries())
            self._runs = store.runs({one.run for one in self._deliveries})
        finally:
            store.close()

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """See `Readable`."""
        return iter(self._values.get(table, ()))

    def deliveries(self) -> Iterator[StoredDelivery]:
        """See `Readable`."""
        return iter(self._deliveries)

    def run(self, run: int) -> StoredRun | None:
        """See `Readable`."""
        return self._runs.get(run)

    def highest_run(self) -> int:
        """See `Readable`."""
        return max(self._runs, default=0)


class Homes:
    """The homes in a database. url: of the database; `schema` is how the names of all homes begin. Methods block, and raise StoreError.

    number: of our own home. store: in it, not yet open.
    """

    def __init__(self, url: str) -> None:
        self._schema = Schema(url, SCHEMA, LOCK_CLASS)
        if self._schema.wrong or len(self._schema.name) > 54:
            raise StoreError(Kind.OTHER, self._schema.shown, self._schema.wrong or "its name has at most 54 letters")
        self._url = url
        self._looking: Connection | None = None
        self._keeper: Keeper | None = None
        while True:
            self.number = secrets.randbits(32)
            self._lease = self._lease_of(self.number)
            if self.number not in self.others() and self._take(self._lease):
                break
        self.store = HomeStore(self._url_of(self.number), self._lease, self._schema.name)

    def keep(self, call: Callable[..., Any], lost: Callable[[], None]) -> None:
        """Renew our lease from now on. call: runs a function in the loop. lost: is told there that another one has taken it."""
        self._keeper = Keeper(self._lease, call, lambda token: lost(), lost, lambda: None, "metabroker-lease", has=True)

    def holds(self) -> bool:
        """Whether nobody else can have our home."""
        return self._keeper is None or self._keeper.valid()

    def others(self) -> set[int]:
        """The homes that there are beside ours."""
        with self._errors():
            if self._looking is None or self._looking.closed:
                self._looking = self._schema.connect()
            pattern = f"^{re.escape(self._schema.name)}_[0-9a-f]{{8}}$"
            rows = self._looking.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ %s", (pattern,)).fetchall()
        return {int(name[-8:], 16) for (name,) in rows} - {self.number}

    def take(self, number: int) -> TakenHome | None:
        """Take another one's home; None: it is still there. Its lease is to be closed once its sessions are kept here."""
        found = TakenHome(number, self._lease_of(number))
        try:
            if not self._take(found.lease):
                found.lease.close()
                return None
            try:
                found.read(self._url_of(number))
            except StoreError as error:
                if error.kind is not Kind.SCHEMA:  # it has not got as far as a store, or somebody was faster
                    raise
        except BaseException:
            found.lease.close()
            raise
        return found

    def close(self) -> None:
        """Others may take our home."""
        if self._keeper is not None:
            self._keeper.close()
        else:
            self._lease.close()
        if self._looking is not None:
            with contextlib.suppress(psycopg.Error):
                self._looking.close()

    def _take(self, lease: Lease) -> bool:
        try:
            return lease.take()
        except OSError as error:
            raise StoreError(Kind.UNREACHABLE, self._schema.shown, error.strerror or str(error)) from error

    def _lease_of(self, number: int) -> Lease:
        return Lease(Schema(self._url_of(number), SCHEMA, LOCK_CLASS), "metabroker", SECONDS)

    def _url_of(self, number: int) -> str:
        parts = urlsplit(self._url)
        query = [pair for pair in parse_qsl(parts.query) if pair[0] != "schema"]
        return urlunsplit(parts._replace(query=urlencode([*query, ("schema", f"{self._schema.name}_{number:08x}")])))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StoreError(Kind.UNREACHABLE, self._schema.shown, str(error).strip().partition("\n")[0]) from error
