"""A broker killed in the middle of commits: what `commit` returned for is there, and nothing is there by half."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh.store import Store
from mqmesh.store.locations import store_at
from support.examples import how_many
from support.peers.postgres import Server
from support.storage.committer import KEPT, RECIPIENTS
from support.stores import content, run

ROUNDS = how_many("MQMESH_KILLS", 12)
TESTS = Path(__file__).parents[1]


def killed_after(lines: int, arguments: list[str]) -> int:
    """Start the child, kill it some time after it has printed so many lines; the last number it printed."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, str(TESTS / "support" / "storage" / "committer.py"), *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    for _ in range(lines):
        assert child.stdout.readline(), "the child ended by itself"
    child.kill()
    rest = child.stdout.read().split(b"\n")  # the last line may be cut off
    child.wait()
    return lines + len([line for line in rest[:-1] if line])


def check(store: Store, last_known: int) -> int:
    """The number of the last commit that is there, which is whole."""
    last = int(store.value("sessions", b"last") or 0)
    assert last >= last_known
    expected = list(range(max(1, last - KEPT + 1), last + 1))
    found = content(store)
    assert sorted(found["runs"]) == expected
    assert all(stored == run(number, count=20, payload=b"%08d" % number * 10) for number, stored in found["runs"].items())
    assert {name: [entry.order for entry in rows] for name, rows in found["deliveries"].items()} == dict.fromkeys(RECIPIENTS, expected)
    return last


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "lmdb"])
def test_killed_while_committing(kind: str, tmp_path: Path) -> None:
    address = f"lmdb://{tmp_path}/store" if kind == "lmdb" else f"sqlite://{tmp_path}/store.db"
    last = 0
    for _ in range(ROUNDS):
        printed = killed_after(random.randint(1, 60), [address, str(last + 1)])
        store = store_at(address)
        store.open()
        last = check(store, last + printed)
        store.close()


@pytest.mark.slow
@pytest.mark.service
def test_killed_while_committing_to_postgresql(postgres_server: Server) -> None:
    address = f"{postgres_server.url}?schema=kill"
    last = 0
    for _ in range(min(ROUNDS, 5)):
        printed = killed_after(random.randint(1, 40), [address, str(last + 1)])
        store = store_at(address)
        store.open()
        last = check(store, last + printed)
        store.close()
