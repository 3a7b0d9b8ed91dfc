"""The audit of one home: which hop was given, acknowledged and ended when, and which posts were refused; a log chained by hashes.

Its rows name hops, and no services: who had a hop stands in the tables of calls, where it may be erased. A row is written once, whatever is
written again after a kill. Rows that are older than the retention go, and the digest of the last one of them stays as the beginning.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...base.chain import digest_of, first_broken
from ..calls import Call

TABLES = """
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL, what TEXT NOT NULL, call TEXT NOT NULL, hop TEXT, digest TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS audit_once ON audit (hop, what);
CREATE TABLE IF NOT EXISTS audit_begin (number INTEGER NOT NULL, digest TEXT NOT NULL);
"""

AT_ONCE = 500  # values in one statement

Fact = tuple[int, str, str, str | None]  # when, what, call, hop; None: of no hop, and as many as there are


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of checking a chain. head: number and digest of the last row. broken: the first row that was changed; None: none was."""

    rows: int
    head: tuple[int, str]
    broken: int | None = None


def facts_of(call: Call) -> Iterator[Fact]:
    """What has happened to the hops of a call."""
    for hop in call.hops():
        for at, what in ((hop.given, "given"), (hop.acknowledged, "acknowledged"), (hop.ended, "ended")):
            if at:
                yield at, what, call.id, hop.id


def append(connection: sqlite3.Connection, facts: Iterable[Fact], fresh: Collection[str] = ()) -> None:
    """Write facts that are not there yet; in the transaction that is open. fresh: calls of which nothing is there."""
    wanted = list(facts)
    known: set[tuple[str | None, str]] = set()
    for hops in batched(sorted({hop for _, _, call, hop in wanted if hop is not None and call not in fresh}), AT_ONCE):
        known.update(connection.execute(f"SELECT hop, what FROM audit WHERE hop IN ({', '.join('?' * len(hops))})", hops))
    number, digest = _head(connection)
    rows = []
    for at, what, call, hop in wanted:
        if (hop, what) in known:
            continue
        if hop is not None:
            known.add((hop, what))
        number += 1
        digest = digest_of(digest, (number, at, what, call, hop))
        rows.append((number, at, what, call, hop, digest))
    connection.executemany("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?)", rows)


def batched(values: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """Pieces of a list: a statement has at most so many values."""
    return (values[at : at + most] for at in range(0, len(values), most))


def trim(connection: sqlite3.Connection, before: int) -> None:
    """Take out the rows at the beginning that are of before a time; in the transaction that is open."""
    first = connection.execute("SELECT MIN(number) FROM audit WHERE at >= ?", (before,)).fetchone()[0]
    gone = "SELECT number, digest FROM audit" + ("" if first is None else f" WHERE number < {int(first)}")
    last = connection.execute(f"{gone} ORDER BY number DESC LIMIT 1").fetchone()
    if last is not None:
        connection.execute("DELETE FROM audit_begin")
        connection.execute("INSERT INTO audit_begin VALUES (?, ?)", last)
        connection.execute("DELETE FROM audit WHERE number <= ?", (last[0],))


def verify(connection: sqlite3.Connection) -> Verified:
    """Compare each row with its digest."""
    begin = connection.execute("SELECT number, digest FROM audit_begin").fetchone() or (0, "")
    rows = connection.execute("SELECT number, at, what, call, hop, digest FROM audit ORDER BY number")
    broken = first_broken(((row[0], row[:5], row[5]) for row in rows), *begin)
    return Verified(connection.execute("SELECT COUNT(*) FROM audit").fetchone()[0], _head(connection), broken)


def digest_at(connection: sqlite3.Connection, number: int) -> str | None:
    """The digest of a row; None: there is none of this number."""
    row = connection.execute(
        "SELECT digest FROM audit WHERE number = ? UNION SELECT digest FROM audit_begin WHERE number = ?", (number, number)
    ).fetchone()
    return None if row is None else str(row[0])


def _head(connection: sqlite3.Connection) -> tuple[int, str]:
    row = connection.execute("SELECT number, digest FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    return row or connection.execute("SELECT number, digest FROM audit_begin").fetchone() or (0, "")
