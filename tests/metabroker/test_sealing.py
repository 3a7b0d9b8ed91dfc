"""Passwords as they are stored."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from mqmesh.metabroker import sealing
from mqmesh.metabroker.sealing import Sealer, SealError


def test_a_password_is_opened_for_its_owner_with_its_key() -> None:
    sealer = Sealer(b"a secret")
    sealed = sealer.seal(b"sesame", "one")
    assert b"sesame" not in sealed
    assert sealed != sealer.seal(b"sesame", "one")
    assert sealer.open(sealed, "one") == b"sesame"
    for other, owner, data in (
        (sealer, "two", sealed),
        (Sealer(b"another"), "one", sealed),
        (sealer, "one", sealed[:-1]),
        (sealer, "one", b""),
    ):
        with pytest.raises(SealError):
            other.open(data, owner)


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    sealed = sealing.made(file).seal(b"sesame", "one")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sealing.made(file).open(sealed, "one") == b"sesame"
    assert sealing.read(file).open(sealed, "one") == b"sesame"


def test_files_that_are_no_key(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short\n")
    for name in ("short", "none"):
        with pytest.raises(SealError):
            sealing.read(tmp_path / name)
    with pytest.raises(SealError):
        sealing.made(tmp_path / "none" / "key")
