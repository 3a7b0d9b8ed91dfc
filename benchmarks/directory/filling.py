"""A database with many services."""

from __future__ import annotations

from mqmesh.directory import records as all_records
from mqmesh.directory.records import Record
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import EVERYONE, PERMISSION, Account

CATEGORY = PERMISSION
OF_ACCOUNT = 4000  # services
AT_ONCE = 1000
total = 100_000


def name(number: int) -> str:
    """The name of a service."""
    return f"service-{number:07d}"


def fill(store: Store) -> None:
    """Put the services in, each account's in a mesh of its own."""
    for start in range(0, total, OF_ACCOUNT):
        account, mesh = Account(f"account-{start}", f"organisation-{start}"), f"mesh-{start}"
        with store.writing(account) as records:
            all_records.put(records, account, Record("mesh", mesh))
        for first in range(start, min(start + OF_ACCOUNT, total), AT_ONCE):
            wanted = [_service(number, mesh) for number in range(first, min(first + AT_ONCE, total))]
            with store.writing(account) as records:
                all_records.put_all(records, account, wanted)


def _service(number: int, mesh: str) -> Record:
    return Record("service", name(number), mesh, addresses=[f"mqtt://host-{number}:1883"], permissions=[f"group-{number // 10}", EVERYONE])
