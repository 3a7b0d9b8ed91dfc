"""Room on the disk and bringing data to it, also on systems that lack the usual calls."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from mqmesh.base.process import disk


@pytest.fixture(params=["linux", "macos"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "macos":
        monkeypatch.delattr(os, "fdatasync")
        monkeypatch.delattr(os, "posix_fallocate")
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", fcntl.F_GETFL, raising=False)
    return str(request.param)


@pytest.mark.parametrize("there", [b"", b"abc", b"x" * 3_000_000])
def test_room_is_taken_and_what_is_there_stays(tmp_path: Path, system: str, there: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(there)
    with path.open("r+b") as file:
        disk.reserve(file.fileno(), 2_500_000)
        disk.sync_data(file.fileno())
    size = max(2_500_000, len(there))
    assert path.read_bytes() == there.ljust(size, b"\0")
    assert path.stat().st_blocks * 512 >= size


def test_no_room_is_an_error(system: str) -> None:
    with Path("/dev/full").open("r+b") as file, pytest.raises(OSError) as found:
        disk.reserve(file.fileno(), 100)
    assert found.value.errno in (errno.ENOSPC, errno.ENODEV)
