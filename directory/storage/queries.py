"""Who sees what, as SQL, and the searches that come most: statements that are made once, with parameters.

To make a statement of this size, and to find out that it was made before, costs SQLAlchemy more than the database needs for the answer. A
statement that is the same object each time is known again at once.

Parameters: `now`, `mine` and `me` (the reader's organisation and name), and those that each function names.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any

import sqlalchemy as sa

from .tables import EDITOR, EVERYONE, LISTED, PERMISSION, PUBLIC, VISIBLE_TO, Account, entities, leased, owned_names, words

above = entities.alias("above")  # what an entity is inside of
highest = entities.alias("highest")  # and what that is inside of
_inside = sa.outerjoin(entities, above, above.c.key == entities.c.parent).outerjoin(highest, highest.c.key == above.c.parent)
_IN_ORDER = (entities.c.position, entities.c.key)


class View(Enum):
    """What kind of reader looks."""

    STRANGER = "somebody without an account"
    ACCOUNT = "an account of the organisation `mine`"
    EVERYTHING = "an interchange"


class Named(Enum):
    """How a page's names are given."""

    ANY = "not"
    EXACT = "`name`"
    RANGE = "from `name` to before `beyond`"


def names(postgresql: bool, table: sa.FromClause = entities) -> sa.ColumnElement[str]:
    """Names that are compared and sorted by code point."""
    return table.c.name.collate("C") if postgresql else table.c.name


def view_of(reader: Account | None) -> View:
    """The view of a reader; None: somebody without an account."""
    if reader is None:
        return View.STRANGER
    return View.EVERYTHING if reader.interchange else View.ACCOUNT


def visible(statement: sa.Select[Any], view: View, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Leave out what is for an organisation other than the reader's, or whose lease is over, and what is inside (two levels)."""
    return statement.select_from(_inside).where(*conditions, *_seen(view))


@cache
def _seen(view: View) -> tuple[sa.ColumnElement[bool], ...]:
    return (*(_open(table, view) for table in (entities, above, highest)), ~_over(entities.c.key, entities.c.parent))


def _over(*keys: sa.Column[str]) -> sa.ColumnElement[bool]:
    """Whether a lease of one of several entities is over. Their keys are not null.

    Those whose leases are over are few, and read once for a statement. To look for the lease of each entity took most of a count.
    """
    over = sa.select(leased.c.entity).where(leased.c.expires <= sa.bindparam("now"))
    return sa.or_(*(key.in_(over) for key in keys))


def _open(table: sa.FromClause, view: View) -> sa.ColumnElement[bool]:
    """Whether an entity, where there is one, is for the reader."""
    if view is View.EVERYTHING:
        return sa.true()
    public = table.c.visibility == PUBLIC
    if table is not entities:
        public = sa.or_(public, table.c.visibility.is_(None))
    if view is View.STRANGER:
        return public
    mine: sa.BindParameter[str] = sa.bindparam("mine")
    named = sa.select(words.c.entity).where(words.c.entity == table.c.key, words.c.tmodel == VISIBLE_TO, words.c.value == mine)
    return sa.or_(public, table.c.organisation == mine, sa.and_(table.c.visibility == LISTED, named.exists()))


def permitted(view: View, service: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the addresses of a service are for the reader, which its permissions say. service: its key.

    They are for all where it has no permissions. Else for EVERYONE, the organisations and accounts that it names, and those who may change
    it: the organisations of its owner and of its mesh's owner, and the editors of both. These are subqueries with one value, which a
    database cannot take for a join, so that they are asked for the few rows that are found.
    """
    if view is View.EVERYTHING:
        return sa.true()
    said = words.alias("said")
    named = said.c.value == EVERYONE
    if view is View.ACCOUNT:
        named = sa.or_(named, said.c.value == sa.bindparam("mine"), said.c.value == sa.bindparam("me"))
    of_permission = said.c.tmodel == PERMISSION
    hits: list[tuple[sa.ColumnElement[bool], int]] = [(sa.and_(of_permission, named), 1), (of_permission, 0)]
    if view is View.ACCOUNT:
        hits.append((said.c.value == sa.bindparam("mine"), 1))
    of_either = sa.or_(of_permission, said.c.tmodel == EDITOR) if view is View.ACCOUNT else of_permission
    about = (said.c.entity == service, said.c.what == "service/category", of_either)
    allowed = sa.func.coalesce(sa.select(sa.func.max(sa.case(*hits))).where(*about).scalar_subquery(), 1) == 1
    return sa.or_(allowed, _changed_by(service)) if view is View.ACCOUNT else allowed


def _changed_by(service: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether a service or its mesh is of the reader's organisation, or the mesh has it as an editor."""
    own, mesh, editor = entities.alias("own"), entities.alias("mesh"), words.alias("editor")
    mine: sa.BindParameter[str] = sa.bindparam("mine")
    edited = sa.and_(editor.c.entity == mesh.c.key, editor.c.tmodel == EDITOR, editor.c.value == mine)
    both = sa.outerjoin(sa.outerjoin(own, mesh, mesh.c.key == own.c.parent), editor, edited)
    his = sa.or_(own.c.organisation == mine, mesh.c.organisation == mine, editor.c.entity.is_not(None))
    found = sa.select(sa.func.max(sa.case((his, 1), else_=0))).select_from(both).where(own.c.key == service)
    return sa.func.coalesce(found.scalar_subquery(), 0) == 1


def _no_address_of_others(view: View) -> sa.ColumnElement[bool]:
    """Whether an entity is no address, or one that is for the reader."""
    return sa.or_(entities.c.kind != "binding", permitted(view, entities.c.parent))


@cache
def by_keys(view: View, permits: bool) -> sa.Select[Any]:
    """Those with `keys`. permits: without the addresses that are not for the reader."""
    some = [_no_address_of_others(view)] if permits else []
    return visible(sa.select(entities), view, entities.c.key.in_(sa.bindparam("keys", expanding=True)), *some).order_by(*_IN_ORDER)


@cache
def permitted_of(view: View) -> sa.Select[Any]:
    """Those of `keys` whose addresses are for the reader."""
    return sa.select(entities.c.key).where(entities.c.key.in_(sa.bindparam("keys", expanding=True)), permitted(view, entities.c.key))


@cache
def inside_of(view: View, cut: bool, permits: bool) -> sa.Select[Any]:
    """What is inside `keys`, which the reader sees. cut: at most `rows` of them. permits: as in `by_keys`."""
    inside = entities.c.parent.in_(sa.bindparam("keys", expanding=True))
    some = [_no_address_of_others(view)] if permits else []
    found = sa.select(entities).where(inside, _open(entities, view), ~_over(entities.c.key), *some).order_by(*_IN_ORDER)
    return found.limit(sa.bindparam("rows", type_=sa.Integer)) if cut else found


@cache
def at_place(view: View) -> sa.Select[Any]:
    """The record of the sort `record` with the name `name` in `parent`."""
    place = [getattr(entities.c, column) == sa.bindparam(column) for column in ("parent", "record", "name")]
    return visible(sa.select(entities), view, *place).order_by(*_IN_ORDER)


@cache
def with_word(view: View, postgresql: bool) -> sa.Select[Any]:
    """`rows` entities of a `kind` that a word finds, `what`, `tmodel` and `value`, in order of name, after the first `offset`."""
    same = [words.c[column] == sa.bindparam(column) for column in ("what", "tmodel", "value")]
    found = [entities.c.kind == sa.bindparam("kind"), ~entities.c.deleted, entities.c.key.in_(sa.select(words.c.entity).where(*same))]
    ordered = visible(sa.select(entities), view, *found).order_by(names(postgresql), *_IN_ORDER)
    return ordered.limit(sa.bindparam("rows", type_=sa.Integer)).offset(sa.bindparam("offset", type_=sa.Integer))


@cache
def owners() -> sa.Select[Any]:
    """Whose `names` are."""
    return sa.select(owned_names.c.name, owned_names.c.owner).where(owned_names.c.name.in_(sa.bindparam("names", expanding=True)))


@cache
def page(view: View, postgresql: bool, in_mesh: bool, named: Named, permits: bool) -> sa.Select[Any]:
    """`rows` records of the sort `record`, in order of name and mesh, after the first `offset`. in_mesh: of `parent`; else of any mesh.

    With each the name of its mesh, whose the record's name is, the documents of its addresses one behind the other, and whether they are
    for the reader (permits; else that is not asked). A mesh is inside of nothing.
    """
    part = _part(view, postgresql, in_mesh, named)
    inside = part.c.inside
    owner = sa.select(owned_names.c.owner).where(owned_names.c.name == part.c.name).scalar_subquery()
    may: sa.ColumnElement[Any] = permitted(view, part.c.key) if permits else sa.true()
    columns = [part.c[column.name] for column in entities.c]
    whole = sa.select(*columns, inside, owner, _documents_in(view, postgresql, part.c.key), may)
    return whole.order_by(names(postgresql, part), part.c.parent, part.c.key)


def _part(view: View, postgresql: bool, in_mesh: bool, named: Named) -> sa.Subquery:
    """The records of a page, and the names of their meshes: all else is looked up for these only."""
    name = names(postgresql)
    mesh = [_open(above, view)] if in_mesh else [_open(above, view), above.c.record == "mesh"]
    conditions = [entities.c.record == sa.bindparam("record"), ~entities.c.deleted]
    if in_mesh:
        conditions.append(entities.c.parent == sa.bindparam("parent"))
    if named is Named.EXACT:
        conditions.append(name == sa.bindparam("name"))
    elif named is Named.RANGE:
        first, beyond = (_unseen(sa.bindparam(one, type_=sa.String)) if postgresql else sa.bindparam(one) for one in ("name", "beyond"))
        conditions += [name >= first, name < beyond]
    seen = (_open(entities, view), ~_over(entities.c.key, entities.c.parent))
    if postgresql and not in_mesh:
        inside = _looked_up(*mesh)
        found = sa.select(entities, inside.c.name.label("inside")).join_from(entities, inside, sa.true())
    else:
        found = sa.select(entities, above.c.name.label("inside")).join_from(entities, above, above.c.key == entities.c.parent).where(*mesh)
    found = found.where(*conditions, *seen).order_by(name, entities.c.parent, entities.c.key)
    return found.limit(sa.bindparam("rows", type_=sa.Integer)).offset(sa.bindparam("offset", type_=sa.Integer)).subquery("part")


def _documents_in(view: View, postgresql: bool, parent: sa.ColumnElement[str]) -> sa.ScalarSelect[str]:
    """The documents inside an entity, in order, one behind the other."""
    inner = entities.alias("inner")
    ordered = sa.select(inner.c.document).where(inner.c.parent == parent, _open(inner, view), ~_over(inner.c.key))
    listed = ordered.order_by(inner.c.position, inner.c.key).correlate_except(inner).subquery("listed")
    joined = sa.func.string_agg if postgresql else sa.func.group_concat
    return sa.select(joined(listed.c.document, "")).correlate_except(listed).scalar_subquery()


def _unseen(value: sa.BindParameter[str]) -> sa.ColumnElement[str]:
    """A parameter whose value PostgreSQL does not plan by.

    It made a plan for each prefix anew, as that for any prefix was expected to cost more; which took longer than to find ten records. The
    plan without the value goes along the index of names, which is right for few and for many of them.
    """
    return sa.select(value).scalar_subquery()


def _looked_up(*conditions: sa.ColumnElement[bool]) -> sa.FromClause:
    """What an entity is inside of, looked up for each in turn.

    Of a plain join PostgreSQL expects some ten rows where there are 100,000. It then begins with the meshes and sorts all that is in them,
    and it takes longer to plan. OFFSET 0 keeps it from making this a plain join.
    """
    looked_up = sa.select(above.c.name).where(above.c.key == entities.c.parent, *conditions)
    return looked_up.correlate(entities).offset(0).lateral("inside")
