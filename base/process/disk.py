"""Calls to the disk that systems have under different names: macOS has neither fdatasync nor posix_fallocate."""

from __future__ import annotations

import fcntl
import os

_PIECE = 2**20


def sync_data(file: int) -> None:
    """Bring what was written to an open file to the disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        fcntl.fcntl(file, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009 # macOS: fsync leaves it in the drive's cache


def reserve(file: int, size: int) -> None:
    """Have room on the disk for the first `size` bytes of an open file; what is there stays. Raises OSError when there is none."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    there = os.fstat(file).st_size
    while there < size:
        there += os.pwrite(file, bytes(min(_PIECE, size - there)), there)


def reserve_ahead(file: int, begin: int, size: int) -> bool:
    """Have room on the disk for `size` bytes of an open file from `begin` on, which read as zeros until they are written.

    Returns whether there is such room.
    """
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(file, begin, size)
    except OSError:
        return False
    return True
