"""Who sees what, as SQL, and the searches that come most: statements that are made once, with parameters.

To make a statement of this size, and to find out that it was made before, costs SQLAlchemy more than the database needs for the answer. A
statement that is the same object each time is known again at once.

Parameters: `now`, `mine` (the reader's organisation), and those that each function names.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any

import sqlalchemy as sa

from .tables import LISTED, PUBLIC, VISIBLE_TO, Account, entities, leased, owned_names, words

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


def names(postgresql: bool) -> sa.ColumnElement[str]:
    """Names that are compared and sorted by code point."""
    return entities.c.name.collate("C") if postgresql else entities.c.name


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
    return (*(_open(table, view) for table in (entities, above, highest)), ~_over(entities.c.key, above.c.key))


def _over(*keys: sa.Column[str]) -> sa.ColumnElement[bool]:
    """Whether a lease of one of several entities is over."""
    return sa.select(leased.c.entity).where(leased.c.expires <= sa.bindparam("now"), leased.c.entity.in_(keys)).exists()


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


@cache
def by_keys(view: View) -> sa.Select[Any]:
    """Those with `keys`."""
    return visible(sa.select(entities), view, entities.c.key.in_(sa.bindparam("keys", expanding=True))).order_by(*_IN_ORDER)


@cache
def inside_of(view: View, cut: bool) -> sa.Select[Any]:
    """What is inside `keys`, which the reader sees. cut: at most `rows` of them."""
    inside = entities.c.parent.in_(sa.bindparam("keys", expanding=True))
    found = sa.select(entities).where(inside, _open(entities, view), ~_over(entities.c.key)).order_by(*_IN_ORDER)
    return found.limit(sa.bindparam("rows", type_=sa.Integer)) if cut else found


@cache
def at_place(view: View) -> sa.Select[Any]:
    """The record of the sort `record` with the name `name` in `parent`."""
    place = [getattr(entities.c, column) == sa.bindparam(column) for column in ("parent", "record", "name")]
    return visible(sa.select(entities), view, *place).order_by(*_IN_ORDER)


@cache
def owners() -> sa.Select[Any]:
    """Whose `names` are."""
    return sa.select(owned_names.c.name, owned_names.c.owner).where(owned_names.c.name.in_(sa.bindparam("names", expanding=True)))


@cache
def page(view: View, postgresql: bool, in_mesh: bool, named: Named) -> sa.Select[Any]:
    """`rows` records of the sort `record`, in order of name and mesh, after the first `offset`. in_mesh: of `parent`; else of any mesh.

    With each the name of its mesh, and whose the record's name is. A mesh is inside of nothing.
    """
    name = names(postgresql)
    mesh = [_open(above, view)] if in_mesh else [_open(above, view), above.c.record == "mesh"]
    conditions = [entities.c.record == sa.bindparam("record"), ~entities.c.deleted]
    if in_mesh:
        conditions.append(entities.c.parent == sa.bindparam("parent"))
    if named is Named.EXACT:
        conditions.append(name == sa.bindparam("name"))
    elif named is Named.RANGE:
        conditions += [name >= sa.bindparam("name"), name < sa.bindparam("beyond")]
    seen = (_open(entities, view), ~_over(entities.c.key, entities.c.parent))
    owner = sa.select(owned_names.c.owner).where(owned_names.c.name == entities.c.name).scalar_subquery()
    if postgresql and not in_mesh:
        inside = _looked_up(*mesh)
        found = sa.select(entities, inside.c.name, owner).join_from(entities, inside, sa.true())
    else:
        found = sa.select(entities, above.c.name, owner).join_from(entities, above, above.c.key == entities.c.parent).where(*mesh)
    found = found.where(*conditions, *seen).order_by(name, entities.c.parent, entities.c.key)
    return found.limit(sa.bindparam("rows", type_=sa.Integer)).offset(sa.bindparam("offset", type_=sa.Integer))


def _looked_up(*conditions: sa.ColumnElement[bool]) -> sa.FromClause:
    """What an entity is inside of, looked up for each in turn.

    Of a plain join PostgreSQL expects some ten rows where there are 100,000. It then begins with the meshes and sorts all that is in them,
    and it takes longer to plan. OFFSET 0 keeps it from making this a plain join.
    """
    looked_up = sa.select(above.c.name).where(above.c.key == entities.c.parent, *conditions)
    return looked_up.correlate(entities).offset(0).lateral("inside")
