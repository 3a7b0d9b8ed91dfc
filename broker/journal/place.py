"""A place of files: a local folder, or any URL that fsspec knows (s3://, gs://, memory://, ...).

A file appears whole or not at all. Locally it is written beside its place, forced to the disk and renamed;
an object store does that itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

TEMPORARY = ".partial"


class Place:
    """The root of a journal, or of what is made from one. Names are below it, with `/` between their parts."""

    def __init__(self, root: str | os.PathLike[str], options: dict[str, Any] | None = None) -> None:
        """root: a folder or a URL. options: of the URL's file system, as fsspec takes them. Raises ValueError, one line."""
        if root == "":  # an unset variable of a script: it is not to be the root of the disk
            raise ValueError("the path is empty: give a folder or a URL")
        self.root = os.fspath(root).rstrip("/") or "/"
        self.remote = "://" in self.root and not self.root.startswith("file://")
        if self.remote:
            self._fs, self._base = _remote(self.root, options or {})
        else:
            self.root = str(Path(self.root.removeprefix("file://")).absolute())
            self._fs, self._base = None, self.root

    def url(self, name: str = "") -> str:
        """Where a file is, for other programs."""
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes:
        """The content of a file. Raises OSError."""
        if self._fs is not None:
            return bytes(self._fs.cat_file(f"{self._base}/{name}"))
        return (Path(self._base) / name).read_bytes()

    def open(self, name: str) -> IO[bytes]:
        """A file to read from. Raises OSError."""
        if self._fs is not None:
            file: IO[bytes] = self._fs.open(f"{self._base}/{name}", "rb")
            return file
        return (Path(self._base) / name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file, or nothing. Raises OSError."""
        if self._fs is not None:
            with suppress(NotImplementedError, OSError):  # object stores have no folders
                self._fs.makedirs(f"{self._base}/{name}".rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(f"{self._base}/{name}", data)
            return
        path = Path(self._base) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{uuid4().hex[:8]}{TEMPORARY}")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def remove(self, name: str) -> None:
        """Delete a file, if it is there. Raises OSError."""
        with suppress(FileNotFoundError):
            if self._fs is not None:
                self._fs.rm_file(f"{self._base}/{name}")
            else:
                (Path(self._base) / name).unlink()

    def exists(self, name: str) -> bool:
        if self._fs is not None:
            return bool(self._fs.exists(f"{self._base}/{name}"))
        return (Path(self._base) / name).exists()

    def files(self, folder: str, ending: str = "") -> list[str]:
        """The names of all files below a folder that end so; empty when there is no such folder. Raises OSError."""
        if self._fs is not None:
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(f"{self._base}/{folder}")
            except FileNotFoundError:
                return []
            cut = len(self._base.rstrip("/")) + 1
            return [name[cut:] for name in found if name.endswith(ending)]
        base, made = Path(self._base), []
        for parent, _, names in os.walk(base / folder):
            made += [(Path(parent) / name).relative_to(base).as_posix() for name in names if name.endswith(ending)]
        return made


def _remote(root: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise ValueError(f"{root}: a URL needs fsspec: install mqmesh[journal]") from None
    try:
        fs, base = fsspec.core.url_to_fs(root, **options)
    except (ImportError, ValueError, OSError) as error:  # some reach out for the server here
        raise ValueError(f"{root}: {error}") from None
    return fs, str(base).rstrip("/")
