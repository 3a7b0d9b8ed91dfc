"""Files that are replaced whole."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_IMODE

import pytest
from mqmesh.base.process.files import READABLE, replace_file


def _mode(path: Path) -> int:
    return S_IMODE(path.stat().st_mode)


def test_a_new_file_is_its_owners(tmp_path: Path) -> None:
    for name, mode in (("a", None), ("b", 0o600)):
        replace_file(tmp_path / name, "text", mode)
        assert _mode(tmp_path / name) == 0o600
    replace_file(tmp_path / "c", b"\xff", READABLE)
    assert ((tmp_path / "c").read_bytes(), _mode(tmp_path / "c")) == (b"\xff", 0o644)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_the_mode_of_before_stays_if_none_is_given(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("old")
    path.chmod(0o640)
    replace_file(path, "new", None)
    assert (path.read_text(), _mode(path)) == ("new", 0o640)
    replace_file(path, "newer")
    assert _mode(path) == 0o600


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    replace_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_replaced(make: object, tmp_path: Path) -> None:
    make(tmp_path / "x")  # type: ignore[operator]
    before = os.lstat(tmp_path / "x").st_ino
    with pytest.raises(OSError, match="no regular file: give another name"):
        replace_file(tmp_path / "x", "text")
    assert (os.listdir(tmp_path), os.lstat(tmp_path / "x").st_ino) == (["x"], before)


def test_a_failure_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(tmp_path / "x", "old")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "x", "new")
    assert ((tmp_path / "x").read_text(), os.listdir(tmp_path)) == ("old", ["x"])
