"""What a commit costs depends on what changes, and not on how much the store holds: SQLite's own steps are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.store.records import Batch
from mqmesh.store.sqlite import SqliteStore
from support.stores import delivery, run

FEW, MANY = 1_000, 20_000
EACH = 50  # steps that are counted as one


def steps(store: SqliteStore, changes: Batch) -> int:
    """How many steps SQLite takes to commit this."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    assert store._writing is not None
    store._writing.set_progress_handler(step, EACH)
    store.commit(changes)
    store._writing.set_progress_handler(None, EACH)
    return count


@pytest.mark.parametrize("what", ["values", "deliveries"])
@pytest.mark.parametrize("gone", [1, 2, 7, 300])
def test_what_goes_is_found_by_its_key(tmp_path: Path, what: str, gone: int) -> None:
    counted = []
    for held in (FEW, MANY):
        store = SqliteStore(tmp_path / f"{held}.db")
        store.open()
        put, after = Batch(1), Batch(2)
        if what == "values":
            for number in range(held):
                put.put_value("calls", number.to_bytes(8, "big"), b"call")
            for number in range(0, 3 * gone, 3):
                after.delete_value("calls", number.to_bytes(8, "big"))
        else:
            put.put_run(run(1, held))
            for number in range(1, held + 1):
                put.put_delivery(delivery("porto", number, 1))
            for number in range(1, 3 * gone, 3):
                after.delete_delivery("porto", number)
        store.commit(put)
        counted.append(steps(store, after))
        store.close()
    few, many = counted
    assert many <= 2 * few + 20
