"""Rows of a directory's database inside one transaction, as a reader may see them.

Entities that are put are collected and written together, before the next statement that reads and at the end: a thousand records are a
few statements. What was read by name (`record`, `expect`) is remembered in the transaction, so that many records are looked up together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from ...base.chain import digest_of
from . import queries
from .errors import DirectoryError
from .tables import (
    INTERCHANGE,
    LISTED,
    NAMED,
    ORGANISATION,
    PUBLIC,
    VISIBLE_TO,
    WORD,
    Account,
    Entity,
    Lease,
    Word,
    accounts,
    audits,
    changes,
    entities,
    interchanges,
    leased,
    leases,
    owned_names,
    profiles,
    tokens,
    versions,
    words,
)

NODE = "mqmesh"  # owns what each directory has from the start; no account can have this name
ACCOUNT_LIMIT = 10_000  # entities of one owner
AT_MOST = 5000  # entities that one request writes
REMEMBERED = 86400.0  # seconds for which a token that is over is told from one that never was
CHANGES = 50_000  # the last ones that are remembered
AT_ONCE = 500  # keys in one statement

Place = tuple[str, str, str]  # parent, sort of record, name


T = TypeVar("T")


def batched(values: Iterable[T]) -> Iterator[list[T]]:
    """Parts that fit into one statement."""
    left = iter(values)
    while part := list(islice(left, AT_ONCE)):
        yield part


class Found(NamedTuple):
    """A record of a page. inside: the name of its mesh. owner: whose the record's name is. documents: of its addresses, one behind the
    other. permitted: whether these are for the reader."""

    entity: Entity
    inside: str
    owner: str | None
    documents: str
    permitted: bool


class Records:
    """The rows as `reader` may see them (None: somebody without an account). limit: entities of one owner.

    writes: addresses that the permissions of a service keep from the reader are seen too, as the rules of changes go by all that there is.
    """

    def __init__(
        self, connection: Connection, reader: Account | None, now: float, limit: int = ACCOUNT_LIMIT, *, writes: bool = False
    ) -> None:
        self._connection = connection
        self.reader = reader
        self.now = now
        self._limit = limit
        self._permits = not writes
        self.postgresql = connection.dialect.name == "postgresql"
        self.written = 0  # entities
        self._counts: dict[str, int] = {}  # owner -> entities, once it was counted
        self._positions: dict[str, int] = {}  # parent -> the next place in it
        # What was read
        self._places: dict[Place, Entity | None] = {}
        self._by_key: dict[str, Entity] = {}
        self._inside: dict[str, list[Entity]] = {}
        # What is to be written
        self._new: list[dict[str, Any]] = []
        self._changed: list[dict[str, Any]] = []
        self._without_words: list[str] = []
        self._words: list[dict[str, Any]] = []
        self._kept: list[str] = []
        self._named: dict[str, str] = {}  # names, and who has put a record of each
        self._touched: dict[Place, frozenset[str]] = {}  # records that have changed, each with the organisations that may know; none: all

    # Reading

    def get(self, key: str) -> Entity | None:
        """The entity with this key, if there is one and the reader may see it."""
        key = key.lower()
        if key not in self._by_key:
            for found in self._found(queries.by_keys(self._view, self._permits), keys=[key]):
                self._by_key[key] = found
        return self._by_key.get(key)

    def hidden(self, key: str) -> bool:
        """Whether a key is taken, by whomever."""
        key = key.lower()
        return key in self._by_key or self._read.scalar(sa.select(entities.c.key).where(entities.c.key == key)) is not None

    def by_keys(self, keys: Iterable[str]) -> dict[str, Entity]:
        """Those of several keys that the reader may see."""
        parts = batched(dict.fromkeys(keys))
        return {one.key: one for part in parts for one in self._found(queries.by_keys(self._view, self._permits), keys=part)}

    def children(self, parents: Iterable[str], most: int | None = None) -> dict[str, list[Entity]]:
        """What is inside each of `parents`, which the reader sees, in order. most: entities at once; what is beyond is left out."""
        keys = list(parents)
        found: dict[str, list[Entity]] = {key: list(self._inside.get(key, ())) for key in keys}
        left = most
        for part in batched([key for key in keys if key not in self._inside]):
            inside = self._found(queries.inside_of(self._view, left is not None, self._permits), keys=part, rows=left)
            for entity in inside:
                found[entity.parent].append(entity)
            left = None if left is None else left - len(inside)
        return found

    def newest_inside(self, key: str) -> float:
        """When something inside an entity was changed last; 0 where nothing is."""
        inside = sa.select(entities.c.key).where(entities.c.parent == key)
        newest = sa.select(sa.func.max(entities.c.modified))
        found = [self._read.scalar(newest.where(where)) for where in (entities.c.parent == key, entities.c.parent.in_(inside))]
        return max(one or 0.0 for one in found)

    def next_position(self, parent: str) -> int:
        """The place behind everything that is inside an entity."""
        if parent not in self._positions:
            last = self._read.scalar(sa.select(sa.func.max(entities.c.position)).where(entities.c.parent == parent))
            self._positions[parent] = -1 if last is None else last
        self._positions[parent] += 1
        return self._positions[parent]

    def record(self, parent: str, record: str, name: str) -> Entity | None:
        """The record of a sort with a name within a business (parent "" for meshes)."""
        place = (parent, record, name)
        if place not in self._places:
            found = self._found(queries.at_place(self._view), parent=parent, record=record, name=name)
            self._know(place, next(iter(found), None))
        return self._places[place]

    def expect(self, places: Iterable[Place]) -> None:
        """Read together what `record`, `get` and `children` will be asked for."""
        wanted: dict[tuple[str, str], list[str]] = {}
        for parent, record, name in places:
            wanted.setdefault((parent, record), []).append(name)
        for (parent, record), names in wanted.items():
            for part in batched(names):
                found = self.select(entities.c.parent == parent, entities.c.record == record, entities.c.name.in_(part))
                by_name = {one.name: one for one in found}
                inside = self.children(one.key for one in found)
                for name in part:
                    self._know((parent, record, name), by_name.get(name))
                self._inside.update(inside)
                self._by_key.update({one.key: one for many in inside.values() for one in many})

    def owned(self, owner: str, kind: str) -> list[Entity]:
        """All that an account owns, hidden tModels too."""
        return self.select(entities.c.owner == owner, entities.c.kind == kind)

    def select(
        self,
        *conditions: sa.ColumnElement[bool],
        order: Sequence[Any] = (entities.c.position, entities.c.key),
        offset: int = 0,
        limit: int | None = None,
    ) -> list[Entity]:
        """What meets the conditions, on `entities` and `queries.above`, and the reader may see."""
        statement = queries.visible(sa.select(entities), self._view, *conditions).order_by(*order)
        if limit is not None:
            statement = statement.limit(limit)
        if offset:
            statement = statement.offset(offset)
        return self._found(statement)

    def with_word(self, kind: str, word: Word, limit: int, offset: int) -> list[Entity]:
        """Entities of a kind that a word finds, in order of name."""
        values = {"kind": kind, "what": f"{kind}/{word.what}", "tmodel": word.tmodel, "value": word.value}
        return self._found(queries.with_word(self._view, self.postgresql), **values, rows=limit, offset=offset)

    def page(self, record: str, parent: str | None, name: tuple[str, str] | str | None, limit: int, offset: int) -> list[Found]:
        """Records of a sort in order of name and mesh.

        parent: of this mesh; None: of any. name: one, a range of them, or None: any.
        """
        named = queries.Named.ANY if name is None else queries.Named.EXACT if isinstance(name, str) else queries.Named.RANGE
        first, beyond = name if isinstance(name, tuple) else (name, None)
        statement = queries.page(self._view, self.postgresql, parent is not None, named, self._permits and record == "service")
        values = {"record": record, "parent": parent, "name": first, "beyond": beyond, "rows": limit, "offset": offset}
        found = []
        for row in self._read.execute(statement, {**values, **self._reading}):
            *columns, inside, owner, documents, permitted = row
            found.append(Found(Entity(*columns), inside, owner, documents or "" if permitted else "", bool(permitted)))
        return found

    def permitted(self, services: Iterable[str]) -> set[str]:
        """Those of several services, by key, whose addresses are for the reader."""
        statement = queries.permitted_of(self._view)
        return {key for part in batched(services) for key in self._read.scalars(statement, {"keys": part, **self._reading})}

    def count(self, *conditions: sa.ColumnElement[bool]) -> int:
        """How many `select` would find."""
        counted = queries.visible(sa.select(sa.func.count()).select_from(entities), self._view, *conditions)
        return self._read.scalar(counted, self._reading) or 0

    @property
    def _read(self) -> Connection:
        """The connection, once all that was put is written."""
        self.flush()
        return self._connection

    def _know(self, place: Place, entity: Entity | None) -> None:
        self._places[place] = entity
        if entity is not None:
            self._by_key[entity.key] = entity

    def _forget(self) -> None:
        for known in (self._places, self._by_key, self._inside):
            known.clear()

    def _found(self, statement: sa.Select[Any], **values: Any) -> list[Entity]:
        """The entities that a statement of `queries` finds."""
        return [Entity(*row) for row in self._read.execute(statement, {**values, **self._reading})]

    @property
    def _view(self) -> queries.View:
        return queries.view_of(self.reader)

    @property
    def _reading(self) -> dict[str, Any]:
        """The parameters of what a reader sees."""
        reader = self.reader
        return {"now": self.now, "mine": reader.organisation if reader is not None else "", "me": reader.name if reader is not None else ""}

    # Writing

    def put(self, entity: Entity, found_by: Iterable[Word] | None, *, fresh: bool = False) -> None:
        """Write one row over the old one or anew; DirectoryError E_valueNotAllowed, E_accountLimitExceeded.

        found_by: its words; None: they have not changed. fresh: its key was made a moment ago.
        """
        self.written += 1
        if self.written > AT_MOST and entity.owner != NODE:
            raise DirectoryError("E_messageTooLarge", f"at most {AT_MOST} entities in one request")
        known = not fresh and self.hidden(entity.key)
        if not known and entity.owner != NODE:
            self._count(entity.owner)
        if entity.number is not None:
            self._check_number(entity)
        if known:
            self._changed.append({f"new_{name}": value for name, value in entity.values.items()})
        else:
            self._new.append(entity.values)
        if found_by is not None:
            if known:
                self._without_words.append(entity.key)
            self._words += [_word_row(entity, word) for word in found_by]
        before = self._by_key.get(entity.key)
        self._touch(before)
        self._touch(entity, found_by)
        if known and (before is None or before.place != entity.place):
            self._forget()
        self._inside.pop(entity.parent, None)
        self._know(entity.place, entity)
        if entity.record in NAMED:
            self._named.setdefault(entity.name, entity.owner)
        if entity.number is not None:
            self.flush()

    def flush(self) -> None:
        """Write what was put. DirectoryError E_valueNotAllowed."""
        if self._kept:
            self._by_part(leased, leased.c.entity, self._kept)
            self._kept = []
        if not self._new and not self._changed:
            return
        new, changed, last = self._new, self._changed, (self._new or self._changed)[-1]
        self._new, self._changed = [], []
        try:
            if changed:
                self._connection.execute(_CHANGE, changed)
            if new:
                self._connection.execute(sa.insert(entities), new)
        except IntegrityError as error:
            raise _taken(last, len(new) + len(changed)) from error
        if self._without_words:
            self._by_part(words, words.c.entity, self._without_words)
        if self._words:
            self._connection.execute(sa.insert(words), self._words)
        self._without_words, self._words = [], []
        named, self._named = self._named, {}
        self.own_names(named)

    def index(self, found_by: Iterable[tuple[Entity, list[Word]]]) -> None:
        """Write all words anew."""
        self._connection.execute(sa.delete(words))
        for part in batched(found_by):
            rows = [_word_row(entity, word) for entity, listed in part for word in listed]
            if rows:
                self._connection.execute(sa.insert(words), rows)

    def version(self) -> int:
        """What the tables were last brought up to."""
        return self._read.scalar(sa.select(sa.func.max(versions.c.version))) or 0

    def set_version(self, version: int) -> None:
        """They are brought up to this."""
        self._connection.execute(sa.delete(versions))
        self._connection.execute(sa.insert(versions).values(version=version))

    def everything(self) -> Iterator[Entity]:
        """All entities, whoever may see them, in order of their keys."""
        last = ""
        while True:
            statement = sa.select(entities).where(entities.c.key > last).order_by(entities.c.key).limit(AT_ONCE)
            found = [Entity(*row) for row in self._read.execute(statement)]
            if not found:
                return
            yield from found
            last = found[-1].key

    def _count(self, owner: str) -> None:
        """One entity more of an owner; DirectoryError E_accountLimitExceeded."""
        if owner not in self._counts:
            counted = sa.select(sa.func.count()).select_from(entities).where(entities.c.owner == owner)
            self._counts[owner] = self._read.scalar(counted) or 0
        if self._counts[owner] >= self._limit:
            raise DirectoryError("E_accountLimitExceeded", f"an account may own {self._limit} entities")
        self._counts[owner] += 1

    def _check_number(self, entity: Entity) -> None:
        """A number that a lease holds, or that is kept for its broker, goes to no other one."""
        for lease in self.leases(entity.parent, leases.c.number == entity.number):
            if (lease.name, lease.owner) != (entity.name, entity.owner):
                raise DirectoryError("E_valueNotAllowed", f"the number {entity.number} is kept for the broker {lease.name!r}")

    def delete(self, keys: Iterable[str]) -> None:
        """Remove entities and what is inside them; of a mesh the leases too."""
        keys = list(keys)
        if not keys:
            return
        for part in batched(keys):
            for row in self._read.execute(sa.select(entities).where(entities.c.key.in_(part))).all():
                self._touch(Entity(*row))
        self._counts.clear()
        self._forget()
        self._by_part(leases, leases.c.mesh, keys)
        while keys:
            of = sa.select(entities.c.key)
            inside = [key for part in batched(keys) for key in self._connection.scalars(of.where(entities.c.parent.in_(part)))]
            for table, column in (
                (leased, leased.c.entity),
                (words, words.c.entity),
                (profiles, profiles.c.entity),
                (entities, entities.c.key),
            ):
                self._by_part(table, column, keys)
            keys = inside

    def _by_part(self, table: sa.Table, column: sa.Column[Any], values: Iterable[str]) -> None:
        """Delete rows by the values of a column."""
        for part in batched(values):
            self._connection.execute(sa.delete(table).where(column.in_(part)))

    # Names

    def own_names(self, named: dict[str, str]) -> None:
        """Names belong to their owners, where they are nobody's. named: name -> owner."""
        taken = self.owners_of(named)
        free = [{"name": name, "owner": owner} for name, owner in named.items() if name not in taken]
        if not free:
            return
        counted = sa.select(sa.func.count()).select_from(owned_names).where(owned_names.c.owner == free[0]["owner"])
        if (self._connection.scalar(counted) or 0) + len(free) <= self._limit or free[0]["owner"] == NODE:
            self._connection.execute(sa.insert(owned_names), free)

    def begin_names(self, named: list[tuple[str, str]]) -> None:
        """Names belong to those who had them first. named: names with owners, in this order."""
        first = dict(reversed(named))
        taken = self.owners_of(first)
        for part in batched({"name": name, "owner": owner} for name, owner in first.items() if name not in taken):
            self._connection.execute(sa.insert(owned_names), part)

    def owners_of(self, wanted: Iterable[str]) -> dict[str, str]:
        """Whose names are, those that are somebody's."""
        parts = batched(dict.fromkeys(wanted))
        return {name: owner for part in parts for name, owner in self._read.execute(queries.owners(), {"names": part})}

    def give_up(self, name: str, owner: str) -> bool:
        """A name is nobody's; whether it was this owner's."""
        of_owner = sa.delete(owned_names).where(owned_names.c.name == name, owned_names.c.owner == owner)
        if self._connection.execute(of_owner).rowcount != 1:
            return False
        for one in self.select(entities.c.record.in_(NAMED), entities.c.name == name):
            self._touch(one)
        return True

    # Changes

    def _touch(self, entity: Entity | None, found_by: Iterable[Word] | None = None) -> None:
        """A record has changed, or one whose address this is. found_by: its words; None: those that are stored."""
        if entity is not None and entity.kind == "binding":
            entity, found_by = self.get(entity.parent), None
        if entity is None or entity.record is None:
            return
        may = self._readers(entity, found_by)
        before = self._touched.get(entity.place, may)
        self._touched[entity.place] = before | may if before and may else frozenset()

    def _readers(self, entity: Any, found_by: Iterable[Word] | None = None) -> frozenset[str]:
        """The organisations that find an entity by itself; none: all do."""
        if entity.visibility == PUBLIC:
            return frozenset()
        listed: Iterable[str] = ()
        if entity.visibility == LISTED and found_by is not None:
            listed = [one.value for one in found_by if one.tmodel == VISIBLE_TO]
        elif entity.visibility == LISTED:
            of = sa.select(words.c.value).where(words.c.entity == entity.key, words.c.tmodel == VISIBLE_TO)
            listed = self._connection.scalars(of).all()
        return frozenset((entity.organisation, *listed))

    def note_changes(self) -> bool:
        """Write down what has changed; whether anything has."""
        if not self._touched:
            return False
        self.flush()
        parents = {place[0] for place in self._touched} - {""}
        of = sa.select(entities.c.key, entities.c.name, entities.c.visibility, entities.c.organisation)
        meshes = {row.key: row for part in batched(parents) for row in self._connection.execute(of.where(entities.c.key.in_(part)))}
        readers = {key: self._readers(mesh) for key, mesh in meshes.items()}
        number = self.last_change()
        rows = []
        for (parent, sort, name), may in self._touched.items():
            mesh = meshes.get(parent)
            if parent and mesh is None:
                continue  # deleted with its mesh
            of_mesh = readers.get(parent, frozenset())
            told = {mesh.organisation, *(of_mesh & may if may else of_mesh)} if mesh is not None and of_mesh else may
            where = mesh.name if mesh is not None else ""
            for organisation in sorted(told) or [""]:
                number += 1
                rows.append({"number": number, "sort": sort, "mesh": where, "name": name, "organisation": organisation})
        self._audit({parent: mesh.name for parent, mesh in meshes.items()})
        self._touched = {}
        if rows:
            self._connection.execute(sa.insert(changes), rows)
            self._connection.execute(sa.delete(changes).where(changes.c.number <= number - CHANGES))
        return bool(rows)

    def _audit(self, names: dict[str, str]) -> None:
        """Write down who has changed which services of the interchange, and how they are now. names: of what they are in."""
        touched = [place for place in self._touched if place[1] in (INTERCHANGE, ORGANISATION)]
        now = {one.place: one for part in batched({place[2] for place in touched}) for one in self.select(entities.c.name.in_(part))}
        known = self.profiles(one.key for one in now.values())
        number, digest = self.last_audit()
        rows: list[dict[str, Any]] = []
        for place in touched:
            entity = now.get(place)
            if place[1] == ORGANISATION and entity is not None:
                continue  # it has no profile; with it, when it is deleted, all that is in it goes
            service = place[2] if place[1] == ORGANISATION else f"{names.get(place[0], '')}/{place[2]}"
            revision, profile = known.get(entity.key, (0, "")) if entity is not None else (self.last_revision(service), "")
            number += 1
            account = self.reader.name if self.reader is not None else ""
            digest = digest_of(digest, (number, self.now, account, service, revision, profile))
            said = {"number": number, "at": self.now, "account": account, "service": service, "revision": revision}
            rows.append({**said, "profile": profile, "digest": digest})
        if rows:
            self.put_audits(rows)

    def last_change(self) -> int:
        """The number of the last change; 0 before the first."""
        return self._read.scalar(sa.select(sa.func.max(changes.c.number))) or 0

    def changes(self, after: int, most: int) -> tuple[int, list[dict[str, str]] | None]:
        """The number of the last change that is told, and what has changed after another one, each record once.

        None where that is not known any more. A change that several organisations may know has a row for each of them.
        """
        first = self._read.scalar(sa.select(sa.func.min(changes.c.number))) or 1
        last = self.last_change()
        if not first - 1 <= after <= last:
            return last, None
        known = changes.c.organisation == ""
        if self.reader is not None and self.reader.interchange:
            known = sa.true()
        elif self.reader is not None:
            known = sa.or_(known, changes.c.organisation == self.reader.organisation)
        rows = self._read.execute(sa.select(changes).where(changes.c.number > after, known).order_by(changes.c.number).limit(most)).all()
        told = dict.fromkeys((row.sort, row.mesh or row.name, row.name) for row in rows)
        return (rows[-1].number if len(rows) == most else last), [{"sort": sort, "mesh": mesh, "name": name} for sort, mesh, name in told]

    def next_end(self) -> float | None:
        """When the next lease ends."""
        end = self._read.scalar(sa.select(sa.func.min(leased.c.expires)))
        return None if end is None else float(end)

    # Leases

    def leases(self, mesh: str, *conditions: sa.ColumnElement[bool]) -> list[Lease]:
        """The leases in a mesh, those that are over too, in order of number."""
        statement = sa.select(leases).where(leases.c.mesh == mesh, *conditions).order_by(leases.c.number)
        return [Lease(**row) for row in self._read.execute(statement).mappings()]

    def leases_like(self, mesh: str, holder: str, name: str) -> list[Lease]:
        """Those of a holder, or of a name, the last one first."""
        found = self.leases(mesh, sa.or_(leases.c.holder == holder, leases.c.name == name))
        return sorted(found, key=lambda one: (-one.expires, one.number))

    def numbers(self, mesh: str) -> set[int]:
        """Every number that is not free in a mesh: of brokers, and kept for brokers."""
        of_leases = self._read.scalars(sa.select(leases.c.number).where(leases.c.mesh == mesh))
        of_brokers = self._read.scalars(sa.select(entities.c.number).where(entities.c.parent == mesh, entities.c.number.is_not(None)))
        return {*of_leases, *of_brokers}

    def fixed(self, mesh: str, number: int) -> str | None:
        """The name of the broker that has a number in a mesh without a lease."""
        held = entities.c.key.in_(sa.select(leased.c.entity))
        named = sa.select(entities.c.name).where(entities.c.parent == mesh, entities.c.number == number, ~held)
        return self._read.scalar(named)

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
        return set(self._read.scalars(sa.select(leased.c.entity).where(leased.c.mesh == lease.mesh, leased.c.number == lease.number)))

    def is_leased(self, key: str) -> bool:
        """Whether an entity is there for as long as a lease only."""
        return self._read.scalar(sa.select(leased.c.entity).where(leased.c.entity == key)) is not None

    def lease_entity(self, key: str, lease: Lease) -> None:
        """An entity is there for as long as the lease."""
        self.keep_entity(key)
        self.flush()
        self._connection.execute(sa.insert(leased).values(entity=key, mesh=lease.mesh, number=lease.number, expires=lease.expires))

    def keep_entity(self, key: str) -> None:
        """An entity is there until it is deleted."""
        self._kept.append(key)

    def renew(self, lease: Lease, expires: float, kept: float, holds: int) -> bool:
        """Let a lease and the entities that it holds last longer, if all is as it was read, whoever writes meanwhile.

        holds: how many entities it holds. False: it is not as it was, and the transaction must not commit.
        """
        same = (leases.c.mesh == lease.mesh, leases.c.number == lease.number, leases.c.holder == lease.holder)
        lasts = (leases.c.digest == lease.digest, leases.c.expires > self.now)
        if self._connection.execute(sa.update(leases).where(*same, *lasts).values(expires=expires, kept=kept)).rowcount != 1:
            return False
        inside = (leased.c.mesh == lease.mesh, leased.c.number == lease.number)
        return self._connection.execute(sa.update(leased).where(*inside).values(expires=expires)).rowcount == holds

    def sweep(self) -> None:
        """Remove what no lease holds any more, and free numbers that were kept for long enough.

        That a lease is over is decided by the statement that deletes: one that is renewed at this moment is not.
        """
        over = list(self._connection.scalars(sa.delete(leased).where(leased.c.expires <= self.now).returning(leased.c.entity)))
        self.delete(over)
        self._connection.execute(sa.delete(leases).where(leases.c.kept <= self.now))

    # Services of the interchange

    def profiles(self, keys: Iterable[str]) -> dict[str, tuple[int, str]]:
        """Revision and profile of each of several entities."""
        of = sa.select(profiles)
        rows = [row for part in batched(keys) for row in self._read.execute(of.where(profiles.c.entity.in_(part)))]
        return {row.entity: (row.revision, row.profile) for row in rows}

    def put_profile(self, entity: str, revision: int, profile: str) -> None:
        """Write one over the old one."""
        self._by_part(profiles, profiles.c.entity, [entity])
        self._connection.execute(sa.insert(profiles).values(entity=entity, revision=revision, profile=profile))

    def last_revision(self, service: str) -> int:
        """The revision that a service, organisation/name, has or had last; 0: there was none."""
        return self._read.scalar(sa.select(sa.func.max(audits.c.revision)).where(audits.c.service == service)) or 0

    def audited(self, after: int = 0, service: str | None = None, most: int = AT_ONCE) -> list[dict[str, Any]]:
        """Rows of the audit after a number, in order."""
        wanted = [audits.c.number > after] + ([] if service is None else [audits.c.service == service])
        rows = self._read.execute(sa.select(audits).where(*wanted).order_by(audits.c.number).limit(most))
        return [dict(row) for row in rows.mappings()]

    def last_audit(self) -> tuple[int, str]:
        """Number and digest of the last row; 0 and nothing before the first."""
        row = self._read.execute(sa.select(audits.c.number, audits.c.digest).order_by(audits.c.number.desc()).limit(1)).first()
        return (row.number, row.digest) if row else (0, "")

    def put_audits(self, rows: list[dict[str, Any]]) -> None:
        """Write rows behind the last one."""
        self._connection.execute(sa.insert(audits), rows)

    # Accounts and tokens

    def account(self, name: str) -> tuple[Account, str] | None:
        """An account and the hash of its secret."""
        row = self._connection.execute(sa.select(accounts).where(accounts.c.name == name)).first()
        return (Account(row.name, row.organisation, self._is_interchange(row.name)), row.secret) if row else None

    def put_account(self, account: Account, secret: str) -> None:
        """Make an account, or give it another organisation and secret; its tokens end."""
        self._connection.execute(sa.delete(accounts).where(accounts.c.name == account.name))
        self._connection.execute(sa.update(tokens).where(tokens.c.account == account.name).values(expires=self.now - 1.0))
        self._connection.execute(sa.insert(accounts).values(name=account.name, organisation=account.organisation, secret=secret))
        self._connection.execute(sa.delete(interchanges).where(interchanges.c.account == account.name))
        if account.interchange:
            self._connection.execute(sa.insert(interchanges).values(account=account.name))
        moved = (entities.c.owner == account.name, entities.c.organisation != account.organisation)
        for one in [Entity(*row) for row in self._read.execute(sa.select(entities).where(*moved, entities.c.record.is_not(None)))]:
            self._touch(one)
            one.organisation = account.organisation
            self._touch(one)
        self._connection.execute(sa.update(entities).where(*moved).values(organisation=account.organisation))

    def put_token(self, digest: str, account: str, expires: float) -> None:
        """Keep a token's digest until `expires`; those that are over go after REMEMBERED seconds."""
        self._connection.execute(sa.delete(tokens).where(tokens.c.expires < self.now - REMEMBERED))
        self._connection.execute(sa.insert(tokens).values(digest=digest, account=account, expires=expires))

    def end_token(self, digest: str) -> None:
        """End a token."""
        self._connection.execute(sa.update(tokens).where(tokens.c.digest == digest).values(expires=self.now - 1.0))

    def was_token(self, digest: str) -> bool:
        """Whether this was a token, not long ago."""
        return self._connection.scalar(sa.select(tokens.c.digest).where(tokens.c.digest == digest)) is not None

    def holder(self, digest: str) -> Account | None:
        """Whose token this is, if it is not over."""
        joined = sa.select(accounts).join(tokens, tokens.c.account == accounts.c.name)
        row = self._connection.execute(joined.where(tokens.c.digest == digest, tokens.c.expires >= self.now)).first()
        return Account(row.name, row.organisation, self._is_interchange(row.name)) if row else None

    def _is_interchange(self, name: str) -> bool:
        return self._connection.scalar(sa.select(interchanges.c.account).where(interchanges.c.account == name)) is not None


_CHANGE = (
    sa.update(entities)
    .where(entities.c.key == sa.bindparam("new_key"))
    .values({column.name: sa.bindparam(f"new_{column.name}") for column in entities.columns})
)


def _word_row(entity: Entity, word: Word) -> dict[str, Any]:
    what, value = f"{entity.kind}/{word.what}", word.value[:WORD]
    return {"entity": entity.key, "what": what, "tmodel": word.tmodel[:WORD], "value": value, "folded": value.casefold()[:WORD]}


def _taken(row: dict[str, Any], written: int) -> DirectoryError:
    """The refusal of the database. row: the last one that was written."""
    if written > 1:
        return DirectoryError("E_valueNotAllowed", "two records of one sort here would have the same name")
    values = {name.removeprefix("new_"): value for name, value in row.items()}
    text = f"another {values['record']} here has the name {values['name']!r}"
    if values["number"] is not None:
        text += f" or the number {values['number']}"
    return DirectoryError("E_valueNotAllowed", text)
