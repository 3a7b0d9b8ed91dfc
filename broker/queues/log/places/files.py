"""Segments as files of a folder: the default store.

    FOLDER/000000000001.queue     a segment
    FOLDER/reserve                space that is given up when the disk is full, so that states can still be written

A small append reserves the next `AHEAD` bytes of its file first, so that most commits change neither the size of the file nor where it is
on the disk, and fdatasync need not write that. What is reserved reads as zeros. It is cut off when the next segment begins and at the
end; after a crash `scan` finds it behind the last frame. Where nothing can be reserved the file grows with each append.

What it does not know: what is in a segment.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from .....base.process.disk import reserve, reserve_ahead, sync_data
from .....base.process.files import sync_folder
from .....store.folder import GONE, identity, is_gone

SUFFIX = ".queue"
RESERVE_BYTES = 4 << 20
AHEAD = 1 << 20
SMALL = 16 << 10  # bytes of an append; to a larger one the change of the size adds little


class FileSegments:
    """See `Segments`. sync: a commit waits for the disk."""

    def __init__(self, folder: Path, sync: bool = True) -> None:
        self._folder = folder
        self._identity = (0, 0)  # of the folder
        self._sync = sync
        self._reserve = Reserve(folder / "reserve")
        self._files: dict[int, int] = {}
        self._written: set[int] = set()
        self._ends: dict[int, int] = {}  # of segments that are written, where their bytes end
        self._reserved: dict[int, int] = {}  # and where what is reserved of their files ends

    def open(self) -> list[int]:
        """Make the folder if need be, and open its files."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._identity = identity(self._folder)
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if path.name[: -len(SUFFIX)].isdigit():
                self._files[int(path.name[: -len(SUFFIX)])] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return sorted(self._files)

    def name_of(self, number: int) -> str:
        """Its path."""
        return str(self._path(number))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}{SUFFIX}"

    def size(self, number: int) -> int:
        """The size of its file, without what is reserved."""
        end = self._ends.get(number)
        return os.fstat(self._files[number]).st_size if end is None else end

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of its file."""
        end = self._ends.get(number)
        return os.pread(self._files[number], size if end is None else max(0, min(size, end - offset)), offset)

    def begin(self, number: int) -> None:
        """Make its file."""
        self._refuse_gone()
        self._cut_reserved()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._files[number] = os.open(self._path(number), flags, 0o600)
        if self._sync:
            sync_folder(self._folder)

    def append(self, number: int, offset: int, data: list[bytes]) -> int:
        """One write, if the disk takes it."""
        self._written.add(number)
        file, view = self._files[number], memoryview(b"".join(data) if len(data) != 1 else data[0])
        if self._sync and len(view) <= SMALL and offset + len(view) > self._reserved.get(number, 0):
            self._ends[number] = offset
            self._reserved[number] = offset + (AHEAD if reserve_ahead(file, offset, AHEAD) else len(view))
        while view:
            done = os.pwrite(file, view, offset)
            view, offset = view[done:], offset + done
        if number in self._ends:
            self._ends[number] = offset
        return offset

    def _cut_reserved(self) -> None:
        """What is reserved and not used goes back."""
        for number, end in list(self._ends.items()):
            os.ftruncate(self._files[number], end)
            os.fsync(self._files[number])
            del self._ends[number]
        self._reserved.clear()

    def commit(self) -> None:
        """Bring each file that was written to the disk."""
        self._refuse_gone()
        for number in self._written:
            if not os.fstat(self._files[number]).st_nlink:
                raise OSError(errno.ESTALE, f"{self._path(number)}: {GONE}")
            if self._sync:
                sync_data(self._files[number])
        self._written.clear()

    def _refuse_gone(self) -> None:
        """Raise OSError if the folder was deleted or moved: nobody would find there what is written."""
        if is_gone(self._folder, self._identity):
            raise OSError(errno.ESTALE, f"{self._folder}: {GONE}")

    def undo(self, number: int, offset: int) -> None:
        """Cut it off."""
        self._written.clear()
        os.ftruncate(self._files[number], offset)
        self._forget(number)
        if self._sync:
            os.fsync(self._files[number])

    def drop(self, number: int) -> None:
        """Delete its file."""
        self._forget(number)
        os.close(self._files.pop(number))
        self._path(number).unlink(missing_ok=True)

    def _forget(self, number: int) -> None:
        self._ends.pop(number, None)
        self._reserved.pop(number, None)

    def set_aside(self) -> bool:
        """Make the file `reserve`."""
        return not self._sync or self._reserve.make()

    def give_up(self) -> None:
        """Delete the file `reserve`."""
        self._reserve.give_up()

    def close(self) -> None:
        """Close the files."""
        with suppress(OSError):  # then the next start finds it
            self._cut_reserved()
        for file in self._files.values():
            os.close(file)
        self._files.clear()


class Reserve:
    """A file that takes room on a disk until that is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> bool:
        """Have the file: whether there is room for it."""
        if self._path.exists():
            return True
        try:
            with self._path.open("xb") as file:
                reserve(file.fileno(), RESERVE_BYTES)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        return True

    def give_up(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)
