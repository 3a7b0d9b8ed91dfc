"""Mosquitto's password files are taken as they are; a login makes a hash anew, in the data folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from mqmesh.broker.auth import passwords
from mqmesh.broker.auth.mosquitto_hash import MosquittoHash
from mqmesh.broker.auth.renewed_passwords import RenewedPasswords
from mqmesh.broker.config import parse
from support.broker_site import Site
from support.services import require

from .test_service import let_in, refused

# Written by mosquitto_passwd 2.0.11
ALICE = "$7$101$JJhSJH+E915MgvLS$lIc9v8VmbbPMN9t/IRFUlbBxW/rzS9TDK94B/42GDc5+h5/QLojQEMHKoQiqPLo7+GB8a/RBeINjP5HPrTtSfQ=="  # wonderland
BOB = "$6$eCAvkdGK3ctQ6XVK$B+IIuYaIVAT0RaxdbkTaLpaqKNVGe6KMbvzRkYPqxydMz8FknEKfcKvwMDfuctlasQySFgbhiX+gkeCJme59tA=="  # builder


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{ALICE}\nbob:{BOB}\n")
    return path


@pytest.mark.parametrize(("hash_", "password"), [(ALICE, b"wonderland"), (BOB, b"builder")])
def test_both_forms_are_compared(hash_: str, password: bytes) -> None:
    assert passwords.right(hash_, password)
    for wrong in (b"", b"wonder", b"nobody", password + b"\n"):
        assert not passwords.right(hash_, wrong)


@pytest.mark.parametrize(
    "text",
    ["", "$6$", "$6$x", "$5$aaaa$aaaa", "$6$aaaa$aaaa", "$7$101$aaaa", ALICE.replace("101", "0"), ALICE.replace("101", "99999999"),
     ALICE.replace("101", "-1"), ALICE.replace("101", "9" * 5000), ALICE[:-4], ALICE + "$", ALICE[1:], BOB.replace("=", "!")],
)  # fmt: skip
def test_what_is_no_such_hash(text: str, tmp_path: Path) -> None:
    assert MosquittoHash.of(text) is None
    (tmp_path / "users").write_text(f"u:{text}\n")
    with pytest.raises(passwords.PasswordError, match="line 1: user 'u': the hash is none of argon2id"):
        passwords.load(tmp_path / "users")


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
def test_what_mosquitto_passwd_writes(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    subprocess.run([require("mosquitto_passwd"), "-H", kind, "-c", "-b", str(file), "carol", "pässword ü"], check=True)
    assert passwords.right(passwords.load(file)["carol"], "pässword ü".encode())


def test_a_wrong_password_takes_as_long_as_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    hasher = passwords._hasher

    class Watched:
        @staticmethod
        def verify(hash_: str, password: bytes) -> bool:
            compared.append(hash_)
            return hasher.verify(hash_, password)

    monkeypatch.setattr(passwords, "_hasher", Watched)
    assert not passwords.right(ALICE, b"wrong")
    assert compared == [passwords.NOBODY]


def test_the_right_password_makes_a_hash_anew_and_leaves_the_file(users: Path, tmp_path: Path) -> None:
    path, before = tmp_path / "renewed", users.read_bytes()
    known = passwords.load(users)
    renewed = RenewedPasswords(known, path)
    assert not renewed.right("alice", ALICE, b"wrong")
    assert not path.exists()
    for _ in range(2):  # once
        assert renewed.right("alice", ALICE, b"wonderland")
    assert users.read_bytes() == before
    (line,) = path.read_text().splitlines()
    assert line.startswith("alice:$argon2id$")
    assert path.stat().st_mode & 0o777 == 0o600
    again = RenewedPasswords(known, path)  # from now on the new hash decides
    assert again.right("alice", ALICE, b"wonderland")
    assert not again.right("alice", ALICE, b"builder")
    assert path.read_text().splitlines() == [line]


def test_a_changed_password_counts_at_once(users: Path, tmp_path: Path) -> None:
    path = tmp_path / "renewed"
    RenewedPasswords(passwords.load(users), path).right("alice", ALICE, b"wonderland")
    passwords.change(users, "alice", b"glass")
    known = passwords.load(users)
    again = RenewedPasswords(known, path)
    assert not again.right("alice", known["alice"], b"wonderland")
    assert again.right("alice", known["alice"], b"glass")
    assert path.read_text() == ""  # the line counts no more


def test_lines_that_a_crash_left_are_dropped(users: Path, tmp_path: Path) -> None:
    path = tmp_path / "renewed"
    known = passwords.load(users)
    RenewedPasswords(known, path).right("alice", ALICE, b"wonderland")
    whole = path.read_text()
    path.write_text(f"\nbob:$argon2id$no hash:x\n{whole}bob:$argon")
    again = RenewedPasswords(known, path)
    assert path.read_text() == whole
    assert again.right("bob", BOB, b"builder")
    assert len(path.read_text().splitlines()) == 2


def test_a_disk_that_takes_nothing_lets_in_all_the_same(users: Path, tmp_path: Path) -> None:
    assert RenewedPasswords(passwords.load(users), tmp_path / "no folder" / "renewed").right("alice", ALICE, b"wonderland")


async def test_a_broker_lets_in_and_renews(users: Path, tmp_path: Path) -> None:
    access = parse({"data": "data", "access": {"users": "passwd"}}, "F", tmp_path).access
    assert access is not None
    (tmp_path / "data").mkdir()
    async with Site(access=access) as site:
        await refused(site, "alice", b"builder", 0x86)
        alice = await let_in(site, "alice", b"wonderland", "a")
        await let_in(site, "bob", b"builder", "b")
        site.broker.renew_access(access)  # SIGHUP: her connection was let in by the old hash, and stays
        await let_in(site, "bob", b"builder", "b2")
        await alice.nothing()
    assert [line.partition(":")[0] for line in (tmp_path / "data" / "renewed-passwords").read_text().splitlines()] == ["alice", "bob"]
