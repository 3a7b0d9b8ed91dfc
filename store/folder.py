"""A data folder: made durably, locked by one process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from pathlib import Path

from ..base.process.files import sync_folder
from .base import Kind, StoreError

LOCK_WAIT = 10.0  # seconds: a broker that was killed may still be ending
MARK = ".salvage"  # behind a file's name while it is salvaged: the time, by which what is set aside is named
GONE = "was deleted or replaced under the running broker: move it back as it was, or stop the broker and restore a copy"
LITTLE = 1 << 20  # a file system with less than this free counts as full when a write fails for no better reason


class FolderLock:
    """The right to write in a folder, held by one open file until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.lock"
        self._file: int | None = None

    def acquire(self, store: str) -> None:
        """Take it, waiting up to `LOCK_WAIT` for another process to let go. Raises StoreError (busy, or as `os_error` says)."""
        end = time.monotonic() + LOCK_WAIT
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise os_error(store, error) from error
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= end:
                    holder = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
                    os.close(file)
                    text = f"is open in another process (pid {holder}): stop that broker, or give this one a folder of its own"
                    raise StoreError(Kind.BUSY, store, text) from error
                time.sleep(0.02)
        self._file = file
        with contextlib.suppress(OSError):  # the number only makes the message above better; the disk may be full
            os.truncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; may be called without holding it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def identity(path: Path) -> tuple[int, int]:
    """What tells a file or folder from another one of its name: device and number."""
    found = path.stat()
    return found.st_dev, found.st_ino


def is_gone(path: Path, known: tuple[int, int]) -> bool:
    """Whether a file or folder is not that of this identity any more: nobody finds again what is written into a deleted one."""
    try:
        return identity(path) != known
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # nobody can tell
        return False


def refuse_gone(file: Path, known: tuple[int, int], store: str) -> None:
    """Raises StoreError if a file `is_gone`."""
    if is_gone(file, known):
        raise StoreError(Kind.OTHER, store, GONE)


def in_use(folder: Path) -> bool:
    """Whether somebody holds the lock of a folder now, or may hold it: this user cannot tell."""
    try:
        file = os.open(folder / "store.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def make_folder(folder: Path, store: str) -> None:
    """Make a folder, for its owner alone, and its parents so that they survive a power loss. Raises StoreError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for path in reversed(missing):
            path.mkdir(0o700 if path == folder else 0o777, exist_ok=True)
            sync_folder(path.parent)
    except OSError as error:
        raise os_error(store, error) from error


def make_private(path: Path) -> None:
    """Make a file that nobody but its owner may read; one that is there stays as it is."""
    with contextlib.suppress(OSError):  # who opens it next says what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def refuse_half_salvaged(file: Path, store: str) -> None:
    """A salvage of this file was interrupted. Raises StoreError: it must go on before anyone starts."""
    if file.with_name(file.name + MARK).exists():
        raise StoreError(Kind.CORRUPT, store, "is being salvaged, or that was interrupted: run 'mqmesh store salvage' again")


def os_error(store: str, error: OSError) -> StoreError:
    """The StoreError that an error of the operating system amounts to."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full(store)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return read_only(store, error.strerror or "no permission")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return StoreError(Kind.OTHER, store, "is a file or lies below one: name a folder")
    return StoreError(Kind.OTHER, store, error.strerror or str(error))


def words(error: OSError, path: object) -> str:
    """What an error of the operating system amounts to: the path that it is about, the cause, and the remedy. path: where it names none."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
        return f"{error.filename or path}: {os_error('', error).text}"
    return error.strerror or str(error)


def full(store: str) -> StoreError:
    """The error for a disk without space."""
    return StoreError(Kind.FULL, store, "no space left on its disk: free some space; writing then goes on by itself")


def read_only(store: str, cause: str) -> StoreError:
    """The error for a folder that may not be written."""
    return StoreError(
        Kind.READ_ONLY,
        store,
        f"cannot be written ({cause}): make the folder writable for user {os.getuid()}, mount its file system for writing, or name another",
    )


def out_of_space(folder: Path, wanted: int = 0) -> bool:
    """Whether the file system that holds a folder has next to no space left beside so many bytes."""
    try:
        return shutil.disk_usage(folder).free < wanted + LITTLE
    except OSError:
        return False


def space_of(*files: Path) -> int | None:
    """Bytes of files of one folder, those that are there, and what else is free to this user on their disk; None if nobody says."""
    taken = 0
    for file in files:
        with contextlib.suppress(OSError):
            taken += file.stat().st_blocks * 512
    try:
        return taken + shutil.disk_usage(files[0].parent).free
    except OSError:
        return None


def is_read_only(folder: Path) -> bool:
    """Whether a folder refuses writing, as far as can be told without trying."""
    return not os.access(folder, os.W_OK)
