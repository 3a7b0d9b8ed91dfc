"""An account that is overdue registers nothing, until it has paid; what it has stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mqmesh.base.standing import OVERDUE, PAID, Standing, StandingFile, Standings
from mqmesh.directory.client import Client, ClientError
from mqmesh.directory.storage.accounts import add_account
from mqmesh.directory.storage.store import Store
from support.directories import in_this_process


def write(path: Path, standing: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(Standings("2026-12-16", {"alice": Standing(standing, "2026-12-16", "12.30 EUR", ("INV-1",))}).dumped())
    os.replace(new, path)


def test_an_overdue_account_registers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("mqmesh.base.standing.LOOK", 0.0)
    file = tmp_path / "standing.json"
    write(file, PAID)
    store = Store(f"sqlite:///{tmp_path}/directory.db")
    store.standing = StandingFile(file)
    secrets = {name: add_account(store, name, name) for name in ("alice", "bob")}
    with in_this_process(store) as url:
        alice, bob = Client(url), Client(url)
        alice.log_in("alice", secrets["alice"])
        bob.log_in("bob", secrets["bob"])
        alice.put("mesh", "ring")
        write(file, OVERDUE)
        with pytest.raises(ClientError, match=r"the account alice is overdue since 2026-12-16: 12\.30 EUR for INV-1") as caught:
            alice.put("service", "weather", "ring")
        assert (caught.value.status, caught.value.code) == (403, "E_accountLimitExceeded")
        with pytest.raises(ClientError, match="overdue"):
            alice.put_all([{"sort": "service", "mesh": "ring", "name": "weather"}])
        bob.put("mesh", "other")
        assert bob.get("mesh", "ring")["owner"] == "alice"
        alice.claim("ring", "11111111-1111-4111-8111-111111111111", "porto", 60)
        file.write_text("{")  # damaged: all stays as it was
        with pytest.raises(ClientError, match="overdue"):
            alice.put("service", "weather", "ring")
        write(file, PAID)
        alice.put("service", "weather", "ring")
        write(file, OVERDUE)
        alice.delete("service", "weather", "ring")
    said = [one.split()[0] for one in caplog.messages if one.startswith("event=standing-")]
    assert said[:3] == ["event=standing-read", "event=standing-not-read", "event=standing-read"]
