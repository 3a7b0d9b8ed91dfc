"""Converts an SQLite file of schema version 1 (mqmesh 0.1) in place: checksums over whole rows instead of their content.

It goes in steps of some hundred rows, each one commit that also says how far it is. A process that is killed goes on there.
A row whose old checksum was wrong gets a wrong new one, so that it is found as before.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Any
from zlib import crc32

from .checksums import delivery_checksum, recipient_checksum, run_checksum, value_checksum
from .records import StoredDelivery, StoredRun

log = logging.getLogger(__name__)

STEP = 500  # rows of one commit
PROGRESS = "CREATE TABLE migration (step INTEGER PRIMARY KEY, last INTEGER NOT NULL, recipient TEXT NOT NULL)"
# Of each step: the rows of one commit, and what is done with them.
_STEPS = (
    ("SELECT id FROM runs WHERE id > :last ORDER BY id LIMIT :rows", "UPDATE runs SET checksum = run_checksum({}) WHERE id = ?"),
    (
        'SELECT "order", recipient FROM deliveries WHERE (recipient, "order") > (:recipient, :last) '
        'ORDER BY recipient, "order" LIMIT :rows',
        'UPDATE deliveries SET checksum = delivery_checksum({}) WHERE "order" = ? AND recipient = ?',
    ),
    (
        'SELECT rowid FROM "values" WHERE rowid > :last ORDER BY rowid LIMIT :rows',
        'UPDATE "values" SET checksum = value_checksum("table", key, value, checksum) WHERE rowid = ?',
    ),
)


def begin(connection: sqlite3.Connection, tally: str) -> None:
    """Make the tables of version 2; the rows follow. tally: the statement that makes the table of counts."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ALTER TABLE deliveries ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    connection.execute(tally)
    connection.execute(PROGRESS)
    connection.execute("INSERT INTO migration VALUES (0, 0, '')")
    connection.execute("PRAGMA user_version = 2")
    connection.execute("COMMIT")


def go_on(connection: sqlite3.Connection, name: str, run_columns: str, delivery_columns: str) -> None:
    """Convert what is left, if anything is."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migration'").fetchone():
        return
    connection.create_function("run_checksum", -1, _run, deterministic=True)
    connection.create_function("delivery_checksum", -1, _delivery, deterministic=True)
    connection.create_function("value_checksum", 4, _value, deterministic=True)
    log.warning("event=store-conversion store=%s text=the rows of mqmesh 0.1 get checksums", name)
    columns = (run_columns, delivery_columns, "")
    while True:
        step, last, recipient = connection.execute("SELECT step, last, recipient FROM migration").fetchone()
        if step == len(_STEPS):
            break
        select, update = _STEPS[step]
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(select, {"last": last, "recipient": recipient, "rows": STEP}).fetchall()
        connection.executemany(update.format(columns[step]), rows)
        if rows:
            position = (step, *rows[-1], *([] if len(rows[-1]) > 1 else [""]))
        else:
            position = (step + 1, 0, "")
        connection.execute("UPDATE migration SET step = ?, last = ?, recipient = ?", position)
        connection.execute("COMMIT")
    connection.execute("DROP TABLE migration")


def _run(*row: Any) -> int:
    stored = StoredRun._make((*row[:3], row[3] == 1, *row[4:10]))
    wrong = row[10] != crc32(stored.payloads, crc32(stored.topic))
    return run_checksum(stored) ^ int(wrong)


def _delivery(*row: Any) -> int:
    return delivery_checksum(StoredDelivery._make(row[:9]), recipient_checksum(row[0]))


def _value(table: str, key: bytes, value: bytes, checksum: int) -> int:
    return value_checksum(table, key, value) ^ (checksum != crc32(value))
