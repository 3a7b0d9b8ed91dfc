"""Puts what is in a `mosquitto.db` into the new store of a broker."""

from __future__ import annotations

import time
from pathlib import Path

from ...base.settings import ConfigError
from ...broker.config import load
from ...store import StoreError
from ...store.locations import store_at
from .mosquitto_conf import MigrateError
from .mosquitto_database import DatabaseError, read
from .stored_records import Taken, batch_of


def import_database(database: Path, config: Path) -> tuple[str, Taken]:
    """The store's name, and how much there was. config: the broker's file. Raises MigrateError; then the store is as it was."""
    try:
        address = load(config).store_address
    except ConfigError as error:
        raise MigrateError(str(error)) from None
    if address is None:
        raise MigrateError(f"{config}: this broker keeps nothing on disk: give it data = FOLDER")
    try:
        batch, taken = batch_of(read(database.read_bytes()), time.time())
    except OSError as error:
        raise MigrateError(f"{database}: {error.strerror or error}") from None
    except DatabaseError as error:
        raise MigrateError(f"{database}: {error}") from None
    try:
        store = store_at(address)
        store.open()
        try:
            if store.highest_run() or any(next(iter(store.values(table)), None) for table in ("sessions", "retained", "wills")):
                raise MigrateError(f"{store.name}: it has sessions or messages already, and an import goes into a new store")
            store.commit(batch)
        finally:
            store.close()
    except StoreError as error:
        raise MigrateError(str(error)) from None
    return store.name, taken
