"""What an operator does with a store that the disk has damaged: look through it, or keep what is whole.

`check` reads every row and compares the counts; it changes nothing. `salvage` sets the damaged store aside, as it is, and makes a new one
of its whole rows in its place. A row is whole when its checksum is right. A delivery whose run is lost goes, and a run without deliveries.

A `salvage` of files that is killed leaves a store that no broker opens (`MARK`), and goes on when it is called again. So nobody starts
empty by mistake. In PostgreSQL the last step is one transaction (`postgresql_salvage.py`).

What it does not know: what states and values mean.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ..base.process.files import sync_folder
from .base import REMEDY, Kind, Store, StoreError
from .folder import MARK, FolderLock, in_use
from .locations import no_such, path_of, scheme_of, shown, store_at
from .records import Batch, Counts, StoredDelivery, StoredRun
from .sqlite_check import check_log, log_of

STEP = 500  # rows of one commit
FILES = ("sqlite", "lmdb")
SERVERS = ("postgresql", "postgres")


class Report(NamedTuple):
    """What was found: a line for each damage; how many rows are whole; where the damaged store is now, None while it has not moved."""

    problems: list[str]
    whole: Counts
    aside: Path | str | None = None


def check(address: str) -> Report:
    """Read a store through, beside a broker that may use it. Raises StoreError when it cannot be opened at all."""
    scheme = scheme_of(address)
    return _look_through(address, scheme not in FILES or in_use(_file_of(address).parent))


def _look_through(address: str, used: bool) -> Report:
    """used: whether somebody may write meanwhile."""
    scheme = scheme_of(address)
    store = store_at(address)
    problems: list[str] = []
    try:
        if scheme == "sqlite" and not used:
            _look_at_log(path_of(address), problems)
        store.attach()
        if scheme != "lmdb" or not used:  # LMDB's verifier reads the file while it is written
            with _noting(problems):
                store.check_pages()
        with store.snapshot() if used else nullcontext():
            whole = _pass_on(store, None, problems)
        return Report(list(dict.fromkeys(problems)), whole)
    finally:
        store.close()


def salvage(address: str, at_least: int = 0) -> Report:
    """Put a new store of what is whole in the place of a damaged one. No broker may use it. Raises StoreError.

    at_least: rows that have to be whole; with fewer nothing is changed.
    """
    scheme = scheme_of(address)
    if scheme in SERVERS:
        return _salvage_schema(address, at_least)
    if scheme == "memory":
        raise StoreError(Kind.OTHER, shown(address), "keeps nothing: there is nothing to salvage")
    if scheme not in FILES:
        raise no_such(address)
    path = path_of(address)
    file = _file_of(address)
    lock = FolderLock(file.parent)
    lock.acquire(str(path))
    try:
        mark = file.with_name(file.name + MARK)
        if not mark.exists():
            if not file.exists():
                raise StoreError(Kind.OTHER, str(path), "does not exist: there is nothing to salvage")
            _refuse_another_version(address)
            if at_least and sum(_look_through(address, False).whole) < at_least:
                raise StoreError(Kind.CORRUPT, str(path), f"holds nothing that is whole: {REMEDY}")
            _write_mark(mark)
        aside, fresh = file.parent / f"damaged-{_read_mark(mark)}", file.parent / "salvaged"
        _set_aside(file, aside)
        shutil.rmtree(fresh, ignore_errors=True)
        end = f"/{quote(file.name)}" if scheme == "sqlite" else ""
        problems: list[str] = []
        if scheme == "sqlite":
            _look_at_log(aside / file.name, problems)
        whole = _copy(store_at(f"{scheme}://{quote(str(aside))}{end}"), store_at(f"{scheme}://{quote(str(fresh))}{end}"), problems)
        os.replace(fresh / file.name, file)
        shutil.rmtree(fresh, ignore_errors=True)
        sync_folder(file.parent)
        mark.unlink()
        return Report(list(dict.fromkeys(problems)), whole, aside)
    finally:
        lock.release()


def _salvage_schema(address: str, at_least: int) -> Report:
    """`salvage`, of a schema in PostgreSQL."""
    _refuse_another_version(address)
    from .postgresql import DEFAULT_SCHEMA, LOCK_CLASS
    from .postgresql_salvage import SchemaSalvage
    from .postgresql_schema import Schema

    work = SchemaSalvage(Schema(address, DEFAULT_SCHEMA, LOCK_CLASS))
    try:
        work.begin()
        problems: list[str] = []
        whole = _copy(store_at(address), store_at(work.fresh), problems)
        if sum(whole) < at_least:
            raise StoreError(Kind.CORRUPT, shown(address), f"holds nothing that is whole: {REMEDY}")
        return Report(list(dict.fromkeys(problems)), whole, f"schema {work.exchange()}")
    finally:
        work.end()


def _file_of(address: str) -> Path:
    path = path_of(address)
    return path if scheme_of(address) == "sqlite" else path / "data.mdb"


def _refuse_another_version(address: str) -> None:
    """A store of another version looks damaged through and through. Raises StoreError."""
    store = store_at(address)
    try:
        store.attach()
    except StoreError as error:
        if error.kind is Kind.SCHEMA:
            raise
    finally:
        store.close()


def _write_mark(mark: Path) -> None:
    """All of it is on the disk, or it is not there."""
    fresh = mark.with_name(f"{mark.name}.new")
    with open(fresh, "w") as file:
        file.write(time.strftime("%Y%m%d-%H%M%S"))
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(mark)
    sync_folder(mark.parent)


def _read_mark(mark: Path) -> str:
    """The time at which a salvage began. Raises StoreError."""
    text = mark.read_text().strip()
    if not text:
        remedy = "write into it what the folder damaged-... beside it has behind 'damaged-', or delete it if there is no such folder"
        raise StoreError(Kind.CORRUPT, str(mark), f"is empty, so that nobody knows what a salvage has set aside: {remedy}")
    return text


def _set_aside(file: Path, aside: Path) -> None:
    """Move a store into a folder; what an interrupted salvage has moved stays there."""
    aside.mkdir(0o700, exist_ok=True)
    for name in (f"{file.name}-wal", file.name):  # the log belongs to the file: they move before anything is opened, the file last
        if (aside / file.name).exists() or (aside / name).exists():
            continue
        with suppress(FileNotFoundError):
            os.replace(file.with_name(name), aside / name)
            sync_folder(aside)
    with suppress(FileNotFoundError):
        file.with_name(f"{file.name}-shm").unlink()
    sync_folder(file.parent)


def _look_at_log(file: Path, problems: list[str]) -> None:
    """The log of an SQLite file that no broker uses."""
    with _noting(problems):
        check_log(None, log_of(file), str(file))


def _copy(old: Store, new: Store, problems: list[str]) -> Counts:
    try:
        new.open()
        with _noting(problems, new):
            old.attach()
            return _pass_on(old, new, problems)
        return Counts(0, 0, 0)
    finally:
        old.close()
        new.close()


def _pass_on(old: Store, new: Store | None, problems: list[str]) -> Counts:
    """Read all that is whole of an old store, and give it to a new one if there is one."""
    runs: set[int] = set()
    seen: set[tuple[str, int] | tuple[str, bytes]] = set()
    deliveries = values = 0
    changes = Batch()
    for row in old.remains(problems.append):
        if row[:2] in seen:
            continue
        seen.add(row[:2])
        if isinstance(row, StoredDelivery):
            stored = None if row.run in runs else _run(old, row, problems)
            if stored is not None:
                runs.add(row.run)
                changes.put_run(stored)
            elif row.run not in runs:
                continue
            deliveries += 1
            changes.put_delivery(row)
        else:
            values += 1
            changes.put_value(*row)
        if len(seen) % STEP == 0:
            changes = _committed(new, changes)
    whole = Counts(len(runs), deliveries, values)
    _committed(new, changes)
    last = Batch()
    last.counts = whole
    _committed(new, last)
    right = None
    with _noting(problems):
        right = old.counts()
    for name, here, there in zip(Counts._fields, whole, right or whole, strict=True):
        if here != there:
            problems.append(f"{here:,} of {there:,} {name} are whole")
    return whole


def _run(old: Store, row: StoredDelivery, problems: list[str]) -> StoredRun | None:
    """The messages of a delivery."""
    stored = None
    with _noting(problems):
        stored = old.run(row.run)
        if stored is None:
            problems.append(f"run {row.run} is not there")
    if stored is None:
        problems.append(f"delivery {row.order} of {row.recipient!r} has lost its messages")
    return stored


def _committed(new: Store | None, changes: Batch) -> Batch:
    if new is not None:
        new.commit(changes)
    return Batch()


@contextmanager
def _noting(problems: list[str], new: Store | None = None) -> Iterator[None]:
    """A StoreError inside is noted, and what is inside ends; but a server that is away, and an error of the new store, are no damage."""
    try:
        yield
    except StoreError as error:
        if error.kind in (Kind.UNREACHABLE, Kind.BUSY) or (new is not None and error.store == new.name):
            raise
        problems.append(error.cause)
