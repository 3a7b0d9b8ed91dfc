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
