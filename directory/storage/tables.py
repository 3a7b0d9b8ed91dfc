"""The tables of a directory's database, and their rows.

An entity is one of UDDI's four (a business, a service, a binding, a tModel): its document is XML without key attributes and
without the entities inside it, which are rows of their own with `parent` and `position`. The columns beside the document are
read from it when it is saved (`documents`); two of them are guarded by the database: within a parent no two records of
one sort have one name, no two brokers one number. Texts by which entities are found stand in `words`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

PUBLIC, ORGANISATION, LISTED = "public", "organisation", "list"  # visibilities; LISTED: the organisations that VISIBLE_TO names too
VISIBLE_TO, EDITOR, PERMISSION = "uddi:mqmesh:visible-to", "uddi:mqmesh:editor", "uddi:mqmesh:permission"
EVERYONE = "*"  # a permission
INTERCHANGE = "interchange"  # the sort of record that a service of the message interchange is
NAMED = ("service", "broker")  # records whose names belong to an account
WORD = 255  # characters of a word
VERSION = 3  # of the tables: with words, and with the owners of names

metadata = sa.MetaData()


def _ordered(length: int) -> sa.types.TypeEngine[str]:
    """Texts that are compared and sorted by code point in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


entities = sa.Table(
    "directory_entities",
    metadata,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("parent", sa.String(255), nullable=False),
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
    sa.Index("directory_entities_by_position", "parent", "position"),
)
# What is looked for in documents: names, categories, identifiers, and the tModels of bindings. `folded`: without upper case, cut at WORD.
words = sa.Table(
    "directory_words",
    metadata,
    sa.Column("entity", sa.String(255), nullable=False, index=True),
    sa.Column("what", sa.String(32), nullable=False),  # the kind of entity and what it is, such as service/name
    sa.Column("tmodel", _ordered(255), nullable=False),
    sa.Column("value", _ordered(255), nullable=False),
    sa.Column("folded", _ordered(255), nullable=False),
    sa.Index("directory_words_by_value", "what", "tmodel", "value"),
    sa.Index("directory_words_by_folded", "what", "tmodel", "folded"),
)
# One row: what the tables were last brought up to (`Store.index`).
versions = sa.Table("directory_versions", metadata, sa.Column("version", sa.Integer, primary_key=True))
# What has changed, in order: `number` rises by one with each change, under the writers' lock. A change of a mesh is one of all in it.
changes = sa.Table(
    "directory_changes",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("sort", sa.String(16), nullable=False),
    sa.Column("mesh", sa.String(255), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("organisation", sa.String(255), nullable=False),  # who may know of it; empty: everyone
)
# Whose the names of services and brokers are: the account's that had the first one of the name, until it gives the name up.
owned_names = sa.Table(
    "directory_names",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("owner", sa.String(255), nullable=False, index=True),
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
# Accounts of interchanges: they see every record, as they route by them.
interchanges = sa.Table("directory_interchanges", metadata, sa.Column("account", sa.String(255), primary_key=True))
# What the record of an interchange's service says beside its entity: a table as JSON (`services.py`).
profiles = sa.Table(
    "directory_profiles",
    metadata,
    sa.Column("entity", sa.String(255), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("profile", sa.Text, nullable=False),
)
# Each change of such a record, in order, chained by hashes (`audit.py`). profile: as it became; empty: it was deleted.
audits = sa.Table(
    "directory_audits",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("account", sa.String(255), nullable=False),
    sa.Column("service", sa.String(255), nullable=False, index=True),  # organisation/name
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("profile", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
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
    """Who asks. interchange: it is the account of an interchange, and sees every record."""

    name: str
    organisation: str
    interchange: bool = False


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
    def place(self) -> tuple[str, str, str]:
        """Where it is: in what, as which sort of record, under which name."""
        return self.parent, self.record or "", self.name

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


@dataclass(slots=True, frozen=True)
class Word:
    """A text by which an entity is found. what: name, category, identifier or tmodel. tmodel: of a reference, else empty."""

    what: str
    tmodel: str
    value: str
