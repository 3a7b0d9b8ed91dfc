"""Files that are replaced whole: after a crash there is the old one, or the new one."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from stat import S_IMODE, S_ISREG

PRIVATE, READABLE = 0o600, 0o644


def replace_file(path: Path, content: str | bytes, mode: int | None = PRIVATE) -> None:
    """Have a file with this content in the place of another one, durably; where `path` is a link, in the place that it leads to.

    mode: of the file; None: that of the one that is there, and its owner, or PRIVATE. Blocks. Raises OSError, also if a device, a folder
    or a socket is there: whoever names `/dev/stdout` as a file would replace it.
    """
    path = Path(os.path.realpath(path))
    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    if there is not None and not S_ISREG(there.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file: give another name", str(path))
    handle, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if mode is not None:
                os.fchmod(handle, mode)
            elif there is not None:
                os.fchmod(handle, S_IMODE(there.st_mode))
                os.fchown(handle, there.st_uid, there.st_gid)
            os.fsync(handle)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
