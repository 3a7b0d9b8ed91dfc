"""A disk that is small enough to be filled, and what goes wrong with files on it."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from support.services import missing

PAGE = 4096


@contextmanager
def mounted(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of so many MiB in `folder`, which is made; the test is skipped where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder]
    if os.getuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        missing("mounting a small file system takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    """Write a file until there is no space left. Raises OSError in the end, always."""
    with open(path, "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(PAGE))


def make_read_only(folder: Path) -> None:
    """From now on what is mounted there refuses writing."""
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


def data_file(folder: Path, kind: str) -> Path:
    """Where a store of this kind keeps its data when its broker has `folder`."""
    return folder / "store" / "data.mdb" if kind == "lmdb" else folder / "store.db"


def damage_last_page(file: Path, how: str) -> None:
    """how: "random", "zero", or "cut" (the page is missing)."""
    size = file.stat().st_size
    with open(file, "r+b") as data:
        if how == "cut":
            data.truncate(size - PAGE)
        else:
            data.seek(size - PAGE)
            data.write(random.Random(1).randbytes(PAGE) if how == "random" else bytes(PAGE))


def set_version(folder: Path, kind: str, version: int) -> None:
    """Have the store say that it was written by another version."""
    if kind == "sqlite":
        with sqlite3.connect(folder / "store.db") as data:
            data.execute(f"PRAGMA user_version = {version}")
        data.close()
        return
    with lmdb.open(str(folder / "store"), max_dbs=8) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"schema", str(version).encode(), db=environment.open_db(b"meta", txn=transaction))
