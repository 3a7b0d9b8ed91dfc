"""The stores that the contract is checked against, each as a `Place`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqmesh.store import Store, postgresql_schema
from mqmesh.store.lmdb import LmdbStore
from mqmesh.store.memory import MemoryStore
from mqmesh.store.postgresql import PostgresqlStore
from mqmesh.store.sqlite import SqliteStore
from support.peers.postgres import Server, server
from support.services import PATIENCE
from support.storage.failing_store import FailingStore
from support.stores import Place

KINDS = ("memory", "failing", "sqlite", "lmdb", pytest.param("postgresql", marks=pytest.mark.service))
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """Stores wait for it as long as it takes."""
    with server() as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgresql_schema, "CONNECT_TIMEOUT", int(PATIENCE))
        yield running


@pytest.fixture(scope="session")
def new_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Place]:
    """Makes empty places."""

    def make(kind: str) -> Place:
        folder: Path = tmp_path_factory.mktemp(kind)
        if kind == "memory":
            memory = MemoryStore()
            return Place(kind, lambda: memory)
        if kind == "failing":
            wrapped = MemoryStore()
            return Place(kind, lambda: FailingStore(wrapped))
        if kind == "sqlite":
            return Place(kind, lambda: SqliteStore(folder / "store.db"))
        if kind == "lmdb":
            return Place(kind, lambda: LmdbStore(folder / "store"))
        postgres: Server = request.getfixturevalue("postgres_server")
        schema = f"store_{next(_numbers)}"
        return Place(kind, lambda: PostgresqlStore(f"{postgres.url}?schema={schema}"))

    return make


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, new_place: Callable[[str], Place]) -> Place:
    return new_place(request.param)


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    """An open, empty store."""
    opened = place.make()
    opened.open()
    yield opened
    opened.close()
