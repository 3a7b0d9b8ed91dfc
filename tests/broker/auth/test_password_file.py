"""The file of users: what is wrong with a line is said in one short line."""

from __future__ import annotations

from pathlib import Path

import argon2
import pytest
from argon2.exceptions import VerifyMismatchError
from mqmesh.broker.auth import passwords
from support.hashes import real_hashes

ONCE_MADE = "$argon2id$v=19$m=19456,t=2,p=1$kWTvBEp+mEM87mfpjC1ZMQ$Pq0K5yfly0pKuP8MFjjBW/fTMRN3pyr4z+3QVMyvYDI"


@pytest.mark.parametrize("line", ["no colon", ":hash", f"{'[' * 100_000}:x", "name:no hash", f"{'n' * 255}:$argon2id$x", "a\tb:x"])
def test_a_bad_line_is_named_and_not_repeated_at_length(line: str, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"# users\n{line}\n")
    with pytest.raises(passwords.PasswordError) as raised:
        passwords.load(file)
    text = str(raised.value)
    assert text.startswith(f"{file} line 2: ")
    assert len(text) < len(str(file)) + 600
    assert text.isprintable()


def test_a_hash_costs_what_owasp_asks_for_at_least() -> None:
    with real_hashes():
        assert passwords.hashed(b"secret").startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_a_comparison_for_nobody_is_a_whole_one() -> None:
    costs = argon2.extract_parameters(passwords.NOBODY)
    assert costs == argon2.extract_parameters(ONCE_MADE)
    assert not passwords.right(passwords.NOBODY, b"nobody")
    with pytest.raises(VerifyMismatchError):  # and not: that it is no hash
        argon2.PasswordHasher().verify(passwords.NOBODY, b"nobody")
