"""The records, in SQLite or PostgreSQL, and who may see and change them.

An entity is one of UDDI's four (a business, a service, a binding, a tModel): its document is XML without key attributes and
without the entities inside it, which are rows of their own with `parent` and `position`. The columns beside the document are
read from it when it is saved (`documents`); two of them are guarded by the database: within a parent no two records of
one sort have one name, no two brokers one number.

Each request is one transaction. Writers take turns (an advisory lock of PostgreSQL, BEGIN IMMEDIATE of SQLite), so that
what a writer has checked still holds when it commits, in several processes over one database too.

What has a lease (`leases`) is there until the lease ends: nobody sees it afterwards, and the next writer removes it. The time is the
database server's where there is one, so that processes on several machines need not agree; else this machine's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import IntegrityError, OperationalError

from ...base.settings import ConfigError
from ...base.standing import StandingFile
from .errors import DirectoryError
from .login_turns import LoginTurns

log = logging.getLogger("mqmesh.directory")

LOCK = 0x6D716D65  # the advisory lock of writers
PUBLIC, ORGANISATION = "public", "organisation"
NODE = "mqmesh"  # owns what each directory has from the start; no account can have this name
ACCOUNT_LIMIT = 10_000  # entities of one owner
BUSY = 5.0  # seconds that a writer waits for another

metadata = sa.MetaData()
entities = sa.Table(
    "directory_entities",
    metadata,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False, index=True),
    sa.Column("parent", sa.String(255), nullable=False, index=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("owner", sa.String(255), nullable=False, index=True),
    sa.Column("organisation", sa.String(255), nullable=False),
    sa.Column("visibility", sa.String(16), nullable=False),
    sa.Column("record", sa.String(16)),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("number", sa.Integer),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("modified", sa.Float, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.UniqueConstraint("parent", "record", "name"),
    sa.UniqueConstraint("parent", "number"),
)
accounts = sa.Table(
    "directory_accounts",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("organisation", sa.String(255), nullable=False),
    sa.Column("secret", sa.String(255), nullable=False),
)
tokens = sa.Table(
    "directory_tokens",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("account", sa.String(255), nullable=False, index=True),
    sa.Column("expires", sa.Float, nullable=False),
)
# A broker of a mesh by its number: while the lease lasts it has the number, until `kept` nobody else gets it.
leases = sa.Table(
    "directory_leases",
    metadata,
    sa.Column("mesh", sa.String(255), primary_key=True),  # the key of the business
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("holder", sa.String(36), nullable=False, index=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("owner", sa.String(255), nullable=False),
    sa.Column("expires", sa.Float, nullable=False),
    sa.Column("kept", sa.Float, nullable=False, index=True),
    sa.Column("digest", sa.String(64), nullable=False),
)
# The entities that are there for as long as a lease.
leased = sa.Table(
    "directory_leased",
    metadata,
    sa.Column("entity", sa.String(255), primary_key=True),
    sa.Column("mesh", sa.String(255), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("expires", sa.Float, nullable=False, index=True),
    sa.Index("directory_leased_by_lease", "mesh", "number"),
)


@dataclass(slots=True, frozen=True)
class Account:
    """Who asks."""

    name: str
    organisation: str


@dataclass(slots=True)
class Entity:
    """One row. created, modified: seconds since 1970. deleted: a tModel that is hidden."""

    key: str
    kind: str
    parent: str
    position: int
    owner: str
    organisation: str
    visibility: str
    record: str | None
    name: str
    number: int | None
    document: str
    created: float
    modified: float
    deleted: bool = False

    @property
    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Lease:
    """A broker's hold on a number. expires, kept: seconds since 1970. digest: of what its entities were made from."""

    mesh: str
    number: int
    holder: str
    name: str
    owner: str
    expires: float
    kept: float
    digest: str

    @property
    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Records:
    """The rows, inside one transaction, as `reader` may see them (None: somebody without an account)."""

    def __init__(self, connection: Connection, reader: Account | None, now: float) -> None:
        self._connection = connection
        self.reader = reader
        self.now = now
        self._counts: dict[str, int] = {}  # owner -> entities, once it was counted
        self._conditions: tuple[Account | None, sa.ColumnElement[bool]] | None = None  # what a reader sees, made once

    def get(self, key: str) -> Entity | None:
        """The entity with this key, if there is one and the reader may see it."""
        return next(iter(self._select(entities.c.key == key.lower())), None)

    def hidden(self, key: str) -> bool:
        """Whether a key is taken, by whomever."""
        return self._connection.scalar(sa.select(entities.c.key).where(entities.c.key == key.lower())) is not None

    def of_kind(self, kind: str, *conditions: sa.ColumnElement[bool]) -> list[Entity]:
        """All of a kind that the reader may see, hidden tModels not among them."""
        return self._select(entities.c.kind == kind, ~entities.c.deleted, *conditions)

    def children(self, parents: Iterable[str]) -> dict[str, list[Entity]]:
        """What is inside each of `parents`, in order."""
        found: dict[str, list[Entity]] = {parent: [] for parent in parents}
        keys = list(found)
        for start in range(0, len(keys), 500):
            for entity in self._select(entities.c.parent.in_(keys[start : start + 500])):
                found[entity.parent].append(entity)
        return found

    def next_position(self, parent: str) -> int:
        """The place behind everything that is inside an entity."""
        last = self._connection.scalar(sa.select(sa.func.max(entities.c.position)).where(entities.c.parent == parent))
        return 0 if last is None else last + 1

    def record(self, parent: str, record: str, name: str) -> Entity | None:
        """The record of a sort with a name within a business (parent "" for meshes)."""
        conditions = (entities.c.parent == parent, entities.c.record == record, entities.c.name == name)
        return next(iter(self._select(*conditions)), None)

    def owned(self, owner: str, kind: str) -> list[Entity]:
        """All that an account owns, hidden tModels too."""
        return self._select(entities.c.owner == owner, entities.c.kind == kind)

    def put(self, entity: Entity) -> None:
        """Write one row over the old one or anew; DirectoryError E_valueNotAllowed, E_accountLimitExceeded."""
        known = self.hidden(entity.key)
        if not known and entity.owner != NODE:
            self._count(entity.owner)
        if entity.number is not None:
            self._check_number(entity)
        try:
            if known:
                self._connection.execute(sa.update(entities).where(entities.c.key == entity.key).values(entity.values))
            else:
                self._connection.execute(sa.insert(entities).values(entity.values))
        except IntegrityError as error:
            text = f"another {entity.record} here has the name {entity.name!r}"
            if entity.number is not None:
                text += f" or the number {entity.number}"
            raise DirectoryError("E_valueNotAllowed", text) from error

    def _count(self, owner: str) -> None:
        """One entity more of an owner; DirectoryError E_accountLimitExceeded."""
        if owner not in self._counts:
            counted = sa.select(sa.func.count()).select_from(entities).where(entities.c.owner == owner)
            self._counts[owner] = self._connection.scalar(counted) or 0
        if self._counts[owner] >= ACCOUNT_LIMIT:
            raise DirectoryError("E_accountLimitExceeded", f"an account may own {ACCOUNT_LIMIT} entities")
        self._counts[owner] += 1

    def _check_number(self, entity: Entity) -> None:
        """A number that a lease holds, or that is kept for its broker, goes to no other one."""
        for lease in self.leases(entity.parent, leases.c.number == entity.number):
            if (lease.name, lease.owner) != (entity.name, entity.owner):
                raise DirectoryError("E_valueNotAllowed", f"the number {entity.number} is kept for the broker {lease.name!r}")

    def delete(self, keys: Iterable[str]) -> None:
        """Remove entities and what is inside them; of a mesh the leases too."""
        keys = list(keys)
        self._counts.clear()
        if keys:
            self._connection.execute(sa.delete(leases).where(leases.c.mesh.in_(keys)))
        while keys:
            self._connection.execute(sa.delete(leased).where(leased.c.entity.in_(keys)))
            inside = list(self._connection.scalars(sa.select(entities.c.key).where(entities.c.parent.in_(keys))))
            self._connection.execute(sa.delete(entities).where(entities.c.key.in_(keys)))
            keys = inside

    # Leases

    def leases(self, mesh: str, *conditions: sa.ColumnElement[bool]) -> list[Lease]:
        """The leases in a mesh, those that are over too, in order of number."""
        statement = sa.select(leases).where(leases.c.mesh == mesh, *conditions).order_by(leases.c.number)
        return [Lease(**row) for row in self._connection.execute(statement).mappings()]

    def leases_like(self, mesh: str, holder: str, name: str) -> list[Lease]:
        """Those of a holder, or of a name, the last one first."""
        found = self.leases(mesh, sa.or_(leases.c.holder == holder, leases.c.name == name))
        return sorted(found, key=lambda one: (-one.expires, one.number))

    def numbers(self, mesh: str) -> set[int]:
        """Every number that is not free in a mesh: of brokers, and kept for brokers."""
        of_leases = self._connection.scalars(sa.select(leases.c.number).where(leases.c.mesh == mesh))
        of_brokers = self._connection.scalars(sa.select(entities.c.number).where(entities.c.parent == mesh, entities.c.number.is_not(None)))
        return {*of_leases, *of_brokers}

    def fixed(self, mesh: str, number: int) -> str | None:
        """The name of the broker that has a number in a mesh without a lease."""
        held = entities.c.key.in_(sa.select(leased.c.entity))
        named = sa.select(entities.c.name).where(entities.c.parent == mesh, entities.c.number == number, ~held)
        return self._connection.scalar(named)

    def put_lease(self, lease: Lease) -> None:
        """Write a lease over the one of its number; what it has leased lasts as long."""
        place = (leases.c.mesh == lease.mesh, leases.c.number == lease.number)
        if self._connection.execute(sa.update(leases).where(*place).values(lease.values)).rowcount == 0:
            self._connection.execute(sa.insert(leases).values(lease.values))
        inside = (leased.c.mesh == lease.mesh, leased.c.number == lease.number)
        self._connection.execute(sa.update(leased).where(*inside).values(expires=lease.expires))

    def delete_lease(self, lease: Lease) -> None:
        """The number is free."""
        self._connection.execute(sa.delete(leases).where(leases.c.mesh == lease.mesh, leases.c.number == lease.number))

    def leased(self, lease: Lease) -> set[str]:
        """The keys of what a lease holds."""
        return set(self._connection.scalars(sa.select(leased.c.entity).where(leased.c.mesh == lease.mesh, leased.c.number == lease.number)))

    def is_leased(self, key: str) -> bool:
        """Whether an entity is there for as long as a lease only."""
        return self._connection.scalar(sa.select(leased.c.entity).where(leased.c.entity == key)) is not None

    def lease_entity(self, key: str, lease: Lease) -> None:
        """An entity is there for as long as the lease."""
        self.keep_entity(key)
        self._connection.execute(sa.insert(leased).values(entity=key, mesh=lease.mesh, number=lease.number, expires=lease.expires))

    def keep_entity(self, key: str) -> None:
        """An entity is there until it is deleted."""
        self._connection.execute(sa.delete(leased).where(leased.c.entity == key))

    def sweep(self) -> None:
        """Remove what no lease holds any more, and free numbers that were kept for long enough."""
        self.delete(list(self._connection.scalars(sa.select(leased.c.entity).where(leased.c.expires <= self.now))))
        self._connection.execute(sa.delete(leases).where(leases.c.kept <= self.now))

    # Accounts and tokens

    def account(self, name: str) -> tuple[Account, str] | None:
        """An account and the hash of its secret."""
        row = self._connection.execute(sa.select(accounts).where(accounts.c.name == name)).first()
        return (Account(row.name, row.organisation), row.secret) if row else None

    def put_account(self, account: Account, secret: str) -> None:
        """Make an account, or give it another organisation and secret; its tokens end."""
        self._connection.execute(sa.delete(accounts).where(accounts.c.name == account.name))
        self._connection.execute(sa.delete(tokens).where(tokens.c.account == account.name))
        self._connection.execute(sa.insert(accounts).values(name=account.name, organisation=account.organisation, secret=secret))
        self._connection.execute(sa.update(entities).where(entities.c.owner == account.name).values(organisation=account.organisation))

    def put_token(self, digest: str, account: str, expires: float) -> None:
        """Keep a token's digest until `expires`; older ones that are over go."""
        self._connection.execute(sa.delete(tokens).where(tokens.c.expires < self.now))
        self._connection.execute(sa.insert(tokens).values(digest=digest, account=account, expires=expires))

    def delete_token(self, digest: str) -> None:
        """End a token."""
        self._connection.execute(sa.delete(tokens).where(tokens.c.digest == digest))

    def holder(self, digest: str) -> Account | None:
        """Whose token this is, if it is not over."""
        joined = sa.select(accounts).join(tokens, tokens.c.account == accounts.c.name)
        row = self._connection.execute(joined.where(tokens.c.digest == digest, tokens.c.expires >= self.now)).first()
        return Account(row.name, row.organisation) if row else None

    def _select(self, *conditions: sa.ColumnElement[bool]) -> list[Entity]:
        statement = sa.select(entities).where(*conditions).order_by(entities.c.position, entities.c.key)
        return [Entity(**row) for row in self._connection.execute(self._seen(statement)).mappings()]

    def _seen(self, statement: sa.Select[Any]) -> sa.Select[Any]:
        """Leave out what is for an organisation other than the reader's, or whose lease is over, and what is inside (two levels)."""
        if self._conditions is None or self._conditions[0] != self.reader:
            private = entities.c.visibility == ORGANISATION
            if self.reader is not None:
                private = private & (entities.c.organisation != self.reader.organisation)
            over = entities.c.key.in_(sa.select(leased.c.entity).where(leased.c.expires <= self.now))
            hidden = sa.select(entities.c.key).where(sa.or_(private, over))
            inside = sa.select(entities.c.key).where(entities.c.parent.in_(hidden))
            seen = sa.and_(entities.c.key.not_in(hidden), entities.c.parent.not_in(hidden), entities.c.parent.not_in(inside))
            self._conditions = self.reader, seen
        return statement.where(self._conditions[1])


class Store:
    """The database. url: of SQLAlchemy, such as sqlite:///directory.db or postgresql://user@host/name.

    clock: gives seconds since 1970; None: that of the PostgreSQL server, or this machine's.
    logins: whose secret is compared next. standing: who has paid.
    """

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self.logins = LoginTurns()
        self.standing = StandingFile()
        parsed = make_url(url)
        self._postgresql = parsed.get_backend_name() == "postgresql"
        if self._postgresql:
            self._engine = sa.create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, pool_timeout=BUSY)
        else:
            if parsed.database and parsed.database != ":memory:" and "uri" not in parsed.query:
                _make_private(Path(parsed.database))
            self._engine = sa.create_engine(parsed, connect_args={"timeout": BUSY})
            sa.event.listen(self._engine, "connect", _own_transactions)
            sa.event.listen(self._engine, "begin", _begin)
        with self._transaction(None, True, fresh=True) as records:
            metadata.create_all(records._connection)

    def check_paid(self, owner: Account) -> None:
        """Raise DirectoryError E_accountLimitExceeded for an account that is overdue."""
        try:
            self.standing.look(time.monotonic())
        except ConfigError as error:
            log.error("event=standing-not-read text=%s", error)
        text = self.standing.refusal(owner.name)
        if text is not None:
            raise DirectoryError("E_accountLimitExceeded", text)

    @contextlib.contextmanager
    def reading(self, reader: Account | None = None) -> Iterator[Records]:
        """A transaction that reads; DirectoryError E_busy when the database does not answer."""
        with self._transaction(reader, False) as records:
            yield records

    @contextlib.contextmanager
    def writing(self, reader: Account | None = None) -> Iterator[Records]:
        """The only transaction that writes at this time. It commits unless an exception leaves it."""
        with self._transaction(reader, True) as records:
            yield records

    @contextlib.contextmanager
    def _transaction(self, reader: Account | None, writes: bool, fresh: bool = False) -> Iterator[Records]:
        try:
            with self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                if writes and self._postgresql:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
                records = Records(connection, reader, self._now(connection))
                if writes and not fresh:
                    records.sweep()
                yield records
        except (OperationalError, sa.exc.TimeoutError) as error:
            raise DirectoryError("E_busy", "the database does not answer; try again", ours=True) from error

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


def _make_private(path: Path) -> None:
    """Make the file readable only for its owner, as it holds hashes of tokens; SQLite gives its other files its mode."""
    with contextlib.suppress(OSError):  # SQLite says what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _own_transactions(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver would begin too late
    connection.execute("PRAGMA journal_mode = WAL")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")
