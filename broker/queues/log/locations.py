"""Which stores there are, by name.

    log           files of segments, the default
    sqlite        an SQLite file
    lmdb          an LMDB file
    postgresql:   a schema of a PostgreSQL database, by its URL
    redis:        streams of Redis, by its URL
    nats:         a stream of NATS JetStream, by its URL
    amqp:         streams of RabbitMQ, by its URL

What it does not know: what is in them.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from ....base.extras import install
from .places.files import FileSegments
from .port import Segments
from .products.entries import EntrySegments, Product

LOG, SQLITE, LMDB = "log", "sqlite", "lmdb"
KINDS = (LOG, SQLITE, LMDB)
POSTGRESQL = ("postgresql", "postgres")
REDIS = ("redis", "rediss")
NATS = ("nats", "tls")
AMQP = ("amqp", "amqps")
_PACKAGES = {"postgresql": POSTGRESQL, "redis": REDIS, "nats": NATS, "amqp": AMQP}
PACKAGES = {scheme: package for package, schemes in _PACKAGES.items() for scheme in schemes}
RIGHT = "postgresql://USER@HOST/DATABASE, redis://HOST:PORT, nats://HOST:PORT or amqp://HOST:PORT"


def segments_in(folder: Path, kind: str = LOG, durability: str = "fsync") -> Segments:
    """The store of this name, or at this URL; what has no URL is in a folder. durability: "fsync" or "os"."""
    try:
        return _segments_in(folder, kind, durability == "fsync")
    except ImportError:
        raise _not_installed(kind) from None


def _not_installed(kind: str) -> OSError:
    package = PACKAGES.get(_scheme(kind), kind)
    return OSError(errno.ENOPKG, f"the store {package} needs a package that is not installed: {install(package)}")


def _segments_in(folder: Path, kind: str, sync: bool) -> Segments:
    if kind == SQLITE:
        from .places.sqlite import SqliteSegments

        return SqliteSegments(folder, sync)
    if kind == LMDB:
        from .places.lmdb import LmdbSegments

        return LmdbSegments(folder, sync)
    if _scheme(kind) in POSTGRESQL:
        from .places.postgresql import PostgresqlSegments

        return PostgresqlSegments(kind, sync)
    if _scheme(kind) in PACKAGES:
        return EntrySegments(_product(kind, sync))
    assert kind == LOG, wrong(kind)
    return FileSegments(folder, sync)


def _product(url: str, sync: bool) -> Product:
    if _scheme(url) in NATS:
        from .products.jetstream import JetStream

        return JetStream(url)
    if _scheme(url) in AMQP:
        from .products.rabbitmq import RabbitMQ

        return RabbitMQ(url)
    from .products.redis_streams import RedisStreams

    return RedisStreams(url, sync)


def lease_at(kind: str, holder: str) -> Any:
    """The lease of a store that several brokers have in turn (`lease.py`). holder: this broker. Raises OSError."""
    try:
        from .lease import SECONDS, lease_of
    except ImportError:
        raise _not_installed(kind) from None
    return lease_of(kind, holder, SECONDS)


def segments_of(lease: Any, kind: str, durability: str) -> Segments:
    """The store of such a lease, which this broker has."""
    from .places.postgresql import PostgresqlSegments

    return PostgresqlSegments(kind, durability == "fsync", lease)


def shown(kind: str) -> str:
    """A store without the password that may stand in its URL."""
    scheme, separator, rest = kind.partition("://")
    return scheme + separator + rest.rpartition("@")[2]


def in_use(folder: Path) -> set[str]:
    """The kinds of store that a folder has."""
    names = {SQLITE: "queues.db", LMDB: "queues.lmdb"}
    return {kind for kind, name in names.items() if (folder / name).exists()}


def wrong(kind: str) -> str | None:
    """Why this names no store; None: it does."""
    if kind in KINDS or _scheme(kind) in PACKAGES:
        return None
    return f"give {', '.join(KINDS)}, {RIGHT}"


def _scheme(kind: str) -> str:
    return kind.partition("://")[0] if "://" in kind else ""
