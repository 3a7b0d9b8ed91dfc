"""A store that the release before this one wrote is converted in place when it is opened, also if the first attempts are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh.store import Kind, StoreError
from mqmesh.store.locations import store_at
from support.peers.postgres import Server
from support.releases import previous_release
from support.stores import content

pytestmark = pytest.mark.process

TESTS = Path(__file__).parents[1]
ROWS = 1500

WRITE = """
import sys
sys.path.insert(1, sys.argv[3])
from mqmesh.store.locations import store_at
from mqmesh.store.writer import Writer
from support.stores import delivery, run
store = store_at(sys.argv[1])
writer = Writer(store, lambda call: None, lambda ticket: None, lambda error: None)
writer.start()
for number in range(1, int(sys.argv[2]) + 1):
    writer.put_run(run(number, count=number % 3 + 1, payload=b"%d" % number * (number % 50), expires_at=None if number % 2 else 2e9))
    writer.put_delivery(delivery("porto" if number % 3 else "x" * 600, number, number, state=number % 2, extra=b"e" * (number % 9)))
    writer.put_value("sessions", b"key %d" % number, b"value %d" % number)
    writer.put_value("retained", b"k" * (number % 700 + 1), b"%d" % number)
assert writer.close(60)
"""

CONVERT = """
import signal, sys
from mqmesh.store import lmdb, postgresql, sqlite_migration
from mqmesh.store.locations import store_at
lmdb.CONVERTED_STEP = postgresql.CONVERTED_STEP = sqlite_migration.STEP = 20
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))  # SIGALRM ends the process at once
store = store_at(sys.argv[1])
store.open()
store.close()
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return previous_release(tmp_path_factory.mktemp("release"))


def python(code: str, *arguments: str, path: Path | None = None) -> int:
    """Run code in a child; path: where its `mqmesh` is, None for ours. Its exit status, negative for a signal."""
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path is not None else {})}
    return subprocess.run([sys.executable, "-c", code, *arguments], env=environment, cwd="/", check=False).returncode


def written(address: str, release: Path) -> None:
    assert python(WRITE, address, str(ROWS), str(TESTS), path=release) == 0


@pytest.mark.parametrize("kind", ["sqlite", "lmdb", pytest.param("postgresql", marks=pytest.mark.service)])
def test_what_the_previous_release_wrote_is_converted(kind: str, tmp_path: Path, release: Path, request: pytest.FixtureRequest) -> None:
    if kind == "postgresql":
        server: Server = request.getfixturevalue("postgres_server")
        address = f"{server.url}?schema=conversion"
    else:
        address = f"{kind}://{tmp_path}/{'store.db' if kind == 'sqlite' else 'store'}"
    written(address, release)
    with pytest.raises(StoreError, match="start the broker, which converts it") as caught:
        store_at(address).attach()
    assert caught.value.kind is Kind.SCHEMA
    chance = random.Random(5)
    killed = [python(CONVERT, address, f"{chance.uniform(0.05, 0.6):.3f}") for _ in range(4)]
    assert set(killed) <= {0, -signal.SIGALRM}
    store = store_at(address)
    store.open()
    found = content(store)
    assert sorted(found["runs"]) == list(range(1, ROWS + 1))
    for number, run in found["runs"].items():
        assert (run.count, run.payloads) == (number % 3 + 1, b"%d" % number * (number % 50) * (number % 3 + 1))
        assert run.expires_at == (None if number % 2 else 2e9)
    rows = {row.order: row for rows in found["deliveries"].values() for row in rows}
    assert sorted(rows) == list(range(1, ROWS + 1))
    assert all(row.recipient == ("porto" if order % 3 else "x" * 600) and row.extra == b"e" * (order % 9) for order, row in rows.items())
    assert found["values"]["sessions"] == {b"key %d" % number: b"value %d" % number for number in range(1, ROWS + 1)}
    assert len(found["values"]["retained"]) == 700
    store.close()
    assert python(WRITE, address, "1", str(TESTS), path=release) != 0  # there is no way back, and the earlier release says so


def test_what_was_damaged_before_is_still_known_after(tmp_path: Path, release: Path) -> None:
    address = f"sqlite://{tmp_path}/store.db"
    written(address, release)
    file = tmp_path / "store.db"
    data = bytearray(file.read_bytes())
    place = data.index(b"value 77")
    data[place : place + 5] = b"valve"
    file.write_bytes(data)
    store = store_at(address)
    store.open()
    with pytest.raises(StoreError, match="in sessions does not have its checksum"):
        dict(store.values("sessions"))
    store.close()
