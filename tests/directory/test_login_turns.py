"""Whose secret is compared next, in threads: guessers do not keep others out, and what was right costs nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mqmesh.directory.storage import accounts
from mqmesh.directory.storage.errors import DirectoryError
from mqmesh.directory.storage.login_turns import LoginTurns, TooMany
from mqmesh.directory.storage.store import Store
from support.hashes import real_hashes
from support.services import PATIENCE


def test_parallel_guessers_keep_nobody_out_and_are_not_faster() -> None:
    turns, release, begun = LoginTurns(), threading.Event(), threading.Event()
    compared: list[int] = []
    refused: list[int] = []

    def guess(number: int) -> None:
        def wrong() -> bool:
            compared.append(number)
            begun.set()
            assert release.wait(PATIENCE)
            return False

        try:
            turns.compare("10.0.0.1", "alice", "hash", f"guess {number}", wrong)
        except TooMany:
            refused.append(number)

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE)
    assert turns.compare("10.0.0.2", "bob", "hash", "right", lambda: True), "while a guess is being compared"
    assert len(compared) == 1
    release.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(compared) + len(refused) == 12
    assert len(compared) <= 6, "0.1, 0.2, 0.4, 0.8 seconds apart, and nobody waits for more than two"
    assert turns.compare("10.0.0.1", "carol", "hash", "right", lambda: True), "another name from there"
    assert not turns._granted
    assert not turns._refused


def test_too_many_of_one_address_make_room() -> None:
    turns, release, begun = LoginTurns(), threading.Event(), threading.Semaphore(0)

    def slow() -> bool:
        begun.release()
        return release.wait(PATIENCE)

    def ask(source: str, name: str) -> None:
        try:
            turns.compare(source, name, "hash", name, slow)
        except TooMany:
            refused.append(source)

    refused: list[str] = []
    threads = [threading.Thread(target=ask, args=("10.0.0.1", f"n{number}")) for number in range(30)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=PATIENCE)
    other = threading.Thread(target=ask, args=("10.0.0.2", "bob"))
    other.start()
    assert begun.acquire(timeout=PATIENCE), "another address has its turn at once"
    release.set()
    for thread in (*threads, other):
        thread.join(PATIENCE)
    assert "10.0.0.2" not in refused


def test_what_was_right_is_remembered_until_the_secret_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"sqlite:///{tmp_path / 'd.db'}")
    compared: list[str] = []
    real = accounts._hasher.verify

    class Counting:
        hash = staticmethod(accounts._hasher.hash)

        @staticmethod
        def verify(hashed: str, secret: str) -> bool:
            compared.append(secret)
            return real(hashed, secret)

    secret = accounts.add_account(store, "alice", "acme")
    monkeypatch.setattr(accounts, "_hasher", Counting)
    for _ in range(3):
        assert accounts.draw_token(store, "alice", secret, "10.0.0.1")
    assert compared == [secret]
    other = accounts.add_account(store, "alice", "acme")
    with pytest.raises(DirectoryError, match="no account has this name and secret"):
        accounts.draw_token(store, "alice", secret, "10.0.0.1")
    assert accounts.draw_token(store, "alice", other, "10.0.0.1")


def test_what_a_secret_costs() -> None:
    with real_hashes():
        assert accounts._hasher.hash("secret").startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert accounts._nobody.startswith("$argon2id$v=19$m=65536,t=3,p=4$"), "an unknown name takes as long"
