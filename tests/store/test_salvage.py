"""What is whole of a damaged store goes on, what is not is named and set aside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from mqmesh.store import Kind, StoreError, lmdb, salvage
from mqmesh.store.folder import FolderLock
from mqmesh.store.locations import store_at
from mqmesh.store.records import Batch, Counts
from support.storage.disks import set_version
from support.storage.filled import RUNS, read, written
from support.stores import delivery, run

KINDS = ("sqlite", "lmdb")


def address_in(folder: Path, kind: str) -> str:
    return f"{kind}://{folder}/{'store.db' if kind == 'sqlite' else 'store'}"


def file_in(folder: Path, kind: str) -> Path:
    return folder / ("store.db" if kind == "sqlite" else "store/data.mdb")


def change(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert data.count(old) == 1
    file.write_bytes(data.replace(old, new))


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_whole_store_everything_is_whole(kind: str, tmp_path: Path) -> None:
    address = address_in(tmp_path, kind)
    before = written(address)
    whole = Counts(RUNS, 2 * RUNS, 50)
    assert salvage.check(address) == salvage.Report([], whole)
    report = salvage.salvage(address)
    assert (report.problems, report.whole) == ([], whole)
    assert read(address) == before


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_rows_are_named_and_the_rest_goes_on(kind: str, tmp_path: Path) -> None:
    address, file = address_in(tmp_path, kind), file_in(tmp_path, kind)
    before = written(address)
    change(file, b"message 77.", b"massage 77.")
    change(file, b"state 7.", b"stale 7.")
    damaged = file.read_bytes()
    checked = salvage.check(address)
    assert file.read_bytes() == damaged
    report = salvage.salvage(address)
    assert report.whole == checked.whole == Counts(RUNS - 1, 2 * RUNS - 2, 49)
    for what in ("run 77 does not have its checksum", "client 7", "delivery 77 of 'porto'", "49 of 50 values are whole"):
        assert any(what in problem for problem in report.problems), (what, report.problems)
    assert set(checked.problems) == set(report.problems)
    after = read(address)
    assert after["values"]["sessions"] == {k: v for k, v in before["values"]["sessions"].items() if k != b"client 7"}
    assert after["runs"] == {number: stored for number, stored in before["runs"].items() if number != 77}
    assert report.aside is not None
    assert (report.aside / file.name).read_bytes() == damaged
    assert report.aside.stat().st_mode & 0o777 == 0o700


def test_a_page_that_cannot_be_read_costs_its_rows(tmp_path: Path) -> None:
    address, file = address_in(tmp_path, "sqlite"), file_in(tmp_path, "sqlite")
    before = written(address)
    data = bytearray(file.read_bytes())
    page = data.index(b"message 200.") // 4096 * 4096
    data[page : page + 8] = b"\xff" * 8
    file.write_bytes(data)
    with pytest.raises(StoreError, match="mqmesh store salvage") as caught:
        read(address)
    assert caught.value.kind is Kind.CORRUPT
    report = salvage.salvage(address)
    after = read(address)
    assert report.problems
    assert RUNS - 120 < len(after["runs"]) < RUNS
    assert after["values"] == before["values"]
    assert all(before["runs"][number] == stored for number, stored in after["runs"].items())


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_salvage_that_is_interrupted_goes_on(kind: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody starts empty in between. step: which move of a file is the last."""
    address = address_in(tmp_path, kind)
    before = written(address)
    moves = 0
    replace = os.replace

    def interrupted(old: Path, new: Path) -> None:
        nonlocal moves
        if old.exists():
            moves += 1
            if moves == step:
                raise KeyboardInterrupt
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            salvage.salvage(address)
    with pytest.raises(StoreError, match="run 'mqmesh store salvage' again") as caught:
        store_at(address).open()
    assert caught.value.kind is Kind.CORRUPT
    assert salvage.salvage(address).problems == []
    assert read(address) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_salvage_that_is_interrupted_at_its_end_keeps_what_it_set_aside(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = address_in(tmp_path, kind), file_in(tmp_path, kind)
    before = written(address)
    change(file, b"message 77.", b"massage 77.")
    damaged = file.read_bytes()

    unlink = Path.unlink

    def interrupted(path: Path) -> None:
        if path.name.endswith(".salvage"):
            raise KeyboardInterrupt
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            salvage.salvage(address)
    report = salvage.salvage(address)
    assert report.aside is not None
    assert (report.aside / file.name).read_bytes() == damaged
    assert "run 77 does not have its checksum" in report.problems
    assert len(read(address)["runs"]) == len(before["runs"]) - 1


def test_a_salvage_whose_mark_is_empty_is_refused(tmp_path: Path) -> None:
    """It would take an empty folder for the damaged store."""
    address, file = address_in(tmp_path, "sqlite"), file_in(tmp_path, "sqlite")
    before = written(address)
    mark = file.with_name("store.db.salvage")
    mark.touch()
    with pytest.raises(StoreError, match="is empty, so that nobody knows") as caught:
        salvage.salvage(address)
    assert caught.value.kind is Kind.CORRUPT
    mark.unlink()
    assert read(address) == before


def test_a_mark_is_on_the_disk_before_anything_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, file = address_in(tmp_path, "sqlite"), file_in(tmp_path, "sqlite")
    written(address)
    synced: list[str] = []
    fsync = os.fsync

    def noted(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    def moved(old: Path, new: Path) -> None:
        assert synced == [str(file.with_name("store.db.salvage.new")), str(tmp_path)]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        patch.setattr(os, "replace", moved)
        with pytest.raises(KeyboardInterrupt):
            salvage.salvage(address)
    assert file.with_name("store.db.salvage").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_another_version_stays_where_it_is(kind: str, tmp_path: Path) -> None:
    address = address_in(tmp_path, kind)
    before = written(address)
    set_version(tmp_path, kind, 3)
    with pytest.raises(StoreError, match="schema version 3"):
        salvage.salvage(address)
    set_version(tmp_path, kind, 2)
    assert read(address) == before


def test_a_file_of_something_else_stays_if_something_has_to_be_whole(tmp_path: Path) -> None:
    file = file_in(tmp_path, "sqlite")
    file.write_bytes(b"This is a letter to my aunt.\n" * 1000)
    letter = file.read_bytes()
    with pytest.raises(StoreError):
        salvage.salvage(address_in(tmp_path, "sqlite"), at_least=1)
    assert file.read_bytes() == letter
    with pytest.raises(StoreError, match="nothing to salvage"):
        salvage.salvage(f"sqlite://{tmp_path}/nothing.db")


def test_a_check_beside_a_broker_sees_one_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker commits after each message that the check reads."""
    address = address_in(tmp_path, "sqlite")
    written(address)
    store = store_at(address)
    store.open()
    numbers = iter(range(1, RUNS + 1))

    def replaced(*arguments: Any) -> Any:
        number = next(numbers)
        batch = Batch()
        for name in ("porto", "lyon"):
            batch.delete_delivery(name, RUNS + 1 - number)
        batch.delete_run(RUNS + 1 - number)
        batch.put_run(run(RUNS + number))
        batch.put_delivery(delivery("porto", RUNS + number, RUNS + number))
        store.commit(batch)
        counts = Batch()
        counts.counts = Counts(RUNS, 2 * RUNS - number, 50)
        store.commit(counts)
        return read_run(*arguments)

    read_run = salvage._run
    with monkeypatch.context() as patch:
        patch.setattr(salvage, "_run", replaced)
        assert salvage.check(address) == salvage.Report([], Counts(RUNS, 2 * RUNS, 50))
    store.close()
    assert salvage.check(address) == salvage.Report([], Counts(RUNS, RUNS, 50))


@pytest.mark.parametrize("used", [False, True])
def test_pages_of_lmdb_are_walked_through_while_nobody_writes(used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = address_in(tmp_path, "lmdb")
    written(address)
    lock = FolderLock(tmp_path / "store")
    if used:
        lock.acquire(address)
    walked: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(lmdb, "verify", walked.append)
        assert salvage.check(address) == salvage.Report([], Counts(RUNS, 2 * RUNS, 50))
    assert len(walked) == (0 if used else 1)
    lock.release()
