"""Each fault ends in one clear error of the right kind, and what was committed stays."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from mqmesh.store import Batch, Kind, Store, StoreError
from mqmesh.store.locations import store_at
from mqmesh.store.memory import MemoryStore
from support.storage.disks import damage_last_page, data_file, fill, make_read_only, mounted, set_version
from support.stores import batch, content, delivery, run

EMBEDDED = ("sqlite", "lmdb")


def address_in(folder: Path, kind: str) -> str:
    return f"lmdb://{folder}/store" if kind == "lmdb" else f"sqlite://{folder}/store.db"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    with mounted(tmp_path / "disk", 4) as folder:
        yield folder


def big_batch(number: int) -> Batch:
    return batch(run(number, payload=random.Random(number).randbytes(100_000)), delivery("porto", number, number))


def commit_until_refused(store: Store) -> None:
    """Commit big batches until the store raises."""
    number = 1
    while True:
        store.commit(big_batch(number))
        number += 1


def opened(address: str) -> Store:
    store = store_at(address)
    store.open()
    return store


# Space.


@pytest.mark.process
@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_full_disk_refuses_and_recovers(kind: str, small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1 << 20))
    store = opened(address_in(small_disk, kind))
    with pytest.raises(StoreError) as caught:
        commit_until_refused(store)
    number = store.highest_run()
    assert caught.value.kind is Kind.FULL
    assert "no space left on its disk" in str(caught.value)
    assert number > 5
    for _ in range(3):
        with pytest.raises(StoreError):
            store.commit(big_batch(number + 1))
    assert [found.order for found in store.deliveries()] == list(range(1, number + 1))
    assert len(store.runs(range(1, number + 2))) == number
    filler.unlink()
    store.commit(big_batch(number + 1))
    assert store.count("porto") == number + 1
    store.close()
    again = opened(address_in(small_disk, kind))
    assert again.run(number + 1) == big_batch(number + 1).runs[number + 1]
    assert again.count("porto") == number + 1
    again.close()


@pytest.mark.process
@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_disk_that_is_full_from_the_start(kind: str, small_disk: Path) -> None:
    with pytest.raises(OSError):
        fill(small_disk / "filler")
    with pytest.raises(StoreError) as caught:
        opened(address_in(small_disk, kind))
    assert caught.value.kind is Kind.FULL
    (small_disk / "filler").unlink()
    store = opened(address_in(small_disk, kind))
    store.commit(big_batch(1))
    store.close()


def test_lmdb_says_when_its_map_is_full(tmp_path: Path) -> None:
    from mqmesh.store.lmdb import LmdbStore

    store = LmdbStore(tmp_path / "store", map_size=1 << 20)
    store.open()
    with pytest.raises(StoreError, match=r"largest size of 1 MiB \(map_size\): raise it") as caught:
        commit_until_refused(store)
    assert caught.value.kind is Kind.FULL
    assert store.count("porto") == store.highest_run()
    store.close()


# Permission.


@pytest.mark.process
@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("used", [False, True])
def test_a_read_only_folder(kind: str, used: bool, small_disk: Path) -> None:
    if used:
        store = opened(address_in(small_disk, kind))
        store.commit(big_batch(1))
        store.close()
    make_read_only(small_disk)
    with pytest.raises(StoreError, match="make the folder writable for user") as caught:
        opened(address_in(small_disk, kind))
    assert caught.value.kind is Kind.READ_ONLY


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_folder_that_is_a_file(kind: str, tmp_path: Path) -> None:
    (tmp_path / "disk").write_text("not a folder")
    with pytest.raises(StoreError):
        opened(address_in(tmp_path / "disk", kind))


# Damage.


def filled(folder: Path, kind: str) -> dict[str, object]:
    """A store with some of everything, closed; what it held."""
    store = opened(address_in(folder, kind))
    memory = MemoryStore()
    for number in range(1, 61):
        made = batch(
            run(number, count=1 + number % 40, payload=random.Random(number).randbytes(300)),
            delivery("porto", number, number, extra=b"\x0b\x01"),
            delivery(f"session {number % 7}", number, number),
        )
        made.put_value("retained", b"topic/%d" % number, random.Random(number).randbytes(number * 150))
        made.put_value("sessions", b"client %d" % number, b"state" * 20)
        store.commit(made)
        memory.commit(made)
    store.close()
    return content(memory)


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("damage", ["random", "zero", "cut"])
def test_a_damaged_last_page_is_reported(kind: str, damage: str, tmp_path: Path) -> None:
    filled(tmp_path, kind)
    damage_last_page(data_file(tmp_path, kind), damage)
    with pytest.raises(StoreError, match=r"is damaged \(.*\): restore a copy, or move it away and start empty") as caught:
        content(opened(address_in(tmp_path, kind)))
    assert caught.value.kind is Kind.CORRUPT
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_damaged_page_is_noticed_or_does_not_matter(kind: str, tmp_path: Path) -> None:
    held = filled(tmp_path / "whole", kind)
    pages = data_file(tmp_path / "whole", kind).stat().st_size // 4096
    kinds: list[Kind] = []
    chosen = random.Random(7).sample(range(pages), min(pages, 60))
    for page in chosen:
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "whole", folder)
        with open(data_file(folder, kind), "r+b") as data:
            data.seek(page * 4096)
            data.write(random.Random(page).randbytes(4096))
        store = store_at(address_in(folder, kind))
        found = None
        try:
            store.open()
            found = content(store)
        except StoreError as error:
            kinds.append(error.kind)
        finally:
            store.close()
        assert found in (None, held)
        shutil.rmtree(folder)
    assert set(kinds) <= {Kind.CORRUPT, Kind.SCHEMA}
    assert len(kinds) > len(chosen) // 2


def test_a_large_sqlite_file_is_found_damaged_when_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqmesh.store import sqlite

    monkeypatch.setattr(sqlite, "CHECKED_SIZE", 0)
    store = opened(address_in(tmp_path, "sqlite"))
    stored = run(1, count=100, payload=b"reading " * 50)
    store.commit(batch(stored, delivery("porto", 1, 1)))
    store.close()
    file = data_file(tmp_path, "sqlite")
    data = file.read_bytes()
    place = data.rindex(b"reading ")
    file.write_bytes(data[:place] + b"writing " + data[place + 8 :])
    store = opened(address_in(tmp_path, "sqlite"))
    with pytest.raises(StoreError, match="run 1 does not have its checksum"):
        store.run(1)
    store.close()


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_file_of_something_else(kind: str, tmp_path: Path) -> None:
    file = data_file(tmp_path, kind)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"This is a letter to my aunt.\n" * 1000)
    with pytest.raises(StoreError) as caught:
        opened(address_in(tmp_path, kind))
    assert caught.value.kind is Kind.CORRUPT


def test_a_database_of_another_program(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.db") as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    with pytest.raises(StoreError, match="is an SQLite file of another program: name another") as caught:
        opened(address_in(tmp_path, "sqlite"))
    assert caught.value.kind is Kind.SCHEMA
    (tmp_path / "store").mkdir()
    with lmdb.open(str(tmp_path / "store"), max_dbs=8) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"x", b"y", db=environment.open_db(b"meta", txn=transaction))
    with pytest.raises(StoreError, match="is an LMDB folder of another program: name another") as caught:
        opened(address_in(tmp_path, "lmdb"))
    assert caught.value.kind is Kind.SCHEMA


# Versions.


@pytest.mark.process
@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize(("version", "who"), [(0, "an older mqmesh: run that"), (3, "a newer mqmesh: run that")])
def test_another_schema_version(kind: str, version: int, who: str, tmp_path: Path) -> None:
    filled(tmp_path, kind)
    set_version(tmp_path, kind, version)
    with pytest.raises(StoreError, match=rf"has schema version {version}, this mqmesh reads version 2: it was written by {who}") as caught:
        opened(address_in(tmp_path, kind))
    assert caught.value.kind is Kind.SCHEMA
    if kind == "sqlite":
        with pytest.raises(StoreError, match="schema version"):
            store_at(address_in(tmp_path, kind)).attach()
    set_version(tmp_path, kind, 2)
    store = opened(address_in(tmp_path, kind))
    assert store.highest_run() == 60
    store.close()


# Addresses.


def test_addresses() -> None:
    for wrong in ("", "oracle://x", "sqlite://host/path", "sqlite:", "postgre://user:secret@host/db"):
        with pytest.raises(StoreError, match=r"is right$") as caught:
            store_at(wrong)
        assert "secret" not in str(caught.value)
    assert isinstance(store_at("sqlite:///tmp/x.db", "memory"), MemoryStore)


# Readers.


@pytest.mark.parametrize("kind", EMBEDDED)
def test_what_is_stored_is_for_its_owner_alone(tmp_path: Path, kind: str) -> None:
    store = opened(address_in(tmp_path / "data", kind))
    try:
        store.commit(big_batch(1))
        folder = tmp_path / "data" / "store" if kind == "lmdb" else tmp_path / "data"
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert len(modes) >= 2
        assert set(modes.values()) == {0o600}, modes
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        store.close()


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_folder_that_is_moved_or_deleted_under_the_broker_takes_nothing(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    store = opened(address_in(folder, kind))
    store.commit(batch(run(1), delivery("porto", 1, 1)))
    folder.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(StoreError, match="was deleted or replaced under the running broker: move it back"):
            store.commit(batch(run(2), delivery("porto", 2, 2)))
        folder.mkdir(exist_ok=True)  # an empty one in its place is none
    folder.rmdir()
    (tmp_path / "elsewhere").rename(folder)
    store.commit(batch(run(2), delivery("porto", 2, 2)))
    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="stop the broker and restore a copy"):
        store.commit(batch(run(3), delivery("porto", 3, 3)))
    store.close()
