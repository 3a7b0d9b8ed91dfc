"""A log with a damaged frame is kept until somebody has dealt with it: whoever reads the file leaves it as it is."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from mqmesh.broker.mesh.custody_store import stored_identity
from mqmesh.store import Kind, StoreError, salvage
from mqmesh.store.locations import store_at
from support.stores import batch, delivery, run

COMMITS = 30
FRAME = 24 + 4096


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The file of a broker that was killed; one bit in the middle of its log is changed."""
    store = store_at(f"sqlite://{tmp_path}/running/store.db")
    store.open()
    for number in range(1, COMMITS + 1):
        store.commit(batch(run(number), delivery("porto", number, number)))
    shutil.copytree(tmp_path / "running", tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm", "*.lock"))
    store.close()
    log = tmp_path / "killed" / "store.db-wal"
    data = bytearray(log.read_bytes())
    data[32 + FRAME * (len(data) // FRAME // 2) + 300] ^= 1
    log.write_bytes(data)
    return tmp_path / "killed" / "store.db"


def refused(file: Path) -> None:
    log = file.with_name("store.db-wal").read_bytes()
    with pytest.raises(StoreError, match="its log is changed at frame") as caught:
        store_at(f"sqlite://{file}").open()
    assert caught.value.kind is Kind.CORRUPT
    assert file.with_name("store.db-wal").read_bytes() == log


def test_a_start_that_fails_leaves_the_log_to_the_next(killed: Path) -> None:
    refused(killed)
    refused(killed)


def test_who_only_reads_leaves_the_log(killed: Path) -> None:
    assert stored_identity(store_at(f"sqlite://{killed}")) is None
    refused(killed)


def test_a_check_names_a_damaged_log_and_leaves_it(killed: Path) -> None:
    for _ in range(2):
        report = salvage.check(f"sqlite://{killed}")
        assert any("its log is changed at frame" in problem for problem in report.problems)
        assert 0 < report.whole.runs < COMMITS
    refused(killed)


def test_a_salvage_names_a_damaged_log_and_sets_it_aside(killed: Path) -> None:
    log = killed.with_name("store.db-wal").read_bytes()
    report = salvage.salvage(f"sqlite://{killed}", at_least=1)
    assert any("its log is changed at frame" in problem for problem in report.problems)
    assert 0 < report.whole.runs < COMMITS
    assert report.aside is not None
    assert (report.aside / "store.db-wal").read_bytes() == log
    assert salvage.check(f"sqlite://{killed}") == salvage.Report([], report.whole)


def test_without_waiting_for_the_disk_a_log_may_be_cut(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An ordinary power loss leaves it so: that is no damage."""
    store = store_at(f"sqlite://{killed}", "os")
    with caplog.at_level(logging.WARNING):
        store.open()
    assert "event=store-log-cut" in caplog.text
    assert 0 < len(list(store.deliveries())) < COMMITS
    store.commit(batch(run(100), delivery("porto", 100, 100)))
    store.close()
    store = store_at(f"sqlite://{killed}")
    store.open()
    assert store.run(100) == run(100)
    store.close()
