"""Who a broker is, as its store says."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from uuid import UUID
from zlib import crc32

import msgpack
import pytest
from mqmesh.broker.mesh.custody_store import TABLE, stored_identity
from mqmesh.mesh.custody.journal import NODE
from mqmesh.store import Batch, Kind, StoreError
from mqmesh.store.sqlite import SqliteStore

WHO = UUID(bytes=b"u" * 16)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The store of a broker of a mesh, closed."""
    store = SqliteStore(tmp_path / "store.db")
    store.open()
    batch = Batch()
    batch.put_value(TABLE, NODE, msgpack.packb([1, WHO.bytes, 5000, 1]))
    store.commit(batch)
    store.close()
    return tmp_path / "store.db"


def make_older(file: Path) -> None:
    """As the release before this one wrote it: without counts, and with checksums over values only."""
    with sqlite3.connect(file) as data:
        data.create_function("crc32", 1, crc32)
        data.execute("DROP TABLE tally")
        data.execute("ALTER TABLE deliveries DROP COLUMN checksum")
        data.execute('UPDATE "values" SET checksum = crc32(value)')
        data.execute("PRAGMA user_version = 1")
    data.close()


def test_a_store_says_whose_it_is(file: Path) -> None:
    assert stored_identity(SqliteStore(file)) == (WHO, 5000)


def test_a_store_of_the_release_before_says_it_too(file: Path) -> None:
    make_older(file)
    with pytest.raises(StoreError, match="start the broker, which converts it"):
        SqliteStore(file).attach()
    assert stored_identity(SqliteStore(file)) == (WHO, 5000)


def test_a_store_of_another_version_says_why_when_it_is_opened(file: Path) -> None:
    with sqlite3.connect(file) as data:
        data.execute("PRAGMA user_version = 3")
    data.close()
    store = SqliteStore(file)
    assert stored_identity(store) is None
    with pytest.raises(StoreError) as caught:
        store.open()
    assert caught.value.kind is Kind.SCHEMA
