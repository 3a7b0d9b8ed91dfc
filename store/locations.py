"""A store by its address, as a configuration or a command line names it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from ..base.extras import install
from .base import Kind, Store, StoreError
from .memory import MemoryStore

Durability = Literal["fsync", "os", "memory"]

_KINDS = "memory:, sqlite:///path/file.db, lmdb:///path/folder or postgresql://user@host/database?schema=name"


def store_at(address: str, durability: Durability = "fsync") -> Store:
    """The store at an address, not yet open.

    address: `memory:`, `sqlite:///absolute/file.db` (`sqlite:relative.db`), `lmdb:///absolute/folder`, `postgresql://...`.
    durability: "fsync" and "os" as docs/store.md says; "memory" gives a store in memory whatever the address.
    Raises StoreError if the address is wrong or the package for it is not installed.
    """
    scheme = scheme_of(address)
    sync = durability == "fsync"
    if durability == "memory" or scheme == "memory":
        return MemoryStore()
    if scheme == "sqlite":
        from .sqlite import SqliteStore

        return SqliteStore(path_of(address), sync)
    if scheme == "lmdb":
        try:
            from .lmdb import LmdbStore
        except ImportError as error:
            raise _not_installed(address, "lmdb") from error
        return LmdbStore(path_of(address), sync)
    if scheme in ("postgresql", "postgres"):
        try:
            from .postgresql import PostgresqlStore
        except ImportError as error:
            raise _not_installed(address, "postgresql") from error
        return PostgresqlStore(address, sync)
    raise no_such(address)


def no_such(address: str) -> StoreError:
    """The error for an address of no known form."""
    return StoreError(Kind.OTHER, shown(address), f"no store has such an address: {_KINDS} is right")


def scheme_of(address: str) -> str:
    """The kind of store that an address is of. Raises StoreError if it is no address."""
    return _split(address).scheme


def shown(address: str) -> str:
    """An address as it may be shown: without user and password."""
    head, _, rest = address.rpartition("@")
    return f"{head.partition(':')[0]}://{rest}" if head else address


def path_of(address: str) -> Path:
    """The file or folder of an embedded store. Raises StoreError if the address has none."""
    parts = _split(address)
    if parts.netloc or not parts.path:
        raise StoreError(Kind.OTHER, address, f"has no path: {parts.scheme}:///absolute/path or {parts.scheme}:relative/path is right")
    path = unquote(parts.path)
    return Path(f"/{path.lstrip('/')}" if path.startswith("//") else path)  # sqlite:////path, as others write it


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise StoreError(Kind.OTHER, shown(address), f"{error}: {_KINDS} is right") from None


def _not_installed(address: str, extra: str) -> StoreError:
    return StoreError(Kind.OTHER, f"{scheme_of(address)}:", f"needs a package that is not installed: {install(extra)}")
