"""`mqmesh store check` and `mqmesh store salvage`."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.store.locations import store_at
from support.command import run
from support.stores import batch, delivery
from support.stores import run as messages

pytestmark = pytest.mark.process


def filled(folder: Path) -> str:
    address = f"sqlite://{folder}/store.db"
    store = store_at(address)
    store.open()
    made = batch(*[messages(number, payload=b"message %d." % number) for number in range(1, 10)])
    for number in range(1, 10):
        made.put_delivery(delivery("porto", number, number))
    made.put_value("sessions", b"porto", b"state")
    store.commit(made)
    store.close()
    return address


def test_check_names_damage_and_salvage_keeps_the_rest(tmp_path: Path) -> None:
    address = filled(tmp_path)
    (tmp_path / "site.toml").write_text(f'data = "{tmp_path}"\n')
    done = run("store", "check", "--config", tmp_path / "site.toml")
    assert (done.returncode, done.stdout) == (0, b"whole: 9 runs, 9 deliveries, 1 values\n")
    file = tmp_path / "store.db"
    file.write_bytes(file.read_bytes().replace(b"message 7.", b"massage 7."))
    done = run("store", "check", address)
    assert done.returncode == 1
    assert done.stdout.decode().splitlines() == [
        "damaged: run 7 does not have its checksum",
        "damaged: delivery 7 of 'porto' has lost its messages",
        "whole: 8 runs, 8 deliveries, 1 values",
    ]
    done = run("store", "salvage", address)
    assert done.returncode == 1
    assert f"; the damaged store is in {tmp_path}/damaged-".encode() in done.stdout
    assert run("store", "check", address).returncode == 0


def test_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")
    for status, words, arguments in (
        (2, "give either an address or --config", ["check"]),
        (2, "this broker keeps nothing on disk", ["check", "--config", tmp_path / "site.toml"]),
        (1, "no broker has used it yet", ["check", f"sqlite://{tmp_path}/none.db"]),
        (1, "there is nothing to salvage", ["salvage", f"sqlite://{tmp_path}/none.db"]),
        (1, "is right", ["check", "oracle://x"]),
        (1, "is right", ["salvage", tmp_path / "store.db"]),
    ):
        done = run("store", *arguments)
        assert done.returncode == status, done
        assert words in done.stderr.decode(), done
        assert done.stderr.count(b"\n") == 1
