"""The tables of one home, in an SQLite file of their own: they may be behind the exchange for a moment, and never ahead of it.

    calls         a call, with its hops as JSON; sessions are what calls of one session say together
    participants  which services take part in a call
    seen          which organisation may look at a call: one of its services takes part in a call of the same session (l. 264)
    identifiers   what services call a message by an identifier of their own (l. 254)
    refused       posts that were refused (l. 208)
    erased        services whose names are taken out of calls of before a time

Rows are written over by their identifiers, so that what is written twice is there once. Queries begin at the asker's own rows: what is
not there and what is another's cost the same.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...store.folder import make_private
from ..calls import Call
from . import audit
from .questions import Question
from .rows import shown

BUSY = 10.0  # seconds that one waits for another
_TABLES = """
CREATE TABLE IF NOT EXISTS calls (
    call TEXT PRIMARY KEY, session TEXT NOT NULL, created INTEGER NOT NULL, ended INTEGER NOT NULL, status TEXT NOT NULL,
    shown TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_by_session ON calls (session, created);
CREATE INDEX IF NOT EXISTS calls_by_time ON calls (created);
CREATE INDEX IF NOT EXISTS calls_by_end ON calls (ended, call) WHERE ended > 0;
CREATE TABLE IF NOT EXISTS participants (call TEXT, service TEXT, session TEXT NOT NULL, hop INTEGER NOT NULL, PRIMARY KEY (call, service))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (session TEXT, organisation TEXT, PRIMARY KEY (session, organisation)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (organisation TEXT, created INTEGER, call TEXT, PRIMARY KEY (organisation, created, call)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_by_call ON seen (call, organisation);
CREATE TABLE IF NOT EXISTS identifiers (
    organisation TEXT, name TEXT, value TEXT, call TEXT, service TEXT, PRIMARY KEY (organisation, name, value, call, service)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS identifiers_by_call ON identifiers (call);
CREATE TABLE IF NOT EXISTS erased (service TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (number INTEGER PRIMARY KEY, at INTEGER NOT NULL, user TEXT, client TEXT, code TEXT, what TEXT);
CREATE INDEX IF NOT EXISTS refused_by_time ON refused (at);
"""

Refused = tuple[int, str, str, str, str]  # when, user, client, code, what


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the file, for one thread at a time; it is its owner's alone. Raises sqlite3.Error."""
    make_private(path)  # SQLite's other files get this one's mode
    connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables."""
    connection.executescript(_TABLES + audit.TABLES)


def write(connection: sqlite3.Connection, calls: Iterable[Call], refused: Sequence[Refused] = (), since: str = "") -> None:
    """Write calls as they are now, and posts that were refused, in one transaction.

    since: the highest identifier of a call that was written; empty: it is not known. Nothing of later calls is looked for.
    """
    calls = list({call.id: call for call in calls}.values())
    with _transaction(connection):
        _write_calls(connection, calls)
        fresh = {call.id for call in calls if since and call.id > since}
        _write_seen(connection, calls, fresh)
        facts = [fact for call in calls for fact in audit.facts_of(call)]
        audit.append(connection, [*facts, *((at, f"refused {code}", "", None) for at, _, _, code, _ in refused)], fresh)
        connection.executemany("INSERT INTO refused (at, user, client, code, what) VALUES (?, ?, ?, ?, ?)", refused)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and in any case no transaction is left open. On a full disk COMMIT fails, and SQLite has rolled back or has not."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _write_calls(connection: sqlite3.Connection, calls: Sequence[Call]) -> None:
    """The rows of calls themselves, in which services are not named that were erased since."""
    erased: dict[str, int] = dict(connection.execute("SELECT service, at FROM erased"))
    rows, parts, names = [], [], []
    for call in calls:
        made = shown(call)
        gone = {one for one in call.services if erased.get(one, -1) >= call.created} if erased else ()
        for service in gone:
            made = _without(made, service)
        text = msgspec.json.encode(made).decode()
        rows.append((call.id, call.session, call.created, call.ended, made["status"], text))
        with_hop = {hop.service for hop in call.hops()}
        parts += [(call.id, service, call.session, service in with_hop) for service in sorted(call.services) if service not in gone]
        for service, name, value in call.identifiers:
            if service not in gone:
                names.append((service.partition("/")[0], name, value, call.id, service))
    connection.executemany("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.executemany("INSERT OR REPLACE INTO participants VALUES (?, ?, ?, ?)", parts)
    connection.executemany("INSERT OR IGNORE INTO identifiers VALUES (?, ?, ?, ?, ?)", names)


def _write_seen(connection: sqlite3.Connection, calls: Sequence[Call], fresh: Collection[str]) -> None:
    """Who may look at calls: every organisation that takes part in a call of the same session. A new one sees the earlier calls too.

    fresh: calls of which nothing is there.
    """
    known: dict[str, set[str]] = {call.session: set() for call in calls}
    begun = {call.session for call in calls if call.id in fresh and _begins(call)}
    for sessions in audit.batched([one for one in known if one not in begun], audit.AT_ONCE):
        asked = f"SELECT session, organisation FROM members WHERE session IN ({_marks(sessions)})"
        for session, organisation in connection.execute(asked, sessions):
            known[session].add(organisation)
    before = {session for session, organisations in known.items() if organisations}
    joined = []
    for call in calls:
        members = known[call.session]
        new = {service.partition("/")[0] for service in call.services} - members
        members |= new
        joined += [(call.session, organisation) for organisation in sorted(new)]
    connection.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", joined)
    seen = [(organisation, call.created, call.id) for call in calls for organisation in sorted(known[call.session])]
    connection.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", seen)
    of_session = "INSERT OR IGNORE INTO seen SELECT ?, created, call FROM calls WHERE session = ?"
    connection.executemany(of_session, [(organisation, session) for session, organisation in joined if session in before])


def _begins(call: Call) -> bool:
    """Whether a session began with a call: it was issued after the call, by the same home."""
    return call.session[:4] == call.id[:4] and call.session[:16] > call.id


def takes_part(connection: sqlite3.Connection, organisations: Sequence[str], session: str) -> bool:
    """Whether a service of these organisations takes part in a session here."""
    asked = f"SELECT 1 FROM members WHERE session = ? AND organisation IN ({_marks(organisations)})"
    return connection.execute(asked, (session, *organisations)).fetchone() is not None


def find(connection: sqlite3.Connection, organisations: Sequence[str], question: Question, vouched: bool = False) -> list[dict[str, Any]]:
    """Calls that these organisations may look at, the latest first; one more than the question's limit, if there are more.

    vouched: another home says that one of them takes part in the session that is asked for.
    """
    rows: dict[str, tuple[int, str]] = {}  # call -> when, and what is shown
    if vouched:
        rows = _found(connection, "calls AS s", ["s.session = ?"], [question.session], organisations, question)
    else:
        for one in organisations:
            rows |= _found(connection, "seen AS s", ["s.organisation = ?"], [one], organisations, question)
    latest = sorted(rows, key=lambda call: (rows[call][0], call), reverse=True)[: question.limit + 1]
    return [_for(connection, organisations, json.loads(rows[call][1]), call) for call in latest]


def ended_since(connection: sqlite3.Connection, place: tuple[int, str], before: int, most: int) -> list[dict[str, Any]]:
    """Calls that ended after the one at a place (its end and identifier) and before a time, the earliest first; at most so many."""
    asked = "SELECT shown FROM calls WHERE ended > 0 AND (ended, call) > (?, ?) AND ended < ? ORDER BY ended, call LIMIT ?"
    return [json.loads(row[0]) for row in connection.execute(asked, (*place, before, most))]


def _found(
    connection: sqlite3.Connection, source: str, wanted: list[str], values: list[Any], organisations: Sequence[str], question: Question
) -> dict[str, tuple[int, str]]:
    """The latest calls of a source that are as asked; its index gives them in order, so that a page is read and no more."""
    for text, value in (
        ("s.call = ?", question.call),
        ("s.created >= ?", question.since),
        ("s.created < ?", question.until),
        ("c.session = ?", question.session),
        ("c.status = ?", question.status),
        ("EXISTS (SELECT 1 FROM participants AS p WHERE p.call = s.call AND p.service = ?)", question.service),
        ("EXISTS (SELECT 1 FROM participants AS p WHERE p.call = s.call AND p.service = ? AND p.hop)", question.route),
    ):
        if value is not None and value != "":
            wanted.append(text)
            values.append(value)
    if question.identifier is not None:
        given = f"SELECT call FROM identifiers WHERE organisation IN ({_marks(organisations)}) AND name = ? AND value = ?"
        wanted.append(f"s.call IN ({given})")
        values += [*organisations, *question.identifier]
    if question.after is not None:
        wanted.append("(s.created, s.call) < (?, ?)")
        values += question.after
    text = f"SELECT s.call, c.created, c.shown FROM {source} JOIN calls AS c ON c.call = s.call WHERE {' AND '.join(wanted)}"
    rows = connection.execute(f"{text} ORDER BY s.created DESC, s.call DESC LIMIT ?", (*values, question.limit + 1))
    return {call: (created, shown) for call, created, shown in rows}


def _for(connection: sqlite3.Connection, organisations: Sequence[str], found: dict[str, Any], call: str) -> dict[str, Any]:
    """A call as somebody may see it: a handle, and identifiers, are of those who gave them."""
    if found["sender"].partition("/")[0] not in organisations:
        found.pop("handle", None)
    given = f"SELECT name, value, service FROM identifiers WHERE call = ? AND organisation IN ({_marks(organisations)})"
    rows = connection.execute(given, (call, *organisations))
    names = [{"name": name, "value": value, "service": service} for name, value, service in rows]
    return found | ({"identifiers": names} if names else {})


def erase(connection: sqlite3.Connection, service: str, now: int) -> int:
    """Take out what a service calls messages by, and its name from every call: how many calls it was in. The calls stay for the others."""
    with _transaction(connection):
        calls = [row[0] for row in connection.execute("SELECT call FROM participants WHERE service = ?", (service,))]
        for call in calls:
            (text,) = connection.execute("SELECT shown FROM calls WHERE call = ?", (call,)).fetchone()
            made = json.dumps(_without(json.loads(text), service), ensure_ascii=False)
            connection.execute("UPDATE calls SET shown = ? WHERE call = ?", (made, call))
        connection.execute("INSERT OR REPLACE INTO erased VALUES (?, ?)", (service, now))
        connection.execute("DELETE FROM participants WHERE service = ?", (service,))
        connection.execute("DELETE FROM identifiers WHERE service = ?", (service,))
    return len(calls)


ERASED = "erased"


def _without(value: Any, service: str) -> Any:
    """Plain values in which a service is not named; its handle goes too."""
    if isinstance(value, dict):
        mine = value.get("sender") == service
        return {key: _without(one, service) for key, one in value.items() if not (mine and key == "handle")}
    if isinstance(value, list):
        return [_without(one, service) for one in value]
    return ERASED if value == service else value


def forget(connection: sqlite3.Connection, before: int, most: int = 10_000) -> int:
    """Take out calls that ended, and posts that were refused, before a time: how many calls. At most `most` at once."""
    with _transaction(connection):
        old = "SELECT call, session FROM calls WHERE created < ? AND ended AND ended < ? LIMIT ?"
        gone = connection.execute(old, (before, before, most)).fetchall()
        calls = [(call,) for call, _ in gone]
        for table in ("calls", "participants", "seen", "identifiers"):
            connection.executemany(f"DELETE FROM {table} WHERE call = ?", calls)
        left = "DELETE FROM members WHERE session = ? AND NOT EXISTS (SELECT 1 FROM calls WHERE calls.session = members.session)"
        connection.executemany(left, {(session,) for _, session in gone})
        connection.execute("DELETE FROM refused WHERE at < ?", (before,))
        audit.trim(connection, before)
    return len(gone)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
