"""One bit of a store's file is changed: the store says so, or reads exactly what was written.

What is read is everything: what a broker learns at its start, and each row. A flip counts as reported when an error names it.
Each flip is in a fresh copy, and the place follows from a seed. `MQMESH_FLIPS` says how many.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mqmesh.store import Store, StoreError
from mqmesh.store.locations import store_at
from mqmesh.store.postgresql import PostgresqlStore
from mqmesh.store.records import Batch, Counts, StoredRun
from mqmesh.store.sqlite import SqliteStore
from mqmesh.store.writer import Writer
from support.peers.postgres import server
from support.stores import delivery, run

pytestmark = pytest.mark.process

FLIPS = int(os.environ.get("MQMESH_FLIPS", "80"))
TABLES = ("sessions", "subscriptions", "retained", "windows", "broker")
SESSIONS, MESSAGES = 5, 60


def contents() -> list[Batch]:
    """Batches as a broker's: sessions with their queues, values that were replaced, rows that are gone."""
    batches = []
    for part in range(4):
        made = Batch()
        for number in range(part * MESSAGES // 4 + 1, (part + 1) * MESSAGES // 4 + 1):
            payload = b"%06d" % number * (1 + number % 40)
            made.put_run(run(number, count=1 + number % 3, payload=payload, expires_at=None if number % 2 else 2e9))
            for session in range(SESSIONS):
                made.put_delivery(delivery(f"session/{session}", number, number, state=number % 2, extra=bytes([session]) * 12))
        for session in range(SESSIONS):
            made.put_value("sessions", b"client-%d" % session, b"state %d of %d " % (part, session) * 10)
            made.put_value("subscriptions", b"%08d" % (part * 10 + session), b"filter/%d/%d" % (part, session))
        made.put_value("retained", b"topic/%d" % part, b"value" * (1 + 400 * part))
        made.put_value("broker", b"alive", b"%d" % part)
        batches.append(made)
    gone = Batch()
    for number in range(1, 6):
        for session in range(SESSIONS):
            gone.delete_delivery(f"session/{session}", number)
        gone.delete_run(number)
    gone.delete_value("subscriptions", b"%08d" % 0)
    gone.counts = Counts(MESSAGES - 5, (MESSAGES - 5) * SESSIONS, SESSIONS + 4 * SESSIONS - 1 + 4 + 1)
    batches.append(gone)
    return batches


def fill(store: Store) -> None:
    store.open()
    for made in contents():
        store.commit(made)


def everything(store: Store) -> Any:
    """All that a broker learns of a store and all that it can read of it. Raises StoreError."""
    writer = Writer(store, lambda call: call(), lambda ticket: None, lambda error: None)
    try:
        seen: list[Any] = []

        def note(rows: Any) -> Any:
            for row in rows:
                seen.append(row)
                yield row

        writer.start(note)
        runs: dict[int, StoredRun] = store.runs(sorted({row.run for row in seen}))
        values = {table: dict(store.values(table)) for table in TABLES}
        single = {(table, key): store.value(table, key) for table, rows in values.items() for key in rows}
        for recipient in {row.recipient for row in seen}:
            assert [row for row in seen if row.recipient == recipient] == list(store.deliveries(recipient))
        return sorted(seen), runs, values, single, store.value("broker", b"alive")
    finally:
        writer.close(5)


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes((byte ^ 1 << bit % 8,)))


def outcome(store: Store, whole: Any) -> str:
    """What becomes of a flip: "reported", "without effect", or what is wrong."""
    try:
        found = everything(store)
    except StoreError:
        return "reported"
    finally:
        store.close()
    return "without effect" if found == whole else "SILENT"


def survey(kind: str, folder: Path, flips: int, seed: int) -> None:
    """Flip bits in copies of a folder, one after the other; prints what became of each. In a child process for LMDB, which may crash."""
    name = {"sqlite": "store.db", "lmdb": "store"}[kind]
    address = f"{kind}://{{}}/{name}"
    whole = everything(store_at(address.format(folder)))
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in ("store.lock", "lock.mdb")]
    sizes = [path.stat().st_size * 8 for path in files]
    chosen = random.Random(seed)
    for number in range(flips):
        bit = chosen.randrange(sum(sizes))
        copy = folder.parent / "flipped"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        for path, size in zip(files, sizes, strict=True):
            if bit < size:
                flip(copy / path.relative_to(folder), bit)
                break
            bit -= size
        print(number, path.name, bit, outcome(store_at(address.format(copy)), whole), flush=True)


def surveyed(kind: str, folder: Path, flips: int, seed: int) -> list[list[str]]:
    """The lines of `survey` in a child."""
    command = [sys.executable, __file__, kind, str(folder), str(flips), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line.split(" ", 3) for line in done.stdout.splitlines()]
    assert len(lines) == flips, (done.returncode, lines[-3:], done.stderr[-2000:])
    return lines


@pytest.mark.parametrize("kind", ["sqlite", "lmdb"])
def test_no_flipped_bit_is_silent(kind: str, tmp_path: Path) -> None:
    store = store_at(f"{kind}://{tmp_path}/whole/{'store.db' if kind == 'sqlite' else 'store'}")
    fill(store)
    store.close()
    lines = surveyed(kind, tmp_path / "whole", FLIPS, seed=11)
    assert not [line for line in lines if line[3] not in ("reported", "without effect")]
    assert len([line for line in lines if line[3] == "reported"]) > FLIPS // 8  # free pages take most of an LMDB file


def test_no_flipped_bit_in_a_log_is_silent(tmp_path: Path) -> None:
    """A broker was killed: its last commits are in SQLite's log, which forgets what comes after a damaged frame."""
    store = SqliteStore(tmp_path / "running" / "store.db")
    fill(store)
    shutil.copytree(tmp_path / "running", tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm", "store.lock"))
    whole = everything_of_copy(tmp_path)
    store.close()
    log = tmp_path / "killed" / "store.db-wal"
    chosen = random.Random(12)
    silent = []
    for _ in range(FLIPS):
        bit = chosen.randrange(log.stat().st_size * 8)
        copy = tmp_path / "flipped"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "killed", copy)
        flip(copy / log.name, bit)
        if outcome(SqliteStore(copy / "store.db"), whole) == "SILENT":
            silent.append(bit)
    assert not silent


def everything_of_copy(folder: Path) -> Any:
    shutil.copytree(folder / "killed", folder / "copy")
    store = SqliteStore(folder / "copy" / "store.db")
    try:
        return everything(store)
    finally:
        store.close()


@pytest.mark.service
def test_no_flipped_bit_is_silent_in_postgresql() -> None:
    """A server with data checksums. A database is copied file by file, as it is on the disk, with one bit changed."""
    chosen = random.Random(13)
    with server() as postgres, psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET fsync = off")  # nobody kills this server, and each copy would wait for 300 files
        admin.execute("SELECT pg_reload_conf()")
        admin.execute("CREATE DATABASE whole")
        url = postgres.url.replace("/postgres", "/{}")
        store = PostgresqlStore(url.format("whole"))
        fill(store)
        store.close()
        whole = everything(PostgresqlStore(url.format("whole")))
        with psycopg.connect(url.format("whole")) as connection:
            relations = """SELECT pg_relation_filepath(c.oid) FROM pg_class c
                WHERE relfilenode <> 0 AND (relnamespace = 'mqmesh'::regnamespace
                OR oid IN (SELECT reltoastrelid FROM pg_class WHERE relnamespace = 'mqmesh'::regnamespace)
                OR oid IN (SELECT indexrelid FROM pg_index JOIN pg_class t ON t.oid = indrelid
                    JOIN pg_class o ON o.reltoastrelid = t.oid WHERE o.relnamespace = 'mqmesh'::regnamespace))"""
            files = [postgres.folder / "data" / row[0] for row in connection.execute(relations)]
        admin.execute("CHECKPOINT")
        sizes = [path.stat().st_size * 8 for path in files]
        assert sum(sizes) > 8 * 8192 * 8
        found = []
        for _ in range(max(1, FLIPS // 10) if FLIPS < 500 else FLIPS):
            path, bit = chosen.choices([(path, size) for path, size in zip(files, sizes, strict=True)], sizes)[0]
            place = chosen.randrange(bit)
            flip(path, place)
            admin.execute("CREATE DATABASE flipped TEMPLATE whole STRATEGY FILE_COPY")
            flip(path, place)
            found.append(outcome(PostgresqlStore(url.format("flipped")), whole))
            admin.execute("DROP DATABASE flipped WITH (FORCE)")
        assert "SILENT" not in found
        assert found.count("reported") > len(found) // 8


if __name__ == "__main__":
    survey(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
